//! userfaultfd: page faults of a process, answered by another process (userfaultfd(2), ioctl_userfaultfd(2)).
//!
//! A descriptor belongs to the memory of the process that made it, and travels to the pager over a socket. All
//! addresses are addresses in that process, so they are numbers here and never pointers. Filling copies from a
//! [`Mapping`] of ours.
//!
//! - [`access`]: what this kernel and this user have, and the command that mends what is missing.
//! - [`Message`]: what the kernel tells.
//! - [`PageError`]: what it answers.
//! - [`served`]: memory whose faults are served with nothing else around, and [`leaving`]: memory that is taken away
//!   so, as yardsticks.

mod abi;
pub mod access;
mod error;
mod features;
pub mod leaving;
mod message;
pub mod served;
#[cfg(test)]
mod tests;
pub mod tracing_right;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::mapping::Mapping;
use abi::{ApiArgument, FillArgument, RangeArgument, RegisterArgument, TransferArgument, WriteProtectArgument};
pub use error::PageError;
pub use features::{Features, RegisterMode};
use message::MESSAGE_BYTES;
pub use message::{Fault, Message};

/// Messages read with one system call: a burst of faults of as many threads; more come with the next call.
const MESSAGES_PER_READ: usize = 32;

/// Whether faults inside system calls are served too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All faults: what paging a program needs.
    Everything,
    /// Faults of user code only; a system call that meets a missing page fails with `EFAULT`.
    UserModeOnly,
}

/// The threads that are woken when a page is filled or its protection changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// All threads that wait for the pages.
    Waiters,
    /// No thread; [`Userfaultfd::wake`] follows.
    NoThread,
}

/// A userfaultfd, see the module text. It never blocks; it is readable when there is a message.
#[derive(Debug)]
pub struct Userfaultfd {
    descriptor: OwnedFd,
}

