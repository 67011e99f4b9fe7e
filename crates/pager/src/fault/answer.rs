//! What one fault takes, by what the page table says.

use std::sync::Arc;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::userfaultfd::{Fault, PageError};

use super::fill::fill_staging_area;
use super::{Faults, Outcome};
use crate::address_space::{AddressSpace, SpaceState};
use crate::fault::pool::Pending;
use crate::page_table::Answer;
#[cfg(doc)]
use crate::page_table::PageTable;
use crate::page_table::page_indexes::Coming;
use crate::page_table::virtual_page::VirtualPage;
use crate::statistics::FaultKind;

impl Faults {
    /// Answers one fault, now or later.
    pub(super) fn answer(&mut self, space: &Arc<AddressSpace>, state: &mut SpaceState, fault: Fault, arrived: Instant) {
        if !self.shared.objects.is_empty() && !space.is_object {
            // What it maps there is known once what was told is applied; until then a page of zeroes could fill a hole.
            if !self.shared.apply_events(space, state) {
                return self.put_off(Pending::new(Arc::clone(space), fault, arrived));
            }
            if let Some((object, address)) = self.shared.objects.find(space.id, fault.address) {
                return self.answer_for_object(&object, Fault { address, ..fault }, arrived);
            }
        }
        let outcome = self.fault(space, state, fault, arrived);
        if outcome != Outcome::Done {
            let is_held_back = outcome == Outcome::HeldBack;
            self.put_off(Pending { space: Arc::clone(space), fault, arrived, is_held_back });
        }
    }

    /// Answers a fault on a page of a shared object, by its offset, now or later.
    fn answer_for_object(&mut self, object: &Arc<AddressSpace>, fault: Fault, arrived: Instant) {
        let mut state = object.lock_for_faults();
        if state.batch {
            state.is_hurried = true;
            drop(state);
            return self.put_off(Pending::new(Arc::clone(object), fault, arrived));
        }
        self.answer(object, &mut state, fault, arrived);
    }

    /// Whether a fault has to wait for the budget (rule 15), until pages have left; those of a program that is to
    /// fork do not.
    pub(super) fn holds_back(&self, space: &AddressSpace, fault: Fault) -> bool {
        let budget = &self.shared.budget;
        let may_wait = budget.holds_back() && !space.is_evictor(fault.thread) && !space.is_held();
        if may_wait {
            self.shared.put_off_for_room();
        }
        // What left before that woke no thread.
        may_wait && budget.holds_back()
    }

    /// Answers one fault, if that can be done now.
    pub(super) fn fault(
        &mut self,
        space: &Arc<AddressSpace>,
        state: &mut SpaceState,
        fault: Fault,
        arrived: Instant,
    ) -> Outcome {
        if !self.shared.apply_events(space, state) {
            return Outcome::PutOff;
        }
        let page = VirtualPage::containing(fault.address);
        let answer = state.page_table.answer(page, fault.is_write_protected, &self.shared.page_indexes().volume_pages);
        match answer {
            Answer::Wait => {
                self.await_read(space, page);
                Outcome::Done
            }
            // What is still to be told may be where the page went (mremap with MREMAP_DONTUNMAP), and nothing is
            // filled here that the kernel would refuse.
            Answer::Recheck(_) if space.memory.is_changing() => Outcome::PutOff,
            Answer::Recheck(slot) if state.rechecked.is_gone(fault) => {
                state.page_table.taken_back(page, &mut self.shared.page_indexes());
                state.rechecked.took(page, slot);
                self.fault(space, state, fault, arrived)
            }
            Answer::Wake | Answer::Recheck(_) => {
                space.memory.wake(page.range());
                Outcome::Done
            }
            Answer::Unprotect => {
                let result = space.memory.unprotect(page.range());
                if matches!(result, Err(PageError::TryAgain)) {
                    return Outcome::PutOff;
                }
                if result.is_err() {
                    // The mapping was replaced: the thread that waits finds the new one.
                    space.memory.wake(page.range());
                }
                state.page_table.written(page, &mut self.shared.page_indexes());
                self.shared.counters.fault(FaultKind::Write, arrived.elapsed());
                self.trace(space, fault, FaultKind::Write, arrived);
                Outcome::Done
            }
            _ if self.holds_back(space, fault) => {
                self.shared.eviction.signal();
                self.shared.counters.held_back.add(1);
                Outcome::HeldBack
            }
            Answer::Zero if space.staging().is_some_and(|area| area.contains(&page.address())) => {
                fill_staging_area(space, page)
            }
            Answer::Zero => {
                // Where there are guards the one call that leaves them alone ([`PageTable::guard`]).
                let is_guarded = state.page_table.is_guarded(page);
                let result = if fault.is_write && !is_guarded {
                    space.memory.copy(page, &self.zeroes, 0, PAGE_SIZE_BYTES, false)
                } else {
                    space.memory.zero(page.range())
                };
                let outcome =
                    self.record_filled(space, state, page, false, (Coming::New, FaultKind::Zero, arrived), result);
                if outcome == Outcome::Done {
                    self.trace(space, fault, FaultKind::Zero, arrived);
                    if fault.is_write {
                        self.prefetch_zeroes(space, state, page);
                    }
                }
                outcome
            }
            Answer::Staged(_, pool_page) => {
                // The page indexes stay locked, so that the pool page is not used for another meanwhile.
                let page_indexes = self.shared.page_indexes();
                let Answer::Staged(slot, again) = state.page_table.answer(page, false, &page_indexes.volume_pages)
                else {
                    return Outcome::PutOff;
                };
                debug_assert!(slot.0 < u32::MAX && again == pool_page);
                let offset = again.0 as usize * PAGE_SIZE_BYTES;
                let protect = !fault.is_write && !state.page_table.comes_writable(page);
                let result = space.memory.copy(page, self.pool.memory(), offset, PAGE_SIZE_BYTES, protect);
                drop(page_indexes);
                let told = (Coming::Staged, FaultKind::Staged, arrived);
                let outcome = self.record_filled(space, state, page, protect, told, result);
                if outcome == Outcome::Done {
                    self.trace(space, fault, FaultKind::Staged, arrived);
                }
                outcome
            }
            Answer::Read(slot) => self.begin_read(space, state, fault, slot, arrived),
        }
    }
}
