//! What a killed process left behind: FUSE mounts and loop devices whose server is gone, and their removal.
//!
//! The kernel aborts the FUSE connection of a process that died, so everything on such a device already fails with
//! I/O errors. What stays is the loop device, the mount and its directory. Only what carries our [`Ownership`] and
//! whose process is gone is ever touched.
//!
//! Any user can give a mount our name and type, and mount it where another one was. So a mount counts that this user
//! made, by what the kernel says, and is unmounted by its number ([`MountPoint`]). A loop device is what it is bound
//! to.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use spillway_sys::fuse::Unmount;
use spillway_sys::loop_device::{self, Binding, Detached};
use spillway_sys::mount_point::MountPoint;
use spillway_sys::proc_text::maps::FileId;
use spillway_sys::proc_text::mounts::{self, Mount};
use spillway_sys::proc_text::unescaped;

use crate::front_end::FrontEndError;
use crate::fuse::protocol::FILE_NODE;
use crate::ownership::Ownership;

/// The list of mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";

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
    LoopDevice(PathBuf, Binding),
    /// A mounted filesystem, and its number.
    Mount(PathBuf, u64),
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
        LeftoverKind::LoopDevice(path, binding) => remove_loop_device(path, binding),
        LeftoverKind::Mount(path, id) => {
            let is_it = |mount: &Mount<'_>| mount.id == *id && is_of(mount, &leftover.ownership);
            let result = MountPoint::open(path).and_then(|mount| mount.unmount(Unmount::Abort, is_it));
            result.map_err(FrontEndError::system(format!("cannot unmount {}", path.display())))
        }
    }
}

fn is_of(mount: &Mount<'_>, ownership: &Ownership) -> bool {
    Ownership::of_mount(mount).as_ref() == Some(ownership)
}

/// A loop device that [`list`] named, for as long as something is done about its users: it does not become another
/// process's meanwhile. `None` if it has gone already, and for a mount.
pub fn hold(leftover: &Leftover) -> Result<Option<File>, FrontEndError> {
    let LeftoverKind::LoopDevice(path, binding) = &leftover.kind else { return Ok(None) };
    let held = loop_device::hold(path, binding);
    held.map_err(FrontEndError::system(format!("cannot open {}", path.display())))
}

fn remove_loop_device(path: &Path, binding: &Binding) -> Result<(), FrontEndError> {
    let context = || FrontEndError::system(format!("cannot free {}", path.display()));
    match loop_device::detach(path, binding).map_err(context())? {
        Detached::Done => Ok(()),
        Detached::Busy => {
            loop_device::detach_when_unused(path, binding).map_err(context())?;
            Err(FrontEndError::Busy(format!(
                "{path} lost its server and is still in use; free it with swapoff {path} or umount {path}",
                path = path.display()
            )))
        }
    }
}

fn loop_devices() -> io::Result<Vec<Leftover>> {
    let mut leftovers = Vec::new();
    let list = fs::read(MOUNTS)?;
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Only bound loop devices have this folder; others are not opened.
        if !entry.path().join("loop").exists() {
            continue;
        }
        let path = Path::new("/dev").join(entry.file_name());
        // A device may be freed while we look.
        let Ok(Some(status)) = loop_device::status(&path) else { continue };
        let binding = status.binding;
        if let Some(ownership) = abandoned(&binding.name)?
            && is_our_file(&binding.file, &ownership, &list)
        {
            leftovers.push(Leftover { ownership, kind: LeftoverKind::LoopDevice(path, binding) });
        }
    }
    Ok(leftovers)
}

/// Whether a file can be the one of a filesystem of ours, by its number and by what is mounted. Our mount may be gone,
/// so that no mount has the device; but such a device has no disk behind it.
fn is_our_file(file: &FileId, ownership: &Ownership, mountinfo: &[u8]) -> bool {
    let mut of_device = mounts::all(mountinfo).filter(|mount| mount.device == file.device);
    file.inode == FILE_NODE && file.device.0 == 0 && of_device.all(|mount| is_of(&mount, ownership))
}

fn mounts() -> io::Result<Vec<Leftover>> {
    let mut leftovers = Vec::new();
    for mount in mounts::all(&fs::read(MOUNTS)?) {
        if let Some(ownership) = Ownership::of_mount(&mount)
            && ownership.is_abandoned()?
        {
            let path = PathBuf::from(OsString::from_vec(unescaped(mount.point).collect()));
            leftovers.push(Leftover { ownership, kind: LeftoverKind::Mount(path, mount.id) });
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
