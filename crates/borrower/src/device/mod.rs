//! A device: volume, I/O threads, manager and front end put together.
//!
//! - [`redundancy`]: the setting for copies.
//! - [`status`]: what a device says of itself.

pub mod redundancy;
pub mod status;

use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_fabric::address::DonorAddress;

use self::redundancy::Redundancy;
use self::status::DeviceStatus;

/// How to start a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Shows in status, mounts and logs; letters, digits and dashes.
    pub name: String,
    /// Bytes of the device; rounded up to whole slabs.
    pub size_bytes: u64,
    /// Bytes of a slab: a power of two between the fabric's limits.
    pub slab_size_bytes: u64,
    /// Donors to borrow from; more may be added later by the cluster manager.
    pub donors: Vec<DonorAddress>,
    /// The cluster key file; `None` reaches only donors without a key (loopback and UNIX sockets).
    pub key_file: Option<PathBuf>,
    /// Where copies live.
    pub redundancy: Redundancy,
    /// The backing file for `redundancy.disk`; made, at the device's size, when it does not exist.
    pub backing: Option<PathBuf>,
    /// Threads that serve the device; `None` takes the measured default.
    pub io_threads: Option<usize>,
    /// Serve from memory of this process instead of donors: the yardstick for the front end's own cost.
    pub local_memory: bool,
    /// How long to wait at the start for the first donor.
    pub donor_wait: Duration,
}

/// Why a device could not be started or stopped. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A setting is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The kernel or the user lacks something.
    #[error("{0}")]
    Missing(String),
    /// No donor answered, or none may lend.
    #[error("{0}")]
    NoDonor(String),
    /// The backing file cannot be used.
    #[error("{0}")]
    Backing(String),
    /// Somebody still uses the device.
    #[error("{0}")]
    Busy(String),
    /// A system call failed.
    #[error("{context}: {source}")]
    System {
        /// What was being done.
        context: String,
        /// The error.
        source: std::io::Error,
    },
}

/// A running block device. Dropping it detaches everything that can be detached.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
}

impl Device {
    /// Connects to donors, starts the threads and attaches the block device. Nothing is left behind on an error.
    pub fn start(_config: DeviceConfig) -> Result<Self, DeviceError> {
        Err(DeviceError::Missing("not built yet".to_owned()))
    }

    /// The block device, such as `/dev/loop0`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is going on.
    pub fn status(&self) -> DeviceStatus {
        DeviceStatus::default()
    }

    /// Detaches the block device, stops the threads and gives all slabs back. Fails with [`DeviceError::Busy`], and leaves
    /// everything as it was, while somebody has the device open (swap on, mounted).
    pub fn stop(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}
