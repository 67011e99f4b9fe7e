//! How many neighbours a program needs at once, learnt by watching it.
//!
//! A program that goes to places at random often needs more than one page at each: a record that lies on the edge of
//! two, a block of a database. Nothing tells such a *run* from the begin of a stream but how it ends. So some of the
//! faults that may begin one are *watched*: nothing comes along, and the faults on the pages behind count how long
//! the run gets. By the last 16 that were watched it is chosen how many pages come along with a fault that begins a
//! run.
//!
//! Only runs upwards: a neighbour below is a stream at once, as before.

use super::PageNumber;

/// Runs of so many pages and more are streams, and left to read-ahead. A database's block of 16 KiB (InnoDB) has as
/// many.
pub const RUN_MAX: u8 = 4;

/// Runs that are remembered.
const SAMPLES: usize = 16;

/// So many must be known before anything is chosen.
const SAMPLES_MIN: usize = 8;

/// Runs that are watched at once; the oldest makes room.
const WATCHED: usize = 4;

/// Once enough are known, one in so many begins is watched; every second one before.
const WATCH_INTERVAL: u64 = 16;

/// A run that did not go on within so many faults has ended.
const PATIENCE_FAULTS: u64 = 16;

/// What a fault costs that is spared, to ...
const FAULT_WEIGHT: u32 = 2;

/// ... what a page costs that comes along, needed or not: 10 us, and 2 us with 2 to 3 for the one that leaves for it
/// (docs/decisions/prefetching.md).
const ALONG_WEIGHT: u32 = 1;

#[derive(Clone, Copy, Debug)]
struct Watched {
    next: PageNumber,
    length: u8,
    /// The number of its last fault.
    fault: u64,
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    watched: [Option<Watched>; WATCHED],
    /// Of the last runs, in no order; 0 where there is none yet.
    lengths: [u8; SAMPLES],
    next: usize,
    faults: u64,
    begins: u64,
    along: u8,
}

impl Default for Runs {
    fn default() -> Self {
        Self { watched: [None; WATCHED], lengths: [0; SAMPLES], next: 0, faults: 0, begins: 0, along: 0 }
    }
}

impl Runs {
    /// A program waits for `page`. Whether it belongs to a run that is watched, and is to come alone.
    pub fn on_fault(&mut self, page: PageNumber) -> bool {
        self.faults += 1;
        let (now, mut is_part) = (self.faults, false);
        for index in 0..WATCHED {
            let Some(run) = &mut self.watched[index] else { continue };
            if run.next == page {
                (run.length, run.fault, run.next) = (run.length + 1, now, PageNumber(page.0.saturating_add(1)));
                is_part = run.length < RUN_MAX;
            }
            if run.length == RUN_MAX || now - run.fault > PATIENCE_FAULTS {
                let length = run.length;
                self.watched[index] = None;
                self.ended(length);
            }
        }
        is_part
    }

    /// A fault on `page` may begin a run; how many of the pages behind it come along.
    pub fn on_begin(&mut self, page: PageNumber) -> u8 {
        self.begins += 1;
        // Any of them, so that none stands for a pattern of the program.
        let chance = self.begins.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let interval = if self.known() < SAMPLES_MIN { 2 } else { WATCH_INTERVAL };
        if !chance.is_multiple_of(interval) {
            return self.along;
        }
        let oldest = (0..WATCHED).min_by_key(|index| self.watched[*index].map_or(0, |run| run.fault));
        let place = oldest.expect("there are places");
        let watched = Watched { next: PageNumber(page.0.saturating_add(1)), length: 1, fault: self.faults };
        if let Some(run) = self.watched[place].replace(watched) {
            self.ended(run.length);
        }
        0
    }

    /// The same experience, and nothing under way. One run is forgotten, so that what is handed on and on without
    /// being seen again ends.
    pub fn experience(&self) -> Self {
        let mut heir = Self { watched: [None; WATCHED], ..*self };
        heir.lengths[heir.next] = 0;
        heir.next = (heir.next + 1) % SAMPLES;
        if heir.known() < SAMPLES_MIN {
            heir.along = 0;
        }
        heir
    }

