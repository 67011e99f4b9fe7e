//! CLOCK (Corbató 1968): first in, first out, but a page with evidence goes round once more.
//!
//! With the referenced bits of hardware this approximates least recently used. A pager has no such bits, so evidence is
//! what there is instead: a touch while staged, a near refault, a first write.

use super::lists::{List, Lists, Victims, ahead};
use super::{Arrival, CachePage, Evidence, Replacement};

/// Pages that were brought along and not asked for yet.
const AHEAD: List = List(0);
/// All others; the hand is its tail.
const RING: List = List(1);

/// The mark of a page with evidence.
const REFERENCED: u8 = 1;

/// See the module text.
#[derive(Clone, Debug)]
pub struct Clock {
    lists: Lists<2>,
    capacity: u32,
}

impl Clock {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self { lists: Lists::new(pages), capacity }
    }

    /// The next victim: pages with evidence on the way to it lose that and go round. Ends, as each loses its mark once.
    fn hand(&mut self) -> Option<CachePage> {
        if let Some(page) = ahead(&self.lists, AHEAD, self.capacity) {
            return Some(page);
        }
        loop {
            let Some(page) = self.lists.tail(RING) else { return self.lists.tail(AHEAD) };
            if self.lists.marks(page) == 0 {
                return Some(page);
            }
            self.lists.set_marks(page, 0);
            self.lists.renew(RING, page);
        }
    }
}

impl Replacement for Clock {
    fn inserted(&mut self, page: CachePage, arrival: Arrival) {
        if self.lists.list_of(page).is_some() {
            return self.touched(page, Evidence::Referenced);
        }
        let proven = arrival.is_near(self.capacity);
        self.lists.set_marks(page, if proven { REFERENCED } else { 0 });
        self.lists.push(if arrival == Arrival::Prefetched { AHEAD } else { RING }, page);
    }

    fn touched(&mut self, page: CachePage, _evidence: Evidence) {
        match self.lists.list_of(page) {
            Some(AHEAD) => self.lists.renew(RING, page),
            Some(_) => self.lists.set_marks(page, REFERENCED),
            None => {}
        }
    }

    fn removed(&mut self, page: CachePage) {
        self.lists.remove(page);
    }

    fn refused(&mut self, page: CachePage) {
        self.lists.set_marks(page, REFERENCED);
        self.lists.renew(RING, page);
    }

    fn victims(&mut self, victims: &mut [CachePage]) -> usize {
        let mut victims = Victims::new(victims);
        while !victims.is_full() {
            let Some(page) = self.hand() else { break };
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
        Lists::<2>::BYTES_PER_PAGE
    }
}
