//! An eventfd: how one thread wakes another that sleeps in epoll, without allocating.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Readable from [`EventFd::signal`] until [`EventFd::clear`]; several signals are one.
#[derive(Debug)]
pub struct EventFd {
    descriptor: OwnedFd,
}

impl EventFd {
    /// An event that was not signalled.
    pub fn new() -> io::Result<Self> {
        Ok(Self { descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Makes it readable.
    pub fn signal(&self) {
        match rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes()) {
            // A full counter is readable already.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => panic!("an eventfd of our own takes a signal: {errno}"),
        }
    }

    /// Makes it unreadable. Whether it was signalled.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; 8]).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_signals_are_one_until_cleared() {
        let event = EventFd::new().unwrap();
        assert!(!event.clear());
        event.signal();
        event.signal();
        assert!(event.clear());
        assert!(!event.clear());
    }
}
