//! A process that outlives this one for a moment, to kill programs that must not go on without it.
//!
//! It shares this process's table of descriptors (`clone` with `CLONE_FILES`), so userfaultfds stay open when this
//! process is killed, and programs wait for their pages instead of reading zeroes. It kills the programs that are
//! listed in memory that both share. Then it kills every process that maps the file of all programs (a child that
//! was forked just now is in no list yet). It waits for the ends of those listed, and only then ends itself, or
//! becomes a program that clears up ([`Successor`]).
//!
//! Invariants: after the clone it makes system calls only, on memory that was made before: a copy of a threaded
//! process has its locks and its heap in whatever state they were.

mod search;
mod successor;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::mapping::{Mapping, PAGE_SIZE_BYTES};
use crate::memfd::Memfd;
use crate::shared_futex;
use search::{Held, LOOK_BYTES, Look, MappedFile};
pub use successor::Successor;

/// How long the guardian waits for the end of one program that it killed. One in an uninterruptible wait ends later,
/// and nothing else can be done about it.
const END_PATIENCE_MS: i32 = 10_000;

/// How often it looks for processes that map the file, a millisecond apart, until there are none: in all about as long.
const SEARCHES_MAX: usize = 10_000;

/// The guardian of this process, see the module text. Gone with this value; programs still listed then are left alone.
#[derive(Debug)]
pub struct Guardian {
    programs: Programs,
    listed: Mutex<Vec<Option<OwnedFd>>>,
    descriptor: OwnedFd,
    process: Pid,
    /// This process; the guardian watches it by its number, in the table that both share.
    parent: OwnedFd,
}

/// A program's place in the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Place(usize);

impl Guardian {
    /// Starts it, for at most `programs_max` programs at a time. Best early, while there is little memory to be shared.
    pub fn start(programs_max: usize) -> io::Result<Self> {
        Self::start_with(programs_max, None, None)
    }

    /// As [`Guardian::start`], and also for processes that map `programs_file`. When this process was killed and no
    /// program is left, the guardian becomes `successor`.
    pub fn start_for_users(
        programs_max: usize,
        programs_file: &Memfd,
        successor: Option<Successor>,
    ) -> io::Result<Self> {
        Self::start_with(programs_max, Some(MappedFile::new(programs_file)?), successor)
    }

    fn start_with(programs_max: usize, users: Option<MappedFile>, successor: Option<Successor>) -> io::Result<Self> {
        let look_offset = programs_max * size_of::<u32>();
        let length = (look_offset + LOOK_BYTES).next_multiple_of(PAGE_SIZE_BYTES);
        let file = Memfd::create("spillway-guardian", length as u64)?;
        let table = Mapping::shared(&file, length)?;
        let parent = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let programs = Programs { table, listed_max: programs_max, look_offset, users, successor };
        let (process, descriptor) = clone_with_descriptors(&programs, &parent)?;
        let listed = Mutex::new((0..programs_max).map(|_| None).collect());
        Ok(Self { programs, listed, descriptor, process, parent })
    }

    /// Whether it was killed: no thread takes care of the programs if this process is too.
    pub fn has_ended(&self) -> bool {
        let mut wanted = libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure of ours.
        unsafe { libc::poll(&raw mut wanted, 1, 0) == 1 }
    }

    /// Starts another one in place of one that has ended. It has the same list, which lies in memory that all of them
    /// share. What this process changes of its other memory from now on is there twice, so this is for a guardian
    /// that was killed.
    pub fn start_again(&mut self) -> io::Result<()> {
        let another = clone_with_descriptors(&self.programs, &self.parent)?;
        // It has ended, so this does not wait.
        let _ = rustix::process::waitpid(Some(self.process), WaitOptions::empty());
        (self.process, self.descriptor) = another;
        Ok(())
    }

