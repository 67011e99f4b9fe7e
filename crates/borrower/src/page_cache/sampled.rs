//! Random victims, but for pages with evidence: each of those is passed over once.
//!
//! Every order of arrival fails on loops that do not fit: it evicts what comes next, always. A random victim does not; a loop over
//! four thirds of the memory keeps half of its pages. What random victims cost elsewhere, hot pages that leave by chance, staging
//! repairs: they come back by a cheap fault and have their evidence.
//!
//! The numbers come from a seed, so equal events have equal victims.

use super::lists::{List, Lists, Victims, ahead};
use super::{Arrival, CachePage, Evidence, Replacement};

/// Pages that were brought along and not asked for yet.
const AHEAD: List = List(0);
/// All others, in the order of arrival. Where chance finds none, it is gone through as by CLOCK.
const ALL: List = List(1);

/// The mark of a page with evidence that it has not spent yet.
const PROVEN: u8 = 1;

/// Looks at page numbers for a listed one without evidence; then the oldest leaves. At one listed page in eight, the sixteenth look fails
/// in one case of eight.
const LOOKS_MAX: u32 = 16;

/// See the module text.
#[derive(Clone, Debug)]
pub struct Sampled {
    lists: Lists<2>,
    pages: u32,
    capacity: u32,
    random: u64,
}

impl Sampled {
    /// With room for page numbers below `pages`, a budget of `capacity` pages, and a seed.
    pub fn new(pages: u32, capacity: u32, seed: u64) -> Self {
        Self { lists: Lists::new(pages), pages, capacity, random: seed }
    }

    /// A number below `end`: SplitMix64 (Steele, Lea and Flood 2014), by multiplication.
    fn below(&mut self, end: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u64::from(((mixed ^ (mixed >> 31)) >> 32) as u32) * u64::from(end)) >> 32) as u32
    }

    fn find(&mut self) -> Option<CachePage> {
        if let Some(page) = ahead(&self.lists, AHEAD, self.capacity) {
            return Some(page);
        }
        // Without a listed page there may be no page number at all to look at.
        let looks = if self.lists.total() == 0 { 0 } else { LOOKS_MAX };
        for _ in 0..looks {
            let page = CachePage(self.below(self.pages));
            if self.lists.list_of(page) != Some(ALL) {
                continue;
            }
            if self.lists.marks(page) == 0 {
                return Some(page);
            }
            self.lists.set_marks(page, 0);
        }
        self.oldest().or_else(|| self.lists.tail(AHEAD))
    }

    /// The oldest page without evidence; those with evidence on the way to it lose that and go round.
    fn oldest(&mut self) -> Option<CachePage> {
        loop {
            let page = self.lists.tail(ALL)?;
            if self.lists.marks(page) == 0 {
                return Some(page);
            }
            self.lists.set_marks(page, 0);
            self.lists.renew(ALL, page);
        }
    }
}

impl Replacement for Sampled {
    fn inserted(&mut self, page: CachePage, arrival: Arrival) {
        if self.lists.list_of(page).is_some() {
            return self.touched(page, Evidence::Referenced);
        }
        let proven = arrival.is_near(self.capacity);
        self.lists.set_marks(page, if proven { PROVEN } else { 0 });
        self.lists.push(if arrival == Arrival::Prefetched { AHEAD } else { ALL }, page);
    }

    fn touched(&mut self, page: CachePage, _evidence: Evidence) {
        match self.lists.list_of(page) {
            Some(AHEAD) => self.lists.renew(ALL, page),
            Some(_) => self.lists.set_marks(page, PROVEN),
            None => {}
        }
    }

    fn removed(&mut self, page: CachePage) {
        self.lists.remove(page);
    }

    fn refused(&mut self, page: CachePage) {
        self.lists.set_marks(page, PROVEN);
        self.lists.renew(ALL, page);
    }

    fn victims(&mut self, victims: &mut [CachePage]) -> usize {
        let mut victims = Victims::new(victims);
        while !victims.is_full() {
            let Some(page) = self.find() else { break };
            self.lists.take(page, |marks| marks == 0, &mut victims);
        }
        victims.count()
    }

    fn listed(&self) -> u32 {
        self.lists.total()
    }

    fn resize(&mut self, pages: u32) {
        self.capacity = pages;
    }

    fn grow(&mut self, pages: u32) {
        self.pages = self.pages.max(pages);
        self.lists.grow(pages);
    }

    fn bytes_per_page(&self) -> usize {
        Lists::<2>::BYTES_PER_PAGE
    }
}
