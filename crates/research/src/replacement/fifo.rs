//! First in, first out: the baseline. Nothing that is learnt of a page changes its place.
//!
//! With staging behind it (every policy has that) it is FIFO with a second chance: a page that is touched while staged
//! comes back as new.

use spillway_policy::replacement::CachePage;
use spillway_policy::replacement::listed::{Listed, NEW, Order, OrderLists};

/// See the module text.
#[derive(Clone, Debug)]
pub struct Fifo;

impl Fifo {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Listed<Self> {
        Listed::new(pages, capacity, Self)
    }
}

impl Order for Fifo {
    const EVIDENCE_MAX: u8 = 0;

    fn next(&mut self, lists: &mut OrderLists, _capacity: u32) -> Option<CachePage> {
        lists.tail(NEW)
    }
}
