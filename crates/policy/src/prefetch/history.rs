//! The deltas between a program's last faults, and the one that most of them share.
//!
//! Leap's access history (Maruf and Chowdhury, USENIX ATC 2020, section 4.1): a ring of deltas and no addresses. A
//! *trend* is the delta of the majority of a window of the newest ones. The window begins with a part of the ring,
//! and doubles until there is a majority or the ring ends: recent regularity counts first, and a few irregular
//! faults hide no trend. Boyer and Moore's vote finds the only delta that can have a majority in one pass, and a
//! second pass counts it.
//!
//! Invariants: a trend is shared by more than half of some window; looking for it takes at most four passes over the
//! ring and no memory.

use super::PageNumber;

/// See the module text. The first delta is the distance from page 0, as in the paper's figure.
#[derive(Clone, Copy, Debug)]
pub struct AccessHistory<const SIZE: usize> {
    deltas: [i64; SIZE],
    /// Where the next delta goes.
    next: usize,
    count: usize,
    last: PageNumber,
}

impl<const SIZE: usize> Default for AccessHistory<SIZE> {
    fn default() -> Self {
        const { assert!(SIZE.is_power_of_two(), "a ring is indexed by a mask") };
        Self { deltas: [0; SIZE], next: 0, count: 0, last: PageNumber(0) }
    }
}

impl<const SIZE: usize> AccessHistory<SIZE> {
    /// The program came to `page`; how far that is from the page before.
    pub fn record(&mut self, page: PageNumber) -> i64 {
        let delta = page.distance_from(self.last);
        self.deltas[self.next] = delta;
        self.next = (self.next + 1) % SIZE;
        self.count = SIZE.min(self.count + 1);
        self.last = page;
        delta
    }

    /// The page that was recorded last.
    pub fn last(&self) -> PageNumber {
        self.last
    }

    /// The trend; the first window is a `split`th of the ring. One delta is none.
    pub fn trend(&self, split: usize) -> Option<i64> {
        if self.count < 2 {
            return None;
        }
        let mut window = (SIZE / split).max(1);
        loop {
            let majority = self.majority(window.min(self.count));
            if majority.is_some() || window >= SIZE.min(self.count) {
                return majority;
            }
            window *= 2;
        }
    }

    /// The newest `window` deltas, the newest first.
    fn newest(&self, window: usize) -> impl Iterator<Item = i64> + '_ {
        (1..=window).map(|age| self.deltas[(self.next + SIZE - age) % SIZE])
    }

    /// The delta that more than half of the newest `window` have.
    fn majority(&self, window: usize) -> Option<i64> {
        let (mut candidate, mut votes) = (0, 0_usize);
        for delta in self.newest(window) {
            if votes == 0 {
                (candidate, votes) = (delta, 1);
            } else if delta == candidate {
                votes += 1;
            } else {
                votes -= 1;
            }
        }
        let count = self.newest(window).filter(|delta| *delta == candidate).count();
        (count > window / 2).then_some(candidate)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The sequence of Leap's talk (slide 28), whose ring has eight places and whose first window four.
    const SLIDE_28: [u64; 16] =
        [0x48, 0x45, 0x42, 0x3f, 0x3c, 0x02, 0x04, 0x06, 0x08, 0x0a, 0x0c, 0x10, 0x39, 0x12, 0x14, 0x16];

    #[test]
    fn the_sequence_of_the_talk_has_its_trends() {
        let mut history = AccessHistory::<8>::default();
        let trends = SLIDE_28.map(|page| {
            history.record(PageNumber(page));
            history.trend(2)
        });
        assert_eq!(trends[3], Some(-3));
        assert_eq!(trends[7], None, "-3 is no majority any more, +2 is none yet");
        assert_eq!(trends[8], Some(2));
        assert_eq!(trends[15], Some(2), "among irregularities");
    }

    #[test]
    fn a_window_that_is_not_full_has_a_majority_of_what_is_there() {
        let mut history = AccessHistory::<32>::default();
        let trends = [100, 107, 114].map(|page| {
            history.record(PageNumber(page));
            history.trend(4)
        });
        assert_eq!(trends, [None, None, Some(7)], "the first delta is that from page 0");
    }

    /// The deltas of all accesses, counted anew for each window.
    fn reference_trend(pages: &[u64], size: usize, split: usize) -> Option<i64> {
        let with_first: Vec<u64> = std::iter::once(0).chain(pages.iter().copied()).collect();
        let mut deltas: Vec<i64> =
            with_first.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]).cast_signed()).collect();
        deltas.reverse();
        deltas.truncate(size);
        let mut window = if deltas.len() < 2 { size + 1 } else { size / split };
        while window <= size {
            let newest = &deltas[..window.min(deltas.len())];
            let mut counts = HashMap::new();
            newest.iter().for_each(|delta| *counts.entry(*delta).or_insert(0) += 1);
            if let Some((delta, _)) = counts.into_iter().find(|(_, count)| 2 * count > newest.len()) {
                return Some(delta);
            }
            window *= 2;
        }
        None
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn trends_are_those_of_a_plain_count(
            steps in proptest::collection::vec(prop_oneof![4 => Just(3_i64), 2 => Just(-5), 2 => -40_i64..40], 1..100)
        ) {
            let (mut small, mut full) = (AccessHistory::<8>::default(), AccessHistory::<32>::default());
            let (mut page, mut pages) = (1_000_000_u64, Vec::new());
            for step in steps {
                page = page.wrapping_add_signed(step);
                pages.push(page);
                small.record(PageNumber(page));
                full.record(PageNumber(page));
                prop_assert_eq!(small.trend(2), reference_trend(&pages, 8, 2));
                prop_assert_eq!(full.trend(4), reference_trend(&pages, 32, 4));
            }
        }
    }
}
