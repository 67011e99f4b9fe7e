//! Fills pages of programs, and says in the page table what came of it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_sys::userfaultfd::PageError;

use super::{Faults, Outcome, PAGE};
use crate::address_space::{AddressSpace, SpaceState};
use crate::limits::ZEROES_AHEAD_MAX;
#[cfg(doc)]
use crate::page_table::PageTable;
use crate::page_table::group::PageState;
use crate::page_table::page_indexes::Coming;
use crate::page_table::virtual_page::VirtualPage;
use crate::statistics::FaultKind;

impl Faults {
    /// Gives a program that touches fresh memory page by page the next pages too.
    pub(super) fn prefetch_zeroes(&self, space: &AddressSpace, state: &mut SpaceState, page: VirtualPage) {
        let range = state.page_table.first_touches_ahead(page);
        if range.is_empty() || !self.shared.budget.has_room(2 * ZEROES_AHEAD_MAX as i64) {
            return;
        }
        // Whatever stops it half way stops the program there too, which then asks. Not into another mapping: one that
        // has no page yet, and of which the program protects a part just now, would stay in parts
        // (`Survey::register_mapping`).
        let first = VirtualPage::at(range.start);
        let count = ((range.end - range.start) / PAGE) as usize;
        let filled = as_far_as_mapped(count, |count| {
            let end = range.start + count as u64 * PAGE;
            let is_one_mapping = space.memory.covers(&(page.address()..end))?;
            if !is_one_mapping {
                return Err(PageError::NotMapped);
            }
            space.memory.copy(first, &self.zeroes, 0, (end - range.start) as usize, false)
        });
        if let Ok(bytes) = filled {
            let page_indexes = &mut self.shared.page_indexes();
            let pages = VirtualPage::all_in(range.start..range.start + bytes);
            pages.for_each(|page| state.page_table.filled(page, false, Coming::New, page_indexes));
            self.shared.budget.count((bytes / PAGE).cast_signed());
        }
    }

    /// Says in the table what filling a page came to.
    pub(super) fn record_filled(
        &mut self,
        space: &AddressSpace,
        state: &mut SpaceState,
        page: VirtualPage,
        clean: bool,
        (coming, kind, arrived): (Coming, FaultKind, Instant),
        result: Result<u64, PageError>,
    ) -> Outcome {
        match result {
            Ok(_) => {
                state.page_table.filled(page, clean, coming, &mut self.shared.page_indexes());
                state.rechecked.came(page);
                self.shared.budget.count(1);
                self.shared.counters.fault(kind, arrived.elapsed());
                self.shared.call_eviction();
                Outcome::Done
            }
            Err(PageError::TryAgain) => Outcome::PutOff,
            Err(error) => {
                self.record_not_filled(space, state, page, &error);
                Outcome::Done
            }
        }
    }

    pub(super) fn record_not_filled(
        &mut self,
        space: &AddressSpace,
        state: &mut SpaceState,
        page: VirtualPage,
        error: &PageError,
    ) {
        match error {
            PageError::Exists => {
                // Its own page, found there by an old message; or, if it was thought to be away, what the program
                // sees counts.
                let page_indexes = &mut self.shared.page_indexes();
                if let PageState::Away(slot) | PageState::Coming(slot) = state.page_table.state(page)
                    && state.rechecked.was_taken(page, slot)
                {
                    state.page_table.filled(page, true, Coming::New, page_indexes);
                } else if state.page_table.is_away(page) && space.is_object {
                    // A process that is not known maps the object, and may have read zeroes.
                    self.shared.fail(format!(
                        "a page of shared memory at {page:#x} was there that had been taken out: another process maps \
                         that memory, so all programs of the run are killed"
                    ));
                    self.shared.kill_programs();
                } else if state.page_table.is_away(page) {
                    self.shared.fail(format!("a page at {page:#x} was there that had been taken out"));
                    state.page_table.filled(page, false, Coming::New, page_indexes);
                }
            }
            PageError::Gone => {
                space.is_gone.store(true, Ordering::SeqCst);
                self.shared.survey.signal();
            }
            // The mapping changed since: an event will tell, and the thread finds out when it looks again.
            _ => {}
        }
        space.memory.wake(page.range());
    }
}

/// Fills a page of the staging area, which a program that locks all its memory waits for. It is nothing of the
/// program's, so no thread takes note of it.
pub(super) fn fill_staging_area(space: &AddressSpace, page: VirtualPage) -> Outcome {
    if matches!(space.memory.zero(page.range()), Err(PageError::TryAgain)) {
        return Outcome::PutOff;
    }
    space.memory.wake(page.range());
    Outcome::Done
}

/// Fills a run of `count` pages, or less of it: the kernel refuses one that a mapping ends in as a whole (rule 8), so
/// it is halved until its beginning fits. Mappings end in few runs, so most cost one call as ever.
pub(super) fn as_far_as_mapped(
    mut count: usize,
    mut fill: impl FnMut(usize) -> Result<u64, PageError>,
) -> Result<u64, PageError> {
    loop {
        match fill(count) {
            Err(PageError::NotMapped) if count > 1 => count /= 2,
            result => return result,
        }
    }
}
