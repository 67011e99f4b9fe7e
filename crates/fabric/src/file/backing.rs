//! Choosing and preparing a backing file. Every refusal says what is wrong with the choice and what to do instead.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use spillway_sys::own_files::{Place, PlaceError, Way};

use super::filler::FileFiller;
use super::writer::FileWriter;
use crate::buffer_pool::BufferPool;
use crate::limits::DIRECT_ALIGNMENT_BYTES;

/// File systems that keep their files in memory: `tmpfs` and `ramfs`, by the magic numbers of their `statfs`.
const IN_MEMORY_MAGICS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// How often a file that another process has is looked at.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Why a file cannot hold the copies of pages.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// It cannot be opened.
    #[error("cannot open the backing file {path}: {source}; name a file that this user may create and write")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a link, or another user's, or another user could replace it.
    #[error("the backing file would get pages of memory, which are secret, and is not used: {0}")]
    NotOurs(PlaceError),
    /// A directory, device, pipe or socket.
    #[error("the backing file {0} is not a regular file; name a file, it is made when it does not exist")]
    NotAFile(PathBuf),
    /// A file in memory.
    #[error(
        "the backing file {0} lies in memory (tmpfs); pages copied there free no memory, and swapping to it deadlocks the \
         machine; name a file on a disk"
    )]
    InMemory(PathBuf),
    /// Pages hold secrets.
    #[error("the backing file {0} can be read by others, and memory holds secrets; run: chmod 600 {0}")]
    ReadableByOthers(PathBuf),
    /// Another device writes to it.
    #[error("the backing file {0} is in use by another device; name another one")]
    InUse(PathBuf),
    /// The file system is too full.
    #[error(
        "the backing file {path} may grow to {needed_bytes} bytes, but its file system has {free_bytes} free; make room, or \
         name a file elsewhere"
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes of the whole file.
        needed_bytes: u64,
        /// Bytes it may have, counting those that it has.
        free_bytes: u64,
    },
    /// A system call failed.
    #[error("cannot prepare the backing file {path} ({doing}): {errno}")]
    System {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

/// A prepared backing file, open and locked against other devices until dropped.
#[derive(Debug)]
pub struct BackingFile {
    file: OwnedFd,
    size_bytes: u64,
    buffered_reason: Option<String>,
}

impl BackingFile {
    /// Opens the file at `path`, or makes it (mode 0600, sparse), for `size_bytes`. A file made here and refused is
    /// removed.
    pub fn prepare(path: &Path, size_bytes: u64) -> Result<Self, BackingError> {
        let (place, file, is_new) = open(path)?;
        let prepared = prepare_open(path, &file, size_bytes);
        if prepared.is_err() && is_new {
            // Best effort: the refusal itself is what matters.
            let _ = place.remove(&file);
        }
        let buffered_reason = prepared?;
        Ok(Self { file: file.into(), size_bytes, buffered_reason })
    }

    /// As [`BackingFile::prepare`], but a file that another process has is waited for, at most `patience`: one that
    /// was killed keeps its lock until its last write has ended and the kernel has taken its rings apart.
    pub fn prepare_within(path: &Path, size_bytes: u64, patience: Duration) -> Result<Self, BackingError> {
        let give_up = Instant::now() + patience;
        loop {
            match Self::prepare(path, size_bytes) {
                Err(BackingError::InUse(_)) if Instant::now() < give_up => std::thread::sleep(LOCK_POLL),
                result => return result,
            }
        }
    }

    /// Bytes of the file that are used.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Why copies go through the page cache, if they do: slower, and it takes memory.
    pub fn buffered_reason(&self) -> Option<&str> {
        self.buffered_reason.as_deref()
    }

    /// A writer of long runs out of `pool`, with at most `depth` of them in flight.
    pub fn writer(&self, pool: Arc<BufferPool>, depth: usize) -> std::io::Result<FileWriter> {
        FileWriter::new(self, pool, depth)
    }

    /// Gives the file the blocks that it lacks.
    pub fn filler(&self) -> std::io::Result<FileFiller> {
        FileFiller::new(self)
    }

    /// Any open file, unchecked.
    #[cfg(test)]
    pub(super) fn unchecked(file: impl Into<OwnedFd>, size_bytes: u64) -> Self {
        Self { file: file.into(), size_bytes, buffered_reason: None }
    }

    /// Another descriptor of the open file.
    pub(super) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.file.try_clone()
    }
}

