//! Leases on files (fcntl(2), `F_SETLEASE`): whatever opens such a file waits in its call until the lease is given
//! back, or for `/proc/sys/fs/lease-break-time` (45 s). Files of `/proc` can have one.
//!
//! An opening that shall not wait (`O_NONBLOCK`) fails with `EWOULDBLOCK` while there is a lease.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// `F_SETOWN_EX`, `F_SETSIG`, `F_OWNER_TID` and `struct f_owner_ex` of `linux/fcntl.h`.
const SET_OWNER: i32 = 15;
const SET_SIGNAL: i32 = 10;
const OWNER_THREAD: i32 = 0;

#[repr(C)]
struct Owner {
    kind: i32,
    number: i32,
}

/// What a [`PatientReader`] waits for each file when its time is over: a file that is not held takes less.
const LAST_PATIENCE: Duration = Duration::from_millis(5);

/// By which the kernel says that a file is being opened: no program is ended by this one.
const SIGNAL: i32 = libc::SIGURG;

/// A lease; given back when it is dropped.
#[derive(Debug)]
pub struct Lease {
    file: Arc<File>,
}

impl Lease {
    /// A lease on `file`, which no other process has open as far as the kernel counts. Its [`LeaseSignals`] is that of
    /// this thread.
    pub fn take(file: Arc<File>) -> io::Result<Self> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let owner = Owner { kind: OWNER_THREAD, number: thread };
        let descriptor = file.as_raw_fd();
        // SAFETY: the kernel reads `owner` only, which lives through the call.
        checked(unsafe { libc::fcntl(descriptor, SET_OWNER, &raw const owner) })?;
        // SAFETY: no memory is handed over.
        checked(unsafe { libc::fcntl(descriptor, SET_SIGNAL, SIGNAL) })?;
        // SAFETY: as above.
        checked(unsafe { libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_WRLCK) })?;
        Ok(Self { file })
    }

    /// Whether a thread waits to open the file, or the lease is over.
    pub fn is_awaited(&self) -> bool {
        // SAFETY: no memory is handed over.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLEASE) != libc::F_WRLCK }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // One that took too long is over already.
        // SAFETY: no memory is handed over.
        let _ = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

/// Opens a file to read it; `WouldBlock` if another process has a lease on it, which a program can have on its own
/// files of `/proc`.
pub fn open_unless_leased(path: impl AsRef<Path>) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// All of a file, as [`open_unless_leased`] opens it: for files of other processes in `/proc`, where no lease of such a
/// process is waited for.
pub fn read_unless_leased(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open_unless_leased(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// Reads files of processes in `/proc` that a process can let every reader wait for. It holds the lock of its own
/// memory while it waits for a file system of its own (FUSE): `cmdline`, `environ`, `maps` and `smaps` need that lock.
/// Or it holds the lock of its becoming another program, which `exe` and `stat` need.
///
/// All files together are waited for as long as [`PatientReader::new`] says. A thread that still waits then is left
/// behind; it ends with this process.
#[derive(Debug)]
pub struct PatientReader {
    end: Instant,
}

impl PatientReader {
    /// One that waits for `patience` at most.
    pub fn new(patience: Duration) -> Self {
        Self { end: Instant::now() + patience }
    }

    /// All of a file, as [`read_unless_leased`] reads it; `TimedOut` if it has to be waited for too long.
    pub fn read(&self, path: impl Into<PathBuf>) -> io::Result<Vec<u8>> {
        let path = path.into();
        self.ask(move || read_unless_leased(path))
    }

    /// What a link says, in the same way.
    pub fn read_link(&self, path: impl Into<PathBuf>) -> io::Result<PathBuf> {
        let path = path.into();
        self.ask(move || std::fs::read_link(path))
    }

    fn ask<Answer: Send + 'static>(
        &self,
        question: impl FnOnce() -> io::Result<Answer> + Send + 'static,
    ) -> io::Result<Answer> {
        let (sender, answer) = mpsc::channel();
        std::thread::Builder::new().spawn(move || {
            // The thread that asked has gone on after a while.
            let _ = sender.send(question());
        })?;
        let left = self.end.saturating_duration_since(Instant::now()).max(LAST_PATIENCE);
        answer.recv_timeout(left).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// The same of a file with text for people and for this program, such as those of memory groups, which a user may own.
pub fn text_unless_leased(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read_unless_leased(path)?).into_owned())
}

/// Readable when a file is being opened on which this thread has a lease.
#[derive(Debug)]
pub struct LeaseSignals {
    descriptor: OwnedFd,
}

impl LeaseSignals {
    /// Those of this thread, which blocks their signal from now on.
    pub fn of_this_thread() -> io::Result<Self> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is filled by the first call, and lives through the others, which read it.
        let descriptor = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), SIGNAL);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        checked(descriptor)?;
        // SAFETY: a descriptor that the kernel made just now, and no other thread has.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// Makes it unreadable. Whether it was readable.
    pub fn clear(&self) -> bool {
        // The signal is one, however often it came.
        rustix::io::read(&self.descriptor, &mut [0; size_of::<libc::signalfd_siginfo>()]).is_ok()
    }
}

impl AsFd for LeaseSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn checked(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_waits_until_the_lease_is_given_back() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for name in ["pagemap", "mem"] {
            let path = format!("/proc/{}/{name}", child.id());
            // One that has not become the program yet is another after that.
            let signals = LeaseSignals::of_this_thread().unwrap();
            let lease = Lease::take(Arc::new(File::open(&path).unwrap())).unwrap();
            assert!(!lease.is_awaited());
            assert_eq!(open_unless_leased("/proc/self/statm").map(drop).map_err(|error| error.kind()), Ok(()));
            let (opened, is_open) = std::sync::mpsc::channel();
            let opener = std::thread::spawn(move || opened.send(File::open(path).is_ok()).unwrap());
            let mut wait = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut wait, None).unwrap(), 1);
            assert!(signals.clear() && !signals.clear());
            assert!(lease.is_awaited() && is_open.try_recv().is_err(), "{name}");
            drop(lease);
            assert!(is_open.recv().unwrap());
            opener.join().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
