//! System calls of other processes that wait until they are allowed (seccomp_unotify(2)).
//!
//! - Forks, for pagers of users whom the kernel refuses messages about them: such a child's memory is registered
//!   nowhere, so every page must be there when the fork happens, and none may be moved away until it has.
//! - Calls of which the kernel sends no message, or which it refuses because memory is registered:
//!   [`Called`].
//!
//! The filter that asks is [`crate::call_filter`], or for forks one that a program's stub installs. Every call is
//! answered, whatever is missing here: a thread that waits for an answer cannot even be traced.

use crate::lease::read_unless_leased;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::proc_text::{fields, words};
use crate::process_stat::ProcessStat;
use crate::whereabouts::Whereabouts;

/// `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`.
const RECEIVE: u32 = 3 << 30 | (size_of::<Notification>() as u32) << 16 | (b'!' as u32) << 8;
const SEND: u32 = 3 << 30 | (size_of::<Response>() as u32) << 16 | (b'!' as u32) << 8 | 1;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`: the call is made as if no thread had been asked.
const GO_ON: u32 = 1;
/// `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE` (Linux 6.13).
pub const GUARD_ADVICES: [u32; 2] = [102, 103];
/// `MADV_REMOVE` and `MADV_COLLAPSE` (Linux 6.1), which makes huge pages, also where they are switched off.
pub const OBJECT_ADVICES: [u32; 2] = [9, 25];
/// A call that is asked about where pages of shared memory leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCall {
    /// Its number.
    pub number: i64,
    /// Its name in messages.
    pub name: &'static str,
    /// Whatever its arguments are.
    pub is_always_asked: bool,
    /// It is about the range that its first two arguments are; otherwise about all memory.
    has_range: bool,
}

const fn shared_call(number: i64, name: &'static str, is_always_asked: bool, has_range: bool) -> SharedCall {
    SharedCall { number, name, is_always_asked, has_range }
}

/// All of them. Those without a range pin pages: the kernel, a device or another process writes to them later, and no
/// write protection stops that.
pub static SHARED_CALLS: [SharedCall; 17] = [
    shared_call(libc::SYS_io_uring_setup, "io_uring_setup", true, false),
    shared_call(libc::SYS_io_setup, "io_setup", true, false),
    shared_call(libc::SYS_vmsplice, "vmsplice", true, false),
    shared_call(libc::SYS_process_vm_writev, "process_vm_writev", true, false),
    shared_call(libc::SYS_openat2, "openat2, which may be with O_DIRECT", true, false),
    shared_call(libc::SYS_mlockall, "mlockall", true, false),
    shared_call(libc::SYS_mlock, "mlock", true, true),
    shared_call(libc::SYS_mlock2, "mlock2", true, true),
    shared_call(libc::SYS_remap_file_pages, "remap_file_pages", true, true),
    shared_call(libc::SYS_open, "open with O_DIRECT", false, false),
    shared_call(libc::SYS_openat, "open with O_DIRECT", false, false),
    shared_call(libc::SYS_open_by_handle_at, "open_by_handle_at with O_DIRECT", false, false),
    shared_call(libc::SYS_fcntl, "fcntl with O_DIRECT", false, false),
    shared_call(libc::SYS_ioctl, "an ioctl that gives memory to a device", false, false),
    shared_call(libc::SYS_process_madvise, "process_madvise with MADV_REMOVE or MADV_COLLAPSE", false, false),
    shared_call(libc::SYS_madvise, "madvise with MADV_REMOVE or MADV_COLLAPSE", false, true),
    shared_call(libc::SYS_mremap, "mremap", false, true),
];

/// Operations of futex(2) by which the kernel writes to a word, and in which argument that is. Where its page is away
/// or write-protected they fail with `EFAULT`: the kernel does not wait for a page there (`fault_in_user_writeable` in
/// kernel/futex/core.c asks for no retry, without which userfaultfd refuses).
pub const FUTEX_OPERATIONS: [(i32, usize); 7] = [
    (libc::FUTEX_WAKE_OP, 4),
    (libc::FUTEX_LOCK_PI, 0),
    (libc::FUTEX_UNLOCK_PI, 0),
    (libc::FUTEX_TRYLOCK_PI, 0),
    (libc::FUTEX_WAIT_REQUEUE_PI, 4),
    (libc::FUTEX_CMP_REQUEUE_PI, 4),
    (libc::FUTEX_LOCK_PI2, 0),
];

/// `PAGEMAP_SCAN` ([`crate::pagemap`]).
pub const PAGEMAP_SCAN: u32 = 0xc060_6610;

/// `UFFDIO_REGISTER`, see [`crate::call_filter`].
const REGISTER: u32 = 0xc020_aa00;

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    thread: u32,
    flags: u32,
    call: i32,
    machine: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: u64,
    error: i32,
    flags: u32,
}

/// A `clone` by which programs find out which pager is asked about their forks: one that every kernel refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Its first argument.
    pub flags: u64,
    /// Its second one.
    pub stack: u64,
    /// What such a call shall give.
    pub answer: u64,
}

/// Why a call was not heard of.
#[derive(Debug, thiserror::Error)]
pub enum NoticeError {
    /// No thread could look at who makes it, so that was told to try again.
    #[error("{0} is refused (EAGAIN), because its process cannot be looked at: {1}; mend that and let it try again")]
    Refused(&'static str, io::Error),
    /// None will be.
    #[error("system calls are not heard of any more: {0}; start the program anew")]
    Lost(io::Error),
}

/// What a program is about to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// `fork`, or `clone` with memory of the child's own.
    Fork,
    /// `madvise` with one of [`GUARD_ADVICES`] on this range: guard pages come or go, and what was there before is
    /// lost. No message tells of that.
    Guard(Range<u64>),
    /// The same by `process_madvise`, which takes advice of this kind for the caller's own memory alone.
    Guards {
        /// Where its array of `struct iovec` lies.
        vector: u64,
        /// How many there are.
        count: u64,
    },
    /// `ioctl(UFFDIO_REGISTER)` on a userfaultfd of its own: refused (`EBUSY`) where another one has registered memory.
    RegisterUserfaultfd {
        /// Where its `struct uffdio_register` lies.
        argument: u64,
    },
    /// `mremap` of this range to an address of the program's choice with its length as it was. From Linux 6.17 on the
    /// range may have several mappings, but none that is registered (`EFAULT`).
    Move(Range<u64>),
    /// `mincore` of this range: which pages are there.
    Residency(Range<u64>),
    /// `ioctl(PAGEMAP_SCAN)`: which pages of a process are there, and were written.
    PageScan {
        /// Of which process: a descriptor of the caller's.
        descriptor: u32,
        /// Where its `struct pm_scan_arg` lies.
        argument: u64,
    },
    /// `ptrace` by which a thread begins to trace this one, in the caller's numbers; `None`: the caller is traced.
    Trace(Option<u32>),
    /// `futex` with one of [`FUTEX_OPERATIONS`], on the word at this address.
    Futex(u64),
    /// A call after which shared memory may be reached or written to in a way that no message tells of.
    Shared {
        /// Which, by its place in [`SHARED_CALLS`].
        call: usize,
        /// The memory that it is about; `None`: all of the process's.
        range: Option<Range<u64>>,
    },
}

impl Called {
    /// What `number` with `arguments` is; `None` for a call that no filter asks about.
    fn of(number: i32, arguments: &[u64; 6]) -> Option<Self> {
        let range = |length: u64| Some(arguments[0]..arguments[0].checked_add(length)?);
        match i64::from(number) {
            libc::SYS_fork | libc::SYS_clone => Some(Self::Fork),
            libc::SYS_madvise if is_guard(arguments[2]) => range(arguments[1]).map(Self::Guard),
            libc::SYS_process_madvise if is_guard(arguments[3]) => {
                Some(Self::Guards { vector: arguments[1], count: arguments[2] })
            }
            libc::SYS_ioctl if arguments[1] as u32 == REGISTER => {
                Some(Self::RegisterUserfaultfd { argument: arguments[2] })
            }
            libc::SYS_ioctl if arguments[1] as u32 == PAGEMAP_SCAN => {
                Some(Self::PageScan { descriptor: arguments[0] as u32, argument: arguments[2] })
            }
            libc::SYS_mincore => range(arguments[1]).map(Self::Residency),
            libc::SYS_futex => {
                let operation = arguments[1] as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
                let known = FUTEX_OPERATIONS.iter().find(|(known, _)| *known == operation)?;
                Some(Self::Futex(arguments[known.1]))
            }
            libc::SYS_ptrace => {
                let is_own = arguments[0] as u32 == libc::PTRACE_TRACEME;
                Some(Self::Trace((!is_own).then_some(arguments[1] as u32)))
            }
            libc::SYS_mremap if arguments[1] == arguments[2] && arguments[3] & libc::MREMAP_FIXED as u64 != 0 => {
                range(arguments[1]).map(Self::Move)
            }
            number => Self::shared(number, arguments),
        }
    }

    fn shared(number: i64, arguments: &[u64; 6]) -> Option<Self> {
        let call = SHARED_CALLS.iter().position(|call| call.number == number)?;
        // Pages may be huge from then on, of whichever object.
        let is_of_all = number == libc::SYS_madvise && arguments[2] as u32 != OBJECT_ADVICES[0];
        let range = if SHARED_CALLS[call].has_range && !is_of_all {
            // Of no bytes `mremap` makes a second mapping.
            Some(arguments[0]..arguments[0].checked_add(arguments[1].max(1))?)
        } else {
            None
        };
        Some(Self::Shared { call, range })
    }

    /// What it is called in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fork => "a fork",
            Self::Guard(_) | Self::Guards { .. } => "a change of guard pages (madvise)",
            Self::RegisterUserfaultfd { .. } => "UFFDIO_REGISTER",
            Self::Move(_) => "mremap",
            Self::Residency(_) => "mincore",
            Self::PageScan { .. } => "PAGEMAP_SCAN",
            Self::Trace(_) => "ptrace",
            Self::Futex(_) => "futex",
            Self::Shared { call, .. } => SHARED_CALLS[*call].name,
        }
    }

    /// Whether it is over once its thread had [`SHORT_CALL_TICKS`] of a CPU.
    fn is_short(&self) -> bool {
        matches!(self, Self::Residency(_) | Self::PageScan { .. } | Self::Trace(_))
    }

    /// The numbers of the calls that it may be.
    fn numbers(&self) -> &'static [i64] {
        match self {
            Self::Fork => &[libc::SYS_clone, libc::SYS_fork],
            Self::Guard(_) => &[libc::SYS_madvise],
            Self::Guards { .. } => &[libc::SYS_process_madvise],
            Self::RegisterUserfaultfd { .. } | Self::PageScan { .. } => &[libc::SYS_ioctl],
            Self::Residency(_) => &[libc::SYS_mincore],
            Self::Trace(_) => &[libc::SYS_ptrace],
            Self::Futex(_) => &[libc::SYS_futex],
            Self::Move(_) => &[libc::SYS_mremap],
            Self::Shared { call, .. } => std::slice::from_ref(&SHARED_CALLS[*call].number),
        }
    }
}

fn is_guard(advice: u64) -> bool {
    GUARD_ADVICES.iter().any(|guard| u64::from(*guard) == advice & u64::from(u32::MAX))
}

/// Tells of calls; readable when one waits.
#[derive(Debug)]
pub struct CallNotices {
    listener: OwnedFd,
    probe: Probe,
}

/// A call that waits.
#[derive(Debug)]
pub struct CallNotice {
    id: u64,
    /// The process that makes it, in this process's PID namespace.
    pub process: u32,
    /// Its thread that does.
    pub thread: u32,
    /// The call.
    pub called: Called,
    /// Of a fork, and of calls that are over after little time of a CPU.
    before: Option<Traces>,
}

/// A call that was allowed, and may still be under way.
#[derive(Debug)]
pub struct AllowedCall {
    process: u32,
    thread: u32,
    called: Called,
    /// As in [`CallNotice`].
    before: Option<Traces>,
    /// When it was allowed ([`uptime_ticks`]).
    allowed_ticks: u64,
}

/// By what one sees that a thread came out of a call.
#[derive(Debug)]
struct Traces {
    children: HashSet<u32>,
    user_ticks: u64,
    cpu_ticks: u64,
}

impl CallNotices {
    /// Takes over a descriptor that a program sent; refuses one of another kind. Answers to `probe` by itself.
    pub fn from_descriptor(listener: OwnedFd, probe: Probe) -> io::Result<Self> {
        let kind = fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd()))?;
        if kind.as_os_str() != "anon_inode:seccomp notify" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the program sent {} in place of a descriptor that tells of calls", kind.display()),
            ));
        }
        Ok(Self { listener, probe })
    }

    /// The next call that waits. To be called when the descriptor is readable; `None` when the thread was killed
    /// meanwhile, or only wanted to know which pager is asked.
    pub fn next(&self) -> Result<Option<CallNotice>, NoticeError> {
        let mut notification = Notification::default();
        match self.command(RECEIVE, &mut notification) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return Ok(None),
            Err(error) => return Err(NoticeError::Lost(error)),
        }
        let (id, thread) = (notification.id, notification.thread);
        if self.is_probe(&notification) {
            let response = Response { id, value: self.probe.answer, error: 0, flags: 0 };
            return self.respond(response).map(|()| None).map_err(NoticeError::Lost);
        }
        let Some(called) = Called::of(notification.call, &notification.arguments) else {
            // A range that wraps around, which the kernel refuses.
            let response = Response { id, value: 0, error: 0, flags: GO_ON };
            return self.respond(response).map(|()| None).map_err(NoticeError::Lost);
        };
        let before =
            |process| (called == Called::Fork || called.is_short()).then(|| Traces::of(process, thread)).transpose();
        let seen = process_of(thread).and_then(|process| Ok((process, before(process)?)));
        let name = called.name();
        let error = match seen {
            Ok((process, before)) => return Ok(Some(CallNotice { id, process, thread, called, before })),
            Err(error) => error,
        };
        // Also for one that seems to have ended: then no thread hears it.
        let response = Response { id, value: 0, error: -libc::EAGAIN, flags: 0 };
        self.respond(response).map_err(NoticeError::Lost)?;
        if is_end(&error) { Ok(None) } else { Err(NoticeError::Refused(name, error)) }
    }

    fn is_probe(&self, notification: &Notification) -> bool {
        i64::from(notification.call) == libc::SYS_clone
            && notification.arguments[..2] == [self.probe.flags, self.probe.stack]
    }

    /// Lets a call happen.
    pub fn allow(&self, notice: CallNotice) -> io::Result<AllowedCall> {
        let allowed_ticks = uptime_ticks();
        let CallNotice { id, process, thread, called, before } = notice;
        self.respond(Response { id, value: 0, error: 0, flags: GO_ON })?;
        Ok(AllowedCall { process, thread, called, before, allowed_ticks })
    }

    /// Makes a call fail with `ENOMEM`: its pages could not be brought back.
    #[expect(clippy::needless_pass_by_value, reason = "a notice is answered once")]
    pub fn refuse(&self, notice: CallNotice) -> io::Result<()> {
        self.respond(Response { id: notice.id, value: 0, error: -libc::ENOMEM, flags: 0 })
    }

    /// A thread that was killed meanwhile needs no answer.
    fn respond(&self, mut response: Response) -> io::Result<()> {
        match self.command(SEND, &mut response) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    fn command<Argument>(&self, number: u32, argument: &mut Argument) -> io::Result<()> {
        // SAFETY: the number encodes the argument's size, so the kernel reads and writes `argument` only.
        let result = unsafe { libc::ioctl(self.listener.as_raw_fd(), u64::from(number), std::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for CallNotices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl AllowedCall {
    /// Whether the call is over. It shows when the thread waits in another call or for a page, or when it ended; so a
    /// look may come late, not early. A fork also shows by a new child, or by a thread that ran for much longer than
    /// any fork takes.
    pub fn is_over(&self) -> bool {
        let is_elsewhere = match Whereabouts::of_thread(self.process, self.thread) {
            Ok(Whereabouts::Call(number, _)) => !self.called.numbers().contains(&number),
            Ok(Whereabouts::WaitsOutside) => true,
            // A program can forbid to look at its calls; then the other traces show a fork.
            Ok(Whereabouts::Runs) | Err(_) => false,
        };
        if is_elsewhere {
            return true;
        }
        match (Traces::of(self.process, self.thread), &self.before) {
            (Ok(now), Some(before)) if self.called.is_short() => now.cpu_ticks > before.cpu_ticks + SHORT_CALL_TICKS,
            (Ok(now), Some(before)) => now.shows_more_than(before, |child| self.is_new(child)),
            (Ok(_), None) => false,
            (Err(error), _) => is_end(&error),
        }
    }

    /// Whether `child` was made by this fork: a child of a thread that ended may have become this thread's meanwhile.
    /// One that started within the same tick as the fork was allowed is not known to be new.
    fn is_new(&self, child: u32) -> bool {
        let stat = ProcessStat::of_process(child).ok();
        stat.and_then(|stat| stat.start_ticks()).is_some_and(|started_ticks| started_ticks > self.allowed_ticks)
    }
}

/// Whether a file of `/proc` cannot be read because its process ended.
fn is_end(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// More user time than that (5 s) no fork seems to take: the kernel divides a thread's time by the ticks that it saw,
/// so while it copies memory a part of that, or all, counts as time in user code (`cputime_adjust` in
/// kernel/sched/cputime.c). It is only for a fork that failed in a thread which then computes without a call; copying
/// takes 20 ms a GiB.
const FORK_TICKS_MAX: u64 = 500;

/// One second: the kernel looks at some 100 GiB of page tables in that time. A thread that lost its CPU gets none.
const SHORT_CALL_TICKS: u64 = 100;

impl Traces {
    fn of(process: u32, thread: u32) -> io::Result<Self> {
        let directory = format!("/proc/{process}/task/{thread}");
        let stat = ProcessStat::of_thread(process, thread)?;
        // Kernels without this list show the other traces.
        let children = read_unless_leased(format!("{directory}/children")).unwrap_or_default();
        Ok(Self {
            children: words::processes(&children).collect(),
            user_ticks: stat.user_ticks().ok_or(io::ErrorKind::InvalidData)?,
            cpu_ticks: stat.cpu_ticks().ok_or(io::ErrorKind::InvalidData)?,
        })
    }

    /// Whether there is a child that `is_new`, or the thread has run much since.
    fn shows_more_than(&self, before: &Self, is_new: impl Fn(u32) -> bool) -> bool {
        self.user_ticks > before.user_ticks + FORK_TICKS_MAX
            || self.children.difference(&before.children).any(|child| is_new(*child))
    }
}

/// Hundredths of a second since the machine's start: those are the ticks of `stat`, and of the same clock. It takes
/// no descriptor, which `/proc/uptime` would.
fn uptime_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (now.tv_sec.cast_unsigned() * 100) + now.tv_nsec.cast_unsigned() / 10_000_000
}

fn process_of(thread: u32) -> io::Result<u32> {
    let status = read_unless_leased(format!("/proc/{thread}/status"))?;
    let process = fields::number_of(&status, "Tgid").and_then(|number| u32::try_from(number).ok());
    process.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel_header() {
        assert_eq!(RECEIVE, 0xc050_2100);
        assert_eq!(SEND, 0xc018_2101);
    }

    #[test]
    fn calls_are_known_by_their_numbers_and_arguments() {
        let of = |number: i64, arguments| Called::of(number as i32, &arguments);
        assert_eq!(of(libc::SYS_clone, [0; 6]), Some(Called::Fork));
        assert_eq!(of(libc::SYS_madvise, [0x1000, 0x2000, 102, 0, 0, 0]), Some(Called::Guard(0x1000..0x3000)));
        let register = Called::RegisterUserfaultfd { argument: 0x5000 };
        assert_eq!(of(libc::SYS_ioctl, [3, 0xc020_aa00, 0x5000, 0, 0, 0]), Some(register));
        assert_eq!(of(libc::SYS_mremap, [0x1000, 0x2000, 0x2000, 3, 0x9000, 0]), Some(Called::Move(0x1000..0x3000)));
        assert_eq!(of(libc::SYS_madvise, [0x1000, u64::MAX, 102, 0, 0, 0]), None, "the range wraps around");
        assert_eq!(of(libc::SYS_mincore, [0x1000, 0x800, 9, 0, 0, 0]), Some(Called::Residency(0x1000..0x1800)));
        let scan = Called::PageScan { descriptor: 3, argument: 0x5000 };
        assert_eq!(of(libc::SYS_ioctl, [3, PAGEMAP_SCAN.into(), 0x5000, 0, 0, 0]), Some(scan));
        assert_eq!(of(libc::SYS_ptrace, [16, 7, 0, 0, 0, 0]), Some(Called::Trace(Some(7))));
        assert_eq!(of(libc::SYS_ptrace, [0; 6]), Some(Called::Trace(None)));
        assert_eq!(of(libc::SYS_futex, [8, 6 | 128, 0, 0, 16, 0]), Some(Called::Futex(8)));
        assert_eq!(of(libc::SYS_futex, [8, 5, 0, 0, 16, 0]), Some(Called::Futex(16)));
        assert_eq!(of(libc::SYS_read, [0; 6]), None);
        let shared = |number: i64, arguments| {
            let Some(Called::Shared { call, range }) = of(number, arguments) else { panic!("{number} is one of them") };
            assert_eq!(SHARED_CALLS[call].number, number);
            range
        };
        assert_eq!(shared(libc::SYS_madvise, [0x1000, 0x2000, 9, 0, 0, 0]), Some(0x1000..0x3000));
        assert_eq!(shared(libc::SYS_madvise, [0x1000, 0x2000, 25, 0, 0, 0]), None, "all objects");
        assert_eq!(shared(libc::SYS_mremap, [0x1000, 0, 0x2000, 1, 0, 0]), Some(0x1000..0x1001), "a second mapping");
        assert_eq!(shared(libc::SYS_mremap, [0x1000, 0x2000, 0x2000, 5, 0, 0]), Some(0x1000..0x3000));
        assert_eq!(shared(libc::SYS_io_uring_setup, [8, 0x1000, 0, 0, 0, 0]), None);
        assert_eq!(shared(libc::SYS_ioctl, [3, 0x3b71, 0x5000, 0, 0, 0]), None);
    }

    #[test]
    fn the_process_of_a_thread_and_its_time_are_found() {
        let thread = std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            assert_eq!(process_of(thread).unwrap(), std::process::id());
            Traces::of(std::process::id(), thread).unwrap();
        });
        thread.join().unwrap();
        let started = ProcessStat::of_process(std::process::id()).unwrap().start_ticks().unwrap();
        assert!(started > 0 && started <= uptime_ticks());
        let uptime = || fs::read_to_string("/proc/uptime").unwrap().split('.').next().unwrap().parse::<u64>().unwrap();
        let (before, ticks, after) = (uptime(), uptime_ticks(), uptime());
        assert!((before * 100..(after + 1) * 100).contains(&ticks), "{before} s, {ticks} ticks, {after} s");
        assert!(process_of(u32::MAX >> 1).is_err());
    }

    const PROBE: Probe = Probe { flags: 1 << 16, stack: 7, answer: 5 };

    #[test]
    fn only_the_right_kind_of_descriptor_is_taken() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(CallNotices::from_descriptor(null.into(), PROBE).unwrap_err().to_string().contains("/dev/null"));
    }

    #[test]
    fn a_new_child_or_much_time_shows_that_a_fork_is_over() {
        let traces = |children: &[u32], user_ticks| Traces {
            children: children.iter().copied().collect(),
            user_ticks,
            cpu_ticks: user_ticks,
        };
        let before = traces(&[7, 8], 5);
        let shows_more = |now: &Traces| now.shows_more_than(&before, |child| child != 10);
        assert!(!shows_more(&traces(&[7, 8], 5)));
        assert!(!shows_more(&traces(&[8], 5)), "another child ended");
        assert!(!shows_more(&traces(&[7, 8, 10], 5)), "a child of a thread that ended");
        assert!(shows_more(&traces(&[8, 9], 5)));
        assert!(!shows_more(&traces(&[7, 8], 5 + FORK_TICKS_MAX)), "a fork of much memory takes its time");
        assert!(shows_more(&traces(&[7, 8], 6 + FORK_TICKS_MAX)));
    }

    #[test]
    fn a_process_that_ended_forks_no_more() {
        let before = Traces { children: HashSet::new(), user_ticks: 0, cpu_ticks: 0 };
        let (process, called) = (u32::MAX >> 1, Called::Fork);
        assert!(AllowedCall { process, thread: process, called, before: Some(before), allowed_ticks: 0 }.is_over());
    }
}