fn open(path: &Path) -> Result<(Place, File, bool), BackingError> {
    let opened = Place::find(path, Way::Ours, false).and_then(|place| {
        let (file, is_new) = place.open_or_create(OFlags::RDWR, 0o600)?;
        Ok((place, file, is_new))
    });
    opened.map_err(|error| match error {
        PlaceError::NotAFile(path) => BackingError::NotAFile(path),
        PlaceError::System { path, source } => BackingError::Open { path, source },
        _ => BackingError::NotOurs(error),
    })
}

/// Refuses what cannot hold the copies, and makes the file ready; why it is not read and written directly, if so.
fn prepare_open(path: &Path, file: &File, size_bytes: u64) -> Result<Option<String>, BackingError> {
    let system = |doing| move |errno| BackingError::System { path: path.to_owned(), doing, errno };
    let status = fs::fstat(file).map_err(system("stat"))?;
    let magic = fs::fstatfs(file).map_err(system("statfs"))?.f_type as u64;
    if IN_MEMORY_MAGICS.contains(&(magic & 0xffff_ffff)) {
        return Err(BackingError::InMemory(path.to_owned()));
    }
    if Mode::from_raw_mode(status.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
        return Err(BackingError::ReadableByOthers(path.to_owned()));
    }
    match fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Err(BackingError::InUse(path.to_owned())),
        Err(errno) => return Err(system("lock")(errno)),
    }
    let space = fs::fstatvfs(file).map_err(system("statvfs"))?;
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize) + status.st_blocks.unsigned_abs() * 512;
    if free_bytes < size_bytes {
        return Err(BackingError::NoSpace { path: path.to_owned(), needed_bytes: size_bytes, free_bytes });
    }
    if status.st_size.unsigned_abs() < size_bytes {
        fs::ftruncate(file, size_bytes).map_err(system("set its size"))?;
    }
    set_direct(file).map_err(system("set its flags"))
}

/// Switches to direct I/O and tries it; the reason, if the file system refuses.
fn set_direct(file: &File) -> Result<Option<String>, Errno> {
    let flags = fs::fcntl_getfl(file)?;
    let refused = fs::fcntl_setfl(file, flags | OFlags::DIRECT).and_then(|()| try_direct(file)).err();
    if refused.is_some() {
        fs::fcntl_setfl(file, flags)?;
    }
    Ok(refused.map(|errno| format!("the file system refuses direct I/O ({errno})")))
}

