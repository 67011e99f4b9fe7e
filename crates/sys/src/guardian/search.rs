//! Finding the processes that map a file, without memory of one's own: for a copy of a threaded process.
//!
//! A child that was forked a moment ago is in no other thread's list yet, but it maps what its parent maps.

use std::os::fd::{AsFd, AsRawFd};

use crate::memfd::Memfd;
use crate::proc_text::maps::{FileId, Pieces};

/// Bytes read at once of a directory or of a process's mappings; on the stack.
const CHUNK_BYTES: usize = 8192;

/// Where a name begins in `struct linux_dirent64`, and where its record's length stands.
const NAME_OFFSET: usize = 19;
const RECORD_LENGTH_OFFSET: usize = 16;

/// A file that programs map.
#[derive(Debug)]
pub(super) struct MappedFile {
    file: FileId,
}

impl MappedFile {
    /// That of `file`.
    pub(super) fn new(file: &Memfd) -> std::io::Result<Self> {
        Ok(Self { file: FileId::of(&rustix::fs::fstat(file.as_fd())?) })
    }

    /// Kills every process that maps the file, except this one. Whether there was any.
    pub(super) fn kill_users(&self) -> bool {
        let mut found = false;
        for_each_process(|process| found |= self.kill_user(process));
        found
    }

    fn kill_user(&self, process: i32) -> bool {
        // SAFETY: numbers only.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as i32;
        if pidfd < 0 {
            return false;
        }
        // The descriptor was opened before the look, so the process that is killed is the one that was looked at.
        // SAFETY: numbers only; `pidfd` is ours.
        let found = process != unsafe { libc::getpid() } && self.is_used_by(process);
        // SAFETY: as above; the signal goes to the process that was looked at.
        unsafe {
            if found {
                libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, 0, 0);
            }
            libc::close(pidfd);
        }
        found
    }

    fn is_used_by(&self, process: i32) -> bool {
        let mut path = [0; 32];
        let path = write_path(&mut path, process);
        // A process may have a lease on its own files, and is not waited for.
        let Some(maps) = Descriptor::open(path, libc::O_NONBLOCK) else { return false };
        let (mut chunk, mut pieces) = ([0; CHUNK_BYTES], Pieces::default());
        loop {
            let read = maps.read(&mut chunk);
            if read == 0 {
                return false;
            }
            if pieces.any(&chunk[..read], |mapped| mapped.file == self.file) {
                return true;
            }
        }
    }
}

/// Writes `/proc/PROCESS/maps` and a zero byte.
fn write_path(target: &mut [u8; 32], process: i32) -> &[u8] {
    let mut digits = [0; 10];
    let mut rest = process.unsigned_abs();
    let mut first = digits.len();
    while rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut length = 0;
    for part in [&b"/proc/"[..], &digits[first..], b"/maps\0"] {
        target[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    &target[..length]
}

fn for_each_process(mut take: impl FnMut(i32)) {
    let Some(directory) = Descriptor::open(b"/proc\0", libc::O_DIRECTORY) else { return };
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        let read = directory.list(&mut chunk);
        if read == 0 {
            return;
        }
        let mut records = &chunk[..read];
        while let Some(length) = record_length(records) {
            if let Some(process) = number(&records[NAME_OFFSET..length]) {
                take(process);
            }
            records = &records[length..];
        }
    }
}

fn record_length(records: &[u8]) -> Option<usize> {
    let bytes = records.get(RECORD_LENGTH_OFFSET..RECORD_LENGTH_OFFSET + 2)?;
    let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    (length > NAME_OFFSET && length <= records.len()).then_some(length)
}

/// The number that a name of zero-terminated digits is.
fn number(name: &[u8]) -> Option<i32> {
    let end = name.iter().position(|byte| *byte == 0)?;
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| i32::from(byte - b'0'));
    let digits = name.get(..end).filter(|digits| !digits.is_empty())?;
    digits.iter().try_fold(0_i32, |number, byte| number.checked_mul(10)?.checked_add(digit(byte)?))
}

/// A file that is closed again.
struct Descriptor(i32);

impl Descriptor {
    /// `path` ends with a zero byte.
    fn open(path: &[u8], flags: i32) -> Option<Self> {
        assert_eq!(path.last(), Some(&0), "a path for the kernel ends with a zero byte");
        // SAFETY: the path ends (checked) and lives through the call.
        let descriptor = unsafe { libc::open(path.as_ptr().cast(), flags | libc::O_RDONLY | libc::O_CLOEXEC) };
        (descriptor >= 0).then_some(Self(descriptor))
    }

    fn read(&self, target: &mut [u8]) -> usize {
        // SAFETY: the target is ours and as long as is said.
        let read = unsafe { libc::read(self.as_raw_fd(), target.as_mut_ptr().cast(), target.len()) };
        read.max(0).unsigned_abs()
    }

    fn list(&self, target: &mut [u8]) -> usize {
        // SAFETY: as for `read`.
        let read = unsafe { libc::syscall(libc::SYS_getdents64, self.as_raw_fd(), target.as_mut_ptr(), target.len()) };
        read.max(0).unsigned_abs() as usize
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> i32 {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, PAGE_SIZE_BYTES};

    #[test]
    fn a_process_that_maps_the_file_is_recognized() {
        let file = Memfd::create("mapped", PAGE_SIZE_BYTES as u64).unwrap();
        let mapped = MappedFile::new(&file).unwrap();
        let me = std::process::id().cast_signed();
        assert!(!mapped.is_used_by(me));
        let _mapping = Mapping::shared(&file, PAGE_SIZE_BYTES).unwrap();
        assert!(mapped.is_used_by(me));
        assert!(!mapped.is_used_by(i32::MAX), "no such process");
    }

    #[test]
    fn every_process_is_looked_at() {
        let me = std::process::id().cast_signed();
        let mut seen = false;
        for_each_process(|process| seen |= process == me);
        assert!(seen);
    }

    #[test]
    fn names_are_numbers_or_not() {
        assert_eq!(number(b"123\0rest"), Some(123));
        for name in [&b"\0"[..], b"self\0", b"12a\0", b"99999999999\0", b"123"] {
            assert_eq!(number(name), None);
        }
        let mut path = [0; 32];
        assert_eq!(write_path(&mut path, 4_194_304), b"/proc/4194304/maps\0");
    }
}
