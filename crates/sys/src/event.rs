//! An event that one thread signals and another waits for with poll: an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A counter that is readable while it is not zero. Signalling never blocks or allocates.
#[derive(Debug)]
pub struct Event {
    descriptor: OwnedFd,
}

impl Event {
    /// A new event, not signalled.
    pub fn new() -> io::Result<Self> {
        Ok(Self { descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Makes the event readable.
    pub fn signal(&self) {
        // The only failure is an overflow of 2^64 - 2 signals, and then it is readable anyway.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Makes it not readable; true when it was.
    pub fn consume(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_join_until_consumed() {
        let event = Event::new().unwrap();
        assert!(!event.consume());
        event.signal();
        event.signal();
        assert!(event.consume());
        assert!(!event.consume());
    }
}
