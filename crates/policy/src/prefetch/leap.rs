//! Leap's prefetcher, as published (Maruf and Chowdhury, USENIX ATC 2020, algorithms 1 and 2).
//!
//! Each fault, on a page that came along or not, goes to the [`AccessHistory`]. A page that did not come along is
//! when pages are asked for. The window follows from how many pages were hit since the last time:
//! - none: 1 if the page follows the trend, else 0;
//! - some: one more than those, rounded up to a power of two;
//! - at most [`WINDOW_PAGES_MAX`], and at least half of the window before.
//!
//! The window is filled along the trend, or along the last one that there was.
//!
//! Leap keeps what comes along in a cache, unmapped: the first use of each page is a cheap fault, and a hit
//! ([`Leap::by_process`], [`Leap::by_thread`]). [`Leap::mapped`] is the same policy for pages that are mapped with a
//! marker among them: the pages up to a marker that is reached were hit, and the next window is asked for there. A
//! history is kept for each process, as the paper has it, or each thread, which is its future work.
//!
//! Its published code differs from the paper: one history for the machine, of swap offsets, and a window that is never
//! 0. This is the paper.

use super::history::AccessHistory;
use super::{Candidates, Keying, PageNumber, Prefetcher};

/// The paper's `H_size`.
pub const HISTORY_SIZE: usize = 32;

/// The paper's `N_split`: the first window of a vote is a quarter of the history.
pub const HISTORY_SPLIT: usize = 4;

/// The paper's `PW_max`.
pub const WINDOW_PAGES_MAX: usize = 8;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Leap {
    name: &'static str,
    keying: Keying,
    is_unmapped: bool,
    history: AccessHistory<HISTORY_SIZE>,
    /// The last trend that was found.
    trend: Option<i64>,
    /// Pages of the last window.
    window: usize,
    /// Pages that came along and were hit since then.
    hits: usize,
    /// The last page that was brought along.
    end: PageNumber,
}

impl Leap {
    /// A history for each process, and pages unmapped.
    pub fn by_process() -> Self {
        Self::new("leap", Keying::Process, true)
    }

    /// A history for each thread, and pages unmapped.
    pub fn by_thread() -> Self {
        Self::new("leap-thread", Keying::Thread, true)
    }

    /// A history for each thread, and pages mapped with a marker among them.
    pub fn mapped() -> Self {
        Self::new("leap-mapped", Keying::Thread, false)
    }

    /// One history for all threads, and pages mapped with a marker among them.
    pub fn mapped_by_process() -> Self {
        Self::new("leap-mapped-process", Keying::Process, false)
    }

    fn new(name: &'static str, keying: Keying, is_unmapped: bool) -> Self {
        Self {
            name,
            keying,
            is_unmapped,
            history: AccessHistory::default(),
            trend: None,
            window: 0,
            hits: 0,
            end: PageNumber(0),
        }
    }

    /// The paper's `GetPrefetchWindowSize`, for a page that is `delta` from the one before.
    fn next_window(&mut self, delta: i64, found: Option<i64>) -> usize {
        let wanted = match self.hits {
            0 => usize::from(found == Some(delta)),
            hits => (hits + 1).next_power_of_two(),
        };
        self.window = wanted.min(WINDOW_PAGES_MAX).max(self.window / 2);
        self.hits = 0;
        self.window
    }

    /// The paper's `DoPrefetch`: pages along the trend from `from` on, for a page `delta` from the one before.
    fn bring(&mut self, delta: i64, from: PageNumber, candidates: &mut Candidates) {
        let found = self.history.trend(HISTORY_SPLIT);
        self.trend = found.or(self.trend);
        let window = self.next_window(delta, found);
        let Some(trend) = self.trend.filter(|trend| *trend != 0) else { return };
        candidates.push_line(from, trend, window);
        if let Some(end) = candidates.pages().last().copied() {
            self.end = end;
            if !self.is_unmapped {
                candidates.mark(candidates.pages().len() / 2);
            }
        }
    }

    /// The program passed the pages up to `marker`, which nothing told: as many hits and deltas as there were.
    fn pass(&mut self, marker: PageNumber) -> i64 {
        let trend = self.trend.unwrap_or(0);
        let distance = marker.distance_from(self.history.last());
        let steps = distance.checked_div(trend).unwrap_or(0);
        if distance == steps.wrapping_mul(trend) && (1..=2 * WINDOW_PAGES_MAX as i64).contains(&steps) {
            self.hits += steps as usize;
            while self.history.last() != marker {
                self.history.record(PageNumber(self.history.last().0.wrapping_add_signed(trend)));
            }
            trend
        } else {
            self.hits += 1;
            self.history.record(marker)
        }
    }
}

