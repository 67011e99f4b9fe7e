//! System calls that a thread may be borrowed from while it waits in them.
//!
//! A call that a stop interrupts ends as for a signal (signal(7), "Interruption of system calls and library functions
//! by signal handlers"). Those below leave one of the kernel's `ERESTART` codes in the result, which the program
//! never sees: when the thread goes on with the registers that it was stopped with and no handler of the program's
//! ran. Then the kernel makes the call again, with what is left of its time (`arch_do_signal_or_restart` in the
//! kernel's `arch/x86/kernel/signal.c`); a debugger that calls a function in its program relies on the same. Calls
//! that would end with `EINTR`, or with a part of their work, are not here; of sockets only those that wait for ever
//! are (`sock_intr_errno` in the kernel's `include/net/sock.h`).
//!
//! `epoll_wait` is the exception: it ends with `EINTR`, also where no handler runs. Servers wait in it all their
//! life, so it is borrowed from if it waits for ever, or so shortly that another such wait does no harm. Its result
//! becomes a code that makes the kernel begin it anew ([`begins_again`]). The same is done of a call of this list
//! whose code the kernel gave up (`select`, when it could not say how much of its time is left).
//!
//! Some calls wait with a signal mask of their own, which nothing can put back; a thread that blocks signals there is
//! left alone. So is one that waits for a page in the middle of a call: that wait goes on, awake, until the page
//! comes.

use crate::lease::read_unless_leased;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, socket_timeout};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::request::Registers;
use crate::proc_text::fields;
use crate::process_memory;
use crate::whereabouts::Whereabouts;

/// Longest wait that may begin anew: timers of servers tick in tenths of a second.
const EPOLL_WAIT_MS_MAX: i32 = 1000;

/// Where the arguments of calls are.
const DESCRIPTOR: usize = 0;
const FUTEX_OPERATION: usize = 1;
const EPOLL_TIMEOUT: usize = 3;
const EPOLL_MASK: usize = 4;
const PPOLL_MASK: usize = 3;
const PSELECT_MASK: usize = 5;
const RECVMSG_FLAGS: usize = 2;
const RECVFROM_FLAGS: usize = 3;

/// Where a thread waits for a page that a system call of its touched (`wchan` in proc(5)).
const WAITS_FOR_PAGE: &[u8] = b"handle_userfault";

/// Whether a thread that is there may be stopped and borrowed.
pub(super) fn may_be_borrowed(process: u32, thread: u32, whereabouts: Whereabouts) -> bool {
    match whereabouts {
        Whereabouts::Runs | Whereabouts::WaitsOutside => true,
        Whereabouts::Call(number, arguments) => {
            let wchan = || read_unless_leased(format!("/proc/{process}/task/{thread}/wchan"));
            // The kernel does not tell where the kernel has no names, or hides them: "0".
            let waits_for_page = || wchan().map_or(true, |place| place == b"0" || place == WAITS_FOR_PAGE);
            let blocks_nothing = || matches!(blocked_signals(process, thread), Ok(0));
            begins_anew(process, thread, number, arguments)
                && (!has_own_mask(process, number, arguments) || blocks_nothing())
                && !waits_for_page()
        }
    }
}

/// Whether a thread that waits there is in the middle of no call, or of one that changes its mappings; no stop ends
/// those with an error.
pub(super) fn is_outside_or_changes_mappings(whereabouts: Whereabouts) -> bool {
    let Whereabouts::Call(number, _) = whereabouts else { return true };
    matches!(
        number,
        libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mremap
            | libc::SYS_mprotect
            | libc::SYS_madvise
            | libc::SYS_brk
            | libc::SYS_shmat
            | libc::SYS_shmdt
    )
}

