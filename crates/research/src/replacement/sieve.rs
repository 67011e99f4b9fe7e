//! SIEVE (Zhang et al., NSDI 2024): like CLOCK, but a page with evidence stays where it is while the hand passes, so
//! new pages, which enter before it, are sieved sooner than those that have proven themselves.
//!
//! Evidence is what a pager has instead of hits: a touch while staged, a near refault, a first write.

use spillway_policy::replacement::listed::{Listed, NEW, Order, OrderLists};
use spillway_policy::replacement::{CachePage, LEAVING_MAX};

/// See the module text.
#[derive(Clone, Debug)]
pub struct Sieve {
    /// A page of [`NEW`], or its tail when there is none. The hand moves towards the young.
    hand: Option<CachePage>,
}

impl Sieve {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Listed<Self> {
        Listed::new(pages, capacity, Self { hand: None })
    }
}

impl Order for Sieve {
    fn next(&mut self, lists: &mut OrderLists, _capacity: u32) -> Option<CachePage> {
        loop {
            let page = self.hand.or_else(|| lists.tail(NEW))?;
            if lists.marks(page) == 0 {
                self.hand = beyond(lists, page);
                return Some(page);
            }
            lists.set_marks(page, 0);
            self.hand = lists.younger(page);
        }
    }

    fn displaced(&mut self, lists: &OrderLists, page: CachePage) {
        if self.hand == Some(page) {
            self.hand = lists.younger(page);
        }
    }
}

/// The first younger page that cannot leave with `page` as its neighbour.
fn beyond(lists: &OrderLists, page: CachePage) -> Option<CachePage> {
    let group = |page: CachePage| page.0 / LEAVING_MAX;
    let elsewhere = |next: &CachePage| group(*next) != group(page);
    std::iter::successors(lists.younger(page), |next| lists.younger(*next)).find(elsewhere)
}
