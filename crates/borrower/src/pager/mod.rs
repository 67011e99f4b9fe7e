//! Pages programs through userfaultfd: `spillway run --via pager` (docs/pager.md).
//!
//! - [`config`]: how a pager is started; [`statistics`]: what it tells; [`limits`]: every bound.

pub mod config;
pub mod directory;
pub mod eviction;
pub mod faults;
pub mod limits;
pub mod program;
pub mod shared;
pub mod slots;
pub mod space;
pub mod staging;
pub mod statistics;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillway_fabric::buffer_pool::BufferPool;

pub use self::config::{PagerConfig, Placement};
use self::limits::{BUDGET_BYTES_MIN, GROUP_SIZE_BYTES};
use self::statistics::Counters;
pub use self::statistics::PagerStatistics;
use crate::device::remote::Remote;
use crate::device::status::DeviceStatus;
use crate::device::{DeviceConfig, DeviceError, health};
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::state::DeviceState;

/// Why a pager could not be started. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// A setting is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The volume behind it could not be started.
    #[error(transparent)]
    Volume(#[from] DeviceError),
    /// A system call failed.
    #[error("{context}: {source}")]
    System {
        /// What was being done.
        context: String,
        /// The error.
        source: std::io::Error,
    },
}

impl PagerError {
    pub(crate) fn system(context: &str) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let context = context.to_owned();
        move |source| Self::System { context, source }
    }
}

/// A running pager. Dropping it stops it; programs must have ended by then.
pub struct Pager {
    config: PagerConfig,
    volume_config: DeviceConfig,
    metrics: Arc<Metrics>,
    counters: Arc<Counters>,
    budget_bytes: Arc<AtomicU64>,
    remote: Option<Remote>,
}

/// What a pager says of itself: the volume's report, and its own.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PagerStatus {
    /// Donors, slabs, traffic, health; `path` is the socket.
    pub device: DeviceStatus,
    /// The pager's own.
    pub pager: PagerStatistics,
}

/// Buffers of the fault thread: as many reads as it has under way, see [`limits`].
const FAULT_BUFFERS: usize = 32;

impl Pager {
    /// Connects to donors and starts the threads; programs that are started with [`Pager::environment`] are paged from now on.
    pub fn start(config: PagerConfig) -> Result<Self, PagerError> {
        config.check()?;
        let volume_config = config.volume();
        let state = DeviceState::open(DeviceState::memory(&volume_config)?, &volume_config)?;
        let metrics = Arc::new(Metrics::default());
        let pool = |count| {
            BufferPool::new(count, GROUP_SIZE_BYTES as usize).map_err(PagerError::system("cannot reserve buffers"))
        };
        let pools = [pool(FAULT_BUFFERS)?];
        let (_engines, remote): (Vec<Engine>, Remote) =
            Remote::start(&volume_config, &state, Duration::ZERO, &metrics, &pools)?;
        remote.await_donors(config.donor_wait, false)?;
        let budget_bytes = Arc::new(AtomicU64::new(config.budget_bytes));
        Ok(Self { config, volume_config, metrics, counters: Arc::default(), budget_bytes, remote: Some(remote) })
    }

    /// What a program needs in its environment to be paged. `LD_PRELOAD` is to be put before what the user set there.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("SPILLWAY_PAGER".into(), self.config.socket().into_os_string()),
            ("LD_PRELOAD".into(), self.config.preload.clone().into_os_string()),
        ]
    }

    /// Changes the local memory for all programs together.
    pub fn set_budget_bytes(&self, bytes: u64) {
        self.budget_bytes.store(bytes.max(BUDGET_BYTES_MIN), Ordering::Relaxed);
    }

    /// What was done so far.
    pub fn statistics(&self) -> PagerStatistics {
        self.counters.report(self.budget_bytes.load(Ordering::Relaxed), Vec::new())
    }

    /// What is going on, with the volume behind the pager.
    pub fn status(&self) -> PagerStatus {
        let mut device = DeviceStatus {
            name: self.config.name.clone(),
            path: self.config.socket().display().to_string(),
            frontend: "pager (userfaultfd)".to_owned(),
            size_bytes: self.volume_config.size_bytes,
            slab_size_bytes: self.volume_config.slab_size_bytes,
            redundancy: self.volume_config.redundancy.to_string(),
            mapping: self.volume_config.mapping.to_string(),
            traffic: self.metrics.status(),
            ..DeviceStatus::default()
        };
        if let Some(remote) = &self.remote {
            device.failure = remote.volume.downfall.reason();
            remote.describe(&self.volume_config, &mut device);
            device.health = health::summarise(&device, usize::from(self.volume_config.redundancy.replicas));
        }
        PagerStatus { device, pager: self.statistics() }
    }

    /// Ends the threads and gives all slabs back. Programs must have ended: whoever is left is killed, since its pages go.
    pub fn stop(&mut self) {
        if let Some(mut remote) = self.remote.take() {
            remote.stop();
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod simulation;
