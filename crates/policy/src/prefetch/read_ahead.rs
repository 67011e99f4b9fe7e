//! Read-ahead that adapts: nothing without a trend, twice as much with each window that is used, less with each page
//! that is not.
//!
//! It follows up to `HEADS` places at once, each with its own distance between faults: one thread often goes through
//! several arrays in turn, or through one from both ends (quicksort). A fault belongs to the nearest place within
//! `REACH_PAGES`; without one, the place that has been quiet for longest is given up. A distance that comes twice in
//! a row is a trend; a neighbouring page, up or down, is one at once. Faults that fit no trend cost nothing but the
//! look: a random program is left alone, and a stream pays two faults before its first window.
//!
//! A window begins with `WINDOW_START` pages. Reaching the marker in its middle asks for the next one, of twice the
//! length, up to [`WINDOW_MAX`], or more if donors are far; its marker is its first page, so the program still has a
//! window before it while it comes. A fault that leaves the trend takes the window down to a quarter; a page that
//! left unused takes one page off it.

#[cfg(any(doc, test))]
use super::WINDOW_MAX;
use super::{Candidates, PageNumber, Prefetcher};

/// Places that are followed: a matrix product goes through three arrays, Barnes-Hut through two and a tree.
const HEADS: usize = 4;

/// A fault within so many pages of a place belongs to it, or within its window if that is larger: strides to 1 MiB.
/// Larger ones are rare, and far pages of a random program would use up the places.
const REACH_PAGES: u64 = 256;

/// The first window of a trend: the kernel's read-ahead begins with as many for small reads (`get_init_ra_size`).
const WINDOW_START: u32 = 4;

/// A fault so many steps further on is still in line: the pages between may have been local, as random or scattered
/// ones stay after an eviction.
const SKIPPED_MAX: i64 = 8;

/// A fault out of line divides the window by so much: two of them end any window of up to 16 pages.
const OUT_OF_LINE_DIVISOR: u32 = 4;

/// A place that is followed.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// The last fault or marker.
    last: PageNumber,
    /// The last page that was brought along, or the last fault.
    end: PageNumber,
    /// The distance between the last two faults; 0 for a place with one.
    delta: i64,
    /// Pages of the next window, before it grows.
    window: u32,
    /// The pages that came with the last fault without a trend: first and last.
    around: Option<(PageNumber, PageNumber)>,
    used_at: u64,
}

impl Head {
    fn new(page: PageNumber, used_at: u64) -> Self {
        Self { last: page, end: page, delta: 0, window: 0, around: None, used_at }
    }

    /// How far `page` is from what this place has seen or brought along.
    fn distance(&self, page: PageNumber) -> u64 {
        page.0.abs_diff(self.last.0).min(page.0.abs_diff(self.end.0))
    }

    /// Whether a fault at `page` goes on as before; pages that are skipped may have been local.
    fn is_in_line(&self, page: PageNumber) -> bool {
        let goes_on = |from: PageNumber| {
            let distance = page.distance_from(from);
            distance.wrapping_rem(self.delta) == 0 && (1..=SKIPPED_MAX).contains(&distance.wrapping_div(self.delta))
        };
        match self.delta {
            0 => page.0.abs_diff(self.last.0) == 1,
            _ => goes_on(self.last) || goes_on(self.end),
        }
    }

    /// Whether `page` is next to those that came with the last one, and on which side.
    fn is_beside(&self, page: PageNumber) -> Option<i64> {
        let (first, last) = self.around?;
        let distances = [page.distance_from(last), page.distance_from(first)];
        [1, -1].into_iter().zip(distances).find_map(|(side, distance)| (side == distance).then_some(side))
    }

    fn fault(&mut self, page: PageNumber, comes_alone: bool, candidates: &mut Candidates) {
        let beside = self.is_beside(page);
        self.delta = beside.unwrap_or(self.delta);
        self.around = None;
        let in_line = beside.is_some() || self.is_in_line(page);
        // Beyond what was brought along the distance is that to its end, which is in line.
        if !in_line || self.delta == 0 {
            self.delta = page.distance_from(self.last);
        }
        (self.last, self.end) = (page, page);
        if !in_line {
            self.window /= OUT_OF_LINE_DIVISOR;
        } else if !comes_alone {
            self.grow(candidates.window_max());
            self.bring(self.window / 2, candidates);
        }
    }

    /// Whether `page` was brought along and the program has not come to it yet, as far as is known.
    fn is_ahead(&self, page: PageNumber) -> bool {
        let (first, last) = if self.delta < 0 { (self.end, self.last) } else { (self.last, self.end) };
        self.end != self.last && (first..=last).contains(&page)
    }

