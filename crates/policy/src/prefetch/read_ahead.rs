//! Read-ahead that adapts: nothing without a trend, twice as much with each window that is used, less with each page
//! that is not.
//!
//! It follows up to `HEADS` places at once, each with its own distance between faults (`head.rs`): one thread
//! often goes through several arrays in turn, or through one from both ends (quicksort). A fault belongs to the place
//! in whose line it is, however far apart its pages are. What is in no line is near a place that has no trend yet, or
//! begins a new one. A distance that comes twice in a row is a trend; a neighbouring page, up or down, is one at once.
//! Faults that fit no trend cost nothing but the look: a random program is left alone, and a stream pays two faults
//! before its first window.
//!
//! *Far strides.* Places far apart find one another by the last faults in no line. A fault goes on in a trend if it is
//! as far from the one before as that is from its own predecessor. Every second, third or fourth of them is looked at
//! in the same way, as when a program goes through several matrices by columns.
//!
//! *Outliers.* A trend is the majority of what its place has seen (Boyer and Moore's vote, kept up as pages come): a
//! fault in line is a vote for it, and one nearby that is not a vote against it. A few of those change nothing.
//!
//! *Resumption.* A program that goes through a matrix by columns begins the same stride again and again. Where the
//! last places did, the first fault of the next one brings a window along.
//!
//! A window begins with `WINDOW_START` pages. Reaching the marker in its middle asks for the next one, of twice the
//! length, up to [`WINDOW_MAX`], or more if donors are far; its marker is its first page, so the program still has a
//! window before it while it comes. A page that left unused takes one page off it.

#[cfg(any(doc, test))]
use super::WINDOW_MAX;
use super::experience::{Score, Strays, Usual};
use super::head::{Growth, Head, Surroundings};
use super::{Candidates, Keying, PageNumber, Prefetcher};
use crate::limits::{FAULTS_PER_VOTE, HEADS, REACH_PAGES, RESUMED_SHARE};

/// The numbers of the bits that are set.
fn bits(mut of: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = of.trailing_zeros();
        of &= of.wrapping_sub(1);
        (bit < u32::BITS).then_some(bit as usize)
    })
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct ReadAhead {
    heads: [Head; HEADS],
    /// Of each of the heads.
    surroundings: [Surroundings; HEADS],
    strays: Strays,
    /// The trend that most places have.
    usual: Usual,
    /// How well places that begin go on in that.
    resumption: Score,
    growth: Growth,
    clock: u64,
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self {
            heads: [Head::default(); HEADS],
            surroundings: [Surroundings::default(); HEADS],
            strays: Strays::default(),
            usual: Usual::default(),
            resumption: Score::default(),
            growth: Growth::default(),
            clock: 0,
        }
    }
}

impl ReadAhead {
    /// A new stream of the program that `other` is of: no place, and the same experience.
    pub(super) fn heir(other: &Self) -> Self {
        Self { growth: other.growth, ..Self::default() }
    }

    /// The `count` pages from `first` on come along with `page`, which was in no trend. If the next fault is beside
    /// them, they were the begin of one.
    pub(super) fn came_around(&mut self, page: PageNumber, first: u64, count: u64) {
        if let Some(head) = self.heads.iter_mut().find(|head| head.is_at(page)) {
            head.came_around(PageNumber(first), PageNumber(first + count - 1));
        }
    }

    /// Whether `page` is next to the last page of a place that is followed.
    pub(super) fn is_beside(&self, page: PageNumber) -> bool {
        self.heads.iter().any(|head| head.is_next_to(page))
    }

    /// As [`Prefetcher::on_fault`]; nothing comes along if the page `comes_alone`, whatever trend it is in.
    pub(super) fn follow(&mut self, page: PageNumber, comes_alone: bool, candidates: &mut Candidates) {
        self.clock += 1;
        let near = self.near(page);
        let in_line = self.find_in_line(page, near);
        if let Some((index, delta)) = in_line {
            self.tell(index, delta);
            self.heads[index].goes_on(page, delta, self.clock);
        }
        let index = in_line.map(|(index, _)| index).or_else(|| self.stray(page, near));
        if let Some(index) = index {
            if !comes_alone && self.heads[index].has_trend() {
                self.heads[index].bring_first(&mut self.growth, candidates);
            }
            self.moved(index);
        }
    }

    /// The places that may have to do with `page`, a bit for each.
    fn near(&self, page: PageNumber) -> u32 {
        let bit = |(index, one): (usize, &Surroundings)| u32::from(one.contains(page, self.usual.delta)) << index;
        self.surroundings.iter().enumerate().fold(0, |bits, one| bits | bit(one))
    }

