//! Loop devices: a file as a block device, read and written past the page cache.
//!
//! A device is bound without `LO_FLAGS_AUTOCLEAR` and no descriptor of it is kept: a process that died while it held
//! the last descriptor would have to write the device's dirty pages back to its own, already dead, server inside
//! `exit`. Instead each bound device carries a name (`lo_file_name`) that says who made it, so that another process
//! can clean up.
//!
//! Others (udev and its like) open block devices for moments at any time; `EBUSY` is therefore retried, within bounds.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

use crate::proc_text::maps::FileId;

/// `linux/major.h`.
const LOOP_MAJOR: u32 = 7;
/// ioctl numbers and flags of `linux/loop.h`.
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_SET_STATUS64: libc::Ioctl = 0x4C04;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// `LO_NAME_SIZE` of `linux/loop.h`, with the terminating zero.
const NAME_BYTES: usize = 64;

/// How often a free device may be taken away by others before giving up; each round takes another device.
const ATTACH_ATTEMPTS_MAX: usize = 32;

/// Why a loop device could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The kernel has no loop driver, or this user may not use it.
    #[error("cannot open /dev/loop-control ({0}); load the loop module (modprobe loop) and run as root")]
    NoControl(io::Error),
    /// The kernel makes no further one.
    #[error(
        "no loop device is free and the kernel makes no further one ({0}); free some (losetup -D frees what is unused)"
    )]
    NoneFree(io::Error),
    /// `/dev/loopN` is missing and could not be made.
    #[error("{path} does not exist and cannot be made ({source}); allow device nodes in this container")]
    NoNode {
        /// The missing node.
        path: PathBuf,
        /// Why it could not be made.
        source: io::Error,
    },
    /// Other processes took every free device that the kernel named.
    #[error("every free loop device was taken by others; try again, or free some (losetup -d)")]
    Contended,
    /// The kernel refused.
    #[error("cannot set up {path} ({source})")]
    Refused {
        /// The device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What a loop device is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The name that [`attach`] gave it, which any process that may bind devices can give.
    pub name: String,
    /// The file, by what the kernel says.
    pub file: FileId,
}

/// What a bound loop device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopStatus {
    /// What it is bound to.
    pub binding: Binding,
    /// Whether it passes its file's page cache.
    pub direct_io: bool,
}

/// How a detach ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// The device is free.
    Done,
    /// It is open; it stays as it was.
    Busy,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    descriptor: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

// The sizes of `linux/loop.h`.
const _: () = assert!(size_of::<LoopInfo64>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopInfo64 {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; NAME_BYTES],
        crypt_name: [0; NAME_BYTES],
        encrypt_key: [0; 32],
        init: [0; 2],
    };

    fn is(&self, binding: &Binding) -> bool {
        let Binding { name, file } = binding;
        self.name_bytes() == &name.as_bytes()[..name.len().min(NAME_BYTES - 1)] && self.file() == *file
    }

    fn name_bytes(&self) -> &[u8] {
        let end = self.file_name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        &self.file_name[..end]
    }

    fn file(&self) -> FileId {
        FileId { device: (rustix::fs::major(self.device), rustix::fs::minor(self.device)), inode: self.inode }
    }

    fn binding(&self) -> Binding {
        Binding { name: String::from_utf8_lossy(self.name_bytes()).into_owned(), file: self.file() }
    }
}

/// Binds `backing` to a free loop device with direct I/O and logical blocks of `block_size_bytes`; returns its path.
/// `name` is cut at 63 bytes. A thread that serves `backing` must be running: the kernel asks for its size and block
/// size.
pub fn attach(backing: BorrowedFd<'_>, name: &str, block_size_bytes: u32) -> Result<PathBuf, LoopError> {
    let control = open("/dev/loop-control".as_ref(), 0).map_err(LoopError::NoControl)?;
    let mut config = LoopConfig {
        descriptor: backing.as_raw_fd() as u32,
        block_size: block_size_bytes,
        info: LoopInfo64 { flags: LO_FLAGS_DIRECT_IO, ..LoopInfo64::EMPTY },
        reserved: [0; 8],
    };
    let length = name.len().min(NAME_BYTES - 1);
    config.info.file_name[..length].copy_from_slice(&name.as_bytes()[..length]);
    for _ in 0..ATTACH_ATTEMPTS_MAX {
        let path = free_device(&control)?;
        match configure(&path, &config) {
            Ok(()) => return Ok(path),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENXIO)) => {}
            Err(source) => return Err(LoopError::Refused { path, source }),
        }
    }
    Err(LoopError::Contended)
}

fn free_device(control: &File) -> Result<PathBuf, LoopError> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    let number = u32::try_from(number).map_err(|_| LoopError::NoneFree(io::Error::last_os_error()))?;
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if !path.exists() {
        let device = rustix::fs::makedev(LOOP_MAJOR, number);
        match rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, device) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(LoopError::NoNode { path, source: errno.into() }),
        }
    }
    Ok(path)
}

