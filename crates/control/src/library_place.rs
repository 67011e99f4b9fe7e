//! Where the library lies that paged programs load.
//!
//! It lies beside the sockets of its run, unless programs cannot load it from there: Debian mounts `/run` noexec, and a
//! space or a colon ends the name of a library in `LD_PRELOAD` (ld.so(8)). It then lies below the first of
//! [`OTHER_PLACES`] that serves, in a directory of this user's with one directory a run:
//! `spillway-libraries-UID/BOOT.DEVICE.INODE.RUN`. Device and inode are those of the directory of what runs, so that
//! two of them never take each other's libraries; what an earlier boot left is removed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use spillway_fabric::control::host::boot_id;
use spillway_sys::own_files;

/// Where a library may lie instead, the best first. Root's programs may be other users', so they must reach it.
const OTHER_PLACES: [&str; 4] = ["/var/lib", "/var/tmp", "/tmp", "/dev/shm"];

/// Why programs cannot load a library from anywhere, if they cannot: `root` is the directory of what runs.
pub(crate) fn obstacle(root: &Path) -> Option<String> {
    let first = obstacle_of(root)?;
    let others: Vec<String> = OTHER_PLACES.iter().filter_map(|place| other_obstacle(Path::new(place))).collect();
    (others.len() == OTHER_PLACES.len()).then(|| format!("{first}; nor from {}", others.join("; nor from ")))
}

/// The directory for the library of run `name`, made anew; none if `root` itself serves.
pub(crate) fn make(root: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    if obstacle_of(root).is_none() {
        return Ok(None);
    }
    let place = OTHER_PLACES.iter().map(Path::new).find(|place| other_obstacle(place).is_none());
    let Some(place) = place else {
        return Err(io::Error::other(obstacle(root).unwrap_or_default()));
    };
    let directory = own_directory(place);
    create(&directory, 0o711)?;
    own_files::check_own_directory(&directory)?;
    forget_other_boots(&directory);
    let path = directory.join(entry_name(root, name)?);
    remove_directory(&path);
    create(&path, 0o711)?;
    Ok(Some(path))
}

/// Removes what [`make`] made for run `name`, wherever it lies.
pub(crate) fn remove(root: &Path, name: &str) {
    let Ok(entry) = entry_name(root, name) else { return };
    for place in OTHER_PLACES {
        let directory = own_directory(Path::new(place));
        if own_files::check_own_directory(&directory).is_ok() {
            remove_directory(&directory.join(&entry));
            // Another run's library is there, or nothing.
            let _ = fs::remove_dir(&directory);
        }
    }
}

fn own_directory(place: &Path) -> PathBuf {
    place.join(format!("spillway-libraries-{}", rustix::process::geteuid().as_raw()))
}

fn create(path: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        // What this process's umask takes away is meant for others' directories.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// What cannot be removed now is removed after the next boot.
fn remove_directory(path: &Path) {
    let _ = fs::remove_dir_all(path);
}

/// Of this boot; the same in every process.
fn boot() -> String {
    boot_id().map(|boot| format!("{:032x}", u128::from_be_bytes(boot))).unwrap_or_default()
}

fn entry_name(root: &Path, name: &str) -> io::Result<OsString> {
    let found = fs::metadata(root)?;
    Ok(format!("{}.{:x}.{:x}.{name}", boot(), found.dev(), found.ino()).into())
}

fn forget_other_boots(directory: &Path) {
    let own = format!("{}.", boot());
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(own.as_bytes())).for_each(|entry| {
        remove_directory(&entry.path());
    });
}

/// Why programs cannot load a library from below `place`, if they cannot.
fn obstacle_of(place: &Path) -> Option<String> {
    // The dynamic loader knows no way to write these (ld.so(8)).
    if place.as_os_str().as_encoded_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':') {
        return Some(format!(
            "{} has a space or a colon in its name, which end the name of a library in LD_PRELOAD",
            place.display()
        ));
    }
    let existing = place.ancestors().find(|directory| directory.is_dir())?;
    let is_noexec = rustix::fs::statvfs(existing).ok()?.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC);
    is_noexec
        .then(|| format!("{} is mounted noexec, so no program can load the pager's library from it", place.display()))
}

/// Why this user cannot put a library below `place`, if so.
fn other_obstacle(place: &Path) -> Option<String> {
    let directory = own_directory(place);
    if let Some(found) = obstacle_of(place) {
        return Some(found);
    }
    if directory.exists() {
        return own_files::check_own_directory(&directory).err().map(|error| error.to_string());
    }
    let access = rustix::fs::access(place, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    access.err().map(|error| format!("{}: {error}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_end_a_librarys_are_obstacles() {
        for name in ["/run/user x/spillway", "/run/a:b", "/run/a\tb"] {
            assert!(obstacle_of(Path::new(name)).is_some_and(|why| why.contains("space or a colon")), "{name}");
        }
        let place = tempfile::tempdir().unwrap();
        assert_eq!(obstacle_of(&place.path().join("not/yet")), None);
    }

    #[test]
    fn a_library_lies_elsewhere_only_if_it_must_and_goes_with_its_run() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(make(place.path(), "a").unwrap(), None);
        let root = place.path().join("a b");
        fs::create_dir(&root).unwrap();
        assert_eq!(obstacle(&root), None);
        let made = make(&root, "a").unwrap().unwrap();
        assert_eq!(obstacle_of(&made), None);
        let other = make(&root, "b").unwrap().unwrap();
        let old = made.with_file_name("0123.1.2.a");
        fs::create_dir(&old).unwrap();
        fs::write(made.join("x"), "").unwrap();
        assert_eq!(make(&root, "a").unwrap(), Some(made.clone()));
        assert!(!made.join("x").exists(), "it is made anew");
        assert!(!old.exists(), "left by another boot");
        remove(&root, "a");
        assert!(!made.exists() && other.exists());
        remove(&root, "b");
        assert!(!other.exists());
    }
}
