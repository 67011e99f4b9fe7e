//! A miss curve from how much memory is referenced within windows of time.
//!
//! A scan clears the reference bits of all pages; later scans count the pages whose bits are set again. That gives the
//! *footprint* of a window: the pages used within it. Averaged over windows, the footprint says how long a page stays
//! in an LRU memory of its size, and its growth is what that memory misses: Denning and Schwartz 1972, "Properties of
//! the working-set model"; Xiang et al. 2013, "HOTL: a higher order theory of locality". No single page is followed,
//! so two numbers a scan are all that is kept.
//!
//! Memory that is used for the first time grows the footprint too, but does not come from anywhere. So it takes room
//! on the curve and is no miss: what a program holds more than when the bits were cleared is taken off.
//!
//! Time is the program's work, the time that its threads had a CPU: it goes on alike on a busy machine and a quiet one.

use std::time::Duration;

use super::miss_curve::{CurvePoint, MissCurve};

/// Ends of windows that are told apart: 1 ms times powers of the square root of two, up to 17 minutes. Scans of a small
/// program take a millisecond, and no curve wants steps smaller than what a page table scan misjudges (a tenth).
const WINDOWS: usize = 41;

/// The end of the first window.
const FIRST_WINDOW_SECONDS: f64 = 1e-3;

/// What a scan found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// How long the program worked so far.
    pub work: Duration,
    /// Pages whose reference bits are set.
    pub referenced_pages: u64,
    /// Pages that the program holds, in memory or paged out.
    pub held_pages: u64,
}

/// What is known of the growth between the ends of two windows.
#[derive(Clone, Copy, Debug, Default)]
struct Growth {
    /// Time that was looked at.
    seconds: f64,
    /// Pages that the footprint grew by meanwhile.
    pages: f64,
    /// Of these, pages that the program had before.
    used_again: f64,
}

/// See the module text.
#[derive(Clone, Debug)]
pub struct FootprintEstimator {
    growths: [Growth; WINDOWS],
    cleared: Option<Look>,
    last: Look,
    held_pages_max: u64,
    looks: u64,
}

impl Default for FootprintEstimator {
    fn default() -> Self {
        let (growths, last) = ([Growth::default(); WINDOWS], Look::default());
        Self { growths, cleared: None, last, held_pages_max: 0, looks: 0 }
    }
}

/// When window `index` ends.
fn window_end(index: usize) -> f64 {
    FIRST_WINDOW_SECONDS * 2_f64.powf(index as f64 / 2.0)
}

impl FootprintEstimator {
    /// All bits were cleared, after so much work, of a program that holds so many pages.
    pub fn cleared(&mut self, work: Duration, held_pages: u64) {
        self.held_pages_max = self.held_pages_max.max(held_pages);
        self.last = Look { work, referenced_pages: 0, held_pages };
        self.cleared = Some(self.last);
    }

    /// A scan; not counted before bits were cleared.
    pub fn looked(&mut self, look: Look) {
        self.held_pages_max = self.held_pages_max.max(look.held_pages);
        let Some(cleared) = self.cleared else { return };
        let last = std::mem::replace(&mut self.last, look);
        let since = |look: &Look| look.work.saturating_sub(cleared.work).as_secs_f64();
        let used_again = |look: &Look| {
            look.referenced_pages.saturating_sub(look.held_pages.saturating_sub(cleared.held_pages)) as f64
        };
        let (begin, end) = (since(&last), since(&look));
        if end <= begin {
            return;
        }
        self.looks += 1;
        // What is freed shrinks it; that says nothing of misses.
        let pages = look.referenced_pages.saturating_sub(last.referenced_pages) as f64 / (end - begin);
        let again = (used_again(&look) - used_again(&last)).max(0.0) / (end - begin);
        let mut from = 0.0;
        for (index, growth) in self.growths.iter_mut().enumerate() {
            let to = window_end(index);
            let seconds = end.min(to) - begin.max(from);
            if seconds > 0.0 {
                growth.seconds += seconds;
                growth.pages += seconds * pages;
                growth.used_again += seconds * again.min(pages);
            }
            from = to;
        }
    }

    /// Scans that told something.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// The longest window, of work.
    pub fn longest_window(&self) -> Duration {
        let known = self.growths.iter().take_while(|growth| growth.seconds > 0.0).count();
        Duration::from_secs_f64(known.checked_sub(1).map_or(0.0, window_end))
    }

