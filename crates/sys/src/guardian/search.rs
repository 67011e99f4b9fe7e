//! Finding the processes that map a file, without memory of one's own: for a copy of a threaded process.
//!
//! A child that was forked a moment ago is in no other thread's list yet, but it maps what its parent maps.
//!
//! Any user's process can let whatever reads its `maps` wait: it holds the lock of its memory while it waits for a file
//! system of its own (FUSE). So a copy of this process looks, and is killed when it comes to nothing new for
//! [`LOOK_PATIENCE_MS`]. The process that it looked at then, and all of its user but root's, are left out from then on:
//! a user cannot map the file in a process that waits, and have it kept for later, without ending that program himself.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::wait_for_end;
use crate::mapping::Mapping;
use crate::memfd::Memfd;
use crate::proc_text::fields;
use crate::proc_text::maps::{FileId, Pieces};
use crate::proc_text::words;
use crate::shared_futex;

/// Bytes read at once of a directory or of a process's mappings; on the stack.
const CHUNK_BYTES: usize = 8192;

/// Where a name begins in `struct linux_dirent64`, and where its record's length stands.
const NAME_OFFSET: usize = 19;
const RECORD_LENGTH_OFFSET: usize = 16;

/// How long a copy that looks may come to nothing new: a thousand times what one piece of a list takes.
const LOOK_PATIENCE_MS: i32 = 100;

/// Users, and processes of root, that are left out: as many as would hold the guardian up for two minutes.
const HELD_MAX: usize = 1024;

/// A file that programs map.
#[derive(Debug)]
pub(super) struct MappedFile {
    file: FileId,
}

/// How far a copy that looks is, in memory that it shares with the guardian: three words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    memory: &'a Mapping,
    offset: usize,
}

/// Bytes of a [`Look`].
pub(super) const LOOK_BYTES: usize = 3 * size_of::<u32>();

impl<'a> Look<'a> {
    /// At `offset` of `memory`, which is a multiple of 4.
    pub(super) fn new(memory: &'a Mapping, offset: usize) -> Self {
        Self { memory, offset }
    }

    /// The process that is looked at.
    fn process(&self) -> &AtomicU32 {
        shared_futex::word(self.memory, self.offset)
    }

    /// Counts what was done.
    fn steps(&self) -> &AtomicU32 {
        shared_futex::word(self.memory, self.offset + size_of::<u32>())
    }

    /// How many were killed.
    fn killed(&self) -> &AtomicU32 {
        shared_futex::word(self.memory, self.offset + 2 * size_of::<u32>())
    }
}

/// Whose processes are left out, because one of them let a copy wait.
#[derive(Debug)]
pub(super) struct Held {
    users: Few,
    processes_of_root: Few,
}

/// Numbers, without memory of the heap.
#[derive(Debug)]
struct Few {
    numbers: [u32; HELD_MAX],
    count: usize,
}

impl Few {
    fn has(&self, number: u32) -> bool {
        self.numbers[..self.count].contains(&number)
    }

    fn add(&mut self, number: u32) {
        if let Some(free) = self.numbers.get_mut(self.count) {
            *free = number;
            self.count += 1;
        }
    }
}

impl Held {
    pub(super) fn none() -> Self {
        let empty = || Few { numbers: [0; HELD_MAX], count: 0 };
        Self { users: empty(), processes_of_root: empty() }
    }

    fn has(&self, process: i32) -> bool {
        (self.users.count > 0 && user_of(process).is_some_and(|user| self.users.has(user)))
            || self.processes_of_root.has(process.cast_unsigned())
    }

    fn add(&mut self, process: u32) {
        match user_of(process.cast_signed()) {
            Some(user) if user > 0 => self.users.add(user),
            _ => self.processes_of_root.add(process),
        }
    }
}

impl MappedFile {
    /// That of `file`.
    pub(super) fn new(file: &Memfd) -> std::io::Result<Self> {
        Ok(Self { file: FileId::of(&rustix::fs::fstat(file.as_fd())?) })
    }

    /// Kills every process that maps the file, except this one and those that are `held`, to which it adds. Whether
    /// there was any.
    pub(super) fn kill_users(&self, look: Look<'_>, held: &mut Held) -> bool {
        look.killed().store(0, Ordering::SeqCst);
        while !self.copy_looks(look, held) {
            held.add(look.process().load(Ordering::SeqCst));
        }
        look.killed().load(Ordering::SeqCst) > 0
    }

