//! Block devices of this machine: whether tests can make them, and direct I/O with them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Says which capability is missing, or that nothing is.
pub fn can_run() -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else if !Path::new("/dev/loop-control").exists() {
        "loop devices (/dev/loop-control)"
    } else {
        return true;
    };
    spillway_sys::skipping::skip(missing);
    false
}

/// Keeps swap areas of other tests and measurements of this machine away: the kernel would page to theirs too. Held
/// by an open file, so it ends with its holder.
pub fn swap_lock() -> File {
    let file = File::create("/tmp/spillway-end-to-end.lock").expect("the lock file can be made");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("the lock can be taken");
    file
}

/// `O_DIRECT` on this architecture.
pub const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// A device or file open past the page cache.
pub fn open_direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(path).unwrap()
}

/// Bytes at a page boundary, for direct I/O.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// `length` zeroes.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, length }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }

    /// Reads `length` bytes of `file` from `offset` on.
    pub fn read(&mut self, file: &File, offset: u64, length: usize) -> &[u8] {
        let bytes = &mut self.bytes()[..length];
        file.read_exact_at(bytes, offset).unwrap();
        bytes
    }

    /// Writes `content` to `file` from `offset` on.
    pub fn write(&mut self, file: &File, offset: u64, content: &[u8]) {
        self.bytes()[..content.len()].copy_from_slice(content);
        file.write_all_at(&self.bytes()[..content.len()], offset).unwrap();
    }
}