    fn known(&self) -> usize {
        self.lengths.iter().filter(|length| **length > 0).count()
    }

    fn ended(&mut self, length: u8) {
        self.lengths[self.next] = length;
        self.next = (self.next + 1) % SAMPLES;
        if self.known() < SAMPLES_MIN {
            return;
        }
        let known = || self.lengths.iter().filter(|length| **length > 0);
        let gain = |along: u8| {
            let used: u32 = known().map(|length| u32::from((length - 1).min(along))).sum();
            (FAULT_WEIGHT * used).cast_signed()
                - (ALONG_WEIGHT * u32::from(along) * known().count() as u32).cast_signed()
        };
        // The shortest of those that gain most.
        self.along = (0..RUN_MAX).rev().max_by_key(|along| gain(*along)).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs of these lengths at places far apart, by what is chosen: faults, and pages that came along for nothing.
    fn runs(runs: &mut Runs, lengths: impl Iterator<Item = u64>) -> (u64, u64) {
        let (mut faults, mut wasted, mut place) = (0, 0, 0);
        for length in lengths {
            place += 1000;
            let (mut page, mut is_begin) = (place, true);
            while page < place + length {
                faults += 1;
                let comes_alone = runs.on_fault(PageNumber(page));
                page += 1;
                if is_begin && !comes_alone {
                    let along = u64::from(runs.on_begin(PageNumber(place)));
                    let used = along.min(length - 1);
                    (page, wasted) = (page + used, wasted + along - used);
                }
                is_begin = false;
            }
        }
        (faults, wasted)
    }

    #[test]
    fn what_runs_have_in_common_comes_along() {
        for (length, most) in [(1, 0), (2, 1), (3, 2)] {
            let mut policy = Runs::default();
            runs(&mut policy, std::iter::repeat_n(length, 100));
            assert_eq!(policy.along, most);
            let (faults, wasted) = runs(&mut policy, std::iter::repeat_n(length, 800));
            assert_eq!(wasted, 0);
            assert!(faults <= 800 + 70 * (length - 1), "one in sixteen is watched: {faults}");
        }
    }

    #[test]
    fn a_few_long_runs_among_many_pages_alone_change_nothing() {
        let mut policy = Runs::default();
        let (faults, wasted) = runs(&mut policy, (0..1000).map(|index| if index % 5 == 0 { 3 } else { 1 }));
        assert!(wasted <= 40 && faults >= 1350, "{faults} {wasted}");
    }

    #[test]
    fn it_changes_its_mind() {
        let mut policy = Runs::default();
        runs(&mut policy, std::iter::repeat_n(2, 200));
        assert_eq!(policy.along, 1);
        runs(&mut policy, std::iter::repeat_n(1, 600));
        assert_eq!(policy.along, 0);
        assert_eq!(policy.experience().along, 0);
    }

    #[test]
    fn runs_that_are_gone_through_in_turn_are_told_apart() {
        let mut policy = Runs::default();
        for round in 0..200 {
            let places = [round * 1000, 1_000_000 + round * 1000];
            let begun =
                places.map(|place| (place, policy.on_fault(PageNumber(place)), policy.on_begin(PageNumber(place))));
            for (place, _, along) in begun {
                if along == 0 {
                    policy.on_fault(PageNumber(place + 1));
                }
            }
        }
        assert_eq!(policy.along, 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_chosen_has_bounds(pages in proptest::collection::vec((0_u64..40, any::<bool>()), 1..400), end in any::<bool>()) {
            let mut policy = Runs::default();
            for (page, begins) in pages {
                let page = PageNumber(if end { u64::MAX - page } else { page });
                let is_part = policy.on_fault(page);
                let along = if begins && !is_part { policy.on_begin(page) } else { 0 };
                prop_assert!(along < RUN_MAX);
            }
        }
    }
}
