//! Whether the donor still answers.
//!
//! A deadline for each request from the moment it is posted would count the wait behind others too: on a slow link a
//! full queue takes longer than any sensible deadline, although bytes flow all the time. Therefore the time counts
//! from the connection's last sign of progress: it became busy, an answer was complete, or at least a page of an
//! answer came. So a donor that stops is noticed within its [`Patience`](crate::patience::Patience), however much is
//! queued, and one that answers slowly is not given up. Fewer bytes are no progress, or a broken peer could keep a
//! request for ever by a byte now and then. Bytes that our kernel took or the peer's acknowledged are none either:
//! both happen for a process that has stopped.
//!
//! Only time in which this side looked counts: a look adds what passed since the one before, but no more than
//! [`LOOK_INTERVAL_MAX`]. A thread that did not get to run, or whose whole machine was stopped, does not blame the
//! donor for that.
//!
//! A write is answered when all of it has come, so a link must carry the largest request within the deadline:
//! half a MiB/s. Sans-I/O: the caller tells what happened and when.

use std::time::{Duration, Instant};

use crate::limits::{LOOK_INTERVAL_MAX, STALL_NOTICED};
use crate::units::PAGE_SIZE_BYTES;

/// The watch over one connection, see the module text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// When the connection was last looked at.
    looked: Instant,
    /// How long nothing came, as far as this side looked.
    silence: Duration,
    /// What came since the last progress.
    bytes: usize,
}

impl Progress {
    pub(crate) fn new(now: Instant) -> Self {
        Self { looked: now, silence: Duration::ZERO, bytes: 0 }
    }

    /// A request was posted while none was in flight.
    pub(crate) fn became_busy(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// An answer is complete.
    pub(crate) fn answered(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Bytes of answers came.
    pub(crate) fn received(&mut self, bytes: usize, now: Instant) {
        self.bytes += bytes;
        if self.bytes >= PAGE_SIZE_BYTES {
            *self = Self::new(now);
        }
    }

    /// Looks at a connection with requests in flight, from which everything that was there has been received. Whether
    /// it counts as lost.
    pub(crate) fn is_overdue(&mut self, now: Instant, patience: Duration) -> bool {
        self.silence += now.saturating_duration_since(self.looked).min(LOOK_INTERVAL_MAX);
        self.looked = self.looked.max(now);
        self.silence > patience
    }

    /// Whether the last look found that nothing has come for [`STALL_NOTICED`].
    pub(crate) fn is_stalled(&self) -> bool {
        self.silence >= STALL_NOTICED
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::REQUEST_DEADLINE;

    const MOMENT: Duration = Duration::from_millis(1);

    /// Looks every 20 ms, as a thread with requests in flight does, from `start` until `length` later.
    fn watch(progress: &mut Progress, start: Instant, length: Duration) -> bool {
        let step = Duration::from_millis(20);
        let mut now = start;
        while now + step < start + length {
            now += step;
            assert!(!progress.is_overdue(now, REQUEST_DEADLINE), "after {:?}", now - start);
        }
        progress.is_overdue(start + length, REQUEST_DEADLINE)
    }

    #[test]
    fn time_counts_from_the_last_sign_of_progress() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        // Idle for long, which is no fault of the donor's.
        let mut now = start + REQUEST_DEADLINE * 9;
        progress.became_busy(now);
        for _ in 0..10 {
            assert!(!watch(&mut progress, now, REQUEST_DEADLINE), "a full queue on a slow link");
            now += REQUEST_DEADLINE;
            progress.answered(now);
        }
        assert!(watch(&mut progress, now, REQUEST_DEADLINE + MOMENT), "and then it stopped");
    }

    #[test]
    fn a_thread_that_did_not_run_does_not_blame_the_donor() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        assert!(!progress.is_overdue(start + REQUEST_DEADLINE * 100, REQUEST_DEADLINE));
        let awake = start + REQUEST_DEADLINE * 100;
        assert!(!watch(&mut progress, awake, REQUEST_DEADLINE - LOOK_INTERVAL_MAX));
        let later = awake + REQUEST_DEADLINE;
        assert!(progress.is_overdue(later + MOMENT, REQUEST_DEADLINE), "but it is not patient for ever");
    }

    #[test]
    fn a_page_of_an_answer_is_progress_and_a_few_bytes_are_not() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        let later = start + REQUEST_DEADLINE;
        assert!(!watch(&mut progress, start, REQUEST_DEADLINE));
        progress.received(PAGE_SIZE_BYTES - 1, later);
        assert!(progress.is_overdue(later + MOMENT, REQUEST_DEADLINE));
        progress.received(1, later);
        assert!(!progress.is_overdue(later + MOMENT, REQUEST_DEADLINE));
    }

    #[test]
    fn a_clock_that_seems_to_run_back_counts_nothing_twice() {
        let start = Instant::now();
        let mut progress = Progress::new(start + MOMENT);
        assert!(!progress.is_overdue(start, Duration::ZERO));
        assert!(!progress.is_overdue(start + MOMENT, Duration::ZERO));
        assert!(progress.is_overdue(start + MOMENT * 2, Duration::ZERO));
    }

    proptest! {
        #[test]
        fn a_donor_that_sends_less_than_a_page_is_noticed_when_it_was_looked_at_for_so_long(
            steps in proptest::collection::vec((1_u64..500, 0_usize..PAGE_SIZE_BYTES / 8), 1..100),
        ) {
            let start = Instant::now();
            let (mut progress, mut now, mut sent, mut watched) = (Progress::new(start), start, 0, Duration::ZERO);
            for (milliseconds, bytes) in steps {
                let step = Duration::from_millis(milliseconds);
                now += step;
                sent += bytes;
                if sent >= PAGE_SIZE_BYTES {
                    break;
                }
                watched += step.min(LOOK_INTERVAL_MAX);
                progress.received(bytes, now);
                prop_assert_eq!(progress.is_overdue(now, REQUEST_DEADLINE), watched > REQUEST_DEADLINE);
            }
        }
    }
}
