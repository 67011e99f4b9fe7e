//! When a burst of page-ins begins and ends.
//!
//! Sans-I/O: the caller tells of each request that a program waits for, and asks before it sleeps.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::{Duration, Instant};

use crate::limits::{BURST_GAP_MAX, BURST_REQUESTS_MIN};

/// The watch of one thread over its requests.
#[derive(Debug, Default)]
pub struct Burst {
    last: Option<Instant>,
    /// Requests one after the other without a long gap.
    count: u32,
    since: Option<Instant>,
}

/// How long a thread may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// As long as it likes: there is no burst.
    Long,
    /// For so long at most; then the burst may be over.
    Short(Duration),
    /// The burst is over. It took so long.
    Over(Duration),
}

impl Burst {
    /// A program waits for a page; true when that makes it a burst.
    pub fn asked(&mut self, now: Instant) -> bool {
        let follows = self.last.is_some_and(|last| now.saturating_duration_since(last) <= BURST_GAP_MAX);
        self.last = Some(now);
        self.count = if follows { self.count.saturating_add(1) } else { 1 };
        let begins = self.since.is_none() && self.count >= BURST_REQUESTS_MIN;
        if begins {
            self.since = Some(now);
        }
        begins
    }

    /// There is nothing to do at present.
    pub fn rest(&mut self, now: Instant) -> Rest {
        let (Some(since), Some(last)) = (self.since, self.last) else { return Rest::Long };
        let silence = now.saturating_duration_since(last);
        if silence < BURST_GAP_MAX {
            return Rest::Short(BURST_GAP_MAX - silence);
        }
        *self = Self::default();
        Rest::Over(now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHORT: Duration = Duration::from_micros(100);

    /// A watch that has seen `count` requests, each `SHORT` after the last, and the time of the last.
    fn after(count: u32) -> (Burst, Instant) {
        let (mut burst, mut now) = (Burst::default(), Instant::now());
        for number in 1..=count {
            now += SHORT;
            assert_eq!(burst.asked(now), number == BURST_REQUESTS_MIN, "{number}");
        }
        (burst, now)
    }

    #[test]
    fn many_requests_close_together_are_a_burst_until_silence() {
        let (mut burst, last) = after(BURST_REQUESTS_MIN + 3);
        assert_eq!(burst.rest(last), Rest::Short(BURST_GAP_MAX));
        assert_eq!(burst.rest(last + SHORT), Rest::Short(BURST_GAP_MAX - SHORT));
        assert_eq!(burst.rest(last + BURST_GAP_MAX), Rest::Over(SHORT * 3 + BURST_GAP_MAX));
        assert_eq!(burst.rest(last + BURST_GAP_MAX), Rest::Long, "it ends once");
    }

    #[test]
    fn few_requests_or_rare_ones_are_none() {
        let (mut burst, last) = after(BURST_REQUESTS_MIN - 1);
        assert_eq!(burst.rest(last), Rest::Long);
        let mut now = last;
        for _ in 0..100 {
            now += BURST_GAP_MAX + SHORT;
            assert!(!burst.asked(now));
            assert_eq!(burst.rest(now), Rest::Long);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever comes, every beginning is followed by one end before the next one, and no burst outlives its
        /// requests by more than the gap when its thread asks in time.
        #[test]
        fn each_beginning_has_its_end(gaps in prop::collection::vec(0_u64..3000, 0..200)) {
            let (mut burst, mut now, mut on) = (Burst::default(), Instant::now(), false);
            for gap in gaps {
                let next = now + Duration::from_micros(gap);
                // The thread sleeps between two requests as it is told to.
                loop {
                    match burst.rest(now) {
                        Rest::Short(patience) if now + patience <= next => {
                            prop_assert!(on);
                            now += patience;
                        }
                        Rest::Over(_) => {
                            prop_assert!(on);
                            on = false;
                        }
                        Rest::Short(_) => break,
                        Rest::Long => {
                            prop_assert!(!on);
                            break;
                        }
                    }
                }
                now = next;
                if burst.asked(now) {
                    prop_assert!(!on);
                    on = true;
                }
            }
        }
    }
}
