//! DCM's lists: a page gets several chances before it leaves.
//!
//! New and refaulted pages enter the list *new*. At its end those that have proven themselves (touched while staged, back
//! soon after they left) go on to the list *active*, the others leave; at the end of *active* a page with new evidence
//! goes round, the others leave. Behind both is staging, which is the pager's: unmapped, still local, the last chance.
//! A scan passes through *new* and does not touch *active*.
//!
//! The shares are those of DCM's lineage (EMP: 37.5 % proactive, 50 % active, 12.5 % inactive, which is staging here). What differs:
//! DCM sees referenced bits in the guest's page tables and moves pages by them; a pager has only evidence.

use super::lists::{List, Lists, Victims, ahead};
use super::{Arrival, CachePage, Evidence, Replacement};

/// Pages that were brought along and not asked for yet.
const AHEAD: List = List(0);
/// New and refaulted pages.
const NEW: List = List(1);
/// Pages that proved themselves.
const ACTIVE: List = List(2);

/// The share of *new*, in sevenths of what is listed: 37.5 of the 87.5 % that are not staging.
const NEW_SEVENTHS: u32 = 3;

/// The mark of a page with evidence that it has not spent yet.
const PROVEN: u8 = 1;

/// See the module text.
#[derive(Clone, Debug)]
pub struct SeveralChances {
    lists: Lists<3>,
    capacity: u32,
}

impl SeveralChances {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self { lists: Lists::new(pages), capacity }
    }

    /// The next victim. Each round spends evidence, so this ends.
    fn find(&mut self) -> Option<CachePage> {
        if let Some(page) = ahead(&self.lists, AHEAD, self.capacity) {
            return Some(page);
        }
        loop {
            let new_is_full =
                u64::from(self.lists.length(NEW)) * 7 > u64::from(self.capacity) * u64::from(NEW_SEVENTHS);
            let from_new = self.lists.tail(NEW).filter(|_| new_is_full || self.lists.length(ACTIVE) == 0);
            let Some(page) = from_new.or_else(|| self.lists.tail(ACTIVE)) else { return self.lists.tail(AHEAD) };
            if self.lists.marks(page) == 0 {
                return Some(page);
            }
            self.lists.set_marks(page, 0);
            self.lists.renew(ACTIVE, page);
        }
    }
}

impl Replacement for SeveralChances {
    fn inserted(&mut self, page: CachePage, arrival: Arrival) {
        if self.lists.list_of(page).is_some() {
            return self.touched(page, Evidence::Referenced);
        }
        let proven = arrival.is_near(self.capacity);
        self.lists.set_marks(page, if proven { PROVEN } else { 0 });
        self.lists.push(if arrival == Arrival::Prefetched { AHEAD } else { NEW }, page);
    }

    fn touched(&mut self, page: CachePage, _evidence: Evidence) {
        match self.lists.list_of(page) {
            Some(AHEAD) => self.lists.renew(NEW, page),
            Some(_) => self.lists.set_marks(page, PROVEN),
            None => {}
        }
    }

    fn removed(&mut self, page: CachePage) {
        self.lists.remove(page);
    }

    fn refused(&mut self, page: CachePage) {
        // Not into the active list: where that has few pages it would be the next victim.
        self.lists.set_marks(page, PROVEN);
        self.lists.renew(NEW, page);
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
        self.lists.grow(pages);
    }

    fn bytes_per_page(&self) -> usize {
        Lists::<3>::BYTES_PER_PAGE
    }
}
