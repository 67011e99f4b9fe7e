//! Swap that is on for as long as a value lives.
//!
//! Invariants: one area of ours is on at a time on this machine, so a page can only have gone to the device that is
//! measured. A lock on a file makes other runs of this program wait; its priority is above that of any other area; a
//! file in memory is never swapped to.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_machine::swap_list;

use super::interrupt::Interrupt;
use super::{HarnessError, storage, tool};
use crate::limits::{SWAP_LOCK_DEADLINE, SWAP_OFF_DEADLINE, SWAP_PRIORITY};

/// Locked while an area of ours is on. Any place that all runs share and that root may write to will do.
const LOCK_FILE: &str = "/run/spillway-bench.lock";

/// A swap area that is on.
#[derive(Debug)]
pub struct SwapArea {
    path: PathBuf,
    // Closing the file, after the area is off, unlocks it.
    _lock: File,
}

fn lock(path: &Path, limit: Duration, interrupt: &Interrupt) -> Result<File, HarnessError> {
    let what = format!("opening {}, as root", path.display());
    let mut options = File::options();
    let file = options.create(true).append(true).open(path).map_err(HarnessError::system(what))?;
    interrupt.poll("waiting for another run's swap area", limit, || file.try_lock().ok())?;
    Ok(file)
}

impl SwapArea {
    /// Formats `path`, a block device or a file on a disk, and turns swapping to it on.
    pub fn on(path: &Path, interrupt: &Interrupt) -> Result<Self, HarnessError> {
        if path.is_file() {
            storage::on_disk(path.parent().unwrap_or(Path::new("/")))?;
        }
        // From here on the value exists, so that a failure turns off what may be on.
        let area = Self { _lock: lock(Path::new(LOCK_FILE), SWAP_LOCK_DEADLINE, interrupt)?, path: path.to_owned() };
        tool::run("mkswap", [path], interrupt)?;
        let priority = priority().to_string();
        tool::run("swapon", ["--priority".as_ref(), priority.as_ref(), path.as_os_str()], interrupt)?;
        Ok(area)
    }
}

/// A priority above those of all areas that are on, and above the usual ones.
fn priority() -> i32 {
    SWAP_PRIORITY.max(swap_list::priority_above(&swap_list::read().unwrap_or_default()))
}

impl Drop for SwapArea {
    fn drop(&mut self) {
        if swap_list::find(&self.path).is_ok_and(|area| area.is_some())
            && let Err(error) = tool::undo("swapoff", [&self.path], SWAP_OFF_DEADLINE)
        {
            eprintln!("spillway-bench: {error}; run: swapoff {}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_at_a_time_and_a_failure_frees_the_place() {
        let (interrupt, file) = (Interrupt::never(), tempfile::NamedTempFile::new().unwrap());
        let first = lock(file.path(), Duration::ZERO, &interrupt).unwrap();
        let error = lock(file.path(), Duration::ZERO, &interrupt).unwrap_err().to_string();
        assert!(error.contains("another run"), "{error}");
        drop(first);
        assert!(lock(file.path(), Duration::ZERO, &interrupt).is_ok());
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error_each_time() {
        for _ in 0..2 {
            let error = SwapArea::on(Path::new("/nonexistent/swap"), &Interrupt::never()).unwrap_err().to_string();
            assert!(error.contains("mkswap") || error.contains("as root"), "{error}");
        }
    }

    #[test]
    fn memory_is_never_swapped_to() {
        let Ok(directory) = storage::PrivateDirectory::in_memory() else {
            return spillway_sys::skipping::skip_because("there is no /dev/shm");
        };
        let file = directory.path().join("swap");
        std::fs::write(&file, [0; 4096]).unwrap();
        assert!(matches!(SwapArea::on(&file, &Interrupt::never()), Err(HarnessError::Missing(_))));
    }
}
