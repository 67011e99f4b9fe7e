//! Locks between processes of one user, as files that no other user can open.
//!
//! A process may hold one for a moment only. So a wait has an end, and tells which process holds the lock: a version
//! before this one made files that any user could open, and lock. A signal that asks this process to end ends the wait.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use spillway_sys::lease::text_unless_leased;
use spillway_sys::own_files::{self, PlaceError};
use spillway_sys::proc_text::locks;
use spillway_sys::proc_text::maps::FileId;

use crate::interruption;
use crate::limits;

/// Why a lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file cannot be used.
    #[error("{0}")]
    Place(#[from] PlaceError),
    /// Another process keeps it.
    #[error(
        "{path} was locked for {seconds} s by {holders}; end that process. If it is not one of Spillway, then run: rm {path}",
        seconds = limits::LOCK_PATIENCE.as_secs()
    )]
    Held {
        /// The file.
        path: PathBuf,
        /// Which processes.
        holders: String,
    },
    /// A signal came meanwhile.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
    /// The kernel refused.
    #[error("{path} cannot be locked: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
}

/// Locks the file at `path`, which is made if there is none, until it is closed.
pub fn lock(path: &Path) -> Result<File, LockError> {
    let failed = |source: std::io::Error| LockError::System { path: path.to_owned(), source };
    let give_up = Instant::now() + limits::LOCK_PATIENCE;
    // A process that was told to end takes down what it made, which needs the lock too.
    let former = interruption::last_signal();
    let mut file = own_files::open_private(path, OFlags::RDWR)?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, path) => return Ok(file),
            // An administrator has removed it, as the error says: the lock is another file now.
            Ok(()) => file = own_files::open_private(path, OFlags::RDWR)?,
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        match interruption::last_signal() {
            Some(signal) if former != Some(signal) => return Err(LockError::Interrupted(signal)),
            _ if Instant::now() >= give_up => {
                return Err(LockError::Held { path: path.to_owned(), holders: holders(&file).map_err(failed)? });
            }
            _ => std::thread::sleep(limits::POLL_INTERVAL),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let names = (file.metadata(), std::fs::symlink_metadata(path));
    matches!(names, (Ok(one), Ok(other)) if (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// The processes that hold locks of `file`, for people.
fn holders(file: &File) -> std::io::Result<String> {
    let file = FileId::of(&rustix::fs::fstat(file)?);
    let text = std::fs::read("/proc/locks").unwrap_or_default();
    let holders: Vec<_> = locks::holders(&text, file).map(describe).collect();
    Ok(if holders.is_empty() { "another process (lslocks may name it)".to_owned() } else { holders.join(", ") })
}

fn describe(process: u32) -> String {
    let directory = PathBuf::from(format!("/proc/{process}"));
    let name = text_unless_leased(directory.join("comm")).unwrap_or_default();
    match std::fs::metadata(&directory) {
        Ok(owner) => format!("process {process} ({}, of user {})", name.trim_end().escape_debug(), owner.uid()),
        Err(_) => format!("process {process}, which has ended and left it to another one (fuser names it)"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The case lock-holder.
    #[test]
    fn a_lock_that_is_held_is_waited_for_until_its_end_and_its_holder_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        // As a stranger that opened it while it could.
        let held = File::open(&path).unwrap();
        held.lock().unwrap();
        let error = lock(&path).unwrap_err().to_string();
        let name = format!("process {} (", std::process::id());
        assert!(error.contains(&name) || error.contains("another process"), "{error}");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        let again = lock(&path).unwrap();
        assert!(is_at(&again, &path));
        drop(held);
    }
}