    /// The place at `index` is another.
    fn moved(&mut self, index: usize) {
        self.surroundings[index] = self.heads[index].surroundings(REACH_PAGES);
    }

    /// The place in whose line `page` is, and its distance.
    fn find_in_line(&self, page: PageNumber, near: u32) -> Option<(usize, i64)> {
        let step = |index: usize| self.heads[index].step_to(page, self.usual.delta).map(|delta| (index, delta));
        bits(near).find_map(step)
    }

    /// A fault in no line. The place that takes it, which has a trend if a window is to come along.
    fn stray(&mut self, page: PageNumber, near: u32) -> Option<usize> {
        let trend = self.strays.trend(page, REACH_PAGES);
        self.strays.record(page);
        if let Some(delta) = trend {
            self.forget_line(page, delta);
            let index = self.begin(page);
            self.heads[index].goes_on(page, delta, self.clock);
            return Some(index);
        }
        if let Some(index) = self.stray_nearby(page, near) {
            return Some(index);
        }
        let index = self.begin(page);
        if self.usual.delta.unsigned_abs() > 1 && self.resumption.is_worth() {
            self.heads[index].resumes(self.usual.delta, self.usual.window / RESUMED_SHARE);
        }
        Some(index)
    }

    /// The places of the last faults before `page` that are `delta` apart were parts of one. Left alone, they would
    /// take the neighbours of those pages for the next ones.
    fn forget_line(&mut self, page: PageNumber, delta: i64) {
        let earlier = [1, 2, 3].map(|step: i64| page.offset(step.wrapping_mul(-delta)));
        for index in 0..HEADS {
            if earlier.iter().flatten().any(|page| self.heads[index].is_at(*page)) {
                self.heads[index] = Head::default();
                self.moved(index);
            }
        }
    }

    /// A new place, instead of the one that matters least.
    fn begin(&mut self, page: PageNumber) -> usize {
        let worth = |head: &Head| head.used_at() + FAULTS_PER_VOTE * u64::from(head.votes());
        let index = (0..HEADS).min_by_key(|index| worth(&self.heads[*index])).expect("there are places");
        self.gave_up(index);
        self.heads[index] = Head::new(page, self.clock);
        index
    }

    /// The place at `index` goes on by `delta`.
    fn tell(&mut self, index: usize, delta: i64) {
        let head = &mut self.heads[index];
        if head.has_trend() {
            self.usual.vote(delta);
        }
        if head.ends_begin() {
            self.resumption.went(delta == self.usual.delta);
        }
    }

    /// The place at `index` does not go on.
    fn gave_up(&mut self, index: usize) {
        if self.heads[index].ends_begin() {
            self.resumption.went(false);
        }
    }

    /// `page` is in no line: the place nearby that takes it. The nearest one with a trend has a vote less.
    fn stray_nearby(&mut self, page: PageNumber, near: u32) -> Option<usize> {
        let (mut nearest, mut nearest_with_trend) = (None, None);
        for (index, head) in bits(near).map(|index| (index, &self.heads[index])) {
            let distance = head.distance(page);
            let place = if head.has_trend() { &mut nearest_with_trend } else { &mut nearest };
            let reach = REACH_PAGES.max(u64::from(head.window()));
            if distance <= reach && place.is_none_or(|(least, _)| distance < least) {
                *place = Some((distance, index));
            }
        }
        let clock = self.clock;
        let is_nearer = |(distance, _): &(u64, usize)| nearest.is_none_or(|(least, _)| *distance < least);
        let nearest_with_trend = nearest_with_trend.filter(is_nearer);
        let places = nearest_with_trend.into_iter().chain(nearest).map(|(_, index)| index);
        places.into_iter().find(|index| self.heads[*index].stray(page, clock))
    }

    fn nearest(&mut self, page: PageNumber) -> Option<&mut Head> {
        let near = self.heads.iter_mut().filter(|head| head.is_used()).min_by_key(|head| head.distance(page));
        near.filter(|head| head.distance(page) <= REACH_PAGES.max(u64::from(head.window())))
    }

    fn ahead(&mut self, page: PageNumber) -> Option<usize> {
        self.heads.iter().position(|head| head.is_ahead(page))
    }
}