/// A direct read of one page, as the I/O threads will do it.
fn try_direct(file: &File) -> Result<(), Errno> {
    let mut bytes = vec![0; 2 * DIRECT_ALIGNMENT_BYTES];
    let start = bytes.as_ptr().align_offset(DIRECT_ALIGNMENT_BYTES);
    rustix::io::pread(file.as_fd(), &mut bytes[start..start + DIRECT_ALIGNMENT_BYTES], 0).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    const SIZE: u64 = 1 << 20;

    /// A directory on the disk that holds the build, since the system's own may be in memory.
    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
    }

    #[test]
    fn a_new_file_is_private_sparse_and_of_the_size() {
        let directory = directory();
        let path = directory.path().join("backing");
        let file = BackingFile::prepare(&path, SIZE).unwrap();
        assert_eq!(file.size_bytes(), SIZE);
        let status = std::fs::metadata(&path).unwrap();
        assert_eq!((status.len(), status.mode() & 0o777, status.blocks()), (SIZE, 0o600, 0));
    }

    #[test]
    fn a_file_of_a_former_device_is_grown_but_never_cut() {
        let directory = directory();
        let path = directory.path().join("backing");
        drop(BackingFile::prepare(&path, SIZE).unwrap());
        drop(BackingFile::prepare(&path, 2 * SIZE).unwrap());
        drop(BackingFile::prepare(&path, SIZE).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * SIZE);
    }

    #[test]
    fn one_device_at_a_time() {
        let directory = directory();
        let path = directory.path().join("backing");
        let first = BackingFile::prepare(&path, SIZE).unwrap();
        assert!(matches!(BackingFile::prepare(&path, SIZE), Err(BackingError::InUse(_))));
        drop(first);
        assert!(BackingFile::prepare(&path, SIZE).is_ok());
    }

    #[test]
    fn a_file_that_is_given_up_meanwhile_is_waited_for() {
        let directory = directory();
        let path = directory.path().join("backing");
        let first = BackingFile::prepare(&path, SIZE).unwrap();
        let refused = BackingFile::prepare_within(&path, SIZE, 2 * LOCK_POLL);
        assert!(matches!(refused, Err(BackingError::InUse(_))));
        let (told, asks) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            told.send(()).unwrap();
            BackingFile::prepare_within(&path, SIZE, Duration::from_secs(600)).map(drop)
        });
        asks.recv().unwrap();
        // Time enough to be refused at least once, on most days.
        std::thread::sleep(5 * LOCK_POLL);
        drop(first);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn bad_choices_are_refused_each_with_its_reason_and_leave_nothing() {
        let directory = directory();
        let missing = directory.path().join("missing/backing");
        assert!(matches!(BackingFile::prepare(&missing, SIZE), Err(BackingError::Open { .. })));
        assert!(matches!(BackingFile::prepare(directory.path(), SIZE), Err(BackingError::NotAFile(_))));
        assert!(matches!(BackingFile::prepare(Path::new("/dev/null"), SIZE), Err(BackingError::NotAFile(_))));

        let open = directory.path().join("open");
        std::fs::write(&open, b"x").unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).unwrap();
        let error = BackingFile::prepare(&open, SIZE).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
        assert_eq!(std::fs::metadata(&open).unwrap().len(), 1, "a refused file is left as it was");

        let huge = directory.path().join("huge");
        assert!(matches!(BackingFile::prepare(&huge, 1 << 50), Err(BackingError::NoSpace { .. })));
        assert!(!huge.exists());
    }

    #[test]
    fn a_link_and_a_file_that_another_user_made_beforehand_get_no_pages() {
        let directory = directory();
        let [precious, link, made] = ["precious", "link", "made"].map(|name| directory.path().join(name));
        for path in [&precious, &made] {
            std::fs::write(path, b"x").unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        }
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        let refused = |path: &Path| BackingFile::prepare(path, SIZE).unwrap_err().to_string();
        assert!(refused(&link).contains("is a link"), "{}", refused(&link));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&made, Some(65534), None).unwrap();
            assert!(refused(&made).contains("belongs to another user"), "{}", refused(&made));
        }
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(refused(&precious).contains("chmod go-w"), "{}", refused(&precious));
        assert!([&precious, &made].iter().all(|path| std::fs::read(path).unwrap() == b"x"), "left as they were");
    }

    #[test]
    fn a_file_in_memory_is_refused_and_removed() {
        let shared_memory = Path::new("/dev/shm");
        let magic = fs::statfs(shared_memory).map(|status| status.f_type as u64);
        if magic.ok() != Some(IN_MEMORY_MAGICS[0]) {
            return spillway_sys::skipping::skip("a tmpfs at /dev/shm");
        }
        let directory = tempfile::tempdir_in(shared_memory).unwrap();
        let path = directory.path().join("backing");
        let error = BackingFile::prepare(&path, SIZE).unwrap_err();
        assert!(error.to_string().contains("deadlocks"), "{error}");
        assert!(!path.exists());
    }
}
