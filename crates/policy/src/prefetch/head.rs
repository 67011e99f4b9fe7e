//! A place that read-ahead follows: where a stream is, which way it goes, and how much comes along.
//!
//! A place begins with one fault. The second gives it a distance, the third, if it is as far, a *trend*. From then on
//! it has votes: each page in line is one, and each fault nearby that is in no line takes one away. Only a place
//! without votes takes up another distance, so outliers change nothing as long as most pages are in line: Boyer and
//! Moore's majority vote, kept up as pages come.
//!
//! Invariants: a place with a window has a trend; a trend is not 0.

use super::{Candidates, PageNumber};

/// The first window of a trend: the kernel's read-ahead begins with as many for small reads (`get_init_ra_size`).
pub(super) const WINDOW_START: u32 = 4;

/// A fault so many steps further on is still in line: the pages between may have been local, as random or scattered
/// ones stay after an eviction.
const SKIPPED_MAX: i64 = 8;

/// Votes of a place that has a trend: of the two distances that are equal.
const VOTES_TREND: u32 = 2;

/// A place has no more votes than the largest near window has pages: what happened before does not count for ever.
const VOTES_MAX: u32 = 64;

/// Windows that were too large once grow by one in so many of their pages.
const GROWTH_SHARE: u32 = 8;

/// How windows of a program grow: twice as much each time as long as nothing was wasted, and slowly from half of that
/// on which was too much. So streams that go on together share what local memory can take of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    threshold: u32,
}

impl Default for Growth {
    fn default() -> Self {
        Self { threshold: u32::MAX }
    }
}

impl Growth {
    fn grown(&mut self, window: u32, window_max: usize) -> u32 {
        let next = if window < self.threshold {
            (window * 2).min(self.threshold)
        } else {
            window + (window / GROWTH_SHARE).max(1)
        };
        self.threshold = self.threshold.max(window);
        // There may be room for less than a first window.
        let max = window_max as u32;
        next.clamp(WINDOW_START.min(max), max)
    }
}

/// The pages that a place may have to do with, so that most places need no closer look. `first` and so many behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Surroundings {
    first: u64,
    length: u64,
    last: u64,
    is_used: bool,
}

impl Surroundings {
    /// Whether `page` is there, or goes on by `usual`.
    pub(super) fn contains(&self, page: PageNumber, usual: i64) -> bool {
        let is_near = page.0.wrapping_sub(self.first) <= self.length;
        let goes_on = page.0.wrapping_sub(self.last).cast_signed() == usual;
        self.is_used & (is_near | goes_on)
    }
}

/// A place that is followed. One without a use is free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    /// The last fault or marker.
    last: PageNumber,
    /// The last page that was brought along, or the last fault.
    end: PageNumber,
    /// The distance between the last two faults in line; 0 for a place with one.
    delta: i64,
    votes: u32,
    /// Pages of the next window, before it grows.
    window: u32,
    /// The pages that came with the last fault without a trend: first and last.
    around: Option<(PageNumber, PageNumber)>,
    /// Nothing has told yet whether it goes on.
    begins: bool,
    used_at: u64,
}

impl Head {
    pub(super) fn new(page: PageNumber, used_at: u64) -> Self {
        Self { last: page, end: page, begins: true, used_at, ..Self::default() }
    }

    /// Where it takes pages for its own or for strays: within `reach_pages`, or what its trend may skip.
    pub(super) fn surroundings(&self, reach_pages: u64) -> Surroundings {
        let skipped = self.delta.unsigned_abs().saturating_mul(SKIPPED_MAX.unsigned_abs());
        let reach = reach_pages.max(u64::from(self.window)).max(skipped);
        let first = self.last.0.min(self.end.0).saturating_sub(reach);
        let length = self.last.0.max(self.end.0).saturating_add(reach) - first;
        Surroundings { first, length, last: self.last.0, is_used: self.is_used() }
    }

    pub(super) fn is_used(&self) -> bool {
        self.used_at > 0
    }

    pub(super) fn used_at(&self) -> u64 {
        self.used_at
    }

    pub(super) fn votes(&self) -> u32 {
        self.votes
    }

    pub(super) fn window(&self) -> u32 {
        self.window
    }

    pub(super) fn delta(&self) -> i64 {
        self.delta
    }

    pub(super) fn has_trend(&self) -> bool {
        self.votes > 0
    }

    /// Whether its last fault was `page`.
    pub(super) fn is_at(&self, page: PageNumber) -> bool {
        self.is_used() && self.last == page
    }

    /// Whether it went no further than `page`, and has a window.
    pub(super) fn ends_at(&self, page: PageNumber) -> bool {
        self.is_used() && self.end == page && self.window > 0
    }

    /// Whether this is the first time that it is asked whether it goes on.
    pub(super) fn ends_begin(&mut self) -> bool {
        std::mem::take(&mut self.begins)
    }

    pub(super) fn came_around(&mut self, first: PageNumber, last: PageNumber) {
        self.around = Some((first, last));
    }

