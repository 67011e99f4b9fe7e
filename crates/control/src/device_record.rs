//! What the entry of a device, or of a run by the pager, says to later processes.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spillway_report::kind::Kind;
use spillway_sys::mount_point::GuardedPlace;
use spillway_sys::own_files;

use crate::registry::{Found, Registry};

/// What the entry of a device, or of a run by the pager, says to the process that mends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// The block device, once there is one.
    pub path: Option<PathBuf>,
    /// A backing file that goes with the device.
    pub temporary_backing: Option<PathBuf>,
    /// The run that it belongs to.
    pub run: Option<String>,
    /// Whether its launcher let it live on.
    #[serde(default)]
    pub released: bool,
}

impl DeviceRecord {
    /// The record in an entry.
    pub fn read(entry: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(entry.join("device.json")).ok()?).ok()
    }

    /// Writes it into an entry.
    pub fn write(&self, entry: &Path) -> std::io::Result<()> {
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

/// Removes the backing file that goes with the device, if there is one.
pub fn remove_backing(record: &DeviceRecord) {
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