    /// Adds the program that `pidfd` is of to those that are killed. `None` when there are too many.
    pub fn watch(&self, pidfd: OwnedFd) -> Option<Place> {
        let mut listed = self.listed.lock().expect("no thread panics while it holds the lock");
        let free = listed.iter().position(Option::is_none)?;
        // 0 is an empty place.
        shared_futex::word(&self.programs.table, free * size_of::<u32>())
            .store(pidfd.as_raw_fd().unsigned_abs() + 1, Ordering::SeqCst);
        listed[free] = Some(pidfd);
        Some(Place(free))
    }

    /// Takes a program that ended off the list.
    pub fn forget(&self, Place(place): Place) {
        shared_futex::word(&self.programs.table, place * size_of::<u32>()).store(0, Ordering::SeqCst);
        self.listed.lock().expect("no thread panics while it holds the lock")[place] = None;
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.process.as_raw_nonzero().get().unsigned_abs()
    }
}

impl AsFd for Guardian {
    /// Readable when the guardian has ended, which it does not by itself while this process lives.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // One that has ended already needs neither.
        let _ = rustix::process::pidfd_send_signal(&self.descriptor, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.process), WaitOptions::empty());
    }
}

/// Whom the guardian kills.
#[derive(Debug)]
struct Programs {
    table: Mapping,
    listed_max: usize,
    /// Behind the list.
    look_offset: usize,
    users: Option<MappedFile>,
    successor: Option<Successor>,
}

impl Programs {
    /// The descriptors of the programs listed.
    fn listed(&self) -> impl Iterator<Item = i32> {
        let descriptor = |place: usize| {
            let word: &AtomicU32 = shared_futex::word(&self.table, place * size_of::<u32>());
            word.load(Ordering::SeqCst).checked_sub(1).map(u32::cast_signed)
        };
        (0..self.listed_max).filter_map(descriptor)
    }

    fn kill_all(&self) {
        for program in self.listed() {
            // SAFETY: a signal to the process that the descriptor is of; fails when it has ended.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, program, libc::SIGKILL, 0, 0) };
        }
        if let Some(users) = &self.users {
            self.kill_users(users);
        }
        for program in self.listed() {
            wait_for_end(program, END_PATIENCE_MS);
        }
    }

    fn kill_users(&self, users: &MappedFile) {
        let (look, mut held) = (Look::new(&self.table, self.look_offset), Held::none());
        for _ in 0..SEARCHES_MAX {
            if !users.kill_users(look, &mut held) {
                break;
            }
            // SAFETY: waits a millisecond for nothing.
            unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
        }
    }
}

/// Makes the guardian: a copy of this process with one thread and the same table of descriptors.
fn clone_with_descriptors(programs: &Programs, parent: &OwnedFd) -> io::Result<(Pid, OwnedFd)> {
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM this is a fork. The copy runs `guard` only, which keeps to system calls.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(result) {
        Ok(0) => guard(programs, parent),
        Ok(process) if process > 0 => {
            let process = Pid::from_raw(process).expect("a child's number is positive");
            Ok((process, rustix::process::pidfd_open(process, PidfdFlags::empty())?))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// The guardian's life.
fn guard(programs: &Programs, parent: &OwnedFd) -> ! {
    // SAFETY: system calls on memory of this process; the mask and the name live through them. Signals of the
    // terminal are meant for the program, so the guardian leaves its group and blocks them.
    unsafe {
        let mask = u64::MAX;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, size_of::<u64>());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"spillway-guard".as_ptr());
    }
    wait_for_end(parent.as_raw_fd(), -1);
    programs.kill_all();
    if let Some(successor) = &programs.successor {
        successor.take_over();
    }
    // SAFETY: ends this process without running anything that was registered for its end.
    unsafe { libc::_exit(0) }
}

/// Waits until the process that `pidfd` is of has ended, at most `patience_ms` (-1: without end). Whether it has.
fn wait_for_end(pidfd: i32, patience_ms: i32) -> bool {
    let mut wanted = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one structure of ours.
        let result = unsafe { libc::poll(&raw mut wanted, 1, patience_ms) };
        // Signals are blocked, so anything but a result is a broken descriptor: there is nothing left to wait for.
        if result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return result != 0;
        }
    }
}

#[cfg(test)]
mod tests;
