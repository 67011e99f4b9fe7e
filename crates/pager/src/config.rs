//! How a pager is started, and what may be wrong with that.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use spillway_block::cpu_idle::KeepAwake;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_policy::replacement::sampled::EagerEviction;
use spillway_stub::protocol::TOKEN_MARK;
use spillway_sys::guardian::Successor;
use spillway_volume::settings::VolumeConfig;

use crate::error::PagerError;
use crate::fault::recording::RecordingConfig;
use crate::limits::{BUDGET_BYTES_MIN, FAULT_THREADS_MAX};
use crate::mappings::staying_kinds::SharedMemoryKinds;

/// How to start a pager.
#[derive(Clone, Debug)]
pub struct PagerConfig {
    /// The volume behind the pager. Its size is what programs may have outside local memory.
    pub volume: VolumeConfig,
    /// When idle CPUs are kept awake.
    pub keep_awake: KeepAwake,
    /// Bytes of local memory for all programs together.
    pub budget_bytes: u64,
    /// A directory of this run alone; the sockets for hellos are made in it. Any user that a program becomes must be
    /// able to pass through it.
    pub directory: PathBuf,
    /// What proves that a program was started in this run: it stands in its environment, which other users cannot
    /// read. Any number; random.
    pub token: u64,
    /// The library that programs load (`LD_PRELOAD`).
    pub preload: PathBuf,
    /// Whether the kernel tells of forks, as it does with `CAP_SYS_PTRACE`. If not, programs ask before each, and
    /// wait until all of their pages are back ([`spillway_sys::call_notices`]).
    pub programs_fork: bool,
    /// Which shared memory leaves ([`crate::shared_memory`]). Only where the kernel tells of forks, and with a filter
    /// that asks ([`spillway_sys::call_filter::Asked::shared_memory`]).
    pub shared_memory: SharedMemoryKinds,
    /// Whether blocks of 2 MiB whose pages are all there again become huge pages ([`crate::huge_pages`]).
    pub huge_pages: bool,
    /// Threads that answer faults, from 1 on; [`crate::limits::fault_threads`] if `None`.
    pub fault_threads: Option<usize>,
    /// Which pages come along with those that programs wait for.
    pub prefetch: PrefetchPolicy,
    /// When pages leave that came along and were used.
    pub eager_eviction: EagerEviction,
    /// The faults to record, if any.
    pub recording: Option<RecordingConfig>,
    /// The name and arguments with which this very program (`/proc/self/exe`) removes what is left if this process is
    /// killed; its guardian becomes that when no program of the run is left. None without any.
    pub mender: Vec<OsString>,
}

impl PagerConfig {
    /// The path of the socket that stubs say hello to.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("pager.sock")
    }

    /// What programs find in [`ADDRESS_VARIABLE`](spillway_stub::protocol::ADDRESS_VARIABLE).
    pub(crate) fn variable(&self) -> OsString {
        let mut text = self.socket().into_os_string();
        text.push(format!("{}{:016x}", char::from(TOKEN_MARK), self.token));
        text
    }

    /// What the guardian becomes.
    pub(crate) fn successor(&self) -> std::io::Result<Option<Successor>> {
        let has_one = !self.mender.is_empty();
        has_one.then(|| Successor::new(OsStr::new("/proc/self/exe"), &self.mender)).transpose()
    }

    pub(crate) fn check(&self) -> Result<(), PagerError> {
        if self.budget_bytes < BUDGET_BYTES_MIN {
            return Err(PagerError::Budget { bytes: self.budget_bytes });
        }
        if let Some(count) = self.fault_threads.filter(|count| !(1..=FAULT_THREADS_MAX).contains(count)) {
            return Err(PagerError::FaultThreads { count });
        }
        let missing = [&self.preload, &self.directory].into_iter().find(|path| !path.exists());
        if let Some(path) = missing {
            return Err(PagerError::Missing { path: path.clone() });
        }
        Ok(())
    }
}