/// Whether a call replaces its thread's signal mask while it waits.
fn has_own_mask(process: u32, number: i64, arguments: [u64; 6]) -> bool {
    match number {
        libc::SYS_rt_sigsuspend => true,
        libc::SYS_ppoll => arguments[PPOLL_MASK] != 0,
        libc::SYS_epoll_pwait => arguments[EPOLL_MASK] != 0,
        libc::SYS_pselect6 => {
            // The address of the mask's address, and of its size.
            let mut mask = [0; 8];
            let place = arguments[PSELECT_MASK];
            place != 0 && !(process_memory::read_exact(process, place, &mut mask).is_ok() && mask == [0; 8])
        }
        _ => false,
    }
}

/// Whether a stopped thread blocks signals that are not in the mask that it has outside of its call.
pub(super) fn blocks_more_than(process: u32, thread: u32, mask: u64) -> io::Result<bool> {
    Ok(blocked_signals(process, thread)? & !mask != 0)
}

fn blocked_signals(process: u32, thread: u32) -> io::Result<u64> {
    let status = read_unless_leased(format!("/proc/{process}/task/{thread}/status"))?;
    fields::mask_of(&status, "SigBlk").ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Whether a call that is interrupted begins anew.
fn begins_anew(process: u32, thread: u32, number: i64, arguments: [u64; 6]) -> bool {
    match number {
        libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_poll
        | libc::SYS_ppoll
        | libc::SYS_select
        | libc::SYS_pselect6
        | libc::SYS_pause
        | libc::SYS_rt_sigsuspend
        | libc::SYS_restart_syscall => true,
        libc::SYS_futex => waits_at_futex(arguments[FUTEX_OPERATION] as i32),
        libc::SYS_read | libc::SYS_readv => reads_what_waits(process, thread, arguments[DESCRIPTOR]),
        libc::SYS_accept | libc::SYS_accept4 => is_socket_that_waits(process, thread, arguments[DESCRIPTOR]),
        libc::SYS_recvfrom => receives(process, thread, arguments[DESCRIPTOR], arguments[RECVFROM_FLAGS]),
        libc::SYS_recvmsg => receives(process, thread, arguments[DESCRIPTOR], arguments[RECVMSG_FLAGS]),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => is_short_or_endless(arguments[EPOLL_TIMEOUT]),
        _ => false,
    }
}

/// The operations that wait, of those that begin anew.
fn waits_at_futex(operation: i32) -> bool {
    let operation = operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_LOCK_PI)
}

/// Pipes and sockets: a read that got nothing begins anew.
fn reads_what_waits(process: u32, thread: u32, descriptor: u64) -> bool {
    file_of(process, thread, descriptor).is_some_and(|file| file.starts_with("pipe:["))
        || is_socket_that_waits(process, thread, descriptor)
}

/// What a thread's descriptor is.
fn file_of(process: u32, thread: u32, descriptor: u64) -> Option<String> {
    let file = fs::read_link(format!("/proc/{process}/task/{thread}/fd/{descriptor}")).ok()?;
    Some(file.to_string_lossy().into_owned())
}

/// One that wants all of its bytes may have got some.
fn receives(process: u32, thread: u32, descriptor: u64, flags: u64) -> bool {
    flags & libc::MSG_WAITALL as u64 == 0 && is_socket_that_waits(process, thread, descriptor)
}

/// Whether this is a socket that waits for ever (`SO_RCVTIMEO`) for whatever comes (`SO_RCVLOWAT`), in both tables of
/// descriptors: the thread's and that of its process's first, which is the one that can be looked into.
fn is_socket_that_waits(process: u32, thread: u32, descriptor: u64) -> bool {
    let [own, common] = [thread, process].map(|thread| file_of(process, thread, descriptor));
    let socket = || -> rustix::io::Result<OwnedFd> {
        let process = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
        let process = pidfd_open(process, PidfdFlags::empty())?;
        pidfd_getfd(process, descriptor as i32, PidfdGetfdFlags::empty())
    };
    let waits = |socket: &OwnedFd| {
        matches!(socket_timeout(socket, Timeout::Recv), Ok(None)) && least_bytes(socket).is_some_and(|bytes| bytes <= 1)
    };
    own.is_some_and(|own| own.starts_with("socket:[") && Some(own) == common)
        && socket().is_ok_and(|socket| waits(&socket))
}

