//! The other holder of a device's memory: a process that does nothing else, and so outlives the one that serves.
//!
//! Memory of a memfd may be swapped out unless a process has it locked, in the worst case to the very device that
//! no thread serves any more. So the keeper maps all of it and locks it, and the serving process opens it through the
//! keeper's entry in `/proc`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use spillway_sys::atomic_words::{AtomicWords, WORD_SIZE_BYTES};
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;

use super::header::{HEADER_WORDS, Header};
use super::records::Records;
use super::{DeviceState, Words};
use crate::error::VolumeError;
use crate::settings::VolumeConfig;

/// The memory of a device, held and locked; see the module text.
#[derive(Debug)]
pub struct KeptMemory {
    file: Memfd,
    header: Header,
    // Held for the lock on it.
    _everything: Mapping,
}

impl KeptMemory {
    /// Memory for the device that `config` describes.
    pub fn make(config: &VolumeConfig) -> Result<Self, VolumeError> {
        let file = DeviceState::memory(config)?;
        Self::hold(file).map_err(VolumeError::system("cannot keep the state of the device in memory"))
    }

    fn hold(file: Memfd) -> io::Result<Self> {
        let length = usize::try_from(file.length_bytes()).map_err(io::Error::other)?;
        let everything = Mapping::shared(&file, length)?;
        everything.lock()?;
        assert!(length >= HEADER_WORDS * WORD_SIZE_BYTES, "a state has a head");
        let header = Header::over(Words::over(AtomicWords::shared(&file, HEADER_WORDS)?));
        Ok(Self { file, header, _everything: everything })
    }

    /// Where another process of this user opens it, as long as this one lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_fd().as_raw_fd()).into()
    }

    /// What the processes that serve the device note.
    pub fn records(&self) -> Records {
        self.header.records()
    }

    /// Whether the process that served said that another one should go on, should it die.
    pub fn is_serving(&self) -> bool {
        self.header.records().is_serving()
    }
}

/// Opens the memory that another process keeps at `path`.
pub fn open(path: &Path) -> io::Result<Memfd> {
    Memfd::open(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}
