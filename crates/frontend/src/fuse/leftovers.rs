//! What a killed process left behind: FUSE mounts and loop devices whose server is gone, and their removal.
//!
//! The kernel aborts the FUSE connection of a process that died, so everything on such a device already fails with
//! I/O errors. What stays is the loop device, the mount and its directory. Only what carries our [`Ownership`] and
//! whose process is gone is ever touched.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use spillway_sys::fuse::{FILESYSTEM_TYPE, Unmount, unmount};
use spillway_sys::loop_device::{self, Detached};
use spillway_sys::swap::unescape;

use crate::front_end::FrontEndError;
use crate::ownership::Ownership;

/// One thing left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Who left it.
    pub ownership: Ownership,
    /// What it is.
    pub kind: LeftoverKind,
}

/// See [`Leftover`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftoverKind {
    /// A bound loop device.
    LoopDevice(PathBuf),
    /// A mounted filesystem.
    Mount(PathBuf),
}

/// What was done about one [`Leftover`].
#[derive(Debug)]
pub struct Mended {
    /// What it was.
    pub leftover: Leftover,
    /// Whether it is gone.
    pub result: Result<(), FrontEndError>,
}

/// Everything of ours whose process is gone; loop devices first, because they hold their mounts.
pub fn list() -> Result<Vec<Leftover>, FrontEndError> {
    let mut leftovers = loop_devices().map_err(FrontEndError::system("cannot list loop devices"))?;
    leftovers.extend(mounts().map_err(FrontEndError::system("cannot list mounts"))?);
    Ok(leftovers)
}

/// Removes what [`list`] names, and says what became of each. A loop device that is still in use (swap on it,
/// mounted) is left, and freed by the kernel when its last user goes. The caller switches swap off first.
pub fn mend() -> Result<Vec<Mended>, FrontEndError> {
    Ok(list()?.into_iter().map(|leftover| Mended { result: remove(&leftover), leftover }).collect())
}

/// Removes one thing that [`list`] named, as [`mend`] does.
pub fn remove(leftover: &Leftover) -> Result<(), FrontEndError> {
    match &leftover.kind {
        LeftoverKind::LoopDevice(path) => remove_loop_device(path, &leftover.ownership.to_string()),
        LeftoverKind::Mount(path) => {
            let result = unmount(path, Unmount::Abort).and_then(|()| fs::remove_dir(path));
            result.map_err(FrontEndError::system(format!("cannot unmount {}", path.display())))
        }
    }
}

/// A loop device that [`list`] named, for as long as something is done about its users: it does not become another
/// process's meanwhile. `None` if it has gone already, and for a mount.
pub fn hold(leftover: &Leftover) -> Result<Option<File>, FrontEndError> {
    let LeftoverKind::LoopDevice(path) = &leftover.kind else { return Ok(None) };
    let held = loop_device::hold(path, &leftover.ownership.to_string());
    held.map_err(FrontEndError::system(format!("cannot open {}", path.display())))
}

fn remove_loop_device(path: &Path, name: &str) -> Result<(), FrontEndError> {
    let context = || FrontEndError::system(format!("cannot free {}", path.display()));
    match loop_device::detach(path, name).map_err(context())? {
        Detached::Done => Ok(()),
        Detached::Busy => {
            loop_device::detach_when_unused(path, name).map_err(context())?;
            Err(FrontEndError::Busy(format!(
                "{path} lost its server and is still in use; free it with swapoff {path} or umount {path}",
                path = path.display()
            )))
        }
    }
}

fn loop_devices() -> io::Result<Vec<Leftover>> {
    let mut leftovers = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Only bound loop devices have this folder; others are not opened.
        if !entry.path().join("loop").exists() {
            continue;
        }
        let path = Path::new("/dev").join(entry.file_name());
        // A device may be freed while we look.
        let Ok(Some(status)) = loop_device::status(&path) else { continue };
        if let Some(ownership) = abandoned(&status.name)? {
            leftovers.push(Leftover { ownership, kind: LeftoverKind::LoopDevice(path) });
        }
    }
    Ok(leftovers)
}

fn mounts() -> io::Result<Vec<Leftover>> {
    let mut leftovers = Vec::new();
    for line in fs::read_to_string("/proc/self/mounts")?.lines() {
        let mut fields = line.split(' ');
        let (Some(source), Some(directory), Some(kind)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if kind != FILESYSTEM_TYPE {
            continue;
        }
        if let Some(ownership) = abandoned(source)? {
            leftovers.push(Leftover { ownership, kind: LeftoverKind::Mount(unescape(directory)) });
        }
    }
    Ok(leftovers)
}

fn abandoned(name: &str) -> io::Result<Option<Ownership>> {
    match name.parse::<Ownership>() {
        Ok(ownership) if ownership.is_abandoned()? => Ok(Some(ownership)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_is_not_listed() {
        let name = Ownership::of_this_process("alive").unwrap().to_string();
        assert_eq!(abandoned(&name).unwrap(), None);
        assert_eq!(abandoned("/some/file").unwrap(), None);
        assert!(abandoned("spillway:4194304.1:dead").unwrap().is_some());
    }
}
