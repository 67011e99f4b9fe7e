//! When page tables are scanned: rounds that begin with clearing all reference bits, and looks at growing distances.
//!
//! Long rounds tell of pages that are used seldom, short ones tell soon and often. So rounds grow with the time that
//! is looked at. A scan holds the program's mapping lock and takes as long as the program is large, so looks are so far
//! apart that scans take a bounded part of a CPU.

use std::time::Duration;

/// The first round.
const ROUND_MIN: Duration = Duration::from_millis(500);

/// No round is longer: a program that needs memory once a minute does not wait for it noticeably.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// A round takes this part of the time since the begin, so that there are some of each length.
const ROUND_DIVISOR: u32 = 3;

/// A look is so many times what a scan takes after the one before: scans take at most a fifth of one CPU, and less
/// in a long round, where looks are at powers of 1.5.
const REST: u32 = 4;

/// The least distance of the first look from the clearing.
const FIRST_LOOK_MIN: Duration = Duration::from_millis(2);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Clear all bits: a round begins.
    Clear,
    /// Scan.
    Look,
}

/// See the module text. Times are since the begin.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    round: Option<Round>,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    begin: Duration,
    end: Duration,
    next: Duration,
}

impl Pace {
    /// What comes next, and when.
    pub fn next(&self) -> (Step, Duration) {
        match self.round {
            Some(round) if round.next <= round.end => (Step::Look, round.next),
            Some(round) => (Step::Clear, round.end),
            None => (Step::Clear, Duration::ZERO),
        }
    }

    /// The bits were cleared by `now`, and a scan takes `cost`.
    pub fn cleared(&mut self, now: Duration, cost: Duration) {
        let length = (now / ROUND_DIVISOR).clamp(ROUND_MIN, ROUND_MAX).max(cost * 10 * REST);
        let next = now + FIRST_LOOK_MIN.max(cost);
        self.round = Some(Round { begin: now, end: now + length, next });
    }

    /// A scan ended at `now` that took `cost`.
    pub fn looked(&mut self, now: Duration, cost: Duration) {
        let Some(round) = &mut self.round else { return };
        let since = now.saturating_sub(round.begin);
        let next = (now + since / 2).max(now + cost * REST);
        // The last look of a round is at its end.
        round.next = if now < round.end { next.min(round.end.max(now + cost)) } else { next };
        if now >= round.end {
            round.end = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs for `total` with scans of `cost`; gives how many rounds and looks there were, and the share of the time.
    fn ran(total: Duration, cost: Duration) -> (u32, u32, f64) {
        let (mut pace, mut now, mut rounds, mut looks) = (Pace::default(), Duration::ZERO, 0, 0);
        while now < total {
            let (step, at) = pace.next();
            now = now.max(at) + cost;
            match step {
                Step::Clear => {
                    rounds += 1;
                    pace.cleared(now, cost);
                }
                Step::Look => {
                    looks += 1;
                    pace.looked(now, cost);
                }
            }
        }
        (rounds, looks, (cost * (rounds + looks)).as_secs_f64() / now.as_secs_f64())
    }

    #[test]
    fn rounds_grow_and_each_has_looks() {
        let (rounds, looks, _) = ran(Duration::from_secs(30), Duration::from_millis(1));
        assert!((6..40).contains(&rounds), "{rounds} rounds");
        assert!(looks >= 6 * rounds && looks < 40 * rounds, "{looks} looks in {rounds} rounds");
    }

    #[test]
    fn scans_of_a_large_program_take_a_bounded_part_of_a_cpu() {
        for milliseconds in [1, 10, 100, 1000] {
            let (rounds, looks, share) = ran(Duration::from_secs(300), Duration::from_millis(milliseconds));
            assert!(share < 0.25, "{milliseconds} ms: {share}");
            assert!(rounds > 1 && looks > rounds, "{milliseconds} ms: {looks} looks in {rounds} rounds");
        }
    }
}
