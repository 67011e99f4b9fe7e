//! SIEVE (Zhang et al., NSDI 2024): like CLOCK, but a page with evidence stays where it is while the hand passes, so new
//! pages, which enter before it, are sieved sooner than those that have proven themselves.
//!
//! Evidence is what a pager has instead of hits: a touch while staged, a near refault, a first write.

use super::lists::{List, Lists, Victims, ahead};
use super::{Arrival, CachePage, Evidence, NEIGHBOURS_MAX, Replacement};

/// Pages that were brought along and not asked for yet.
const AHEAD: List = List(0);
/// All others.
const QUEUE: List = List(1);

/// The mark of a page with evidence since the hand passed.
const VISITED: u8 = 1;

/// See the module text.
#[derive(Clone, Debug)]
pub struct Sieve {
    lists: Lists<2>,
    /// Where the hand is: a page of the queue, or its tail when there is none. It moves towards the young.
    hand: Option<CachePage>,
    capacity: u32,
}

impl Sieve {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self { lists: Lists::new(pages), hand: None, capacity }
    }

    /// Moves the hand to the next page without evidence; each page on the way loses its own, so this ends.
    fn find(&mut self) -> Option<CachePage> {
        loop {
            let page = self.hand.or_else(|| self.lists.tail(QUEUE))?;
            if self.lists.marks(page) == 0 {
                return Some(page);
            }
            self.lists.set_marks(page, 0);
            self.hand = self.lists.younger(page);
        }
    }

    /// Takes `page`, where the hand is, and its neighbours; the hand moves beyond all that may leave with it.
    fn take(&mut self, page: CachePage, victims: &mut Victims<'_>) {
        let group = |page: CachePage| page.0 / NEIGHBOURS_MAX;
        let beyond = |next: &CachePage| group(*next) != group(page);
        self.hand = std::iter::successors(self.lists.younger(page), |next| self.lists.younger(*next)).find(beyond);
        self.lists.take(page, |marks| marks == 0, victims);
    }

    /// Takes `page` out of its list.
    fn remove(&mut self, page: CachePage) {
        if self.hand == Some(page) {
            self.hand = self.lists.younger(page);
        }
        self.lists.remove(page);
    }
}

impl Replacement for Sieve {
    fn inserted(&mut self, page: CachePage, arrival: Arrival) {
        if self.lists.list_of(page).is_some() {
            return self.touched(page, Evidence::Referenced);
        }
        let proven = arrival.is_near(self.capacity);
        self.lists.set_marks(page, if proven { VISITED } else { 0 });
        self.lists.push(if arrival == Arrival::Prefetched { AHEAD } else { QUEUE }, page);
    }

    fn touched(&mut self, page: CachePage, _evidence: Evidence) {
        match self.lists.list_of(page) {
            Some(AHEAD) => self.lists.renew(QUEUE, page),
            Some(_) => self.lists.set_marks(page, VISITED),
            None => {}
        }
    }

    fn removed(&mut self, page: CachePage) {
        self.remove(page);
    }

    fn refused(&mut self, page: CachePage) {
        self.remove(page);
        self.lists.set_marks(page, VISITED);
        self.lists.push(QUEUE, page);
    }

    fn victims(&mut self, victims: &mut [CachePage]) -> usize {
        let mut victims = Victims::new(victims);
        while !victims.is_full() {
            if let Some(page) = ahead(&self.lists, AHEAD, self.capacity) {
                self.lists.take(page, |_| true, &mut victims);
            } else if let Some(page) = self.find() {
                self.take(page, &mut victims);
            } else if let Some(page) = self.lists.tail(AHEAD) {
                self.lists.take(page, |_| true, &mut victims);
            } else {
                break;
            }
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
