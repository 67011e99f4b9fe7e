//! A setting of the kernel that several processes of ours hold at a value of theirs, and put back.
//!
//! Each writes down in its entry that it needs the setting, and what was there before the first of them. The last one
//! to go puts that back, unless another process has changed the setting meanwhile; for one that was killed its mender
//! goes. A process that finds that an administrator has changed the setting since, and changes it again, tells the
//! others what to put back now.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spillway_sys::own_files;

use super::lock;

/// What an entry says of a setting that its owner needs. The other names are those of the first version, for a device
/// that is older than this program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    setting: PathBuf,
    /// Before the first owner that needs it.
    #[serde(alias = "before_kib")]
    pub before: u64,
    /// While it is needed.
    #[serde(alias = "raised_kib")]
    pub held: u64,
}

/// A setting that is held, for the owner of an entry.
#[derive(Debug)]
pub struct HeldSetting {
    entry: PathBuf,
    file: &'static str,
    record: Record,
}

impl HeldSetting {
    /// Sets `setting` for the owner of `entry`, which says so in its file `file`. `wanted` gives the value to set
    /// from the one that is there, or nothing if that suffices by itself.
    pub fn hold(
        setting: &Path,
        entry: &Path,
        file: &'static str,
        wanted: impl FnOnce(u64) -> Option<u64>,
    ) -> io::Result<Option<Self>> {
        let _lock = lock(entry)?;
        let now = read(setting)?;
        let shared = sharing(entry, file).find(|(_, other)| other.setting == setting && other.held == now);
        let record = match (shared, wanted(now)) {
            (Some((_, other)), _) => other,
            (None, None) => return Ok(None),
            (None, Some(held)) => Record { setting: setting.to_owned(), before: now, held },
        };
        // In this order: one that is killed in between leaves a record of what is not so, which puts nothing back.
        record.write(entry, file)?;
        // What they found and set is not there any more: an administrator changed it since.
        for (other, _) in sharing(entry, file).filter(|(_, other)| other.setting == setting && *other != record) {
            record.write(&other, file)?;
        }
        let held = Self { entry: entry.to_owned(), file, record };
        if now != held.record.held {
            fs::write(setting, held.record.held.to_string())?;
        }
        Ok(Some(held))
    }

    /// The one that the owner of an entry needed. Dropping it ends the need, so the owner must be dead.
    pub fn recorded(entry: &Path, file: &'static str) -> Option<Self> {
        Some(Self { entry: entry.to_owned(), file, record: Record::read(entry, file)? })
    }

    /// What the owner of an entry wrote down, which holds it still.
    pub fn noted(entry: &Path, file: &str) -> Option<Record> {
        Record::read(entry, file)
    }

    /// What is written down.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// What the owner of an entry puts back when it goes; nothing if it needs no setting, or another one does too.
    pub fn to_be_put_back(entry: &Path, file: &str) -> Option<Record> {
        Record::read(entry, file).filter(|record| record.will_be_put_back(entry, file).unwrap_or(false))
    }

    /// The entry of its owner.
    #[cfg(test)]
    pub fn entry(&self) -> &Path {
        &self.entry
    }

    /// Puts the setting back, if this is the last one that needs it.
    fn release(&self) -> io::Result<()> {
        let _lock = lock(&self.entry)?;
        // Another owner may have changed it since. The entry may have gone before.
        let record = Record::read(&self.entry, self.file).unwrap_or_else(|| self.record.clone());
        match fs::remove_file(self.entry.join(self.file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if record.will_be_put_back(&self.entry, self.file)? {
            fs::write(&record.setting, record.before.to_string())?;
        }
        Ok(())
    }
}

impl Drop for HeldSetting {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!("{} may stay at {}: {error}", self.record.setting.display(), self.record.held);
        }
    }
}

impl Record {
    fn write(&self, entry: &Path, file: &str) -> io::Result<()> {
        // Whole or not at all: its owner may be told by another process, which may be killed meanwhile.
        Ok(own_files::replace(&entry.join(file), 0o600, &serde_json::to_vec(self)?)?)
    }

    /// Whether no other process needs the setting, and no process has changed it.
    fn will_be_put_back(&self, entry: &Path, file: &str) -> io::Result<bool> {
        let is_needed = sharing(entry, file).any(|(_, other)| other.setting == self.setting);
        Ok(!is_needed && read(&self.setting)? == self.held)
    }

    fn read(entry: &Path, file: &str) -> Option<Self> {
        serde_json::from_slice(&fs::read(entry.join(file)).ok()?).ok()
    }
}

/// Beside which entries others are.
fn siblings(entry: &Path) -> &Path {
    entry.parent().unwrap_or(Path::new("/"))
}

/// One owner at a time looks which of them need the setting, until the file is closed.
fn lock(entry: &Path) -> io::Result<File> {
    lock::lock(&siblings(entry).join("lock")).map_err(|error| io::Error::other(error.to_string()))
}

/// What the other entries say. A dead owner needs it too: what it started may go on, until it is mended.
fn sharing<'a>(entry: &'a Path, file: &'a str) -> impl Iterator<Item = (PathBuf, Record)> + use<'a> {
    let paths = fs::read_dir(siblings(entry)).into_iter().flatten().flatten().map(|item| item.path());
    paths.filter(move |path| path != entry).filter_map(move |path| Record::read(&path, file).map(|found| (path, found)))
}

/// The number in a setting's file.
pub fn read(setting: &Path) -> io::Result<u64> {
    fs::read_to_string(setting)?.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_first_version_are_understood() {
        let entry = tempfile::tempdir().unwrap();
        let text = r#"{"setting":"/proc/x","before_kib":5,"raised_kib":7}"#;
        fs::write(entry.path().join("reserve.json"), text).unwrap();
        let record = Record::read(entry.path(), "reserve.json").unwrap();
        assert_eq!((record.before, record.held), (5, 7));
    }

    #[test]
    fn two_settings_of_one_entry_do_not_mix() {
        let directory = tempfile::tempdir().unwrap();
        let (entry, setting) = (directory.path().join("entry"), directory.path().join("setting"));
        fs::create_dir(&entry).unwrap();
        let other = directory.path().join("other");
        [&setting, &other].iter().for_each(|path| fs::write(path, "3").unwrap());
        let first = HeldSetting::hold(&setting, &entry, "a.json", |_| Some(0)).unwrap();
        let second = HeldSetting::hold(&other, &entry, "b.json", |_| Some(1)).unwrap();
        drop(first);
        assert_eq!((read(&setting).unwrap(), read(&other).unwrap()), (3, 1));
        drop(second);
        assert_eq!(read(&other).unwrap(), 3);
    }
}
