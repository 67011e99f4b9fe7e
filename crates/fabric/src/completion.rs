//! Hybrid completion, as in HPBD: spin while a burst lasts, sleep when it is over.
//!
//! Waking a halted CPU costs more than serving a page (measured here: 60 us), so a waiter first polls for as long as
//! the next request of a burst may take to come ([`SPIN_DURATION_MAX`]). Where spinning does not pay it stops by
//! itself: on a machine with one CPU, when the peer needs this very CPU, or when other work wants it (seen as a gap
//! between two polls). Each wait that spun without success doubles the number of waits that sleep at once. So on a
//! busy machine the spin bound is zero but for one trial in [`WAITS_WITHOUT_SPIN_MAX`].
//!
//! Sans-I/O: the caller passes the time in, polls, and sleeps. One wait: [`begin`](HybridWait::begin), then
//! [`next`](HybridWait::next) after each fruitless poll, and [`arrived`](HybridWait::arrived) when something came.

use std::time::{Duration, Instant};

use crate::limits::{SPIN_DURATION_MAX, SPIN_DURATION_MIN, SPIN_GAP_MAX, WAITS_WITHOUT_SPIN_MAX};

/// What to do after a fruitless poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Poll again.
    Spin,
    /// Arm the event and sleep on it.
    Sleep,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Not waiting, or asleep.
    Idle,
    Spinning {
        since: Instant,
        polled: Instant,
    },
}

/// The decision of one waiter, see the module text.
#[derive(Debug)]
pub struct HybridWait {
    state: State,
    /// How long a wait spins at most; follows how long successful ones took.
    bound: Duration,
    /// Waits that still sleep at once.
    waits_without_spin: u32,
    /// How many such waits the last failure cost; doubles with each further one.
    penalty: u32,
}

impl HybridWait {
    /// A waiter that has yet to learn whether spinning pays.
    pub fn new() -> Self {
        Self { state: State::Idle, bound: SPIN_DURATION_MAX, waits_without_spin: 0, penalty: 0 }
    }

    /// A wait starts. [`Step::Sleep`]: do not even poll once more.
    pub fn begin(&mut self, now: Instant) -> Step {
        if self.waits_without_spin > 0 {
            self.waits_without_spin -= 1;
            return Step::Sleep;
        }
        self.state = State::Spinning { since: now, polled: now };
        Step::Spin
    }

    /// A poll brought nothing.
    pub fn next(&mut self, now: Instant) -> Step {
        let State::Spinning { since, polled } = self.state else { return Step::Sleep };
        let lost_the_cpu = now.saturating_duration_since(polled) > SPIN_GAP_MAX;
        if lost_the_cpu || now.saturating_duration_since(since) >= self.bound {
            self.failed();
            return Step::Sleep;
        }
        self.state = State::Spinning { since, polled: now };
        Step::Spin
    }

    /// Something came, while spinning or asleep.
    pub fn arrived(&mut self, now: Instant) {
        let State::Spinning { since, polled } = self.state else { return };
        if now.saturating_duration_since(polled) > SPIN_GAP_MAX {
            self.failed();
            return;
        }
        self.state = State::Idle;
        self.penalty /= 2;
        // Three times the usual wait catches nearly all of them.
        let taken = now.saturating_duration_since(since);
        let usual = (self.bound * 7 + taken * 3) / 8;
        self.bound = usual.clamp(SPIN_DURATION_MIN, SPIN_DURATION_MAX);
    }

    fn failed(&mut self) {
        self.state = State::Idle;
        self.penalty = (self.penalty * 2 + 1).min(WAITS_WITHOUT_SPIN_MAX);
        self.waits_without_spin = self.penalty;
        self.bound = SPIN_DURATION_MAX;
    }
}

impl Default for HybridWait {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// One wait for something that comes after `delay`, polled each microsecond. Whether it was caught spinning.
    fn wait_for(wait: &mut HybridWait, now: &mut Instant, delay: Duration) -> bool {
        let due = *now + delay;
        let mut step = wait.begin(*now);
        while step == Step::Spin && *now < due {
            *now += micros(1);
            step = if *now < due { wait.next(*now) } else { Step::Spin };
        }
        *now = (*now).max(due);
        wait.arrived(*now);
        step == Step::Spin
    }

    #[test]
    fn short_waits_are_caught_spinning() {
        let (mut wait, mut now) = (HybridWait::new(), Instant::now());
        assert!((0..1000).all(|_| wait_for(&mut wait, &mut now, micros(8))));
        assert!(wait.bound < SPIN_DURATION_MAX, "the bound follows the usual wait");
    }

    #[test]
    fn long_waits_soon_cost_no_spinning() {
        let (mut wait, mut now) = (HybridWait::new(), Instant::now());
        let spun = (0..20_000).filter(|_| {
            let tried = wait.waits_without_spin == 0;
            assert!(!wait_for(&mut wait, &mut now, SPIN_DURATION_MAX * 10));
            tried
        });
        assert!(spun.count() < 40);
    }

    #[test]
    fn spinning_resumes_when_it_pays_again() {
        let (mut wait, mut now) = (HybridWait::new(), Instant::now());
        for _ in 0..5000 {
            wait_for(&mut wait, &mut now, SPIN_DURATION_MAX * 10);
        }
        let caught = (0..20_000).filter(|_| wait_for(&mut wait, &mut now, micros(5))).count();
        assert!(caught > 15_000, "{caught}");
    }

    #[test]
    fn losing_the_cpu_while_spinning_counts_as_busy() {
        let (mut wait, now) = (HybridWait::new(), Instant::now());
        assert_eq!(wait.begin(now), Step::Spin);
        assert_eq!(wait.next(now + SPIN_GAP_MAX + micros(1)), Step::Sleep);
        assert_eq!(wait.begin(now), Step::Sleep);
        let mut wait = HybridWait::new();
        wait.begin(now);
        wait.arrived(now + SPIN_GAP_MAX + micros(1));
        assert_eq!(wait.begin(now), Step::Sleep, "it came only because something else had run meanwhile");
    }
}