    fn grow(&mut self, window_max: usize) {
        self.window = (self.window * 2).clamp(WINDOW_START, window_max as u32);
    }

    /// Adds the next window; the page at `marker` is the marker.
    fn bring(&mut self, marker: u32, candidates: &mut Candidates) {
        let along = (1..=i64::from(self.window)).map_while(|step| self.end.offset(step * self.delta));
        along.for_each(|page| candidates.push(page));
        if let Some(end) = candidates.pages().last().copied() {
            self.end = end;
            candidates.mark((marker as usize).min(candidates.pages().len() - 1));
        }
    }
}

/// See the module text.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadAhead {
    heads: [Option<Head>; HEADS],
    clock: u64,
}

impl ReadAhead {
    /// The `count` pages from `first` on come along with `page`, which was in no trend. If the next fault is beside
    /// them, they were the begin of one.
    pub(super) fn came_around(&mut self, page: PageNumber, first: u64, count: u64) {
        if let Some(head) = self.nearest(page) {
            head.around = Some((PageNumber(first), PageNumber(first + count - 1)));
        }
    }

    /// Whether `page` is next to the last page of a place that is followed.
    pub(super) fn is_beside(&self, page: PageNumber) -> bool {
        self.heads.iter().flatten().any(|head| head.last.0.abs_diff(page.0) <= 1 || head.is_beside(page).is_some())
    }

    /// As [`Prefetcher::on_fault`]; nothing comes along if the page `comes_alone`, whatever trend it is in.
    pub(super) fn follow(&mut self, page: PageNumber, comes_alone: bool, candidates: &mut Candidates) {
        self.clock += 1;
        let clock = self.clock;
        if let Some(head) = self.nearest(page) {
            head.used_at = clock;
            return head.fault(page, comes_alone, candidates);
        }
        let quiet = self.heads.iter_mut().min_by_key(|head| head.map_or(0, |head| head.used_at));
        *quiet.expect("there are places") = Some(Head::new(page, clock));
    }

    /// The place nearest to `page`, if one is near.
    fn nearest(&mut self, page: PageNumber) -> Option<&mut Head> {
        let near = self.heads.iter_mut().flatten().min_by_key(|head| head.distance(page));
        near.filter(|head| head.distance(page) <= REACH_PAGES.max(u64::from(head.window)))
    }
}

