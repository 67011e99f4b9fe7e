//! DCM's lists: a page gets several chances before it leaves.
//!
//! New and refaulted pages enter the list *new*. At its end those that have proven themselves (touched while staged,
//! back soon after they left) go on to the list *active*, the others leave; at the end of *active* a page with new
//! evidence goes round, the others leave. Behind both is staging, which is the pager's: unmapped, still local, the
//! last chance. A scan passes through *new* and does not touch *active*.
//!
//! The shares are those of DCM's lineage (EMP: 37.5 % proactive, 50 % active, 12.5 % inactive, which is staging
//! here). What differs: DCM sees referenced bits in the guest's page tables and moves pages by them; a pager has only
//! evidence.

use spillway_policy::replacement::CachePage;
use spillway_policy::replacement::listed::{APART, Listed, NEW, Order, OrderLists};
use spillway_policy::replacement::lists::List;

/// The pages that proved themselves.
const ACTIVE: List = APART;

/// The share of *new*, in sevenths of what is listed: 37.5 of the 87.5 % that are not staging.
const NEW_SEVENTHS: u32 = 3;

/// See the module text.
#[derive(Clone, Debug)]
pub struct SeveralChances;

impl SeveralChances {
    /// With room for page numbers below `pages`, and a budget of `capacity` pages.
    pub fn new(pages: u32, capacity: u32) -> Listed<Self> {
        Listed::new(pages, capacity, Self)
    }
}

impl Order for SeveralChances {
    /// Each round spends evidence, so this ends.
    fn next(&mut self, lists: &mut OrderLists, capacity: u32) -> Option<CachePage> {
        loop {
            let new_is_full = u64::from(lists.length(NEW)) * 7 > u64::from(capacity) * u64::from(NEW_SEVENTHS);
            let from_new = lists.tail(NEW).filter(|_| new_is_full || lists.length(ACTIVE) == 0);
            let page = from_new.or_else(|| lists.tail(ACTIVE))?;
            if lists.marks(page) == 0 {
                return Some(page);
            }
            lists.set_marks(page, 0);
            lists.renew(ACTIVE, page);
        }
    }
}
