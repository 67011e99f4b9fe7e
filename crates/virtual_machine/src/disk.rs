//! Disks of a guest: sparse files on the host's disk.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::tools;

/// A disk to give to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    kind: Kind,
    mib: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Files,
    Raw,
}

impl Disk {
    /// A disk with an ext4 file system, mounted at `/disk` when it is the first.
    pub fn files(mib: u64) -> Self {
        Self { kind: Kind::Files, mib }
    }

    /// An empty disk, `/dev/vda` when it is the first.
    pub fn raw(mib: u64) -> Self {
        Self { kind: Kind::Raw, mib }
    }

    /// What the guest's script calls it.
    pub(crate) fn word(self) -> &'static str {
        match self.kind {
            Kind::Files => "files",
            Kind::Raw => "raw",
        }
    }

    /// Makes its file, `number` among those of a machine.
    pub(crate) fn make(self, directory: &Path, number: usize) -> Result<PathBuf, Failure> {
        let path = directory.join(format!("disk-{number}"));
        File::create(&path).and_then(|file| file.set_len(self.mib << 20)).map_err(Failure::file(&path))?;
        if self.kind == Kind::Files {
            let mut command = tools::MAKE_FILE_SYSTEM.command()?;
            // Nothing is left to initialise in the background, which would disturb what tests measure and count.
            tools::output(command.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(&path))?;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_sparse_files() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let path = Disk::raw(64).make(directory.path(), 0).unwrap();
        let metadata = std::fs::metadata(path).unwrap();
        assert_eq!(metadata.len(), 64 << 20);
        assert_eq!(metadata.blocks(), 0);
        assert_eq!((Disk::raw(1).word(), Disk::files(1).word()), ("raw", "files"));
    }

    #[test]
    fn a_disk_that_cannot_be_made_is_named() {
        let error = Disk::raw(1).make(Path::new("/no/such/directory"), 0).unwrap_err();
        assert!(error.to_string().contains("/no/such/directory/disk-0"), "{error}");
    }
}
