//! Waiting for many descriptors at once, without allocating while waiting.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Events taken by one [`Epoll::wait`]; more are taken by the next.
pub const EVENTS_PER_WAIT_MAX: usize = 64;

/// What to wait for, level-triggered. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Readable,
    /// Something to read, or room to write.
    ReadableOrWritable,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Readable => epoll::EventFlags::IN,
            Self::ReadableOrWritable => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// A set of descriptors, each with the caller's number. A closed descriptor leaves the set by itself.
#[derive(Debug)]
pub struct Epoll {
    descriptor: OwnedFd,
}

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self { descriptor: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds `source` under `number`.
    pub fn add(&self, source: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.descriptor, source, epoll::EventData::new_u64(number), interest.flags())?)
    }

    /// Changes what is waited for.
    pub fn modify(&self, source: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.descriptor, source, epoll::EventData::new_u64(number), interest.flags())?)
    }

    /// Takes `source` out.
    pub fn remove(&self, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.descriptor, source)?)
    }

    /// Sleeps until something is ready, `timeout` passed (`None`: no limit) or a signal came, and calls `ready` with
    /// each ready source's number. Returns how many were ready.
    pub fn wait(&self, timeout: Option<Duration>, mut ready: impl FnMut(u64)) -> io::Result<usize> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_WAIT_MAX];
        match epoll::wait(&self.descriptor, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                for event in events.iter() {
                    ready(event.data.u64());
                }
                Ok(events.len())
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Epoll {
    /// Readable when something in the set is ready.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventFd;

    fn ready(epoll: &Epoll) -> Vec<u64> {
        let mut numbers = Vec::new();
        epoll.wait(Some(Duration::ZERO), |number| numbers.push(number)).unwrap();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn reports_what_is_ready_while_it_is_ready() {
        let (epoll, one, two) = (Epoll::new().unwrap(), EventFd::new().unwrap(), EventFd::new().unwrap());
        epoll.add(&one, 1, Interest::Readable).unwrap();
        epoll.add(&two, 2, Interest::Readable).unwrap();
        assert_eq!(ready(&epoll), []);
        two.signal();
        assert_eq!(ready(&epoll), [2]);
        assert_eq!(ready(&epoll), [2], "level-triggered");
        epoll.modify(&one, 7, Interest::ReadableOrWritable).unwrap();
        assert_eq!(ready(&epoll), [2, 7]);
        epoll.remove(&one).unwrap();
        drop(two);
        assert_eq!(ready(&epoll), []);
        assert!(epoll.remove(&one).is_err());
    }

    #[test]
    fn a_timeout_ends_the_wait() {
        let epoll = Epoll::new().unwrap();
        assert_eq!(epoll.wait(Some(Duration::from_millis(1)), |_| panic!("nothing was added")).unwrap(), 0);
    }
}
