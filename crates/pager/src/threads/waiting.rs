//! Sleeping until one of a thread's own events, or one of its engine's, without allocating.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_block::service::BlockService;
use spillway_volume::limits::DONORS_MAX;

/// Events of a thread besides its engine's.
const OWN_EVENTS_MAX: usize = 1;

/// Whether `service` has events at all; over shared memory there are none.
pub(crate) fn has_events(service: &dyn BlockService) -> bool {
    let mut has_any = false;
    service.for_each_event(&mut |_, _| has_any = true);
    has_any
}

/// Sleeps until an event, at most for `patience`. Whether one of the thread's own is there; true also if no thread
/// could look.
pub(crate) fn wait(own: &[BorrowedFd<'_>], service: &dyn BlockService, patience: Duration) -> io::Result<bool> {
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
        Ok(_) => Ok(waits[..own.len()].iter().any(|wait| !wait.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Instant;

    use spillway_sys::event::EventFd;

    use super::*;
    use spillway_block::request::BlockRequest;
    use spillway_block::service::{Completed, Waiting};

    /// An engine with one event, and nothing else.
    struct Eventful(EventFd);

    impl BlockService for Eventful {
        fn submit(&mut self, _request: BlockRequest, _now: Instant) {}

        fn poll(&mut self, _now: Instant, _completed: Completed<'_>) -> Waiting {
            Waiting::Event
        }

        fn for_each_event<'a>(&'a self, visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {
            visit(self.0.as_fd(), false);
        }
    }

    #[test]
    fn whose_event_it_is_that_ends_a_sleep_is_told() {
        let (own, engine) = (EventFd::new().unwrap(), Eventful(EventFd::new().unwrap()));
        let wait = |patience| wait(&[own.as_fd()], &engine, patience).unwrap();
        assert!(!wait(Duration::from_millis(1)), "none");
        // Longer than any test waits.
        let minutes = Duration::from_secs(1000);
        engine.0.signal();
        assert!(!wait(minutes), "the engine's");
        own.signal();
        assert!(wait(minutes), "both");
        engine.0.clear();
        assert!(wait(minutes), "its own");
    }
}
