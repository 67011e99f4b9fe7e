//! CLOCK (Corbató 1968): first in, first out, but a page with evidence goes round once more.
//!
//! With the referenced bits of hardware this approximates least recently used. A pager has no such bits, so evidence is
//! what there is instead: a touch while staged, a near refault, a first write.

use super::CachePage;
use super::listed::{Listed, NEW, Order, OrderLists};

/// See the module text.
#[derive(Clone, Debug)]
pub struct Clock;

impl Clock {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Listed<Self> {
        Listed::new(pages, capacity, Self)
    }

    /// The hand, which is the tail of [`NEW`]: pages with evidence on the way to the victim lose a
    /// part of it and go round.
    pub fn hand(lists: &mut OrderLists) -> Option<CachePage> {
        loop {
            let page = lists.tail(NEW)?;
            if lists.marks(page) == 0 {
                return Some(page);
            }
            lists.set_marks(page, lists.marks(page) - 1);
            lists.renew(NEW, page);
        }
    }
}

impl Order for Clock {
    fn next(&mut self, lists: &mut OrderLists, _capacity: u32) -> Option<CachePage> {
        Self::hand(lists)
    }
}
