//! `CAP_SYS_PTRACE`, which a program file may give to an ordinary user (`setcap`), is used for one call only: to
//! agree on messages about forks (`UFFD_FEATURE_EVENT_FORK`).
//!
//! A process that has the capability and traces others can be made to trace a program of another user: between any
//! look at a process and the trace, the process may execute a set-user-ID program. So the process gives the
//! capability up before it has threads, and a small process beside it keeps it, does that one call on userfaultfds
//! that come over a socket, and nothing else. The small process cannot be traced by its own user (`PR_SET_DUMPABLE`),
//! has the capability in effect around the call only, and ends when its socket does.
//!
//! A process of root keeps what it has: a user that can change it is root already.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::passed_descriptor::{receive, send};
use crate::userfaultfd::{Features, Userfaultfd};

/// The socket to the process that keeps the capability.
static KEEPER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// What a request and an answer are: one word (features; 0 or an error number, and features).
const REQUEST_BYTES: usize = 8;
const ANSWER_BYTES: usize = 16;

/// Gives `CAP_SYS_PTRACE` up for this process. With `is_needed`, a process beside it keeps the capability for
/// [`Userfaultfd::agree`]. To be called before
/// there are threads. Nothing happens in a process of root, or without the capability.
pub fn give_up(is_needed: bool) -> io::Result<()> {
    let own = capabilities(None)?;
    if rustix::process::geteuid().is_root() || !own.permitted.contains(CapabilitySet::SYS_PTRACE) {
        return Ok(());
    }
    if is_needed {
        start_keeper()?;
    }
    set_tracing(Has::Nothing)
}

/// How much of the capability this thread has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Nothing,
    Permitted,
    Effective,
}

fn set_tracing(has: Has) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.permitted.set(CapabilitySet::SYS_PTRACE, has != Has::Nothing);
    sets.effective.set(CapabilitySet::SYS_PTRACE, has == Has::Effective);
    sets.inheritable.remove(CapabilitySet::SYS_PTRACE);
    Ok(set_capabilities(None, sets)?)
}

fn start_keeper() -> io::Result<()> {
    let (own, keepers) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // SAFETY: there are no other threads yet (the caller's promise), so the copy may do what this process may.
    match unsafe { libc::fork() } {
        0 => {
            drop(own);
            keep(&keepers)
        }
        process if process > 0 => {
            let _ = KEEPER.set(Mutex::new(own));
            Ok(())
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// The keeper's life.
fn keep(socket: &OwnedFd) -> ! {
    // Its own user may not look into it: it has more rights than the user.
    let is_hidden = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).is_ok();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"spillway-forks");
    close_others(socket);
    if is_hidden && set_tracing(Has::Permitted).is_ok() {
        while serve(socket).is_ok() {}
    }
    // SAFETY: ends this process without running anything that was registered for the end of the other.
    unsafe { libc::_exit(0) }
}

/// Closes all descriptors but `socket`, so that no pipe of the program stays open for it.
fn close_others(socket: &OwnedFd) {
    let number = socket.as_raw_fd().unsigned_abs();
    // SAFETY: numbers only; nothing in this process uses another descriptor any more.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, number.saturating_sub(1), 0);
        libc::syscall(libc::SYS_close_range, number + 1, u32::MAX, 0);
    }
}

/// Answers one request. An error: the other end is closed.
fn serve(socket: &OwnedFd) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    let (length, descriptor) = receive(socket.as_fd(), &mut request)?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let wanted = Features(u64::from_ne_bytes(request));
    let outcome = descriptor.ok_or_else(|| io::ErrorKind::InvalidInput.into()).and_then(|descriptor| {
        // Refuses whatever is no userfaultfd.
        let userfaultfd = Userfaultfd::from_descriptor(descriptor)?;
        set_tracing(Has::Effective)?;
        let outcome = userfaultfd.agree_here(wanted);
        set_tracing(Has::Permitted)?;
        outcome
    });
    let mut answer = [0; ANSWER_BYTES];
    let (number, features) = match outcome {
        Ok(features) => (0, features.0),
        Err(error) => (error.raw_os_error().unwrap_or(libc::EINVAL), 0),
    };
    answer[..8].copy_from_slice(&i64::from(number).to_ne_bytes());
    answer[8..].copy_from_slice(&features.to_ne_bytes());
    send(socket.as_fd(), &answer, None)
}

/// Agrees on `wanted` for `userfaultfd`, through the process that keeps the capability; `None` where there is none.
pub(crate) fn agree(userfaultfd: BorrowedFd<'_>, wanted: Features) -> Option<io::Result<Features>> {
    let socket = KEEPER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    Some(ask(socket.as_fd(), userfaultfd, wanted))
}

fn ask(socket: BorrowedFd<'_>, userfaultfd: BorrowedFd<'_>, wanted: Features) -> io::Result<Features> {
    send(socket, &wanted.0.to_ne_bytes(), Some(userfaultfd))?;
    let mut answer = [0; ANSWER_BYTES];
    if receive(socket, &mut answer)?.0 != ANSWER_BYTES {
        return Err(io::Error::other("the process that keeps CAP_SYS_PTRACE has ended"));
    }
    let word = |at: usize| u64::from_ne_bytes(answer[at..at + 8].try_into().expect("a word has eight bytes"));
    match i32::try_from(word(0)) {
        Ok(0) => Ok(Features(word(8))),
        Ok(number) => Err(io::Error::from_raw_os_error(number)),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::userfaultfd::Scope;

    #[test]
    fn one_call_is_done_on_userfaultfds_and_on_nothing_else() {
        let (own, keepers) =
            net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let keeper = std::thread::spawn(move || {
            let mut served = 0;
            while serve(&keepers).is_ok() {
                served += 1;
            }
            served
        });
        let file = tempfile::tempfile().unwrap();
        assert!(ask(own.as_fd(), file.as_fd(), Features::FORK).is_err());
        // SAFETY: no range is ever given to it.
        let userfaultfd =
            unsafe { Userfaultfd::create(Scope::Everything).or_else(|_| Userfaultfd::create(Scope::UserModeOnly)) };
        if let Ok(userfaultfd) = userfaultfd {
            ask(own.as_fd(), userfaultfd.as_fd(), Features::default()).unwrap();
            assert!(userfaultfd.agree_here(Features::default()).is_err(), "it was agreed on already");
        }
        drop(own);
        assert!(keeper.join().unwrap() >= 1);
    }
}
