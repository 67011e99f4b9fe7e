//! What streams have passed, and then random victims; each page is passed over as often as it was needed soon after it
//! left ([`super::rates`]).
//!
//! Every order of arrival fails on loops that do not fit: it evicts what comes next, always. A random victim does
//! not; a loop over four thirds of the memory keeps half of its pages. What random victims cost elsewhere, hot pages
//! that leave by chance, their rates repair: those come back soon, and are passed over from then on.
//!
//! A stream is told by what was brought along for it and used. What it has passed is done with if the program goes
//! through its memory once, and needed last of all if it is in a loop: both times the best victim (SEQ in Glass and
//! Cao, "Adaptive page replacement based on memory reference behavior", SIGMETRICS 1997, finds streams in faults,
//! too, and evicts behind them). So a loop that does not fit keeps as much of itself as there is room for. Some pages
//! behind streams stay, for programs that go back a little (docs/decisions/replacement.md); chance takes them, too.
//!
//! What streams spare may be of no use any more, and a loop that would fit is kept out by it. It is not seen that a
//! page is not touched, so that is tried (`Trial`): now and then pages by chance leave in place of passed ones. This
//! is as in bimodal insertion (Qureshi et al., "Adaptive insertion policies for high performance caching", ISCA
//! 2007), and the less of them come back, the more often.
//!
//! That is *eager eviction*, as Leap calls it. It may be switched off or made absolute ([`EagerEviction`]), to see
//! what it brings alone (docs/decisions/replacement.md).
//!
//! The numbers come from a seed, so equal events have equal victims.

use super::clock::Clock;
use super::listed::{AHEAD_SHARE, APART, Listed, NEW, Order, OrderLists};
use super::lists::List;
use super::rates::{RATE_MAX, Rates};
use super::{Arrival, CachePage};

/// Looks at page numbers for a listed one without evidence; then the oldest leaves. At one page in 32 that is listed
/// and has none, the last look fails in one case of eight.
const LOOKS_MAX: u32 = 64;

/// One in so many pages of the budget stays behind streams: as many as may come ahead of them. An eighth and a
/// sixty-fourth lose more time in the replay (docs/measurements.md).
const BEHIND_SHARE: u32 = AHEAD_SHARE;

/// What streams have passed.
const PASSED: List = APART;

/// The mark of a page that left by a trial; one in memory has none or that of evidence.
const TRIED: u8 = u8::MAX;

/// Pages that left by trials were of use if at least one in so many came back: in a loop that does not fit all do,
/// though in one over several memories not soon.
const IN_USE_SHARE: u32 = 4;

/// One page leaves by a trial for two to the power of so many passed ones at least.
const RARITY_MAX: u32 = 6;

/// When pages leave that a stream brought along and the program has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EagerEviction {
    /// By chance, as all others.
    No,
    /// Before others, but for some that stay behind streams, and trials.
    #[default]
    Yes,
    /// Before others, all of them: Leap frees such a page from its cache at once.
    All,
}

/// See the module text.
#[derive(Clone, Debug)]
pub struct Sampled {
    eager: EagerEviction,
    random: u64,
    trial: Trial,
    /// The page that was next is by chance, though there were enough that a stream has passed.
    is_trial: bool,
    rates: Rates,
}

impl Sampled {
    /// With room for page numbers below `pages`, a budget of `capacity` pages, and a seed.
    pub fn new(pages: u32, capacity: u32, seed: u64) -> Listed<Self> {
        Self::with(EagerEviction::default(), pages, capacity, seed)
    }

    /// The same, and when pages leave that streams have passed.
    pub fn with(eager: EagerEviction, pages: u32, capacity: u32, seed: u64) -> Listed<Self> {
        let (trial, rates) = (Trial::default(), Rates::new(pages));
        Listed::new(pages, capacity, Self { eager, random: seed, trial, is_trial: false, rates })
    }

    /// A number below `end`: SplitMix64 (Steele, Lea and Flood 2014), by multiplication.
    fn below(&mut self, end: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u64::from(((mixed ^ (mixed >> 31)) >> 32) as u32) * u64::from(end)) >> 32) as u32
    }

    /// What was passed first, if more than `count` pages were; those of which something was learnt since are like
    /// others from now on.
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

    fn by_chance(&mut self, lists: &mut OrderLists, may_be_taken: impl Fn(List) -> bool) -> Option<CachePage> {
        // Without a listed page there may be no page number at all to look at.
        let looks = if lists.total() == 0 { 0 } else { LOOKS_MAX };
        for _ in 0..looks {
            let page = CachePage(self.below(lists.numbers()));
            if !lists.list_of(page).is_some_and(&may_be_taken) {
                continue;
            }
            if lists.marks(page) == 0 {
                return Some(page);
            }
            lists.set_marks(page, lists.marks(page) - 1);
        }
        None
    }
}

impl Order for Sampled {
    const EVIDENCE_MAX: u8 = RATE_MAX;
    const BYTES_PER_PAGE: usize = Rates::BYTES_PER_PAGE;

    fn entry(&mut self, page: CachePage, arrival: Arrival, capacity: u32) -> (List, u8) {
        (NEW, self.rates.arrived(page, arrival, capacity))
    }

    fn grow(&mut self, pages: u32) {
        self.rates.grow(pages);
    }

    fn entry_used(&self) -> List {
        if self.eager == EagerEviction::No { NEW } else { PASSED }
    }

