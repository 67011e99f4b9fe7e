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
    /// The highest generation at this address that was heard of since.
    heard: Option<u64>,
}

impl Rejoins {
    fn pause(&self) -> Duration {
        REJOIN_PAUSE_MIN.saturating_mul(1 << self.in_a_row.saturating_sub(1).min(16)).min(REJOIN_PAUSE_MAX)
    }

    /// A life of this generation stands in the machine's way. The next return, whatever causes it, exceeds it.
    pub(crate) fn hear_of(&mut self, generation: u64) {
        self.heard = self.heard.max(Some(generation));
    }

    /// Whether a machine may come back now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now >= last + self.pause())
    }

    /// It comes back now, from the generation `own`. The generation that it takes.
    pub(crate) fn next(&mut self, now: Instant, own: u64) -> u64 {
        let is_calm = self.last.is_none_or(|last| now >= last + 2 * REJOIN_PAUSE_MAX);
        self.in_a_row = if is_calm { 0 } else { self.in_a_row };
        let step = GENERATION_STEP << self.in_a_row.min(GENERATION_DOUBLINGS_MAX);
        self.in_a_row += 1;
        self.last = Some(now);
        let heard = self.heard.take().filter(|heard| *heard >= own);
        heard.map_or(own.saturating_add(step), |heard| heard.saturating_add(1))
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
                total += rejoins.next(now, 0);
            }
            now += Duration::from_millis(100);
        }
        assert!((15..30).contains(&count), "{count}");
        assert!(total > 365 * 24 * 3_600_000, "a year is exceeded soon");
        now += 2 * REJOIN_PAUSE_MAX;
        assert_eq!(rejoins.next(now, 1), 1 + GENERATION_STEP, "after a calm time all is as at first");
    }

    #[test]
    fn a_life_that_was_heard_of_too_soon_is_exceeded_by_the_next_return() {
        let (mut rejoins, now) = (Rejoins::default(), Instant::now());
        assert_eq!(rejoins.next(now, 1), 1 + GENERATION_STEP);
        rejoins.hear_of(1 << 40);
        rejoins.hear_of(7);
        assert!(!rejoins.is_due(now));
        assert_eq!(rejoins.next(now + REJOIN_PAUSE_MIN, 1), (1 << 40) + 1);
        assert_eq!(rejoins.next(now + REJOIN_PAUSE_MAX, 1), 1 + (GENERATION_STEP << 2), "it counts once");
    }
}