impl Prefetcher for Leap {
    fn name(&self) -> &'static str {
        self.name
    }

    fn keying(&self) -> Keying {
        self.keying
    }

    fn keeps_unmapped(&self) -> bool {
        self.is_unmapped
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        let delta = self.history.record(page);
        self.bring(delta, page, candidates);
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        if self.is_unmapped {
            self.history.record(page);
            self.hits += 1;
        } else {
            let (delta, end) = (self.pass(page), self.end);
            self.bring(delta, end, candidates);
        }
    }

    fn on_unused(&mut self, _page: PageNumber) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(policy: &mut Leap, page: u64) -> Vec<u64> {
        let mut candidates = Candidates::default();
        policy.on_fault(PageNumber(page), &mut candidates);
        candidates.pages().iter().map(|page| page.0).collect()
    }

    fn hit(policy: &mut Leap, page: u64) -> Candidates {
        let mut candidates = Candidates::default();
        policy.on_hit(PageNumber(page), &mut candidates);
        candidates
    }

    #[test]
    fn windows_grow_with_hits_to_eight() {
        let mut policy = Leap::by_process();
        assert!([1000, 1003].iter().all(|page| fault(&mut policy, *page).is_empty()));
        assert_eq!(fault(&mut policy, 1006), [1009], "without a hit: one page, along the trend");
        let mut lengths = Vec::new();
        let mut next = 1009;
        for _ in 0..5 {
            let came = policy.window as u64;
            (0..came).for_each(|step| assert!(hit(&mut policy, next + 3 * step).pages().is_empty()));
            next += 3 * came;
            let window = fault(&mut policy, next);
            lengths.push(window.len());
            next += 3;
            assert_eq!(window[0], next);
        }
        assert_eq!(lengths, [2, 4, 8, 8, 8]);
    }

    #[test]
    fn without_hits_and_trend_windows_halve_and_go_on_along_the_last_trend() {
        let mut policy = Leap::by_process();
        [1000, 1001, 1002].iter().for_each(|page| _ = fault(&mut policy, *page));
        (1003..1011).for_each(|page| _ = hit(&mut policy, page));
        assert_eq!(fault(&mut policy, 1011).len(), 8);
        let pages = [5_000, 90_000, 300, 42_000, 7_000, 61_000, 33_000].map(|page| (page, fault(&mut policy, page)));
        let lengths: Vec<usize> = pages.iter().map(|(_, window)| window.len()).collect();
        assert_eq!(lengths[..4], [4, 2, 1, 0]);
        assert!(pages.iter().all(|(page, window)| window.first().is_none_or(|first| *first == page + 1)));
    }

    #[test]
    fn a_page_again_and_again_brings_nothing() {
        let mut policy = Leap::by_thread();
        assert!((0..40).all(|_| fault(&mut policy, 7).is_empty()));
    }

    #[test]
    fn windows_end_where_addresses_do() {
        let mut policy = Leap::by_process();
        [30_u64, 20].iter().for_each(|page| _ = fault(&mut policy, *page));
        assert_eq!(fault(&mut policy, 10), [0]);
        hit(&mut policy, 0);
        assert!(fault(&mut policy, 0).is_empty());
    }

    #[test]
    fn with_markers_what_was_passed_is_a_hit_and_windows_follow_one_another() {
        let mut policy = Leap::mapped();
        assert!([1000, 1005].iter().all(|page| fault(&mut policy, *page).is_empty()));
        assert_eq!(fault(&mut policy, 1010), [1015]);
        let mut windows = Vec::new();
        let mut marker = PageNumber(1015);
        for _ in 0..4 {
            let window = hit(&mut policy, marker.0);
            marker = window.marker().unwrap();
            windows.push(window.pages().iter().map(|page| page.0).collect::<Vec<_>>());
        }
        assert_eq!(windows.iter().map(Vec::len).collect::<Vec<_>>(), [2, 4, 4, 8]);
        let all: Vec<u64> = windows.concat();
        assert!(all.iter().copied().eq((0..18).map(|step| 1020 + 5 * step)), "none twice, none left out: {all:?}");
    }

    /// The paper's rule for windows, in its own words.
    fn reference_window(hits: usize, follows: bool, before: usize) -> usize {
        let mut size = if hits == 0 { usize::from(follows) } else { 1 };
        while hits > 0 && size < hits + 1 {
            size *= 2;
        }
        size = size.min(8);
        if size < before / 2 { before / 2 } else { size }
    }

    /// All that happened, looked through anew each time.
    #[derive(Default)]
    struct Reference {
        pages: Vec<u64>,
        hits: usize,
        window: usize,
        trend: i64,
    }

    impl Reference {
        fn trend_now(&self) -> Option<i64> {
            let deltas: Vec<i64> = std::iter::once(0)
                .chain(self.pages.iter().copied())
                .zip(&self.pages)
                .map(|(before, page)| page.cast_signed() - before.cast_signed())
                .collect();
            [8, 16, 32].into_iter().filter(|_| deltas.len() > 1).find_map(|window| {
                let newest = &deltas[deltas.len().saturating_sub(window)..];
                newest
                    .iter()
                    .copied()
                    .find(|delta| newest.iter().filter(|one| *one == delta).count() * 2 > newest.len())
            })
        }

        fn fault(&mut self, page: u64) -> Vec<u64> {
            let delta = page.cast_signed() - self.pages.last().copied().unwrap_or(0).cast_signed();
            self.pages.push(page);
            let found = self.trend_now();
            self.trend = found.unwrap_or(self.trend);
            self.window = reference_window(self.hits, found == Some(delta), self.window);
            self.hits = 0;
            let step = self.trend;
            let along = (1..=self.window as i64).filter(|_| step != 0).map(|index| page.cast_signed() + index * step);
            along.take_while(|page| *page >= 0).map(i64::cast_unsigned).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn it_is_the_reference(
            steps in proptest::collection::vec(
                (prop_oneof![6 => Just(7_i64), 2 => Just(-2), 1 => Just(0), 1 => -5000_i64..5000], any::<bool>()), 1..120
            )
        ) {
            let (mut policy, mut reference) = (Leap::by_process(), Reference::default());
            let mut page = 1_u64 << 20;
            for (step, is_hit) in steps {
                page = page.wrapping_add_signed(step);
                if is_hit {
                    prop_assert!(hit(&mut policy, page).pages().is_empty());
                    reference.pages.push(page);
                    reference.hits += 1;
                } else {
                    prop_assert_eq!(fault(&mut policy, page), reference.fault(page));
                }
            }
        }
    }
}
