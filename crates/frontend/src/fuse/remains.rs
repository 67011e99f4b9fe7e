//! What a killed process left behind: FUSE mounts and loop devices whose server is gone, and their removal.
//!
//! The kernel aborts the FUSE connection of a process that died, so everything on such a device already fails with I/O
//! errors. What stays is the loop device, the mount and its directory. Only what carries our [`Ownership`] and whose process
//! is gone is ever touched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use spillway_sys::fuse::{FILESYSTEM_TYPE, Unmount, unmount};
use spillway_sys::loop_device::{self, Detached};
use spillway_sys::swap::unescape;

use crate::front_end::FrontEndError;
use crate::ownership::Ownership;

/// One thing left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remain {
    /// Who left it.
    pub ownership: Ownership,
    /// What it is.
    pub kind: RemainKind,
}

/// See [`Remain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemainKind {
    /// A bound loop device.
    LoopDevice(PathBuf),
    /// A mounted filesystem.
    Mount(PathBuf),
}

/// What was done about one [`Remain`].
#[derive(Debug)]
pub struct Mended {
    /// What it was.
    pub remain: Remain,
    /// Whether it is gone.
    pub result: Result<(), FrontEndError>,
}

/// Everything of ours whose process is gone; loop devices first, because they hold their mounts.
pub fn list() -> Result<Vec<Remain>, FrontEndError> {
    let mut remains = loop_devices().map_err(FrontEndError::system("cannot list loop devices"))?;
    remains.extend(mounts().map_err(FrontEndError::system("cannot list mounts"))?);
    Ok(remains)
}

/// Removes what [`list`] names, and says what became of each. A loop device that is still in use (swap on it, mounted) is
/// left, and freed by the kernel when its last user goes.
pub fn mend() -> Result<Vec<Mended>, FrontEndError> {
    Ok(list()?.into_iter().map(|remain| Mended { result: remove(&remain.kind), remain }).collect())
}

fn remove(kind: &RemainKind) -> Result<(), FrontEndError> {
    match kind {
        RemainKind::LoopDevice(path) => remove_loop_device(path),
        RemainKind::Mount(path) => {
            let result = unmount(path, Unmount::Abort).and_then(|()| fs::remove_dir(path));
            result.map_err(FrontEndError::system(format!("cannot unmount {}", path.display())))
        }
    }
}

fn remove_loop_device(path: &Path) -> Result<(), FrontEndError> {
    let context = || FrontEndError::system(format!("cannot free {}", path.display()));
    match loop_device::detach(path).map_err(context())? {
        Detached::Done => Ok(()),
        Detached::Busy => {
            loop_device::detach_when_unused(path).map_err(context())?;
            Err(FrontEndError::Busy(format!(
                "{path} lost its server and is still in use; free it with swapoff {path} or umount {path}",
                path = path.display()
            )))
        }
    }
}

fn loop_devices() -> io::Result<Vec<Remain>> {
    let mut remains = Vec::new();
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
            remains.push(Remain { ownership, kind: RemainKind::LoopDevice(path) });
        }
    }
    Ok(remains)
}

fn mounts() -> io::Result<Vec<Remain>> {
    let mut remains = Vec::new();
    for line in fs::read_to_string("/proc/self/mounts")?.lines() {
        let mut fields = line.split(' ');
        let (Some(source), Some(directory), Some(kind)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if kind != FILESYSTEM_TYPE {
            continue;
        }
        if let Some(ownership) = abandoned(source)? {
            remains.push(Remain { ownership, kind: RemainKind::Mount(unescape(directory)) });
        }
    }
    Ok(remains)
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
