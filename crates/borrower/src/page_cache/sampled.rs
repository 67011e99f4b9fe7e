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

/// See the module text.
#[derive(Clone, Debug)]
pub struct Sampled {
    random: u64,
}

impl Sampled {
    /// With room for page numbers below `pages`, a budget of `capacity` pages, and a seed.
    pub fn new(pages: u32, capacity: u32, seed: u64) -> Listed<Self> {
        Listed::new(pages, capacity, Self { random: seed })
    }

    /// A number below `end`: SplitMix64 (Steele, Lea and Flood 2014), by multiplication.
    fn below(&mut self, end: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u64::from(((mixed ^ (mixed >> 31)) >> 32) as u32) * u64::from(end)) >> 32) as u32
    }
}

impl Sampled {
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
        Self::passed(lists, capacity / BEHIND_SHARE)
            .or_else(|| self.by_chance(lists))
            .or_else(|| Self::passed(lists, 0))
            // Where chance finds none, the pages are gone through in the order of arrival.
            .or_else(|| Clock::hand(lists))
    }
}