impl Prefetcher for ReadAhead {
    fn name(&self) -> &'static str {
        "read-ahead"
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.follow(page, false, candidates);
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.clock += 1;
        let clock = self.clock;
        if let Some(head) = self.heads.iter_mut().flatten().find(|head| head.is_ahead(page)) {
            (head.used_at, head.last) = (clock, page);
            head.grow(candidates.window_max());
            head.bring(0, candidates);
        }
    }

    fn go_on(&mut self, page: PageNumber, candidates: &mut Candidates) {
        if let Some(head) = self.heads.iter_mut().flatten().find(|head| head.end == page && head.window > 0) {
            head.bring(0, candidates);
        }
    }

    fn on_unused(&mut self, page: PageNumber) {
        if let Some(head) = self.nearest(page) {
            head.window = head.window.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a fault brings along, and the marker.
    fn fault(policy: &mut ReadAhead, page: u64) -> (Vec<u64>, Option<u64>) {
        let mut candidates = Candidates::default();
        policy.on_fault(PageNumber(page), &mut candidates);
        (candidates.pages().iter().map(|page| page.0).collect(), candidates.marker().map(|page| page.0))
    }

    fn hit(policy: &mut ReadAhead, page: u64) -> (Vec<u64>, Option<u64>) {
        let mut candidates = Candidates::default();
        policy.on_hit(PageNumber(page), &mut candidates);
        (candidates.pages().iter().map(|page| page.0).collect(), candidates.marker().map(|page| page.0))
    }

    #[test]
    fn a_neighbour_starts_a_stream_that_doubles() {
        let mut policy = ReadAhead::default();
        assert_eq!(fault(&mut policy, 10), (vec![], None));
        let (window, marker) = fault(&mut policy, 11);
        assert_eq!((&window[..], marker), (&[12, 13, 14, 15][..], Some(14)));
        let (window, marker) = hit(&mut policy, 14);
        assert_eq!((window, marker), ((16..24).collect(), Some(16)));
        let (window, _) = hit(&mut policy, 16);
        assert_eq!(window, (24..40).collect::<Vec<_>>());
        let lengths: Vec<usize> = [24, 40, 72, 136].map(|marker| hit(&mut policy, marker).0.len()).to_vec();
        assert_eq!(lengths, [32, WINDOW_MAX, WINDOW_MAX, WINDOW_MAX]);
    }

    #[test]
    fn strides_need_two_equal_distances_and_go_both_ways() {
        let mut policy = ReadAhead::default();
        assert!([500, 464].iter().all(|page| fault(&mut policy, *page).0.is_empty()));
        assert_eq!(fault(&mut policy, 428).0, [392, 356, 320, 284]);
        assert_eq!(hit(&mut policy, 320).0[..2], [248, 212]);
    }

    #[test]
    fn local_pages_on_the_way_do_not_end_a_stream() {
        let mut policy = ReadAhead::default();
        fault(&mut policy, 0);
        fault(&mut policy, 1);
        assert_eq!(hit(&mut policy, 5).0.len(), 8, "another page of the window became the marker");
        assert_eq!(fault(&mut policy, 16).0.len(), 16, "14 and 15 were local");
        assert!(fault(&mut policy, 60).0.is_empty(), "too far to be on the way");
    }

    #[test]
    fn two_ends_of_one_array_are_two_streams() {
        let mut policy = ReadAhead::default();
        assert!([0, 10_000].iter().all(|page| fault(&mut policy, *page).0.is_empty()));
        assert_eq!(fault(&mut policy, 1).0, [2, 3, 4, 5]);
        assert_eq!(fault(&mut policy, 9999).0, [9998, 9997, 9996, 9995]);
        assert_eq!(hit(&mut policy, 4).0, (6..14).collect::<Vec<_>>());
    }

    #[test]
    fn a_stream_goes_on_before_the_program_comes_there() {
        let mut policy = ReadAhead::default();
        fault(&mut policy, 0);
        fault(&mut policy, 1);
        let mut candidates = Candidates::default();
        policy.go_on(PageNumber(3), &mut candidates);
        assert!(candidates.pages().is_empty(), "not the last of the window");
        policy.go_on(PageNumber(5), &mut candidates);
        assert_eq!(candidates.pages(), [6, 7, 8, 9].map(PageNumber));
        assert_eq!(hit(&mut policy, 4).0, (10..18).collect::<Vec<_>>(), "the first window's marker still counts");
    }

    #[test]
    fn a_stream_that_outran_its_window_goes_on() {
        let mut policy = ReadAhead::default();
        fault(&mut policy, 0);
        fault(&mut policy, 1);
        // The marker at 4 went unnoticed; the fault comes behind the window.
        assert_eq!(fault(&mut policy, 6).0, (7..15).collect::<Vec<_>>());
    }

    #[test]
    fn what_leaves_the_trend_or_is_not_used_ends_it() {
        let mut policy = ReadAhead::default();
        fault(&mut policy, 0);
        fault(&mut policy, 1);
        assert!(fault(&mut policy, 40).0.is_empty());
        assert!(fault(&mut policy, 41).0.is_empty(), "a new distance is not a trend yet");
        assert_eq!(fault(&mut policy, 42).0, [43, 44, 45, 46], "and then begins small");
        hit(&mut policy, 45);
        (47..55).for_each(|page| policy.on_unused(PageNumber(page)));
        assert_eq!(hit(&mut policy, 47).0.len(), WINDOW_START as usize, "a window that was wasted begins anew");
    }

    #[test]
    fn random_faults_bring_little_along() {
        let (mut policy, mut state, mut brought) = (ReadAhead::default(), 1_u64, 0);
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            brought += fault(&mut policy, state >> 50).0.len();
        }
        assert!(brought < 200, "{brought} pages for 10000 faults among 16384 pages");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn candidates_are_distinct_and_never_the_demanded_page(
            steps in proptest::collection::vec((0_u64..300, 0_u8..4), 1..200), base in prop_oneof![Just(0), Just(u64::MAX - 299)]
        ) {
            let mut policy = ReadAhead::default();
            for (page, what) in steps {
                let page = base + page;
                let (mut pages, marker) = match what {
                    0 => hit(&mut policy, page),
                    1 => { policy.on_unused(PageNumber(page)); continue }
                    _ => fault(&mut policy, page),
                };
                prop_assert!(marker.is_none_or(|marker| pages.contains(&marker)));
                prop_assert_eq!(marker.is_none(), pages.is_empty());
                prop_assert!(!pages.contains(&page) || what == 0);
                let count = pages.len();
                prop_assert!(count <= WINDOW_MAX);
                pages.sort_unstable();
                pages.dedup();
                prop_assert_eq!(pages.len(), count);
            }
        }
    }
}