    /// The curve; of a program without a look, one that says nothing.
    pub fn curve(&self) -> MissCurve {
        let footprint = self.held_pages_max as f64;
        let (mut measured, mut size, mut from) = (Vec::new(), 0.0, 0.0);
        for (index, growth) in self.growths.iter().enumerate().take_while(|(_, growth)| growth.seconds > 0.0) {
            let to = window_end(index);
            let grown = growth.pages / growth.seconds * (to - from);
            let misses_per_second = growth.used_again / growth.seconds;
            // The mean growth stands in the middle half of the sizes that it led through: a cliff stays steep, and a
            // slope stays smooth.
            for part in [0.25, 0.75] {
                let pages = (size + grown * part).min(footprint);
                measured.push((CurvePoint { pages, misses_per_second }, growth.seconds));
            }
            (size, from) = (size + grown, to);
        }
        // Up to what was seen used within the longest window, its misses are known; what lies beyond was not used again
        // within it, so they are at most as many up to all that the program holds.
        MissCurve::through(&measured, footprint)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::super::shards::reference::{Program, distances};
    use super::*;

    /// References in a second of the modelled programs' work.
    const SPEED: f64 = 1e6;

    /// Scans `references` as the shell does: windows of `window` references, with looks at powers of 1.5.
    fn scanned(references: &[u64], window: usize, held: impl Fn(usize) -> u64) -> FootprintEstimator {
        let mut estimator = FootprintEstimator::default();
        let work = |at: usize| Duration::from_secs_f64(at as f64 / SPEED);
        let mut begin = 0;
        while begin + window <= references.len() {
            estimator.cleared(work(begin), held(begin));
            let (mut used, mut next) = (HashSet::new(), 1000);
            for (at, &page) in references.iter().enumerate().skip(begin).take(window) {
                used.insert(page);
                if at + 1 - begin == next {
                    let referenced_pages = used.len() as u64;
                    estimator.looked(Look { work: work(at + 1), referenced_pages, held_pages: held(at + 1) });
                    next += next / 2;
                }
            }
            begin += window;
        }
        estimator
    }

    #[test]
    fn a_scan_misses_all_of_it_until_all_of_it_fits() {
        let references: Vec<u64> = (0..400_000).map(|at| at % 10_000).collect();
        let curve = scanned(&references, 64_000, |_| 10_000).curve();
        assert!(curve.misses_per_second(6000.0) > 0.9 * SPEED, "{curve:?}");
        assert_eq!(curve.misses_per_second(10_000.0), 0.0);
        assert!(curve.pages_for(0.05 * SPEED) > 8000.0, "{curve:?}");
    }

    #[test]
    fn fresh_memory_is_no_miss() {
        let references: Vec<u64> = (0..400_000).collect();
        let estimator = scanned(&references, 64_000, |at| at as u64);
        let curve = estimator.curve();
        assert!(curve.points().iter().all(|point| point.misses_per_second < 1.0), "{curve:?}");
        assert!(estimator.looks() > 0 && estimator.longest_window() >= Duration::from_millis(64));
    }

    #[test]
    fn nothing_is_said_without_a_look() {
        let mut estimator = FootprintEstimator::default();
        estimator.looked(Look { work: Duration::from_secs(1), referenced_pages: 5, held_pages: 9 });
        assert_eq!((estimator.looks(), estimator.longest_window()), (0, Duration::ZERO));
        assert_eq!(estimator.curve().points().len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn the_curve_is_that_of_an_exact_lru_memory(program in Program::any(), seed in any::<u64>()) {
            let references = program.references(seed, 300_000);
            let pages = references.iter().collect::<HashSet<_>>().len() as u64;
            let curve = scanned(&references, 128_000, |_| pages).curve();
            // The first half has uses of pages that are new.
            let distances = distances(&references).split_off(references.len() / 2);
            let exact = |size: f64| {
                let is_missed = |distance: &&Option<u64>| distance.is_none_or(|one| one as f64 >= size);
                distances.iter().filter(is_missed).count() as f64 / distances.len() as f64
            };
            for share in [0.25, 0.5, 0.75] {
                let size = share * pages as f64;
                // Windows are told apart by factors of 1.4, and so are sizes.
                let (least, most) = (exact(size * 1.4) - 0.1, exact(size / 1.4) + 0.1);
                let told = curve.misses_per_second(size) / SPEED;
                prop_assert!((least..=most).contains(&told), "{program:?} at {share}: {told}, not {least} to {most}");
            }
        }
    }
}
