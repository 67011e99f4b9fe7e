//! A mount that is known by its number, not by its path: what lies at a path another process may change at any time.
//!
//! The kernel gives the number of a mount to another one when it is gone, which it is not while a descriptor of it is
//! open. So a process that has opened a mount, and then finds its number in the list of mounts, has that very mount. It
//! unmounts it through the descriptor.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::mount::UnmountFlags;

use crate::fuse::Unmount;
use crate::proc_text::mounts::Mount;
use crate::proc_text::{fields, mounts};

/// The list of mounts that this process sees.
const LIST: &str = "/proc/self/mountinfo";

/// A mount, see the module text. The kernel keeps it while this lives, also after it is unmounted.
#[derive(Debug)]
pub struct MountPoint {
    place: GuardedPlace,
    mount: OwnedFd,
    id: u64,
}

impl MountPoint {
    /// What is mounted at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let place = GuardedPlace::of(path)?;
        let mount = place.open()?;
        let id = id_of(&mount)?;
        Ok(Self { place, mount, id })
    }

    /// Unmounts it, and removes the directory that it lay on. Nothing is done, and an error given, if `is_it` does not
    /// take its line in the list of mounts, if its first directory is another user's, or if another mount lies on it.
    pub fn unmount(self, how: Unmount, is_it: impl Fn(&Mount<'_>) -> bool) -> io::Result<()> {
        let list = fs::read(LIST)?;
        let is_listed = mounts::all(&list).any(|mount| mount.id == self.id && is_it(&mount));
        if !is_listed || !is_own(&self.mount)? {
            return Err(io::Error::other("another mount is there by now, and was left alone"));
        }
        if mounts::all(&list).any(|mount| mount.parent == self.id) {
            return Err(io::Error::other("another mount lies on it; unmount that first"));
        }
        // The link leads to the mount itself, so it must be followed.
        let flags = match how {
            Unmount::Detach => UnmountFlags::DETACH,
            Unmount::Abort => UnmountFlags::FORCE | UnmountFlags::DETACH,
        };
        rustix::mount::unmount(format!("/proc/self/fd/{}", self.mount.as_raw_fd()), flags)?;
        self.place.remove()
    }
}

/// A name in an open directory in which no other user but root can rename or remove what is this user's.
#[derive(Debug)]
pub struct GuardedPlace {
    parent: OwnedFd,
    name: OsString,
}

impl GuardedPlace {
    /// The last name of `path`; what has the name need not be there.
    pub fn of(path: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(parent, flags, Mode::empty())?;
        let status = rustix::fs::fstat(&parent)?;
        let mode = Mode::from_raw_mode(status.st_mode);
        let is_open = mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX);
        let is_anothers = status.st_uid != 0 && status.st_uid != rustix::process::geteuid().as_raw();
        if is_open || is_anothers {
            let text = "other users can change the directory that it is in";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { parent, name: name.to_owned() })
    }

    /// What is there, also if something is mounted on it.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty())?)
    }

    /// Removes the empty directory or the file that is there, if it is this user's.
    pub fn remove(&self) -> io::Result<()> {
        let status = rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user's file is there"));
        }
        let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(rustix::fs::unlinkat(&self.parent, &self.name, flags)?)
    }
}

/// The number of the mount that `descriptor` is of. Unlike statx(2) the kernel tells it so before Linux 5.8, and asks
/// no file system, whose server may be dead.
fn id_of(descriptor: impl AsFd) -> io::Result<u64> {
    let about = fs::read(format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd()))?;
    fields::number_of(&about, "mnt_id").ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn is_own(descriptor: impl AsFd) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let about = rustix::fs::statx(descriptor, c"", flags, StatxFlags::UID)?;
    Ok(about.stx_mask & StatxFlags::UID.bits() != 0 && about.stx_uid == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_other_users_can_change_is_no_place() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        let with_mode = |mode| {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            GuardedPlace::of(&place).map(drop)
        };
        assert!(with_mode(0o755).is_ok() && with_mode(0o1777).is_ok());
        assert!(with_mode(0o777).is_err() && with_mode(0o775).is_err());
        with_mode(0o700).unwrap();
        fs::create_dir(&place).unwrap();
        GuardedPlace::of(&place).unwrap().remove().unwrap();
        fs::write(&place, "").unwrap();
        GuardedPlace::of(&place).unwrap().remove().unwrap();
        assert!(GuardedPlace::of(&place).unwrap().remove().is_err() && GuardedPlace::of(Path::new("/")).is_err());
    }

    #[test]
    fn what_is_in_the_way_of_a_mount_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        fs::create_dir(&place).unwrap();
        // The mount that the directory is in, and the number of which the list has.
        let list = fs::read(LIST).unwrap();
        let point = MountPoint::open(&place).unwrap();
        assert!(mounts::all(&list).any(|mount| mount.id == point.id));
        assert!(point.unmount(Unmount::Detach, |_| false).is_err() && place.exists());
    }
}
