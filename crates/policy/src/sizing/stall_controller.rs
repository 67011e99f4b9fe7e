//! Moves a program's local memory so that it loses no more than a given share of its time to page-ins.
//!
//! The rule is that of senpai (Weiner et al., ASPLOS'22, "TMO: transparent memory offloading in datacenters"): memory
//! shrinks by a small part each period, less the nearer the stalls are to the target, and grows where they are beyond
//! it. senpai alone swings around a cliff, such as the size of a scan: it shrinks below it again as soon as nothing
//! stalls. So a size that stalled too much is remembered, and memory stays a margin above it; it is tried again after
//! a while, which doubles each time that it was wrong.
//!
//! Invariants: one change a period, bounded both ways; new memory gets room at once.

use std::time::Duration;

/// Between two changes. Long against a page-in, so that a share of it can be told; senpai takes 6 s, for services.
pub const PERIOD: Duration = Duration::from_secs(1);

/// Memory shrinks by this part of itself a period, at most. senpai's 0.05 % is for days; runs last minutes.
const SHRINK_DIVISOR: u64 = 16;

/// Memory grows by this part of itself a period, at most: a program that needs it all again has it in six periods.
const GROWTH_DIVISOR: u64 = 4;

/// Memory does not shrink while stalls are above this part of the target: the hysteresis.
const CALM_PART: f64 = 0.5;

/// Memory stays this part of itself above a size that stalled too much.
const MARGIN_DIVISOR: u64 = 16;

/// A size that stalled too much is tried again after so many periods, at first ...
const PATIENCE_MIN: u32 = 16;
/// ... and after no more than so many.
const PATIENCE_MAX: u32 = 1024;

/// A program at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Since the begin.
    pub now: Duration,
    /// How long its threads waited for pages since the begin.
    pub stalled: Duration,
    /// Its memory that is local.
    pub local_bytes: u64,
    /// All of its memory, local or lent.
    pub footprint_bytes: u64,
}

/// See the module text.
#[derive(Clone, Debug)]
pub struct StallController {
    target: f64,
    least_bytes: u64,
    limit_bytes: u64,
    footprint_bytes: u64,
    /// The last reading that was decided on.
    last: Option<Reading>,
    /// The largest size that stalled too much, and for how many periods it is avoided.
    avoided: Option<(u64, u32)>,
    patience: u32,
}

impl StallController {
    /// For stalls of at most `target` of the time, above 0 and up to 1; the program never gets less than
    /// `least_bytes`, and begins with `most_bytes`.
    pub fn new(target: f64, least_bytes: u64, most_bytes: u64) -> Self {
        assert!(target > 0.0 && target <= 1.0 && least_bytes <= most_bytes, "a share of the time, and a range");
        Self {
            target,
            least_bytes,
            limit_bytes: most_bytes,
            footprint_bytes: 0,
            last: None,
            avoided: None,
            patience: PATIENCE_MIN,
        }
    }

    /// What the program may have.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Takes a reading; gives what the program may have.
    pub fn observe(&mut self, reading: Reading) -> u64 {
        let new_bytes = reading.footprint_bytes.saturating_sub(self.footprint_bytes);
        self.footprint_bytes = reading.footprint_bytes;
        self.limit_bytes = self.limit_bytes.saturating_add(new_bytes);
        let Some(last) = self.last else {
            self.last = Some(reading);
            return self.limit_bytes;
        };
        let period = reading.now.saturating_sub(last.now);
        if period >= PERIOD {
            let share = reading.stalled.saturating_sub(last.stalled).as_secs_f64() / period.as_secs_f64();
            self.last = Some(reading);
            self.decide(share, &reading);
        }
        assert!(self.limit_bytes >= self.least_bytes, "the program keeps the least");
        self.limit_bytes
    }

    fn decide(&mut self, share: f64, reading: &Reading) {
        // More than all of it is no limit.
        let current = self.limit_bytes.min(reading.footprint_bytes).max(self.least_bytes);
        if share > self.target {
            self.grow(current, share);
            return;
        }
        if let Some((size, periods)) = &mut self.avoided {
            *periods -= 1;
            if *periods == 0 {
                self.avoided = None;
            } else if current <= *size + *size / MARGIN_DIVISOR {
                self.limit_bytes = current;
                return;
            }
        }
        let calm = (1.0 - share / (self.target * CALM_PART)).max(0.0);
        let step = ((current / SHRINK_DIVISOR) as f64 * calm) as u64;
        let floor = self.avoided.map_or(0, |(size, _)| size + size / MARGIN_DIVISOR);
        self.limit_bytes = (current - step).max(floor.min(current)).max(self.least_bytes);
    }

