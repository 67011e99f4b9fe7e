//! What a path lies on.
//!
//! A file in memory (tmpfs, ramfs) must never back a swap area: writing a page out would need memory, and the machine
//! stops for good.

use std::io;
use std::path::{Path, PathBuf};

/// The kernel's magic numbers of file systems that live in memory (`linux/magic.h`).
const IN_MEMORY: [(u64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

/// What a path lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The directory that was looked at: the path or its nearest existing ancestor.
    pub directory: PathBuf,
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// The name of a file system that lives in memory.
    pub in_memory: Option<&'static str>,
}

impl FileSystem {
    /// Of `path`, which need not exist yet.
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut directory = path.to_path_buf();
        let statistics = loop {
            match rustix::fs::statfs(&directory) {
                Ok(statistics) => break statistics,
                Err(rustix::io::Errno::NOENT) if directory.pop() && !directory.as_os_str().is_empty() => {}
                Err(error) => return Err(error.into()),
            }
        };
        let block_bytes = u64::try_from(statistics.f_bsize).unwrap_or(0);
        let magic = u64::from(statistics.f_type as u32);
        Ok(Self {
            directory,
            free_bytes: statistics.f_bavail.saturating_mul(block_bytes),
            in_memory: IN_MEMORY.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_judged_by_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("not/there");
        let found = FileSystem::of(&missing).unwrap();
        assert_eq!(found.directory, directory.path());
        assert!(found.free_bytes > 0);
    }

    #[test]
    fn memory_is_recognised() {
        if !Path::new("/dev/shm").exists() {
            return spillway_sys::skipping::skip("/dev/shm");
        }
        let found = FileSystem::of(Path::new("/dev/shm/file")).unwrap();
        assert_eq!(found.in_memory, Some("tmpfs"));
        assert_eq!(FileSystem::of(Path::new("/proc")).unwrap().in_memory, None);
    }
}
