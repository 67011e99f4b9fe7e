//! Sleeping until one of a thread's own events, or one of its engine's, without allocating.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::DONORS_MAX;
use crate::service::BlockService;

/// Events of a thread besides its engine's.
const OWN_EVENTS_MAX: usize = 1;

/// Whether `service` has events at all; over shared memory there are none.
pub(crate) fn has_events(service: &dyn BlockService) -> bool {
    let mut has_any = false;
    service.for_each_event(&mut |_, _| has_any = true);
    has_any
}

/// Sleeps until an event, at most for `patience`.
pub(crate) fn wait(own: &[BorrowedFd<'_>], service: &dyn BlockService, patience: Duration) -> io::Result<()> {
    let mut waits: [PollFd<'_>; DONORS_MAX + 1 + OWN_EVENTS_MAX] =
        std::array::from_fn(|_| PollFd::from_borrowed_fd(own[0], PollFlags::IN));
    for (place, event) in waits.iter_mut().zip(own) {
        *place = PollFd::from_borrowed_fd(*event, PollFlags::IN);
    }
    let mut count = own.len();
    service.for_each_event(&mut |event, wants_write| {
        let flags = if wants_write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        waits[count] = PollFd::from_borrowed_fd(event, flags);
        count += 1;
    });
    let timeout = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    match poll(&mut waits[..count], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
