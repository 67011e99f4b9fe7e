//! Has evictors make huge pages of blocks that are whole, one at a time, while they have nothing else to do; and knows
//! which of these are split by pages that leave ([`crate::huge_pages`]).
//!
//! The evictor gets this as it gets pages that a fork shared (rule 2): no batch of its program begins meanwhile, and
//! messages are read as ever. So a fault, a fork or a change of mappings comes before the kernel makes the huge page,
//! or after it: the kernel refuses the block in the first case where it is not whole any more.

use std::sync::Arc;
use std::time::Instant;

use spillway_policy::replacement::Evidence;

use super::Eviction;
use crate::address_space::{AddressSpace, SpaceState};
use crate::huge_pages::blocks::{Block, Collapse};
use crate::limits::{BATCH_PATIENCE, HUGE_PAGE_BYTES, HUGE_QUIET};
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::{Wholeness, block_range};
use crate::process::memory::CollapseOutcome;
use crate::threads::lock::lock;

/// A huge page that an evictor makes.
pub(super) struct Collapsing {
    pub(super) space: Arc<AddressSpace>,
    first: VirtualPage,
    began: Instant,
}

impl Eviction {
    /// Hears of the huge page under way, and begins the next one if nothing is to leave now. Victims that were chosen
    /// ahead may be left when the budget is kept again: they leave when it is exceeded the next time, and huge pages do
    /// not wait for that.
    pub(super) fn give_huge_pages_back(&mut self, now: Instant) {
        self.end_collapse(now);
        let is_free = self.collapsing.is_none() && !self.is_evictor_at_work() && self.moved.is_empty();
        if !is_free || self.shared.budget.is_exceeded() {
            return;
        }
        let is_quiet = self.left_at.is_none_or(|at| now.saturating_duration_since(at) >= HUGE_QUIET);
        let next = lock(&self.shared.huge_blocks).next(now, is_quiet);
        let Some(block) = next else { return };
        match self.shared.space(block.space).filter(|space| !space.is_gone()) {
            Some(space) if self.begin_collapse(&space, block.first, is_quiet) => {
                self.collapsing = Some(Collapsing { space, first: block.first, began: now });
            }
            _ => lock(&self.shared.huge_blocks).ended(Collapse::NotTried, now),
        }
    }

    fn begin_collapse(&self, space: &AddressSpace, first: VirtualPage, is_quiet: bool) -> bool {
        let mut guard = space.lock();
        let state = &mut *guard;
        if state.batch || space.is_held() || !self.shared.apply_events(space, state) {
            return false;
        }
        match state.page_table.wholeness(first) {
            Wholeness::Writable => {}
            Wholeness::Protected(_) if is_quiet => {
                for run in state.page_table.protected_in_block(first) {
                    if space.memory.unprotect(run.clone()).is_err() {
                        // Those before are the program's own from now on, which is right.
                        return false;
                    }
                    let page_indexes = &mut self.shared.page_indexes();
                    VirtualPage::all_in(run).for_each(|page| state.page_table.give_copy_up(page, page_indexes));
                }
            }
            Wholeness::Protected(_) | Wholeness::Broken => return false,
        }
        lock(&space.evictor).as_mut().is_some_and(|evictor| evictor.collapse(block_range(first)))
    }

    fn end_collapse(&mut self, now: Instant) {
        let Some(Collapsing { space, first, began }) = &self.collapsing else { return };
        let outcome = lock(&space.evictor).as_mut().map_or(Some(CollapseOutcome::Gone), |evictor| evictor.collapsed());
        let Some(outcome) = outcome else {
            // Its program may have been stopped, and no thread waits for what cannot leave.
            if now.saturating_duration_since(*began) > BATCH_PATIENCE {
                self.shared.budget.set_stuck(true);
            }
            return;
        };
        let (space, first) = (Arc::clone(space), *first);
        self.collapsing = None;
        let counters = &self.shared.counters;
        let collapse = match outcome {
            CollapseOutcome::Done => {
                counters.huge_pages_given_back.add(1);
                let state = space.lock();
                let numbers = state.page_table.listed_in_block(first);
                numbers.for_each(|number| self.policy.touched(number, Evidence::Joined));
                Collapse::Done
            }
            CollapseOutcome::Later => {
                counters.huge_pages_refused.add(1);
                Collapse::Later
            }
            CollapseOutcome::Refused => {
                counters.huge_pages_refused.add(1);
                Collapse::Refused
            }
            CollapseOutcome::Gone => Collapse::NotTried,
        };
        lock(&self.shared.huge_blocks).ended(collapse, now);
    }

    /// `pages` of `space` have left: huge pages that they were parts of are split, and leave with the rest.
    pub(super) fn split_huge_pages(
        &mut self,
        space: &AddressSpace,
        state: &SpaceState,
        pages: impl Iterator<Item = VirtualPage>,
        now: Instant,
    ) {
        self.left_at = Some(now);
        let blocks = &mut *lock(&self.shared.huge_blocks);
        if !blocks.has_given_back() {
            return;
        }
        let mut last = None;
        for page in pages {
            let first = VirtualPage::at(page.address() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
            if last.replace(first) == Some(first) || !blocks.left(Block { space: space.id, first }, now) {
                continue;
            }
            self.shared.counters.huge_pages_split.add(1);
            let numbers = state.page_table.listed_in_block(first);
            numbers.for_each(|number| self.policy.touched(number, Evidence::Parted));
        }
    }
}
