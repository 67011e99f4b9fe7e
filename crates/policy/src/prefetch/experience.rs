//! What read-ahead remembers beside the places that it follows: faults in no line, the usual distance, and how well it
//! went to trust that.
//!
//! Invariants: all of it has a fixed size and is looked through in a bounded time; what is not seen again is outvoted.

use super::PageNumber;
use crate::limits::{IN_TURN_MAX, STRAYS, STREAM_SCORE_MAX, STREAM_SCORE_WORTH};

/// How well something that is tried goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score(u8);

impl Score {
    pub(super) fn is_worth(self) -> bool {
        self.0 >= STREAM_SCORE_WORTH
    }

    pub(super) fn went(&mut self, well: bool) {
        self.0 = if well { STREAM_SCORE_MAX.min(self.0 + 1) } else { self.0.saturating_sub(1) };
    }
}

/// The distance that the majority of the last places had: Boyer and Moore's vote, with a bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    /// The distance.
    pub(super) delta: i64,
    votes: u8,
    /// The window of the last place that went on so.
    pub(super) window: u32,
}

impl Usual {
    pub(super) fn vote(&mut self, delta: i64) {
        if delta == self.delta {
            self.votes = STREAM_SCORE_MAX.min(self.votes + 1);
        } else if self.votes > 0 {
            self.votes -= 1;
        } else {
            (self.delta, self.votes) = (delta, 1);
        }
    }
}

/// The last faults that were in no line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strays {
    pages: [PageNumber; STRAYS],
    next: usize,
}

impl Strays {
    /// The page so many faults ago.
    fn ago(&self, faults: usize) -> PageNumber {
        self.pages[(self.next + STRAYS - faults) % STRAYS]
    }

    /// The distance in which `page` goes on, if it does and that is more than `near_pages`.
    pub(super) fn trend(&self, page: PageNumber, near_pages: u64) -> Option<i64> {
        (1..=IN_TURN_MAX).find_map(|turn| {
            let delta = page.distance_from(self.ago(turn));
            let is_trend = delta.unsigned_abs() > near_pages
                && delta == self.ago(turn).distance_from(self.ago(2 * turn))
                && delta == self.ago(2 * turn).distance_from(self.ago(3 * turn));
            is_trend.then_some(delta)
        })
    }

    pub(super) fn record(&mut self, page: PageNumber) {
        self.pages[self.next] = page;
        self.next = (self.next + 1) % STRAYS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_distance_is_that_of_the_majority() {
        let mut usual = Usual::default();
        [400, 400, 1, 400, 1, 400].iter().for_each(|delta| usual.vote(*delta));
        assert_eq!(usual.delta, 400);
        (0..STREAM_SCORE_MAX).for_each(|_| usual.vote(1));
        assert_eq!(usual.delta, 1, "however often it was another before");
    }

    #[test]
    fn a_score_changes_its_mind_after_a_few() {
        let mut score = Score::default();
        let went = |score: &mut Score, well, times| {
            (0..times).for_each(|_| score.went(well));
            score.is_worth()
        };
        assert!(!went(&mut score, true, STREAM_SCORE_WORTH - 1) && went(&mut score, true, 1));
        assert!(went(&mut score, true, 100) && !went(&mut score, false, STREAM_SCORE_MAX - STREAM_SCORE_WORTH + 1));
    }

    #[test]
    fn three_equal_distances_are_a_trend_of_one_stream_or_of_every_nth_fault() {
        for streams in 1..=IN_TURN_MAX as u64 {
            let mut strays = Strays::default();
            let mut trends = Vec::new();
            for (step, stream) in (0..4).flat_map(|step| (0..streams).map(move |stream| (step, stream))) {
                let page = PageNumber(1_000_000 * (1 + stream * stream) + 700 * step);
                trends.push(strays.trend(page, 64));
                strays.record(page);
            }
            let (before, last) = trends.split_at(3 * streams as usize);
            assert!(before.iter().all(Option::is_none) && last.iter().all(|trend| *trend == Some(700)), "{trends:?}");
            assert_eq!(strays.trend(PageNumber(1_000_000 + 700 * 4), 700), None, "near ones are found otherwise");
        }
    }
}