impl Userfaultfd {
    /// One for this process: through `/dev/userfaultfd` if this user may open it, by the system call otherwise.
    ///
    /// # Safety
    ///
    /// Ranges given to the new descriptor's operations, and to those of its children after a fork, are memory that
    /// no thread refers to by Rust references, such as that of a [`Mapping`]; a descriptor that goes to another process
    /// is up to that.
    pub unsafe fn create(scope: Scope) -> io::Result<Self> {
        let descriptor = match create_by_device(scope) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                create_by_call(scope)?
            }
            other => other?,
        };
        Ok(Self { descriptor })
    }

    /// Takes over a descriptor that another process made for its own memory; refuses one that is no userfaultfd.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
        if kind.as_os_str() != "anon_inode:[userfaultfd]" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the program sent {} in place of a userfaultfd", kind.display()),
            ));
        }
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self { descriptor })
    }

    /// A descriptor that the kernel made for a forked child; it inherits being non-blocking.
    fn from_kernel(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// A second descriptor of the same.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()? })
    }

    /// Agrees on `wanted` with the kernel, which is done once, and before anything else. Fails with `EINVAL` when the
    /// kernel lacks one of them, and with `EPERM` for [`Features::FORK`] without `CAP_SYS_PTRACE` (see
    /// [`crate::userfaultfd::tracing_right`]).
    pub fn agree(&self, wanted: Features) -> io::Result<Features> {
        let keepers =
            wanted.contains(Features::FORK).then(|| crate::userfaultfd::tracing_right::agree(self.as_fd(), wanted));
        keepers.flatten().unwrap_or_else(|| self.agree_here(wanted))
    }

    /// As [`Userfaultfd::agree`], with what rights this thread has.
    pub(crate) fn agree_here(&self, wanted: Features) -> io::Result<Features> {
        let mut argument = ApiArgument { version: abi::API_VERSION, features: wanted.0, ioctls: 0 };
        self.command(abi::API, &mut argument)?;
        Ok(Features(argument.features))
    }

    /// Registers `range`: from now on its faults come here. The range may have holes; what lies in them later is not
    /// registered.
    pub fn register(&self, range: Range<u64>, mode: RegisterMode) -> Result<(), PageError> {
        let mut argument = RegisterArgument { range: argument(&range), mode: mode.0, ioctls: 0 };
        self.page_command(abi::REGISTER, &mut argument)
    }

    /// Undoes [`Userfaultfd::register`], and wakes all that wait in `range`.
    pub fn unregister(&self, range: Range<u64>) -> Result<(), PageError> {
        self.page_command(abi::UNREGISTER, &mut argument(&range))
    }

    /// Wakes all that wait for a page of `range`.
    pub fn wake(&self, range: Range<u64>) -> Result<(), PageError> {
        self.page_command(abi::WAKE, &mut argument(&range))
    }

    /// Fills the `length` missing bytes at `target` with those at `source_offset` of `source`, write-protected if
    /// asked for. Returns the bytes filled; when they are fewer than `length`, another call for the rest says why.
    pub fn copy(
        &self,
        target: u64,
        source: &Mapping,
        source_offset: usize,
        length: usize,
        write_protect: bool,
        wake: Wake,
    ) -> Result<u64, PageError> {
        assert!(
            source_offset.checked_add(length).is_some_and(|end| end <= source.length()),
            "range {source_offset}+{length} lies outside a mapping of {} bytes",
            source.length()
        );
        let mode = fill_mode(wake) | if write_protect { abi::COPY_WRITE_PROTECTED } else { 0 };
        let source = (source.address() + source_offset) as u64;
        self.transfer(abi::COPY, TransferArgument { target, source, length: length as u64, mode, done: 0 })
    }

    /// Fills the missing pages of `range` with zeroes; the result is as for [`Userfaultfd::copy`].
    pub fn zero_page(&self, range: Range<u64>, wake: Wake) -> Result<u64, PageError> {
        self.fill(abi::ZERO_PAGE, &range, wake)
    }

    /// Whether one registered mapping covers `range`, without any effect that the program could see if there are
    /// pages in that mapping: the kernel looks for the mapping, and prepares it for pages of its own, before it fails
    /// to read what it was to copy.
    pub fn covers(&self, range: &Range<u64>) -> Result<bool, PageError> {
        let source = unreadable_page().map_err(|error| PageError::from_number(error.raw_os_error().unwrap_or(0)))?;
        let length = range.end.saturating_sub(range.start);
        let mut argument =
            TransferArgument { target: range.start, source, length, mode: fill_mode(Wake::NoThread), done: 0 };
        match self.page_command(abi::COPY, &mut argument) {
            Err(PageError::Kernel(error)) if error.raw_os_error() == Some(libc::EFAULT) => Ok(true),
            Err(PageError::NotMapped) => Ok(false),
            // It looks for a huge page in the way before it reads.
            Err(PageError::Exists) => Ok(true),
            Err(error) => Err(error),
            Ok(()) => unreachable!("no process can read a page without access"),
        }
    }

    /// Makes the missing pages of `range` raise SIGBUS in the thread that touches them (Linux 6.6): their content is
    /// lost.
    pub fn poison(&self, range: Range<u64>, wake: Wake) -> Result<u64, PageError> {
        self.fill(abi::POISON, &range, wake)
    }

    /// Moves `length` bytes of pages from `source` to `target`, both in the process that the descriptor is of; only
    /// that process may do so. The result is as for [`Userfaultfd::copy`]. With `allow_holes` missing pages are
    /// passed over.
    pub fn move_pages(
        &self,
        target: u64,
        source: u64,
        length: u64,
        allow_holes: bool,
        wake: Wake,
    ) -> Result<u64, PageError> {
        let mode = fill_mode(wake) | if allow_holes { abi::MOVE_ALLOWS_HOLES } else { 0 };
        self.transfer(abi::MOVE, TransferArgument { target, source, length, mode, done: 0 })
    }

    /// Protects the pages of `range` against writing, or takes the protection away.
    pub fn write_protect(&self, range: Range<u64>, protect: bool, wake: Wake) -> Result<(), PageError> {
        let mut mode = if protect { abi::PROTECT } else { 0 };
        // The kernel refuses the flag together with protection, which wakes no thread anyway.
        if wake == Wake::NoThread && !protect {
            mode |= abi::PROTECT_WITHOUT_WAKE;
        }
        self.page_command(abi::WRITE_PROTECT, &mut WriteProtectArgument { range: argument(&range), mode })
    }

    /// Whether the process changes its mappings: there is a message about that, or one was read and its thread did
    /// not go on yet. No effect: the kernel looks at this before it looks at what it is asked for.
    pub fn is_changing(&self) -> bool {
        matches!(self.zero_page(0..0, Wake::NoThread), Err(PageError::TryAgain))
    }

    /// Reads the next message, if there is one.
    pub fn read_message(&self) -> io::Result<Option<Message>> {
        let mut next = None;
        self.read::<1>(|message| next = Some(message))?;
        Ok(next)
    }

    /// Reads the messages that are there, in order, and hands each to `take`. Returns how many there were; none is no
    /// error. More than one call may be needed to read them all.
    pub fn read_messages(&self, take: impl FnMut(Message)) -> io::Result<usize> {
        self.read::<MESSAGES_PER_READ>(take)
    }

    fn read<const COUNT: usize>(&self, mut take: impl FnMut(Message)) -> io::Result<usize> {
        let mut bytes = [[0_u8; MESSAGE_BYTES]; COUNT];
        let read = match rustix::io::read(&self.descriptor, bytes.as_flattened_mut()) {
            Ok(read) => read,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        let messages = &bytes[..read / MESSAGE_BYTES];
        for message in messages {
            // SAFETY: these bytes were read from a userfaultfd just now, and this loop passes each of them once.
            take(unsafe { Message::decode(message) });
        }
        Ok(messages.len())
    }

    /// Gives the descriptor away, to be sent.
    #[cfg(test)]
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// Fills the missing pages of `range` with what belongs to `number`.
    fn fill(&self, number: u32, range: &Range<u64>, wake: Wake) -> Result<u64, PageError> {
        let mut argument = FillArgument { range: argument(range), mode: fill_mode(wake), done: 0 };
        let result = self.command(number, &mut argument);
        filled(result, argument.done)
    }

    /// Fills missing pages with the content of others.
    fn transfer(&self, number: u32, mut argument: TransferArgument) -> Result<u64, PageError> {
        let result = self.command(number, &mut argument);
        filled(result, argument.done)
    }

    fn page_command<Argument>(&self, number: u32, argument: &mut Argument) -> Result<(), PageError> {
        self.command(number, argument).map_err(|error| PageError::from_number(error.raw_os_error().unwrap_or(0)))
    }

    /// `Argument` is the structure that belongs to `number`, see `abi`.
    fn command<Argument>(&self, number: u32, argument: &mut Argument) -> io::Result<()> {
        // SAFETY: the number encodes the argument's size, so the kernel reads and writes `argument` only. What it
        // does to pages concerns the memory of the process that made the descriptor: another process, whose memory no
        // reference of ours sees, or this one under the contract of `create`.
        let result =
            unsafe { libc::ioctl(self.descriptor.as_raw_fd(), u64::from(number), std::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for Userfaultfd {
    /// Readable when there is a message.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Everything => "all faults",
            Self::UserModeOnly => "faults of user code only",
        })
    }
}

fn create_by_device(scope: Scope) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let device = rustix::fs::open(access::DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: the command takes flags as a number and returns a new descriptor; it touches no memory.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), u64::from(abi::NEW), flags(scope)) }.into())
}

