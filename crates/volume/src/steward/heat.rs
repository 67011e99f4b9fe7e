//! How much each slab is used: an average in pages a second (Infiniswap, NSDI '17).
//!
//! Donors ask for it before they want slabs back, and compare it with that of other borrowers. With mapping by activity
//! it also says which slabs are used enough to deserve a donor's memory; until then a slab lives on the disk alone, so
//! cold pages take no memory of a donor. The paper keeps, for each slab
//! and second, `A = alpha * measured + (1 - alpha) * A_old`, and maps a slab whose average is above
//! [`HOT_SLAB_PAGES_PER_S`]. Its published code added counts without ever normalising them, so that its order was
//! noise after seconds; here an average is in pages per second, whatever the time between two looks: a look after `t`
//! seconds weighs `1 - (1 - alpha)^t`.
//!
//! No clock and no I/O: the manager passes both.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::{Duration, Instant};

use spillway_fabric::units::SlabIndex;

/// Weight of one second's measurement in the average (Infiniswap).
pub const ALPHA: f64 = 0.2;

/// A slab with more page I/Os per second than this is mapped (Infiniswap's HotSlab).
pub const HOT_SLAB_PAGES_PER_S: f64 = 20.0;

/// Time between two looks (Infiniswap: every second).
pub const HEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The averages of a volume's slabs, see the module text.
#[derive(Clone, Debug)]
pub struct Heat {
    slabs: Vec<SlabHeat>,
    looked: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlabHeat {
    pages_per_s: f64,
    accesses: u64,
}

impl Heat {
    /// Nothing was ever used.
    pub fn new(slab_count: u32) -> Self {
        Self { slabs: vec![SlabHeat::default(); slab_count as usize], looked: None }
    }

    /// Whether [`HEAT_INTERVAL`] has passed since the last look.
    pub fn is_due(&self, now: Instant) -> bool {
        self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= HEAT_INTERVAL)
    }

    /// When that is; none before the first look.
    pub fn due(&self) -> Option<Instant> {
        self.looked.map(|looked| looked + HEAT_INTERVAL)
    }

    /// Takes every slab's page I/Os since the start, and names the hot ones.
    pub fn look(&mut self, now: Instant, accesses: impl Fn(SlabIndex) -> u64, mut hot: impl FnMut(SlabIndex)) {
        let elapsed = self.looked.map(|looked| now.saturating_duration_since(looked).as_secs_f64());
        self.looked = Some(now);
        for (index, slab) in self.slabs.iter_mut().enumerate() {
            let index = SlabIndex(index as u32);
            let total = accesses(index);
            let new = total.saturating_sub(slab.accesses);
            slab.accesses = total;
            // The first look only begins to count; two at one moment measure nothing.
            let Some(elapsed) = elapsed.filter(|elapsed| *elapsed > 0.0) else { continue };
            let weight = 1.0 - (1.0 - ALPHA).powf(elapsed);
            slab.pages_per_s += weight * (new as f64 / elapsed - slab.pages_per_s);
            if slab.pages_per_s > HOT_SLAB_PAGES_PER_S {
                hot(index);
            }
        }
    }

    /// The average of one slab.
    pub fn pages_per_s(&self, slab: SlabIndex) -> f64 {
        self.slabs[slab.0 as usize].pages_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every `step` for `seconds` at one slab used at a steady rate; its average then, and whether it was ever
    /// hot.
    fn steady(pages_per_s: f64, step: Duration, seconds: u64) -> (f64, bool) {
        let (mut heat, start, mut was_hot) = (Heat::new(1), Instant::now(), false);
        for look in 0..=(seconds * 1000 / step.as_millis() as u64) {
            let now = start + step * look as u32;
            let total = (pages_per_s * (step * look as u32).as_secs_f64()).round() as u64;
            heat.look(now, |_| total, |_| was_hot = true);
        }
        (heat.pages_per_s(SlabIndex(0)), was_hot)
    }

    #[test]
    fn the_average_goes_to_the_rate_and_stays_there() {
        for rate in [0.0, 5.0, 1000.0, 1e6] {
            let (average, _) = steady(rate, HEAT_INTERVAL, 200);
            assert!((average - rate).abs() <= rate * 0.01 + 0.01, "{rate}: {average}");
        }
    }

    #[test]
    fn one_second_weighs_alpha() {
        let (average, _) = steady(100.0, HEAT_INTERVAL, 1);
        assert!((average - 100.0 * ALPHA).abs() < 1e-9, "{average}");
    }

    #[test]
    fn the_interval_between_looks_does_not_change_the_average() {
        let (fine, _) = steady(64.0, Duration::from_millis(250), 4);
        let (coarse, _) = steady(64.0, Duration::from_secs(4), 4);
        assert!((fine - coarse).abs() < 0.5, "{fine} {coarse}");
    }

    #[test]
    fn only_what_is_above_the_bound_is_hot() {
        assert!(!steady(HOT_SLAB_PAGES_PER_S - 1.0, HEAT_INTERVAL, 300).1);
        assert!(steady(HOT_SLAB_PAGES_PER_S + 1.0, HEAT_INTERVAL, 300).1);
        // A single touch of a whole small slab is a burst, and counts.
        assert!(steady(256.0, HEAT_INTERVAL, 1).1);
    }

    #[test]
    fn a_slab_cools_down() {
        let (mut heat, start) = (Heat::new(2), Instant::now());
        let mut hot = Vec::new();
        for second in 0..60 {
            let total = |slab: SlabIndex| if slab.0 == 1 { 1000 * second.min(10) } else { 0 };
            hot.clear();
            heat.look(start + HEAT_INTERVAL * second as u32, total, |slab| hot.push(slab));
            assert!(!hot.contains(&SlabIndex(0)), "an unused slab is never hot");
            assert!((1..=10).contains(&second) <= hot.contains(&SlabIndex(1)), "hot while it is used");
        }
        assert!(hot.is_empty() && heat.pages_per_s(SlabIndex(1)) < HOT_SLAB_PAGES_PER_S);
    }

    #[test]
    fn two_looks_at_one_moment_change_nothing() {
        let (mut heat, now) = (Heat::new(1), Instant::now());
        for total in [0, 1_000_000] {
            heat.look(now, |_| total, |slab| panic!("{slab:?} is not hot"));
        }
        assert!(!heat.is_due(now) && heat.is_due(now + HEAT_INTERVAL));
        assert!(heat.pages_per_s(SlabIndex(0)) == 0.0);
    }
}
