//! S3-FIFO (Yang et al., SOSP 2023): a small queue that most pages only pass, a main queue for those that proved
//! themselves, and a memory of those that left.
//!
//! What differs from the paper: one piece of evidence is enough to leave the small queue for the main one (the paper asks
//! for two hits, as its first hits come in a burst; a pager sees no bursts). The memory of what left is the pager's
//! [`Shadows`](super::Shadows): a refault within the budget is what the paper calls a hit in the ghost queue.

use super::lists::{List, Lists, Victims, ahead};
use super::{Arrival, CachePage, Evidence, Replacement};

/// Pages that were brought along and not asked for yet.
const AHEAD: List = List(0);
/// New pages.
const SMALL: List = List(1);
/// Pages that proved themselves.
const MAIN: List = List(2);

/// The small queue has one in so many pages (the paper's 10 %).
const SMALL_SHARE: u32 = 10;

/// Evidence is counted to here (the paper's two bits).
const COUNT_MAX: u8 = 3;

/// See the module text.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    lists: Lists<3>,
    capacity: u32,
}

impl S3Fifo {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self { lists: Lists::new(pages), capacity }
    }

    /// The next victim. Each round takes a page out of the small queue or lowers a count, so this ends.
    fn find(&mut self) -> Option<CachePage> {
        if let Some(page) = ahead(&self.lists, AHEAD, self.capacity) {
            return Some(page);
        }
        loop {
            let small_is_full = self.lists.length(SMALL) > self.capacity / SMALL_SHARE;
            let from_small = self.lists.tail(SMALL).filter(|_| small_is_full || self.lists.length(MAIN) == 0);
            let Some(page) = from_small.or_else(|| self.lists.tail(MAIN)) else { return self.lists.tail(AHEAD) };
            let count = self.lists.marks(page);
            if count == 0 {
                return Some(page);
            }
            // Out of the small queue a page starts anew, in the main queue it goes round.
            self.lists.set_marks(page, if from_small.is_some() { 0 } else { count - 1 });
            self.lists.renew(MAIN, page);
        }
    }
}

impl Replacement for S3Fifo {
    fn inserted(&mut self, page: CachePage, arrival: Arrival) {
        if self.lists.list_of(page).is_some() {
            return self.touched(page, Evidence::Referenced);
        }
        let list = match arrival {
            Arrival::Prefetched => AHEAD,
            _ if arrival.is_near(self.capacity) => MAIN,
            _ => SMALL,
        };
        self.lists.set_marks(page, 0);
        self.lists.push(list, page);
    }

    fn touched(&mut self, page: CachePage, _evidence: Evidence) {
        match self.lists.list_of(page) {
            Some(AHEAD) => self.lists.renew(SMALL, page),
            Some(_) => self.lists.set_marks(page, (self.lists.marks(page) + 1).min(COUNT_MAX)),
            None => {}
        }
    }

    fn removed(&mut self, page: CachePage) {
        self.lists.remove(page);
    }

    fn refused(&mut self, page: CachePage) {
        // Not into the main queue: where that has few pages it would be the next victim.
        self.lists.set_marks(page, COUNT_MAX);
        self.lists.renew(SMALL, page);
    }

    fn victims(&mut self, victims: &mut [CachePage]) -> usize {
        let mut victims = Victims::new(victims);
        while !victims.is_full() {
            let Some(page) = self.find() else { break };
            self.lists.take(page, |count| count == 0, &mut victims);
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
