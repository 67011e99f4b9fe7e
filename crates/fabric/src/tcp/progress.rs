//! Whether the donor still answers.
//!
//! A deadline for each request from the moment it is posted would count the wait behind others too: on a slow link a full
//! queue takes longer than any sensible deadline, although bytes flow all the time. Therefore the time counts from the
//! connection's last sign of progress: it became busy, an answer was complete, or at least a page of an answer came. So a
//! donor that stops is noticed within [`REQUEST_DEADLINE`], however much is queued, and one that answers slowly is not
//! given up. Fewer bytes are no progress, or a broken peer could keep a request for ever by a byte now and then. Bytes
//! that our kernel took or the peer's acknowledged are none either: both happen for a process that has stopped.
//!
//! A write is answered when all of it has come, so a link must carry the largest request within the deadline:
//! half a MiB/s. Sans-I/O: the caller tells what happened and when.

use std::time::Instant;

use crate::limits::REQUEST_DEADLINE;
use crate::units::PAGE_SIZE_BYTES;

/// The watch over one connection, see the module text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// When the last progress was seen.
    at: Instant,
    /// What came since then.
    bytes: usize,
}

impl Progress {
    pub(super) fn new(now: Instant) -> Self {
        Self { at: now, bytes: 0 }
    }

    /// A request was posted while none was in flight.
    pub(super) fn became_busy(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// An answer is complete.
    pub(super) fn answered(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Bytes of answers came.
    pub(super) fn received(&mut self, bytes: usize, now: Instant) {
        self.bytes += bytes;
        if self.bytes >= PAGE_SIZE_BYTES {
            *self = Self::new(now);
        }
    }

    /// Whether a connection with requests in flight counts as lost.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) > REQUEST_DEADLINE
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    #[test]
    fn time_counts_from_the_last_sign_of_progress() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        // Idle for long, which is no fault of the donor's.
        let mut now = start + REQUEST_DEADLINE * 9;
        progress.became_busy(now);
        assert!(!progress.is_overdue(now + REQUEST_DEADLINE));
        assert!(progress.is_overdue(now + REQUEST_DEADLINE + MOMENT));
        for _ in 0..10 {
            now += REQUEST_DEADLINE;
            progress.answered(now);
        }
        assert!(!progress.is_overdue(now + REQUEST_DEADLINE), "a full queue on a slow link");
        assert!(progress.is_overdue(now + REQUEST_DEADLINE + MOMENT), "and then it stopped");
    }

    #[test]
    fn a_page_of_an_answer_is_progress_and_a_few_bytes_are_not() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        let later = start + REQUEST_DEADLINE;
        progress.received(PAGE_SIZE_BYTES - 1, later);
        assert!(progress.is_overdue(later + MOMENT));
        progress.received(1, later);
        assert!(!progress.is_overdue(later + REQUEST_DEADLINE));
    }

    #[test]
    fn a_clock_that_seems_to_run_back_is_not_overdue() {
        let start = Instant::now();
        assert!(!Progress::new(start + MOMENT).is_overdue(start));
    }

    proptest! {
        #[test]
        fn a_donor_that_sends_less_than_a_page_is_noticed(
            steps in proptest::collection::vec((1_u64..500, 0_usize..PAGE_SIZE_BYTES / 8), 1..50),
        ) {
            let start = Instant::now();
            let (mut progress, mut now, mut sent) = (Progress::new(start), start, 0);
            for (milliseconds, bytes) in steps {
                now += Duration::from_millis(milliseconds);
                progress.received(bytes, now);
                sent += bytes;
                if sent < PAGE_SIZE_BYTES {
                    prop_assert_eq!(progress.is_overdue(now), now - start > REQUEST_DEADLINE);
                }
            }
        }
    }
}