    fn grow(&mut self, current: u64, share: f64) {
        let is_again = self.avoided.is_none() && self.patience > PATIENCE_MIN;
        let size = self.avoided.map_or(current, |(size, _)| size.max(current));
        self.avoided = Some((size, self.patience));
        if is_again || self.patience == PATIENCE_MIN {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
        // As far beyond as the stalls are; a cliff is passed soon.
        let excess = (share / self.target - 1.0).min(1.0);
        let step = (current / GROWTH_DIVISOR) as f64 * excess.max(1.0 / GROWTH_DIVISOR as f64);
        self.limit_bytes = current + step as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const TARGET: f64 = 0.05;

    /// Runs a program of 1 GiB for so many periods. `stalls` is the share of time that it loses with so much local
    /// memory, in MiB. Gives the limits.
    fn run(controller: &mut StallController, from: u64, periods: u64, stalls: impl Fn(u64) -> f64) -> Vec<u64> {
        let (mut limits, mut stalled) = (Vec::new(), Duration::from_secs(from));
        for period in from..from + periods {
            let local_bytes = controller.limit_bytes().min(1024 * MIB);
            stalled += PERIOD.mul_f64(stalls(local_bytes / MIB));
            let now = PERIOD * period as u32;
            let before = controller.limit_bytes();
            let after = controller.observe(Reading { now, stalled, local_bytes, footprint_bytes: 1024 * MIB });
            if period > from + 1 {
                assert!(after <= before + before / GROWTH_DIVISOR, "{before} to {after}");
                assert!(after >= before.min(1024 * MIB) - before / SHRINK_DIVISOR - 1, "{before} to {after}");
            }
            limits.push(after / MIB);
        }
        limits
    }

    fn controller() -> StallController {
        StallController::new(TARGET, 16 * MIB, 8192 * MIB)
    }

    /// How often the direction changes.
    fn turns(limits: &[u64]) -> usize {
        let steps: Vec<_> = limits.windows(2).filter(|two| two[0] != two[1]).map(|two| two[1] > two[0]).collect();
        steps.windows(2).filter(|two| two[0] != two[1]).count()
    }

    /// What senpai does: shrinks in proportion to how far pressure is below its target, grows by the excess.
    fn senpai(periods: u64, stalls: impl Fn(u64) -> f64) -> Vec<u64> {
        let mut limit = 1024.0_f64;
        (0..periods)
            .map(|_| {
                let share = stalls(limit as u64);
                let step =
                    if share > TARGET { (share / TARGET - 1.0).min(1.0) / 4.0 } else { -(1.0 - share / TARGET) / 16.0 };
                limit = (limit * (1.0 + step)).clamp(16.0, 1024.0);
                limit as u64
            })
            .collect()
    }

    /// Half of its memory is never used.
    fn cliff(local: u64) -> f64 {
        if local < 512 { 0.8 } else { 0.0 }
    }

    #[test]
    fn idle_memory_leaves_and_what_is_used_stays() {
        let limits = run(&mut controller(), 0, 200, cliff);
        assert!(limits[150..].iter().all(|limit| (512..640).contains(limit)), "{limits:?}");
    }

    #[test]
    fn a_cliff_is_not_gone_over_again_and_again() {
        let (ours, theirs) = (run(&mut controller(), 0, 400, cliff), senpai(400, cliff));
        let below = |limits: &[u64]| limits.iter().filter(|limit| **limit < 512).count();
        assert!(turns(&ours) <= 16 && below(&ours) <= 8, "{} turns, {} below: {ours:?}", turns(&ours), below(&ours));
        assert!(turns(&theirs) > 4 * turns(&ours), "{} turns", turns(&theirs));
        assert!(below(&theirs) > 4 * below(&ours), "{} below", below(&theirs));
    }

    #[test]
    fn a_smooth_curve_settles_near_the_target() {
        // 5 % at 600 MiB.
        let stalls = |local: u64| 0.05 * (600.0 / local as f64).powi(4);
        let limits = run(&mut controller(), 0, 300, stalls);
        assert!(limits[200..].iter().all(|limit| (560..860).contains(limit)), "{limits:?}");
    }

    #[test]
    fn a_program_that_begins_to_use_all_gets_all() {
        let mut controller = controller();
        run(&mut controller, 0, 100, cliff);
        let limits = run(&mut controller, 100, 30, |local| if local < 1000 { 0.8 } else { 0.0 });
        assert!(limits[10..].iter().all(|limit| *limit >= 1000), "{limits:?}");
    }

    #[test]
    fn new_memory_has_room_at_once() {
        let mut controller = controller();
        let limit = run(&mut controller, 0, 100, cliff).last().copied().unwrap() * MIB;
        let now = PERIOD * 99 + PERIOD / 100;
        let reading =
            Reading { now, stalled: Duration::from_secs(100), local_bytes: limit, footprint_bytes: 1536 * MIB };
        assert!(controller.observe(reading) >= limit + 512 * MIB);
    }
}
