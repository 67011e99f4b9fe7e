//! S3-FIFO (Yang et al., SOSP 2023): a small queue that most pages only pass, a main queue for those that proved
//! themselves, and a memory of those that left.
//!
//! What differs from the paper: one piece of evidence is enough to leave the small queue for the main one (the paper
//! asks for two hits, as its first hits come in a burst; a pager sees no bursts). The memory of what left is the
//! pager's [`Shadows`](spillway_policy::replacement::Shadows): a refault within the budget is what the paper calls a
//! hit in the ghost queue.

use spillway_policy::replacement::listed::{APART, Listed, NEW, Order, OrderLists};
use spillway_policy::replacement::lists::List;
use spillway_policy::replacement::{Arrival, CachePage};

/// The small queue.
const SMALL: List = NEW;
/// The main queue.
const MAIN: List = APART;

/// The small queue has one in so many pages (the paper's 10 %).
const SMALL_SHARE: u32 = 10;

/// See the module text.
#[derive(Clone, Debug)]
pub struct S3Fifo;

impl S3Fifo {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Listed<Self> {
        Listed::new(pages, capacity, Self)
    }
}

impl Order for S3Fifo {
    /// The paper's two bits.
    const EVIDENCE_MAX: u8 = 3;

    fn entry(&mut self, _page: CachePage, arrival: Arrival, capacity: u32) -> (List, u8) {
        let near = arrival.is_near(capacity);
        (if near { MAIN } else { SMALL }, 0)
    }

    /// Each round takes a page out of the small queue or lowers a count, so this ends.
    fn next(&mut self, lists: &mut OrderLists, capacity: u32) -> Option<CachePage> {
        loop {
            let small_is_full = lists.length(SMALL) > capacity / SMALL_SHARE;
            let from_small = lists.tail(SMALL).filter(|_| small_is_full || lists.length(MAIN) == 0);
            let page = from_small.or_else(|| lists.tail(MAIN))?;
            let count = lists.marks(page);
            if count == 0 {
                return Some(page);
            }
            // Out of the small queue a page starts anew, in the main queue it goes round.
            lists.set_marks(page, if from_small.is_some() { 0 } else { count - 1 });
            lists.renew(MAIN, page);
        }
    }
}
