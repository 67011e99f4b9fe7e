//! What streams have passed, and then random victims, but for pages with evidence: each of those is passed over once.
//!
//! Every order of arrival fails on loops that do not fit: it evicts what comes next, always. A random victim does not; a loop over
//! four thirds of the memory keeps half of its pages. What random victims cost elsewhere, hot pages that leave by chance, staging
//! repairs: they come back by a cheap fault and have their evidence.
//!
//! A stream is told by what was brought along for it and used. What it has passed is done with if the program goes through its memory once,
//! and needed last of all if it is in a loop: both times the best victim (SEQ in Glass and Cao, "Adaptive page replacement based on memory
//! reference behavior", SIGMETRICS 1997, finds streams in faults, too, and evicts behind them). So a loop that does not fit keeps as much of itself as there is
//! room for. Some pages behind each stream stay, for programs that go back a little (docs/decisions/replacement.md).
//!
//! What streams spare may be of no use any more, and a loop that would fit is kept out by it. Nobody sees that a page is not touched, so that is tried
//! (`Trial`): now and then pages by chance leave in place of passed ones, as in bimodal insertion (Qureshi et al., "Adaptive insertion policies for high
//! performance caching", ISCA 2007), and the less of them come back, the more often.
//!
//! The numbers come from a seed, so equal events have equal victims.

use super::CachePage;
use super::clock::Clock;
use super::listed::{AHEAD_SHARE, APART, Listed, NEW, Order, OrderLists};
use super::lists::List;

/// Looks at page numbers for a listed one without evidence; then the oldest leaves. At one listed page in eight, the sixteenth look fails
/// in one case of eight.
const LOOKS_MAX: u32 = 16;

/// One in so many pages of the budget stays behind streams: as many as may come ahead of them. An eighth and a sixty-fourth lose more time in the
/// replay (docs/decisions/replacement.md).
const BEHIND_SHARE: u32 = AHEAD_SHARE;

/// What streams have passed.
const PASSED: List = APART;

/// The mark of a page that left by a trial; one in memory has none or that of evidence.
const TRIED: u8 = 2;

/// Pages that left by a trial were of use if at least one in so many came back: it takes a loop a turn and more to come round to them, and each turn has up to
/// twice the trials of the one before.
const IN_USE_SHARE: u32 = 4;

/// One in two to the power of so many times at least that a passed page would leave there is a trial.
const RARITY_MAX: u32 = 6;

/// And at most: then what streams spare leaves as fast as what they have passed.
const RARITY_MIN: u32 = 1;

/// See the module text.
#[derive(Clone, Debug)]
pub struct Sampled {
    random: u64,
    trial: Trial,
    /// The page that was next is by chance, though there were enough that a stream has passed.
    is_trial: bool,
}

impl Sampled {
    /// With room for page numbers below `pages`, a budget of `capacity` pages, and a seed.
    pub fn new(pages: u32, capacity: u32, seed: u64) -> Listed<Self> {
        Listed::new(pages, capacity, Self { random: seed, trial: Trial::default(), is_trial: false })
    }

    /// A number below `end`: SplitMix64 (Steele, Lea and Flood 2014), by multiplication.
    fn below(&mut self, end: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u64::from(((mixed ^ (mixed >> 31)) >> 32) as u32) * u64::from(end)) >> 32) as u32
    }

    /// What was passed first, if more than `count` pages were; those of which something was learnt since are like others from now on.
    fn passed(lists: &mut OrderLists, count: u32) -> Option<CachePage> {
        while lists.length(PASSED) > count {
            let page = lists.tail(PASSED)?;
            if lists.marks(page) == 0 {
                return Some(page);
            }
            lists.renew(NEW, page);
        }
        None
    }

    fn by_chance(&mut self, lists: &mut OrderLists) -> Option<CachePage> {
        // Without a listed page there may be no page number at all to look at.
        let looks = if lists.total() == 0 { 0 } else { LOOKS_MAX };
        for _ in 0..looks {
            let page = CachePage(self.below(lists.numbers()));
            if lists.list_of(page) != Some(NEW) {
                continue;
            }
            if lists.marks(page) == 0 {
                return Some(page);
            }
            lists.set_marks(page, 0);
        }
        None
    }
}

impl Order for Sampled {
    fn entry_used() -> List {
        PASSED
    }

    fn next(&mut self, lists: &mut OrderLists, capacity: u32) -> Option<CachePage> {
        let behind = capacity / BEHIND_SHARE;
        let is_tried = lists.length(PASSED) > behind && self.below(1 << self.trial.rarity) == 0;
        let tried = if is_tried { self.by_chance(lists) } else { None };
        self.is_trial = tried.is_some();
        tried
            .or_else(|| Self::passed(lists, behind))
            .or_else(|| self.by_chance(lists))
            .or_else(|| Self::passed(lists, 0))
            // Where chance finds none, the pages are gone through in the order of arrival.
            .or_else(|| Clock::hand(lists))
    }

    fn left(&mut self, lists: &mut OrderLists, pages: &[CachePage], capacity: u32) {
        if self.is_trial {
            for page in pages {
                lists.set_marks(*page, TRIED);
                // As many as leave.
                if let Some(page) = lists.tail(PASSED) {
                    lists.renew(NEW, page);
                }
            }
        }
        self.trial.left(pages.len() as u32, self.is_trial, capacity);
    }

    fn came(&mut self, marks: u8) {
        self.trial.came_back += u32::from(marks == TRIED);
    }
}

/// Whether what streams spare is of use: how often pages by chance leave in place of passed ones, and how many of those came back.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// One in two to the power of so many.
    rarity: u32,
    /// Pages that left in this turn, in which as many leave as there is room for.
    turn: u32,
    /// Pages that left by a trial, and those that came back; of turns that are over less and less.
    tried: u32,
    came_back: u32,
}

impl Default for Trial {
    fn default() -> Self {
        Self { rarity: RARITY_MAX, turn: 0, tried: 0, came_back: 0 }
    }
}

impl Trial {
    /// `count` pages left, by a trial if that `is_trial`.
    fn left(&mut self, count: u32, is_trial: bool, capacity: u32) {
        self.turn += count;
        self.tried += if is_trial { count } else { 0 };
        if self.turn < capacity {
            return;
        }
        self.turn = 0;
        if self.tried > 0 {
            let is_in_use = self.came_back >= self.tried / IN_USE_SHARE;
            self.rarity = if is_in_use { self.rarity + 1 } else { self.rarity - 1 }.clamp(RARITY_MIN, RARITY_MAX);
        }
        (self.tried, self.came_back) = (self.tried / 2, self.came_back / 2);
    }
}
