//! What processes of a device tell one another, and write down for later ones.
//!
//! - [`LaunchedDevice`]: from the launcher to the keeper; [`Readiness`]: the answer. [`KeeperHandover`]: from the
//!   keeper to the process that serves.
//! - [`DeviceRecord`]: what the entry of a device says to later processes.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spillway_frontend::nbd::listener::NbdAddress;
use spillway_report::kind::Kind;
use spillway_sys::mount_point::GuardedPlace;
use spillway_sys::own_files;

use super::prefetch::plan::PrefetchPlan;
use super::storage::StorageSettings;
use crate::as_typed;
use crate::own_donors::OwnDonorsPlan;
use crate::registry::{Found, Registry};

/// Everything the device's process needs to know, checked by the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LaunchedDevice {
    /// Its name.
    pub(crate) name: String,
    /// Where its pages go.
    #[serde(flatten)]
    pub(crate) storage: StorageSettings,
    /// Donors of its own that its keeper starts.
    #[serde(default)]
    pub(crate) own_donors: Option<OwnDonorsPlan>,
    /// Where it serves NBD clients, instead of being a block device; empty for none.
    #[serde(with = "as_typed::list")]
    pub(crate) listen: Vec<NbdAddress>,
    /// Also where other machines may connect.
    pub(crate) insecure_listen: bool,
    /// Clients at a time.
    pub(crate) connections: Option<usize>,
    /// Whether the whole machine swaps to it.
    pub(crate) machine_swap: bool,
    /// Whether it serves from its own memory.
    pub(crate) local_memory: bool,
    /// Whether its pages are served again, through a new block device, when its process and with it the block device
    /// died: for disks, which can be plugged in again, and not for swap. A front end whose block device stays needs
    /// no such leave.
    pub(crate) outlives_block_device: bool,
    /// The run that it belongs to.
    pub(crate) run: Option<String>,
    /// What comes ahead from it, if it is the machine's swap; none: what the kernel reads ahead.
    #[serde(default)]
    pub(crate) prefetch: Option<PrefetchPlan>,
}

/// The line that the process answers with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Readiness {
    /// The device is there.
    Ready {
        /// Its path.
        path: PathBuf,
        /// What is less safe than it should be, in words.
        notes: Vec<String>,
        /// Donors that could not be reached, with the reason.
        donors_missing: Vec<String>,
    },
    /// It could not be started.
    Failed(String),
}

/// What a keeper hands to the process that serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeeperHandover {
    /// Where the memory is opened; none for a device without pages that could outlive it.
    pub(crate) memory: Option<PathBuf>,
    /// What is less safe than it should be, in words.
    pub(crate) notes: Vec<String>,
    /// Whether the launcher let the device live on without it.
    pub(crate) released: bool,
    /// Whether it is to fail every request: the device was given up.
    pub(crate) fails: bool,
}

/// What the entry of a device, or of a run by the pager, says to the process that mends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceRecord {
    /// The block device, once there is one.
    pub(crate) path: Option<PathBuf>,
    /// A backing file that goes with the device.
    pub(crate) temporary_backing: Option<PathBuf>,
    /// The run that it belongs to.
    pub(crate) run: Option<String>,
    /// Whether its launcher let it live on.
    #[serde(default)]
    pub(crate) released: bool,
}

impl DeviceRecord {
    /// The record in an entry.
    pub(crate) fn read(entry: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(entry.join("device.json")).ok()?).ok()
    }

    pub(crate) fn write(&self, entry: &Path) -> std::io::Result<()> {
        Ok(own_files::replace(&entry.join("device.json"), 0o600, &serde_json::to_vec(self)?)?)
    }
}

/// Whether a living device has this path by now, and not the one of this name: the numbers of block devices are used
/// again.
pub(crate) fn is_anothers(registry: &Registry, name: &str, path: &Path) -> bool {
    let entries = registry.entries().unwrap_or_default();
    let mut others = entries.iter().filter(|found| found.kind == Kind::Device && found.name != name);
    let has_path =
        |found: &Found| DeviceRecord::read(&found.path).is_some_and(|record| record.path.as_deref() == Some(path));
    others.any(|found| found.is_alive() && has_path(found))
}

pub(crate) fn remove_backing(record: &DeviceRecord) {
    if let Some(path) = &record.temporary_backing {
        // It may never have been made. Where others could have put a file of theirs, nothing is removed.
        let _ = GuardedPlace::of(path).and_then(|place| place.remove());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_an_entry_survives_and_its_backing_file_goes() {
        let directory = tempfile::tempdir().unwrap();
        let backing = directory.path().join("backing");
        fs::write(&backing, "x").unwrap();
        let record = DeviceRecord {
            path: Some("/dev/loop9".into()),
            temporary_backing: Some(backing.clone()),
            run: None,
            released: true,
        };
        record.write(directory.path()).unwrap();
        let read = DeviceRecord::read(directory.path()).unwrap();
        assert_eq!((read.path.as_ref(), read.released), (record.path.as_ref(), true));
        remove_backing(&read);
        assert!(!backing.exists());
        assert!(DeviceRecord::read(&directory.path().join("none")).is_none());
    }
}