fn create_by_call(scope: Scope) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags as a number and returns a new descriptor; it touches no memory.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags(scope)) })
}

fn flags(scope: Scope) -> libc::c_int {
    let mode = if scope == Scope::UserModeOnly { abi::USER_MODE_ONLY.cast_signed() } else { 0 };
    libc::O_CLOEXEC | libc::O_NONBLOCK | mode
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us, and no other thread knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// The address of a page of this process that no thread may read.
fn unreadable_page() -> io::Result<u64> {
    static PAGE: OnceLock<usize> = OnceLock::new();
    if let Some(page) = PAGE.get() {
        return Ok(*page as u64);
    }
    // SAFETY: a new mapping at an address of the kernel's choice, of which no reference is ever made. It stays for
    // good.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(*PAGE.get_or_init(|| page as usize) as u64)
}

fn argument(range: &Range<u64>) -> RangeArgument {
    RangeArgument { start: range.start, length: range.end.saturating_sub(range.start) }
}

fn fill_mode(wake: Wake) -> u64 {
    if wake == Wake::NoThread { abi::FILL_WITHOUT_WAKE } else { 0 }
}

/// The kernel writes the bytes filled, or a negative error number, and fails with `EAGAIN` when it filled some and
/// not all.
fn filled(result: io::Result<()>, done: i64) -> Result<u64, PageError> {
    match result {
        _ if done > 0 => Ok(done.unsigned_abs()),
        Ok(()) => Ok(0),
        Err(error) => Err(PageError::from_number(error.raw_os_error().unwrap_or(0))),
    }
}