    /// Whether a copy of this process looked at all processes; it is killed when it comes to nothing new.
    fn copy_looks(&self, look: Look<'_>, held: &Held) -> bool {
        let mut pidfd = -1_i32;
        // SAFETY: without CLONE_VM this is a fork, and the kernel writes the descriptor to a place of ours. The copy
        // makes system calls only.
        let copy =
            unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_PIDFD | libc::SIGCHLD, 0, &raw mut pidfd, 0, 0) };
        match i32::try_from(copy) {
            Ok(0) => {
                // SAFETY: numbers only. The copy ends here without running anything that was registered for its end.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    self.look_at_all(look, held);
                    libc::_exit(0)
                }
            }
            Ok(copy) if copy > 0 => {
                let mut steps = look.steps().load(Ordering::SeqCst);
                let has_ended = loop {
                    if wait_for_end(pidfd, LOOK_PATIENCE_MS) {
                        break true;
                    }
                    let now = look.steps().load(Ordering::SeqCst);
                    if now == steps {
                        break false;
                    }
                    steps = now;
                };
                // SAFETY: the descriptor and the child are ours; what has ended takes no signal.
                unsafe {
                    libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, 0, 0);
                    libc::waitpid(copy, std::ptr::null_mut(), 0);
                    libc::close(pidfd);
                }
                has_ended
            }
            // No process can be had: better to look oneself than not at all.
            _ => {
                self.look_at_all(look, held);
                true
            }
        }
    }

    fn look_at_all(&self, look: Look<'_>, held: &Held) {
        for_each_process(|process| {
            look.process().store(process.cast_unsigned(), Ordering::SeqCst);
            look.steps().fetch_add(1, Ordering::SeqCst);
            if !held.has(process) && self.kill_user(process, look) {
                look.killed().fetch_add(1, Ordering::SeqCst);
            }
        });
    }

    fn kill_user(&self, process: i32, look: Look<'_>) -> bool {
        // SAFETY: numbers only.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) } as i32;
        if pidfd < 0 {
            return false;
        }
        // The descriptor was opened before the look, so the process that is killed is the one that was looked at.
        // SAFETY: numbers only; `pidfd` is ours.
        let found = process != unsafe { libc::getppid() }
            && process != unsafe { libc::getpid() }
            && self.is_used_by(process, look);
        // SAFETY: as above; the signal goes to the process that was looked at.
        unsafe {
            if found {
                libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, 0, 0);
            }
            libc::close(pidfd);
        }
        found
    }

    fn is_used_by(&self, process: i32, look: Look<'_>) -> bool {
        let mut path = [0; 32];
        let path = write_path(&mut path, process, b"/maps\0");
        // A process may have a lease on its own files, and is not waited for.
        let Some(maps) = Descriptor::open(path, libc::O_NONBLOCK) else { return false };
        let (mut chunk, mut pieces) = ([0; CHUNK_BYTES], Pieces::default());
        loop {
            let read = maps.read(&mut chunk);
            look.steps().fetch_add(1, Ordering::SeqCst);
            if read == 0 {
                return false;
            }
            if pieces.any(&chunk[..read], |mapped| mapped.file == self.file) {
                return true;
            }
        }
    }
}

/// Whose process it is; its `status` is read without the lock of its memory.
fn user_of(process: i32) -> Option<u32> {
    let mut path = [0; 32];
    let status = Descriptor::open(write_path(&mut path, process, b"/status\0"), libc::O_NONBLOCK)?;
    let mut text = [0; CHUNK_BYTES];
    let read = status.read(&mut text);
    words::processes(fields::value_of(&text[..read], "Uid")?).next()
}

/// Writes `/proc/PROCESS` and `file`, which ends with a zero byte.
fn write_path<'a>(target: &'a mut [u8; 32], process: i32, file: &[u8]) -> &'a [u8] {
    let mut digits = [0; 10];
    let mut rest = process.unsigned_abs();
    let mut first = digits.len();
    while rest > 0 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let mut length = 0;
    for part in [&b"/proc/"[..], &digits[first..], file] {
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
        let memory = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        let look = Look::new(&memory, 0);
        assert!(!mapped.is_used_by(me, look));
        let _mapping = Mapping::shared(&file, PAGE_SIZE_BYTES).unwrap();
        assert!(mapped.is_used_by(me, look));
        assert!(!mapped.is_used_by(i32::MAX, look), "no such process");
        assert!(look.steps().load(Ordering::SeqCst) > 1);
    }

    #[test]
    fn all_of_a_user_are_left_out_and_of_root_one_process() {
        let me = std::process::id();
        let user = user_of(me.cast_signed()).unwrap();
        assert_eq!(user, rustix::process::getuid().as_raw());
        let mut held = Held::none();
        assert!(!held.has(1) && !held.has(me.cast_signed()));
        held.add(me);
        assert!(held.has(me.cast_signed()));
        assert_eq!((held.users.has(user), held.processes_of_root.has(me)), (user > 0, user == 0));
        (0..2000).for_each(|number| held.users.add(number));
        assert_eq!(held.users.count, HELD_MAX);
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
        assert_eq!(write_path(&mut path, 4_194_304, b"/maps\0"), b"/proc/4194304/maps\0");
    }
}