/// How many bytes a read of a socket waits for.
fn least_bytes(socket: &OwnedFd) -> Option<i32> {
    let (mut bytes, mut length) = (0_i32, size_of::<i32>() as libc::socklen_t);
    let target = (&raw mut bytes).cast();
    // SAFETY: the kernel writes at most `length` bytes of `bytes`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, target, &raw mut length) };
    (result == 0).then_some(bytes)
}

fn is_short_or_endless(timeout: u64) -> bool {
    // The kernel takes the lower half, and anything negative for ever.
    timeout as i32 <= EPOLL_WAIT_MS_MAX
}

/// The registers with which a stopped thread's call begins anew; `None` when they need no change.
///
/// All of these have done nothing yet when they end with `EINTR`. `epoll_wait` apart, a thread that waits in one of
/// them is left alone. So this one has gone into it just before it was stopped, and what is left of its time is
/// nearly all of it. Of sockets they are those whose waits have an end (`sock_intr_errno` in the kernel's
/// `include/net/sock.h`), `connect` waits on (`__inet_stream_connect` in its `net/ipv4/af_inet.c`), and `fallocate`
/// takes back what it did (shmem).
pub(super) fn begins_again(registers: &Registers) -> Option<Registers> {
    const ANEW: [i64; 25] = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_select,
        libc::SYS_pselect6,
        libc::SYS_ppoll,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_io_uring_enter,
        libc::SYS_io_getevents,
        libc::SYS_fallocate,
    ];
    let again = ANEW.contains(&registers.system_call()?);
    (again && registers.result() == -i64::from(libc::EINTR)).then(|| registers.with_call_again())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// As if this thread waited there.
    fn call(number: i64, arguments: [u64; 6]) -> bool {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        begins_anew(std::process::id(), thread, number, arguments)
    }

    #[test]
    fn calls_that_end_with_an_error_when_interrupted_are_left_alone() {
        assert!(call(libc::SYS_wait4, [0; 6]));
        for number in [libc::SYS_rt_sigtimedwait, libc::SYS_io_uring_enter, libc::SYS_connect, libc::SYS_write] {
            assert!(!call(number, [0; 6]), "call {number}");
        }
        let waits = |operation: i32| call(libc::SYS_futex, [0, operation as u64, 0, 0, 0, 0]);
        assert!(waits(libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG) && !waits(libc::FUTEX_WAIT_REQUEUE_PI));
        let epoll = |timeout: i32| call(libc::SYS_epoll_wait, [3, 0, 0, u64::from(timeout.cast_unsigned()), 0, 0]);
        assert!(epoll(-1) && epoll(100) && !epoll(60_000));
    }

    #[test]
    fn what_is_read_tells_whether_a_read_begins_anew() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let file = fs::File::open("/proc/self/status").unwrap();
        let reads = |descriptor: &dyn AsRawFd| {
            let arguments = [descriptor.as_raw_fd().unsigned_abs().into(), 0, 0, 0, 0, 0];
            call(libc::SYS_read, arguments)
        };
        let (socket, _peer) = UnixStream::pair().unwrap();
        assert!(reads(&reader) && reads(&socket) && !reads(&file));
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        assert!(!reads(&socket), "its read would fail");
        socket.set_read_timeout(None).unwrap();
        let receives = |flags: i32| {
            let arguments = [socket.as_raw_fd().unsigned_abs().into(), 0, 0, flags.unsigned_abs().into(), 0, 0];
            call(libc::SYS_recvfrom, arguments)
        };
        assert!(receives(0) && !receives(libc::MSG_WAITALL));
    }
}
