//! Waiting for samples of page faults, as the threads do that prefetch by them or write them down.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use spillway_sys::event::EventFd;
use spillway_sys::page_faults::FaultCounters;

use crate::limits::QUIET;

/// Sleeps until a fault waited, some did not, `stop` was signalled, or for [`QUIET`]; false after that.
pub(crate) fn wait(counters: &FaultCounters, stop: &EventFd) -> io::Result<bool> {
    let mut ready: Vec<_> = counters
        .descriptors()
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
        .chain([PollFd::new(stop, PollFlags::IN)])
        .collect();
    let timeout = Timespec { tv_sec: 0, tv_nsec: QUIET.subsec_nanos().into() };
    match rustix::event::poll(&mut ready, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}
