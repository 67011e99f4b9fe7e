//! The kernel's own read-ahead from swap (`vm.page-cluster`), set aside while pages are prefetched by us.
//!
//! Both together would read pages twice as far ahead as either means to, and the kernel's would hide from us what a
//! program waits for. The setting is the machine's, so other programs that swap go without read-ahead meanwhile. It
//! is put back when the last run that set it aside has ended, also after a kill ([`super::held_setting`]).

use std::io;
use std::path::Path;

use super::held_setting::HeldSetting;

/// The kernel's setting, as a power of two of pages (Documentation/admin-guide/sysctl/vm.rst).
const SETTING: &str = "/proc/sys/vm/page-cluster";

/// One page: no read-ahead.
const NONE: u64 = 0;

/// The file in an entry that says that its owner set read-ahead aside.
const RECORD: &str = "read-ahead.json";

/// The kernel's read-ahead from swap is off while this lives.
#[derive(Debug)]
pub struct ReadAheadAside(HeldSetting);

impl ReadAheadAside {
    /// Sets it aside for the owner of `entry`; nothing where it is off already.
    pub fn set(entry: &Path) -> io::Result<Option<Self>> {
        Self::set_in(Path::new(SETTING), entry)
    }

    fn set_in(setting: &Path, entry: &Path) -> io::Result<Option<Self>> {
        let held = HeldSetting::hold(setting, entry, RECORD, |now| (now != NONE).then_some(NONE))?;
        Ok(held.map(Self))
    }

    /// What the owner of an entry set aside. Dropping it puts it back, so the owner must be dead.
    pub fn recorded(entry: &Path) -> Option<Self> {
        HeldSetting::recorded(entry, RECORD).map(Self)
    }

    /// In words, for `status`.
    pub fn note(&self) -> String {
        format!("vm.page-cluster is {NONE} instead of {} until the run ends", self.0.record().before)
    }
}

/// What the keeper of a device, which is the owner of `entry`, has set aside, in words.
pub fn note_of_device(entry: &Path) -> Option<String> {
    let record = HeldSetting::noted(entry, RECORD)?;
    Some(format!("vm.page-cluster is {NONE} instead of {} until `swap off`", record.before))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::held_setting::read;

    /// A setting, and the entries of two runs.
    fn machine(value: &str) -> (tempfile::TempDir, PathBuf, [PathBuf; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let setting = directory.path().join("page-cluster");
        fs::write(&setting, value).unwrap();
        let entries = ["run-1", "run-2"].map(|name| directory.path().join(name));
        entries.iter().for_each(|entry| fs::create_dir(entry).unwrap());
        (directory, setting, entries)
    }

    #[test]
    fn the_last_of_two_runs_puts_back_what_was_before_the_first() {
        let (_directory, setting, [first, second]) = machine("3\n");
        let one = ReadAheadAside::set_in(&setting, &first).unwrap().unwrap();
        let other = ReadAheadAside::set_in(&setting, &second).unwrap().unwrap();
        assert!(note_of_device(&second).is_some_and(|note| note.contains("0 instead of 3")));
        assert!(other.note().contains("0 instead of 3"), "{}", other.note());
        drop(one);
        assert_eq!(read(&setting).unwrap(), 0);
        drop(other);
        assert_eq!((read(&setting).unwrap(), note_of_device(&second)), (3, None));
    }

    #[test]
    fn what_a_killed_run_set_aside_is_put_back() {
        let (_directory, setting, [entry, _]) = machine("5");
        std::mem::forget(ReadAheadAside::set_in(&setting, &entry).unwrap());
        assert_eq!(read(&setting).unwrap(), 0);
        drop(ReadAheadAside::recorded(&entry));
        assert_eq!(read(&setting).unwrap(), 5);
        assert!(ReadAheadAside::recorded(&entry).is_none());
    }

    #[test]
    fn what_is_off_stays_off() {
        let (_directory, setting, [entry, _]) = machine("0");
        assert!(ReadAheadAside::set_in(&setting, &entry).unwrap().is_none());
        assert_eq!(read(&setting).unwrap(), 0);
    }
}