    fn next(&mut self, lists: &mut OrderLists, capacity: u32) -> Option<CachePage> {
        let takes_all = self.eager == EagerEviction::All;
        let behind = if takes_all { 0 } else { capacity / BEHIND_SHARE };
        let is_due = !takes_all && lists.length(PASSED) > behind && self.trial.is_due();
        let tried = if is_due { self.by_chance(lists, |list| list == NEW) } else { None };
        self.is_trial = tried.is_some();
        tried
            .or_else(|| Self::passed(lists, behind))
            .or_else(|| self.by_chance(lists, |list| list == NEW || list == PASSED))
            // Where chance finds none, the pages are gone through in the order of arrival.
            .or_else(|| Clock::hand(lists))
            .or_else(|| Self::passed(lists, 0))
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

    fn came_back(&mut self, marks: u8) {
        self.trial.came_back += u32::from(marks == TRIED);
    }
}

/// Whether what streams spare is of use: how often pages by chance leave in place of passed ones, and how many of
/// those came back.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// One page for two to the power of so many.
    rarity: u32,
    /// Pages that left in this turn, in which as many leave as there is room for.
    turn: u32,
    /// Pages that left by the last trial, and others since.
    last: u32,
    since: u32,
    /// Pages that left by a trial in this turn.
    tried: u32,
    /// Those of earlier turns, less and less of each: they had time to come back.
    tried_before: u32,
    /// Pages that came back, in the same way.
    came_back: u32,
}

impl Default for Trial {
    fn default() -> Self {
        Self { rarity: RARITY_MAX, turn: 0, last: 0, since: 0, tried: 0, tried_before: 0, came_back: 0 }
    }
}

impl Trial {
    fn is_due(&self) -> bool {
        self.since >= self.last.max(1) << self.rarity
    }

    /// `count` pages left, by a trial if that `is_trial`.
    fn left(&mut self, count: u32, is_trial: bool, capacity: u32) {
        self.turn += count;
        if is_trial {
            self.tried += count;
            (self.last, self.since) = (count, 0);
        } else {
            self.since = self.since.saturating_add(count);
        }
        if self.turn >= capacity {
            self.turn_ended();
        }
    }

    fn turn_ended(&mut self) {
        self.turn = 0;
        if self.tried_before > 0 {
            let are_in_use = self.came_back * IN_USE_SHARE >= self.tried_before;
            self.rarity = if are_in_use { self.rarity + 1 } else { self.rarity.saturating_sub(1) }.min(RARITY_MAX);
        }
        self.tried_before = (self.tried_before + self.tried) / 2;
        self.came_back /= 2;
        self.tried = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replacement::{Evidence, Replacement};

    /// Ends turns of 1000 pages in which `came_back` says how many came back of those that were tried so far, and
    /// gives the rarity after each.
    fn rarities(turns: usize, came_back: impl Fn(&[u32]) -> u32) -> Vec<u32> {
        let (mut trial, mut tried) = (Trial::default(), Vec::new());
        let turn = |_| {
            let before = trial.rarity;
            while trial.turn + 10 < 1000 {
                let is_due = trial.is_due();
                trial.left(10, is_due, 1000);
            }
            tried.push(trial.tried);
            assert!((900 >> (before + 1)..2000 >> before).contains(&trial.tried), "{trial:?}");
            trial.came_back += came_back(&tried);
            trial.left(1000 - trial.turn, false, 1000);
            trial.rarity
        };
        (0..turns).map(turn).collect()
    }

    /// Pages 0 to 9 came by faults, pages 32 to 41 along with others and were used; the first victim of each kind of
    /// eager eviction, and how many of those that were passed are among the first ten.
    #[test]
    fn what_was_passed_leaves_first_unless_that_is_switched_off() {
        let passed_of = |eager| {
            let mut policy = Sampled::with(eager, 64, 64, 1);
            for page in 0..10 {
                policy.inserted(CachePage(3 * page), Arrival::New);
                policy.inserted(CachePage(32 + 3 * page), Arrival::Prefetched);
                policy.touched(CachePage(32 + 3 * page), Evidence::PrefetchUsed);
            }
            let mut victims = [CachePage(0); 10];
            assert_eq!(policy.victims(&mut victims), 10);
            victims.iter().filter(|page| page.0 >= 32).count()
        };
        assert_eq!(passed_of(EagerEviction::All), 10);
        // A sixteenth of the budget stays behind the stream: chance takes some of those.
        assert!((6..10).contains(&passed_of(EagerEviction::Yes)), "{}", passed_of(EagerEviction::Yes));
        assert!((1..9).contains(&passed_of(EagerEviction::No)), "{}", passed_of(EagerEviction::No));
    }

    #[test]
    fn trials_are_rare_while_what_was_tried_comes_back_and_frequent_if_not() {
        assert_eq!(rarities(10, |_| 0)[..9], [6, 5, 4, 3, 2, 1, 0, 0, 0]);
        let all = |lag: usize| move |tried: &[u32]| tried.len().checked_sub(1 + lag).map_or(0, |turn| tried[turn]);
        assert!(rarities(20, all(1)).iter().all(|rarity| *rarity == 6), "{:?}", rarities(20, all(1)));
        for lag in 2..5 {
            assert!(rarities(30, all(lag))[15..].iter().all(|rarity| *rarity >= 4), "{:?}", rarities(30, all(lag)));
        }
    }
}
