//! First in, first out: the baseline. Nothing that is learnt of a page changes its place.
//!
//! With staging behind it (every policy has that) it is FIFO with a second chance: a page that is touched while staged
//! comes back as new.

use super::lists::{List, Lists, Victims, ahead};
use super::{Arrival, CachePage, Evidence, Replacement};

/// Pages that were brought along and not asked for yet.
const AHEAD: List = List(0);
/// All others.
const QUEUE: List = List(1);

/// See the module text.
#[derive(Clone, Debug)]
pub struct Fifo {
    lists: Lists<2>,
    capacity: u32,
}

impl Fifo {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self { lists: Lists::new(pages), capacity }
    }
}

impl Replacement for Fifo {
    fn inserted(&mut self, page: CachePage, arrival: Arrival) {
        if self.lists.list_of(page).is_some() {
            return self.touched(page, Evidence::Referenced);
        }
        self.lists.push(if arrival == Arrival::Prefetched { AHEAD } else { QUEUE }, page);
    }

    fn touched(&mut self, page: CachePage, _evidence: Evidence) {
        if self.lists.list_of(page) == Some(AHEAD) {
            self.lists.renew(QUEUE, page);
        }
    }

    fn removed(&mut self, page: CachePage) {
        self.lists.remove(page);
    }

    fn refused(&mut self, page: CachePage) {
        self.lists.renew(QUEUE, page);
    }

    fn victims(&mut self, victims: &mut [CachePage]) -> usize {
        let mut victims = Victims::new(victims);
        while !victims.is_full() {
            let first = ahead(&self.lists, AHEAD, self.capacity);
            let page = first.or_else(|| self.lists.tail(QUEUE)).or_else(|| self.lists.tail(AHEAD));
            let Some(page) = page else { break };
            self.lists.take(page, |_| true, &mut victims);
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
