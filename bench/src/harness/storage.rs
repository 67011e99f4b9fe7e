//! Directories on a real disk, and private ones for a run.
//!
//! A swap file on tmpfs makes the kernel page memory into memory that it may have to page: it can stop for good. So a
//! directory for swap is refused unless its file system is a disk's.

use std::path::{Path, PathBuf};

use super::HarnessError;

/// File systems whose files live in memory, by the magic numbers of `statfs(2)`: tmpfs, ramfs, hugetlbfs.
const MEMORY_FILE_SYSTEMS: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Where large files go, the first that is on a disk.
const CANDIDATES: [&str; 3] = ["/var/tmp", "/var/lib", "/root"];

/// A directory of this run's own; removed with all it holds when dropped.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
}

/// Whether files in `directory` live in memory.
pub fn is_in_memory(directory: &Path) -> Result<bool, HarnessError> {
    let what = format!("looking at the file system of {}", directory.display());
    let found = rustix::fs::statfs(directory).map_err(HarnessError::system(what))?;
    Ok(MEMORY_FILE_SYSTEMS.contains(&(found.f_type as i64)))
}

/// `directory` if it is on a disk.
pub fn on_disk(directory: &Path) -> Result<PathBuf, HarnessError> {
    if is_in_memory(directory)? {
        return Err(HarnessError::Missing(format!(
            "{} is in memory, where a swap file can stop the machine; name a directory on a disk with --directory",
            directory.display()
        )));
    }
    Ok(directory.to_owned())
}

/// Bytes that are free for files in `directory`.
pub fn free_bytes(directory: &Path) -> Result<u64, HarnessError> {
    let what = format!("looking at the free space of {}", directory.display());
    let found = rustix::fs::statvfs(directory).map_err(HarnessError::system(what))?;
    Ok(found.f_bavail * found.f_frsize)
}

/// Copies directory `from` with all it holds to `to`, which must not be there yet, and waits until the disk has it: no
/// measurement that follows shares the disk with the copy.
pub fn copy_directory(from: &Path, to: &Path) -> Result<(), HarnessError> {
    let copied = copy_files(from, to).and_then(|()| Ok(rustix::fs::syncfs(std::fs::File::open(to)?)?));
    copied.map_err(HarnessError::system(format!("copying {} to {}", from.display(), to.display())))
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

impl PrivateDirectory {
    /// A new directory in `parent`, or, without one, in the first usual place that is on a disk.
    pub fn on_disk(parent: Option<&Path>) -> Result<Self, HarnessError> {
        if let Some(parent) = parent {
            return Self::create(&on_disk(parent)?);
        }
        let usable = |place: &&&str| matches!(is_in_memory(Path::new(place)), Ok(false));
        let place = CANDIDATES.iter().find(usable).ok_or_else(|| {
            HarnessError::Missing("no usual directory is on a disk; name one with --directory".to_owned())
        })?;
        Self::create(Path::new(place))
    }

    /// A new directory in memory, for what is compared with and never swapped to.
    pub fn in_memory() -> Result<Self, HarnessError> {
        let place = Path::new("/dev/shm");
        if !matches!(is_in_memory(place), Ok(true)) {
            return Err(HarnessError::Missing("/dev/shm is not in memory; mount a tmpfs there".to_owned()));
        }
        Self::create(place)
    }

    fn create(parent: &Path) -> Result<Self, HarnessError> {
        let name = |attempt: u32| format!("spillway-bench-{}-{attempt}", std::process::id());
        for attempt in 0.. {
            let path = parent.join(name(attempt));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(HarnessError::system(format!("making {}", path.display()))(error)),
            }
        }
        unreachable!("some number is free")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("spillway-bench: cannot remove {}: {error}; remove it by hand", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_refused_for_swap() {
        if !Path::new("/dev/shm").is_dir() {
            return spillway_sys::skipping::skip_because("there is no /dev/shm");
        }
        let error = on_disk(Path::new("/dev/shm")).unwrap_err().to_string();
        assert!(error.contains("--directory"), "{error}");
        assert!(PrivateDirectory::on_disk(Some(Path::new("/dev/shm"))).is_err());
    }

    #[test]
    fn a_private_directory_goes_with_its_content() {
        let parent = tempfile::tempdir().unwrap();
        let (one, other) =
            (PrivateDirectory::create(parent.path()).unwrap(), PrivateDirectory::create(parent.path()).unwrap());
        assert_ne!(one.path(), other.path());
        std::fs::write(one.path().join("file"), "content").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().is_dir());
    }

    #[test]
    fn the_first_usual_place_on_a_disk_is_taken() {
        match PrivateDirectory::on_disk(None) {
            Ok(directory) => {
                assert!(CANDIDATES.iter().any(|place| directory.path().starts_with(place)));
                assert!(!is_in_memory(directory.path()).unwrap());
            }
            Err(error) => assert!(error.to_string().contains("--directory"), "{error}"),
        }
    }

    #[test]
    fn a_directory_that_is_gone_already_is_no_panic() {
        let parent = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::create(parent.path()).unwrap();
        std::fs::remove_dir(directory.path()).unwrap();
        drop(directory);
        assert!(PrivateDirectory::create(&parent.path().join("nowhere")).is_err());
    }

    #[test]
    fn a_copy_has_all_files_and_is_made_once() {
        let parent = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| parent.path().join(name));
        std::fs::create_dir_all(from.join("below")).unwrap();
        std::fs::write(from.join("below/file"), "content").unwrap();
        copy_directory(&from, &to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("below/file")).unwrap(), "content");
        assert!(copy_directory(&from, &to).unwrap_err().to_string().contains("copying"), "it is there already");
    }

    #[test]
    fn unknown_places_are_errors() {
        assert!(is_in_memory(Path::new("/nonexistent")).is_err());
        assert!(free_bytes(Path::new("/nonexistent")).is_err());
        assert!(free_bytes(Path::new("/")).unwrap() > 0);
    }
}
