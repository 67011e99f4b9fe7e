//! How often a machine that is taken for dead comes back, and how far its generation rises then.
//!
//! Any machine with the key can say that another one is dead, and two machines with one address say it of each other.
//! Each return is a new generation, a file that is written, and a line in the log. So returns are paced.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::{Duration, Instant};

use crate::limits::{GENERATION_DOUBLINGS_MAX, GENERATION_STEP, REJOIN_PAUSE_MAX, REJOIN_PAUSE_MIN};

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Rejoins {
    last: Option<Instant>,
    /// Those before that came one soon after the other.
    in_a_row: u32,
}

impl Rejoins {
    fn pause(&self) -> Duration {
        REJOIN_PAUSE_MIN.saturating_mul(1 << self.in_a_row.saturating_sub(1).min(16)).min(REJOIN_PAUSE_MAX)
    }

    /// Whether a machine may come back now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now >= last + self.pause())
    }

    /// It comes back now. The step of its generation, if it does not know which one it has to exceed.
    pub(crate) fn count(&mut self, now: Instant) -> u64 {
        let is_calm = self.last.is_none_or(|last| now >= last + 2 * REJOIN_PAUSE_MAX);
        self.in_a_row = if is_calm { 0 } else { self.in_a_row };
        let step = GENERATION_STEP << self.in_a_row.min(GENERATION_DOUBLINGS_MAX);
        self.in_a_row += 1;
        self.last = Some(now);
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_return_is_at_once_and_later_ones_are_ever_rarer_and_go_ever_further() {
        let (mut rejoins, mut now) = (Rejoins::default(), Instant::now());
        let (mut count, mut total) = (0, 0);
        let end = now + Duration::from_secs(600);
        while now < end {
            if rejoins.is_due(now) {
                count += 1;
                total += rejoins.count(now);
            }
            now += Duration::from_millis(100);
        }
        assert!((15..30).contains(&count), "{count}");
        assert!(total > 365 * 24 * 3_600_000, "a year is exceeded soon");
        now += 2 * REJOIN_PAUSE_MAX;
        assert_eq!(rejoins.count(now), GENERATION_STEP, "after a calm time all is as at first");
    }
}
