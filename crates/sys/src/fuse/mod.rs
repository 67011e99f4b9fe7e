//! The kernel's end of a filesystem in user space: `/dev/fuse`, its mount, and how requests and replies cross it.
//!
//! A request is read in two pieces: its header with the fixed argument into a small array ([`REQUEST_HEAD_BYTES`]).
//! Whatever follows (for a write, the pages) straight into a [`Mapping`] at an offset that the caller chose, so that
//! data land page-aligned without a second copy. A reply with data leaves straight from the mapping in the same way.
//!
//! Invariant: descriptors are non-blocking, so nothing here ever waits.

pub mod ring;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use crate::mapping::Mapping;

/// `fuse_in_header` (40 bytes) and the fixed argument of a write (`fuse_write_in`, 40 bytes): what stands before the
/// pages of a write (`linux/fuse.h`).
pub const REQUEST_HEAD_BYTES: usize = 80;

/// The filesystem type under which our mounts show in `/proc/mounts`.
pub const FILESYSTEM_TYPE: &str = "fuse.spillway";

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)` (`linux/fuse.h`).
const IOCTL_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// One descriptor of `/dev/fuse`. A reply goes out on the descriptor its request came in on.
#[derive(Debug)]
pub struct FuseDevice {
    descriptor: OwnedFd,
}

/// What reading a request brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A request of so many bytes, header included.
    Request(usize),
    /// Nothing waits.
    Nothing,
    /// The filesystem was unmounted, or its connection aborted.
    Closed,
}

impl FuseDevice {
    /// Opens `/dev/fuse`; not yet a filesystem.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(Self { descriptor: rustix::fs::open("/dev/fuse", flags, Mode::empty())? })
    }

    /// Mounts the filesystem that this descriptor serves on the open `directory`, for this user only. `source` is the
    /// name it shows in the list of mounts. The kernel's first request (INIT) waits on the descriptor afterwards.
    pub fn mount(&self, source: &str, directory: BorrowedFd<'_>) -> io::Result<()> {
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", self.descriptor.as_fd().as_raw_fd());
        let options = CString::new(options).map_err(io::Error::other)?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
        let directory = format!("/proc/self/fd/{}", directory.as_raw_fd());
        rustix::mount::mount(source, directory, FILESYSTEM_TYPE, flags, options.as_c_str())?;
        Ok(())
    }

    /// Another descriptor of the same filesystem, so that another thread takes requests without sharing a queue of
    /// answers. The filesystem must be mounted: newer kernels wait here until it is.
    pub fn clone_device(&self) -> io::Result<Self> {
        let clone = Self::open()?;
        let source = self.descriptor.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32, which lives through the call.
        let result = unsafe { libc::ioctl(clone.descriptor.as_raw_fd(), IOCTL_CLONE, &raw const source) };
        check(result as isize)?;
        Ok(clone)
    }

    /// Takes the next request: its first bytes into `head`, the rest into `length` bytes of `data` from `offset` on.
    pub fn receive(
        &self,
        head: &mut [u8; REQUEST_HEAD_BYTES],
        data: &Mapping,
        offset: usize,
        length: usize,
    ) -> io::Result<Incoming> {
        let vectors = [vector(head.as_mut_ptr(), head.len()), part(data, offset, length)];
        loop {
            // SAFETY: both vectors are writable memory that outlives the call: an exclusive array, and a range of the
            // mapping (checked by `part`), to whose bytes no reference exists.
            let result = unsafe { libc::readv(self.descriptor.as_raw_fd(), vectors.as_ptr(), 2) };
            match check(result).map_err(|error| error.raw_os_error()) {
                Ok(length) => return Ok(Incoming::Request(length)),
                Err(Some(libc::EAGAIN)) => return Ok(Incoming::Nothing),
                // ENOENT: the request was withdrawn while it was read (fuse_dev_do_read), so the next one is due.
                Err(Some(libc::EINTR | libc::ENOENT)) => {}
                Err(Some(libc::ENODEV | libc::ECONNABORTED)) => return Ok(Incoming::Closed),
                Err(errno) => return Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))),
            }
        }
    }

    /// Answers with `reply`, which starts with the reply header.
    pub fn reply(&self, reply: &[u8]) -> io::Result<()> {
        let vectors = [vector(reply.as_ptr().cast_mut(), reply.len())];
        self.send(&vectors)
    }

    /// Answers with the header `reply` followed by `length` bytes of `data` from `offset` on.
    pub fn reply_with_data(&self, reply: &[u8], data: &Mapping, offset: usize, length: usize) -> io::Result<()> {
        let vectors = [vector(reply.as_ptr().cast_mut(), reply.len()), part(data, offset, length)];
        self.send(&vectors)
    }

    /// A request that is gone (interrupted, or its connection aborted) needs no answer, so that is no error.
    fn send(&self, vectors: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the kernel only reads the vectors' memory: a live slice, and a checked range of a mapping.
        let result =
            unsafe { libc::writev(self.descriptor.as_raw_fd(), vectors.as_ptr(), vectors.len() as libc::c_int) };
        match check(result).map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }
}

impl AsFd for FuseDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<OwnedFd> for FuseDevice {
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Takes the mount out of the tree; requests in flight are still served.
    Detach,
    /// As [`Unmount::Detach`], and everything in flight fails: for a server that is dead.
    Abort,
}

fn vector(base: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: length }
}

fn part(data: &Mapping, offset: usize, length: usize) -> libc::iovec {
    let end = offset.checked_add(length).expect("a range of a mapping does not overflow");
    assert!(end <= data.length(), "range {offset}+{length} lies outside a mapping of {} bytes", data.length());
    vector((data.address() + offset) as *mut u8, length)
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A pair of connected sockets that keep message boundaries, the first as a stand-in for `/dev/fuse`: how tests (and
/// fuzzers) play the kernel without one.
pub fn stand_in() -> io::Result<(FuseDevice, OwnedFd)> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the kernel fills the array of two descriptors, which lives through the call.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } as isize)?;
    // SAFETY: both descriptors were just made and belong to no other thread.
    let [device, kernel] = pair.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok((FuseDevice::from(device), kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_lands_in_head_and_mapping_and_the_reply_leaves_from_the_mapping() {
        let (device, kernel) = stand_in().unwrap();
        let data = Mapping::anonymous(8192).unwrap();
        let mut head = [0; REQUEST_HEAD_BYTES];
        assert_eq!(device.receive(&mut head, &data, 4096, 4096).unwrap(), Incoming::Nothing);

        let request: Vec<u8> = (0..100).collect();
        assert_eq!(rustix::io::write(&kernel, &request).unwrap(), 100);
        assert_eq!(device.receive(&mut head, &data, 4096, 4096).unwrap(), Incoming::Request(100));
        let mut rest = [0; 20];
        data.read(4096, &mut rest);
        assert_eq!((&head[..], &rest[..]), (&request[..80], &request[80..]));

        device.reply_with_data(&[1, 2], &data, 4096, 3).unwrap();
        let mut reply = [0; 16];
        assert_eq!(rustix::io::read(&kernel, &mut reply).unwrap(), 5);
        assert_eq!(reply[..5], [1, 2, 80, 81, 82]);
        device.reply(&[9]).unwrap();
        assert_eq!(rustix::io::read(&kernel, &mut reply).unwrap(), 1);
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn data_outside_the_mapping_panics() {
        let (device, _kernel) = stand_in().unwrap();
        let data = Mapping::anonymous(4096).unwrap();
        let _ = device.receive(&mut [0; REQUEST_HEAD_BYTES], &data, 1, 4096);
    }
}