impl Prefetcher for ReadAhead {
    fn name(&self) -> &'static str {
        "read-ahead"
    }

    fn keying(&self) -> Keying {
        Keying::Thread
    }

    fn has_ahead(&self, page: PageNumber) -> bool {
        self.heads.iter().any(|head| head.is_ahead(page))
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.follow(page, false, candidates);
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.clock += 1;
        if let Some(index) = self.ahead(page) {
            self.tell(index, self.heads[index].delta());
            self.heads[index].reached(page, self.clock);
            self.heads[index].bring_next(&mut self.growth, candidates);
            self.moved(index);
            if self.heads[index].delta() == self.usual.delta {
                self.usual.window = self.heads[index].window();
            }
        }
    }

    fn go_on(&mut self, page: PageNumber, candidates: &mut Candidates) {
        if let Some(index) = self.heads.iter().position(|head| head.ends_at(page)) {
            self.heads[index].bring(0, candidates);
            self.moved(index);
        }
    }

    fn on_unused(&mut self, page: PageNumber) {
        let mut growth = self.growth;
        if let Some(index) = self.ahead(page) {
            self.heads[index].was_wasted(&mut growth);
        } else if let Some(head) = self.nearest(page) {
            head.was_wasted(&mut growth);
        }
        self.growth = growth;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prefetch::head::WINDOW_START;

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
        assert_eq!(fault(&mut policy, 41).0, [42, 43, 44, 45], "a new place, which begins small");
        hit(&mut policy, 44);
        (46..54).for_each(|page| policy.on_unused(PageNumber(page)));
        assert_eq!(hit(&mut policy, 46).0.len(), WINDOW_START as usize, "a window that was wasted begins anew");
        let lengths: Vec<usize> = [50, 54, 59, 65].map(|marker| hit(&mut policy, marker).0.len()).to_vec();
        assert_eq!(lengths, [5, 6, 7, 8], "and grows slowly from there");
    }

    #[test]
    fn outliers_do_not_end_a_trend() {
        let mut policy = ReadAhead::default();
        [1000, 1002].iter().for_each(|page| _ = fault(&mut policy, *page));
        let mut marker = fault(&mut policy, 1004).1.unwrap();
        for round in 0..6 {
            // Nearby and in no line: fewer than the pages that are in line.
            (0..1 + round).for_each(|outlier| _ = fault(&mut policy, marker - 1 - 6 * outlier % 40));
            let (window, next) = hit(&mut policy, marker);
            assert_eq!(window.len(), (8 << round).min(WINDOW_MAX));
            assert!(window.windows(2).all(|pair| pair[1] == pair[0] + 2));
            marker = next.unwrap();
        }
    }

    #[test]
    fn strides_of_any_length_are_found_alone_and_in_turn() {
        for (streams, stride) in [(1_u64, 400_u64), (1, 1 << 20), (2, 5_000), (4, 300)] {
            let mut policy = ReadAhead::default();
            let place = |stream: u64, step: u64| (stream << 40) + stream * stream * 12_345 + step * stride;
            let mut found = 0;
            for (step, stream) in (0..4).flat_map(|step| (0..streams).map(move |stream| (step, stream))) {
                let (window, _) = fault(&mut policy, place(stream, step));
                assert!(window.is_empty() || window[0] == place(stream, step + 1), "{streams} {stride}");
                found += u64::from(!window.is_empty());
            }
            assert_eq!(found, streams, "{stride}: the fourth fault of each brings a window along");
        }
    }

    #[test]
    fn columns_come_along_from_their_first_page_on_once_they_have_before() {
        let mut policy = ReadAhead::default();
        let mut faults = Vec::new();
        for column in 0..20 {
            let (mut there, mut count, mut marker) = (Vec::new(), 0, None);
            for row in 0..12 {
                let page = 1_000_000 + 400 * row + column;
                let came = match (marker == Some(page), there.contains(&page)) {
                    (true, _) => hit(&mut policy, page),
                    (false, true) => continue,
                    (false, false) => {
                        count += 1;
                        fault(&mut policy, page)
                    }
                };
                there.extend(&came.0);
                marker = came.1.or(marker);
            }
            faults.push(count);
        }
        assert_eq!(faults[0], 4);
        assert!(faults[1..].iter().all(|count| *count <= 2), "the stride is known: {faults:?}");
        assert!(faults[10..].iter().all(|count| *count == 1), "and that it goes on: {faults:?}");
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
        fn what_a_place_may_have_to_do_with_is_in_its_surroundings(
            pages in proptest::collection::vec(0_u64..3000, 1..200), wide in any::<bool>()
        ) {
            let mut policy = ReadAhead::default();
            for page in pages {
                let page = PageNumber(if wide { page * 500 } else { page });
                let near = policy.near(page);
                for (index, head) in policy.heads.iter().enumerate() {
                    let step = head.step_to(page, policy.usual.delta);
                    prop_assert!(step.is_none() || near >> index & 1 == 1, "{:?} {:?}", head, page);
                }
                fault(&mut policy, page.0);
            }
        }

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