    /// How far `page` is from what this place has seen or brought along.
    pub(super) fn distance(&self, page: PageNumber) -> u64 {
        page.0.abs_diff(self.last.0).min(page.0.abs_diff(self.end.0))
    }

    /// Whether `page` is next to its last page or to what came with that.
    pub(super) fn is_next_to(&self, page: PageNumber) -> bool {
        self.is_used() && (self.last.0.abs_diff(page.0) <= 1 || self.is_beside(page).is_some())
    }

    /// Whether `page` is next to those that came with the last one, and on which side.
    fn is_beside(&self, page: PageNumber) -> Option<i64> {
        let (first, last) = self.around?;
        let distances = [page.distance_from(last), page.distance_from(first)];
        [1, -1].into_iter().zip(distances).find_map(|(side, distance)| (side == distance).then_some(side))
    }

    /// The distance in which `page` goes on from here, if it does. A place that begins goes on with a neighbour, or as
    /// other places did, by `usual`.
    pub(super) fn step_to(&self, page: PageNumber, usual: i64) -> Option<i64> {
        if !self.is_used() {
            return None;
        }
        let distance = page.distance_from(self.last);
        if self.has_trend() {
            let goes_on = self.skips(distance) || self.skips(page.distance_from(self.end));
            return goes_on.then_some(self.delta);
        }
        let is_trend = distance != 0 && (distance == self.delta || distance == usual || distance.abs() == 1);
        is_trend.then_some(distance).or_else(|| self.is_beside(page))
    }

    /// Whether `distance` is some steps; pages that are skipped may have been local.
    fn skips(&self, distance: i64) -> bool {
        let (steps, length) = (distance.unsigned_abs(), self.delta.unsigned_abs());
        let is_forward = distance != 0 && (distance < 0) == (self.delta < 0);
        is_forward && steps / SKIPPED_MAX.unsigned_abs() <= length && {
            steps <= length.saturating_mul(SKIPPED_MAX.unsigned_abs()) && steps.is_multiple_of(length)
        }
    }

    /// `page` is in line, `delta` apart.
    pub(super) fn goes_on(&mut self, page: PageNumber, delta: i64, now: u64) {
        assert!(delta != 0, "a page again is no trend");
        self.votes = VOTES_MAX.min(VOTES_TREND.max(self.votes + 1));
        (self.last, self.end, self.delta, self.around, self.used_at) = (page, page, delta, None, now);
    }

    /// It has begun and is taken to go on as others did.
    pub(super) fn resumes(&mut self, delta: i64, window: u32) {
        (self.delta, self.votes, self.window) = (delta, VOTES_TREND, window);
    }

    /// `page` is near and in no line. Whether this place takes it for its own: a trend with votes left does not.
    pub(super) fn stray(&mut self, page: PageNumber, now: u64) -> bool {
        self.votes = self.votes.saturating_sub(1);
        if self.votes > 0 {
            return false;
        }
        *self = Self { begins: self.begins, delta: page.distance_from(self.last), ..Self::new(page, now) };
        true
    }

    /// Whether `page` was brought along and the program has not come to it yet, as far as is known.
    pub(super) fn is_ahead(&self, page: PageNumber) -> bool {
        let (first, last) = if self.delta < 0 { (self.end, self.last) } else { (self.last, self.end) };
        self.end != self.last
            && (first..=last).contains(&page)
            && page.distance_from(self.last).unsigned_abs().is_multiple_of(self.delta.unsigned_abs())
    }

    /// The program came to the marker `page`: what lies before it was in line.
    pub(super) fn reached(&mut self, page: PageNumber, now: u64) {
        let steps = page.distance_from(self.last).unsigned_abs() / self.delta.unsigned_abs().max(1);
        self.votes = VOTES_MAX.min(self.votes + u32::try_from(steps).unwrap_or(VOTES_MAX).min(VOTES_MAX));
        (self.last, self.used_at) = (page, now);
    }

    /// A page that it brought along left unused.
    pub(super) fn was_wasted(&mut self, growth: &mut Growth) {
        growth.threshold = growth.threshold.min((self.window / 2).max(WINDOW_START));
        self.window = self.window.saturating_sub(1);
    }

    /// Adds the window for a page that the program waits for, with the marker in its middle.
    pub(super) fn bring_first(&mut self, growth: &mut Growth, candidates: &mut Candidates) {
        self.window = growth.grown(self.window, candidates.window_max());
        self.bring(self.window / 2, candidates);
    }

    /// Adds the window for a marker that was reached, its own marker first.
    pub(super) fn bring_next(&mut self, growth: &mut Growth, candidates: &mut Candidates) {
        self.window = growth.grown(self.window, candidates.window_max());
        self.bring(0, candidates);
    }

    /// Adds a window; the page at `marker` is the marker.
    pub(super) fn bring(&mut self, marker: u32, candidates: &mut Candidates) {
        candidates.push_line(self.end, self.delta, self.window as usize);
        if let Some(end) = candidates.pages().last().copied() {
            self.end = end;
            candidates.mark((marker as usize).min(candidates.pages().len() - 1));
        }
    }
}
