//! Free pages that the kernel keeps back for whoever frees memory (`vm.min_free_kbytes`), while the machine swaps to us.
//!
//! Sending a page to a donor takes a page. On a machine without a free one all others wait at this reserve, and the process that
//! serves the swap, real-time for that reason, may take half of it (`spillway_sys::paging_safety::use_memory_reserves`). The
//! kernel's own choice, 4 * sqrt(memory in KiB), is 1.8 MiB on a machine of 256 MiB; with it that machine stopped, with 16 MiB it
//! did not (crates/cli/tests/virtual_machine/two_machines.rs).
//!
//! Dropping it puts the setting back, unless somebody else has changed it meanwhile. What was there before is written down in
//! the device's entry, for whoever mends what a killed keeper left.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The kernel's setting (Documentation/admin-guide/sysctl/vm.rst).
const SETTING: &str = "/proc/sys/vm/min_free_kbytes";

/// What suffices, see the module text: both directions of some connections' sockets, and slabs that come.
const RESERVE_KIB: u64 = 16 << 10;

/// At most this part of the machine's memory is kept back.
const MEMORY_DIVISOR: u64 = 16;

/// Its file in an entry.
const RECORD: &str = "reserve.json";

/// A reserve that was raised.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reserve {
    setting: PathBuf,
    before_kib: u64,
    raised_kib: u64,
}

impl Reserve {
    /// Raises this machine's reserve; nothing if it suffices.
    pub(crate) fn raise(memory_bytes: u64) -> io::Result<Option<Self>> {
        Self::raise_in(Path::new(SETTING), memory_bytes)
    }

    fn raise_in(setting: &Path, memory_bytes: u64) -> io::Result<Option<Self>> {
        let before_kib = read(setting)?;
        let raised_kib = RESERVE_KIB.min(memory_bytes / 1024 / MEMORY_DIVISOR);
        if before_kib >= raised_kib {
            return Ok(None);
        }
        fs::write(setting, raised_kib.to_string())?;
        Ok(Some(Self { setting: setting.to_owned(), before_kib, raised_kib }))
    }

    /// Writes it down in an entry, for [`Reserve::recorded`].
    pub(crate) fn record(&self, entry: &Path) -> io::Result<()> {
        fs::write(entry.join(RECORD), serde_json::to_vec(self)?)
    }

    /// The one that the owner of an entry raised. It is put back when dropped, so its owner must be dead.
    pub(crate) fn recorded(entry: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(entry.join(RECORD)).ok()?).ok()
    }

    /// In words, for `status`.
    pub(crate) fn note(&self) -> String {
        format!("vm.min_free_kbytes is {} instead of {} while this swap is on", self.raised_kib, self.before_kib)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        if read(&self.setting).is_ok_and(|now_kib| now_kib == self.raised_kib) {
            // Refused where it could be raised: then it stays raised, which harms nobody.
            let _ = fs::write(&self.setting, self.before_kib.to_string());
        }
    }
}

fn read(setting: &Path) -> io::Result<u64> {
    fs::read_to_string(setting)?.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIBIBYTE: u64 = 1 << 30;

    fn setting(kib: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("min_free_kbytes");
        fs::write(&path, kib).unwrap();
        (directory, path)
    }

    #[test]
    fn a_small_reserve_is_raised_and_put_back() {
        let (_directory, path) = setting("1811\n");
        let reserve = Reserve::raise_in(&path, GIBIBYTE).unwrap().unwrap();
        assert_eq!(read(&path).unwrap(), RESERVE_KIB);
        assert!(reserve.note().contains("16384 instead of 1811"), "{}", reserve.note());
        drop(reserve);
        assert_eq!(read(&path).unwrap(), 1811);
    }

    #[test]
    fn what_a_killed_keeper_raised_is_put_back_once() {
        let (directory, path) = setting("1811");
        let reserve = Reserve::raise_in(&path, GIBIBYTE).unwrap().unwrap();
        assert!(Reserve::recorded(directory.path()).is_none());
        reserve.record(directory.path()).unwrap();
        std::mem::forget(reserve);
        drop(Reserve::recorded(directory.path()));
        assert_eq!(read(&path).unwrap(), 1811);
        fs::write(&path, "4096").unwrap();
        drop(Reserve::recorded(directory.path()));
        assert_eq!(read(&path).unwrap(), 4096, "somebody else's since");
    }

    #[test]
    fn a_small_machine_keeps_most_of_its_memory() {
        let (_directory, path) = setting("500");
        let _reserve = Reserve::raise_in(&path, GIBIBYTE / 16).unwrap().unwrap();
        assert_eq!(read(&path).unwrap(), 4096);
    }

    #[test]
    fn what_suffices_is_left_alone_and_so_is_what_others_set() {
        let (_directory, path) = setting("65536");
        assert!(Reserve::raise_in(&path, GIBIBYTE).unwrap().is_none());
        let (_directory, path) = setting("1811");
        let reserve = Reserve::raise_in(&path, GIBIBYTE).unwrap().unwrap();
        fs::write(&path, "32768").unwrap();
        drop(reserve);
        assert_eq!(read(&path).unwrap(), 32768);
    }

    #[test]
    fn nonsense_is_an_error() {
        let (_directory, path) = setting("many");
        assert!(Reserve::raise_in(&path, GIBIBYTE).is_err());
        assert!(read(Path::new(SETTING)).unwrap() > 0);
    }
}
