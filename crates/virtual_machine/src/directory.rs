//! A machine's files on the host: its disks, its console, and the folder that it shares with the host.
//!
//! They go when the machine goes. What a killed test left is removed by the next machine: the process that lives
//! holds a lock.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::image::cache_directory;

/// The files of one machine.
#[derive(Debug)]
pub struct MachineDirectory {
    directory: tempfile::TempDir,
    _lock: File,
}

const LOCK: &str = "lock";

impl MachineDirectory {
    /// Makes one, and removes those of dead owners.
    pub fn make() -> Result<Self, Failure> {
        Self::make_in(&cache_directory().join("machines"))
    }

    fn make_in(parent: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(parent).map_err(Failure::file(parent))?;
        // No process sweeps while a new one has no lock of its own yet.
        let parent_lock = parent.join(LOCK);
        let sweeping = File::create(&parent_lock).map_err(Failure::file(&parent_lock))?;
        sweeping.lock().map_err(Failure::file(&parent_lock))?;
        sweep(parent);
        let directory =
            tempfile::Builder::new().prefix("machine-").tempdir_in(parent).map_err(Failure::file(parent))?;
        let lock = directory.path().join(LOCK);
        let file = File::create(&lock).map_err(Failure::file(&lock))?;
        file.lock().map_err(Failure::file(&lock))?;
        let share = directory.path().join("share");
        fs::create_dir(&share).map_err(Failure::file(&share))?;
        Ok(Self { directory, _lock: file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The folder that the guest sees as `/share`.
    pub fn share(&self) -> PathBuf {
        self.path().join("share")
    }

    /// What the guest's kernel says.
    pub fn console(&self) -> PathBuf {
        self.path().join("console")
    }

    /// What QEMU says.
    pub fn errors(&self) -> PathBuf {
        self.path().join("errors")
    }

    /// Writes a file into the shared folder.
    pub fn write_shared(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.share().join(name);
        fs::write(&path, text).map_err(Failure::file(&path))
    }
}

/// Removes directories whose lock no process holds.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let Ok(file) = File::open(entry.path().join(LOCK)) else { continue };
        if file.try_lock().is_ok() {
            // Another process may remove it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_left_is_removed_and_what_the_living_have_stays() {
        let parent = tempfile::tempdir().unwrap();
        let living = MachineDirectory::make_in(parent.path()).unwrap();
        let dead = parent.path().join("machine-dead");
        fs::create_dir_all(dead.join("share")).unwrap();
        fs::write(dead.join(LOCK), "").unwrap();
        let other = MachineDirectory::make_in(parent.path()).unwrap();
        assert!(!dead.exists() && living.share().is_dir() && other.share().is_dir());
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn shared_files_are_written() {
        let parent = tempfile::tempdir().unwrap();
        let directory = MachineDirectory::make_in(parent.path()).unwrap();
        directory.write_shared("settings", "a=b\n").unwrap();
        assert_eq!(fs::read_to_string(directory.share().join("settings")).unwrap(), "a=b\n");
        assert!(directory.write_shared("no/such", "").is_err());
    }
}