fn configure(path: &Path, config: &LoopConfig) -> io::Result<()> {
    let device = open(path, 0)?;
    // SAFETY: the ioctl reads one LoopConfig, which has the kernel's layout and lives through the call.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(config)) })
}

/// What the device at `path` says of itself; `None` when nothing is bound to it.
pub fn status(path: &Path) -> io::Result<Option<LoopStatus>> {
    Ok(information(&open(path, 0)?)?
        .map(|info| LoopStatus { binding: info.binding(), direct_io: info.flags & LO_FLAGS_DIRECT_IO != 0 }))
}

/// Whether the device at `path` is claimed: it is mounted, or swap, or part of another device.
pub fn is_claimed(path: &Path) -> io::Result<bool> {
    match open(path, libc::O_EXCL) {
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        Err(error) => Err(error),
    }
}

/// The device at `path` if it is bound to `binding`. While it is open here it is bound to no other file: the
/// kernel frees a device at its last close.
pub fn hold(path: &Path, binding: &Binding) -> io::Result<Option<File>> {
    bound(open(path, 0)?, binding)
}

/// `device` if it is bound to `binding`. The number of a device that was freed is soon another's.
fn bound(device: File, binding: &Binding) -> io::Result<Option<File>> {
    Ok(information(&device)?.filter(|info| info.is(binding)).map(|_| device))
}

/// Frees the device at `path` if it is bound to `binding`, unless another process has it open. Dirty pages of the
/// device's own cache are written first, so its server must be running, or be dead for good (then the writes fail).
pub fn detach(path: &Path, binding: &Binding) -> io::Result<Detached> {
    let device = match open(path, libc::O_EXCL) {
        Ok(device) => device,
        // Perhaps another device's by now.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Ok(if hold(path, binding)?.is_some() { Detached::Busy } else { Detached::Done });
        }
        Err(error) => return Err(error),
    };
    let Some(device) = bound(device, binding)? else { return Ok(Detached::Done) };
    match clear(&device) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(Detached::Done),
        Err(error) => return Err(error),
    }
    // The only opener sees the device run down at once. With others the kernel would free it at their last close: take
    // that back, because the caller was told that it stays.
    let Some(mut info) = information(&device)? else { return Ok(Detached::Done) };
    info.flags &= !LO_FLAGS_AUTOCLEAR;
    // SAFETY: the ioctl reads one LoopInfo64, which has the kernel's layout and lives through the call.
    match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64, &raw const info) }) {
        Ok(()) => Ok(Detached::Busy),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(Detached::Done),
        Err(error) => Err(error),
    }
}

/// Lets the kernel free the device at `path`, if it is bound to `binding`, as soon as its last user closes it.
pub fn detach_when_unused(path: &Path, binding: &Binding) -> io::Result<()> {
    hold(path, binding)?.map_or(Ok(()), |device| clear(&device))
}

fn clear(device: &File) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) })
}

fn information(device: &File) -> io::Result<Option<LoopInfo64>> {
    let mut info = LoopInfo64::EMPTY;
    // SAFETY: the ioctl fills one LoopInfo64, which has the kernel's layout and lives through the call.
    match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) }) {
        Ok(()) => Ok(Some(info)),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(flags | libc::O_CLOEXEC).open(path)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::skipping::skip;

    #[test]
    fn a_device_that_became_anothers_is_left_alone() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            return skip("loop devices");
        }
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(1 << 20).unwrap();
        let bound_to = FileId::of(&rustix::fs::fstat(&file).unwrap());
        let others = Binding { name: "spillway-test-others".to_owned(), file: bound_to };
        let named = Binding { name: "spillway-test-mine".to_owned(), ..others };
        let path = attach(file.as_fd(), &others.name, 4096).unwrap();
        let same_name = Binding { file: FileId { inode: bound_to.inode + 1, ..bound_to }, ..others.clone() };
        for mine in [named, same_name] {
            assert_eq!(detach(&path, &mine).unwrap(), Detached::Done);
            detach_when_unused(&path, &mine).unwrap();
            assert!(hold(&path, &mine).unwrap().is_none());
            assert_eq!(status(&path).unwrap().unwrap().binding, others);
        }
        let held = hold(&path, &others).unwrap().unwrap();
        assert_eq!(detach(&path, &others).unwrap(), Detached::Busy, "it is held");
        drop(held);
        assert_eq!(detach(&path, &others).unwrap(), Detached::Done);
        assert_ne!(status(&path).unwrap().map(|status| status.binding), Some(others));
    }

    #[test]
    fn long_names_are_compared_as_far_as_the_kernel_keeps_them() {
        let long = "x".repeat(100);
        let mut info = LoopInfo64::EMPTY;
        info.file_name[..NAME_BYTES - 1].copy_from_slice(&long.as_bytes()[..NAME_BYTES - 1]);
        let is = |name: &str| info.is(&Binding { name: name.to_owned(), file: info.file() });
        assert!(is(&long) && !is("x") && !is(""));
    }
}
