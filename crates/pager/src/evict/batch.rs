//! Batches: victims of one program go to its evictor, and the page table hears what became of each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_policy::replacement::{CachePage, Replacement};

use super::{Candidate, Eviction};
use crate::address_space::AddressSpace;
use crate::evict::staging::{RunId, Staging};
use crate::limits::{
    BATCH_PAGES, BATCH_PATIENCE, BATCHES_IN_A_ROW_MAX, FRUITLESS_SHARE, GROUP_PAGES, HURRY_PAUSE, STAGED_SHARE,
    WITHDRAW_PATIENCE,
};
use crate::page_table::group::PageState;
use crate::page_table::page_indexes::SpaceId;
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::VolumePage;
use crate::page_table::{PageIndexes, Victim};
use crate::pager_state::PagerState;
use crate::process::memory::{EvictOutcome, EvictRequest, EvictorSeen};
use crate::threads::lock::lock;

/// Where a page of a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To a page of a pool slot, and from there to the volume.
    Pool(RunId, usize),
    /// Nowhere: the slot is a copy.
    Copy(VolumePage),
}

/// Pages that an evictor takes out of one program.
pub(super) struct Batch {
    pub(super) space: Arc<AddressSpace>,
    pub(super) pages: Vec<(CachePage, VirtualPage, Target)>,
    requests: Vec<EvictRequest>,
    outcomes: Vec<EvictOutcome>,
    runs: Vec<RunId>,
    begun: Instant,
    /// Its pages were made the program's own for this.
    is_owned: bool,
}

/// Pages that an evictor makes its program's own again.
pub(super) struct Owning {
    pub(super) space: Arc<AddressSpace>,
    pages: Vec<Candidate>,
}

impl Eviction {
    /// Chooses victims and hands them to evictors.
    pub(super) fn start(&mut self, now: Instant) {
        // What was copied for that leaves before more is.
        let owned = if self.candidates.is_empty() { self.owned.pop() } else { None };
        let is_owned = owned.is_some();
        self.candidates.extend(owned.into_iter().flatten());
        if self.candidates.is_empty() && !self.choose(0) {
            return;
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut put_off = std::mem::take(&mut self.put_off);
        for of_one in candidates.chunk_by(|one, next| one.0 == next.0) {
            let Some(space) = self.shared.space(of_one[0].0).filter(|space| !space.is_gone()) else { continue };
            // The fault thread has waited for the batch before: its turn comes first, or faults would wait forever.
            let is_ready = {
                let state = &mut *space.lock();
                !state.is_awaited && self.shared.apply_events(&space, state)
            };
            let collapsing = self.collapsing.iter().map(|collapsing| &collapsing.space);
            let owning = self.owning.iter().map(|owning| &owning.space);
            let is_owning = owning.chain(collapsing).any(|owning| owning.id == space.id);
            if !is_ready || is_owning || !self.start_batch(&space, (of_one, is_owned), now) {
                put_off.extend_from_slice(of_one);
            }
        }
        candidates.clear();
        (self.candidates, self.put_off) = (put_off, candidates);
        if self.batches.is_empty() && self.candidates.is_empty() {
            self.took_little(now);
        }
    }

    /// False: faults come first, see [`SpaceState::untried`](crate::address_space::SpaceState::untried).
    fn start_batch(
        &mut self,
        space: &Arc<AddressSpace>,
        (candidates, is_owned): (&[Candidate], bool),
        now: Instant,
    ) -> bool {
        let mut batch = self.spare.pop().unwrap_or_else(|| Batch {
            space: Arc::clone(space),
            pages: Vec::with_capacity(BATCH_PAGES),
            requests: Vec::with_capacity(BATCH_PAGES),
            outcomes: Vec::with_capacity(BATCH_PAGES),
            runs: Vec::with_capacity(BATCH_PAGES),
            begun: now,
            is_owned,
        });
        (batch.space, batch.begun, batch.is_owned) = (Arc::clone(space), now, is_owned);
        self.staging.keep(u32::try_from(self.shared.budget.limit_pages() / STAGED_SHARE).unwrap_or(u32::MAX));
        let may_begin = batch.fill(candidates, &mut self.staging, &self.shared, &mut *self.policy);
        self.shared.budget.set_pool_pages(self.staging.used_pages());
        if batch.requests.is_empty() {
            self.spare.push(batch);
            return may_begin;
        }
        let started = lock(&space.evictor).as_mut().is_some_and(|evictor| evictor.begin(&batch.requests));
        batch.outcomes.resize(batch.requests.len(), EvictOutcome::Refused);
        if started {
            self.batches.push(batch);
        } else {
            self.finish(batch, now);
        }
        true
    }

    /// Takes batches over that evictors are done with. Where no thread waits for a batch to end, the evictor gets the
    /// next one before the table hears of this one; [`SpaceState::batch`](crate::address_space::SpaceState::batch)
    /// stays set meanwhile, so nothing is done by what the table does not know yet.
    pub(super) fn collect(&mut self, now: Instant) {
        let outcomes = &mut self.own_outcomes;
        let is_over =
            |owning: &mut Owning| lock(&owning.space.evictor).as_mut().is_none_or(|evictor| evictor.poll(outcomes));
        self.owned.extend(self.owning.extract_if(.., is_over).map(|owning| owning.pages));
        let mut index = 0;
        while index < self.batches.len() {
            let (before, rest) = self.batches.split_at_mut(index);
            let batch = &mut rest[0];
            if before.iter().any(|other| other.space.id == batch.space.id) {
                // Its evictor is not done with the one before.
                index += 1;
                continue;
            }
            let mut evictor = lock(&batch.space.evictor);
            let mut ended = evictor.as_mut().is_none_or(|evictor| evictor.poll(&mut batch.outcomes));
            if !ended && now.saturating_duration_since(batch.begun) > WITHDRAW_PATIENCE && batch.is_waited_for() {
                // All threads of the program may be stopped by a thread that waits for a page of it.
                let process = batch.space.process.load(Ordering::Relaxed);
                ended = evictor.as_mut().is_some_and(|evictor| evictor.withdraw(process, &mut batch.outcomes));
                self.shared.counters.batches_withdrawn.add(u64::from(ended));
            }
            let is_broken = !ended && evictor.as_ref().is_some_and(|evictor| evictor.is_broken());
            if let Some(cpu) = evictor.as_ref().filter(|_| ended).and_then(|evictor| evictor.cpu()) {
                let process = batch.space.process.load(Ordering::Relaxed);
                let thread = batch.space.evictor_thread.load(Ordering::Relaxed);
                self.evictor_seen = Some(EvictorSeen { process, thread, cpu });
            }
            drop(evictor);
            if is_broken && !batch.space.is_gone() {
                let process = batch.space.process.load(Ordering::Relaxed);
                self.shared.fail(format!("process {process}: its evictor ended while it held pages, so it is killed"));
                // Its batch ends when its memory is gone; no thread is told of pages until then.
                batch.space.kill();
                batch.space.is_gone.store(true, Ordering::SeqCst);
            }
            if !ended {
                // Its program may have been stopped; the others do not wait for that.
                if now.saturating_duration_since(batch.begun) > BATCH_PATIENCE {
                    self.shared.budget.set_stuck(true);
                }
                index += 1;
                continue;
            }
            let batch = self.batches.remove(index);
            self.shared.budget.count(-batch.gone());
            // A program that has forked may need its evictor for something else first (`own_again`).
            let is_hurried = batch.space.has_forked.load(Ordering::Relaxed) || batch.is_waited_for();
            self.is_undisturbed = !is_hurried;
            self.in_a_row += 1;
            if is_hurried || self.in_a_row >= BATCHES_IN_A_ROW_MAX {
                self.finish(batch, now);
            } else {
                self.moved.push(batch);
            }
        }
        if self.batches.is_empty() && self.moved.is_empty() {
            self.in_a_row = 0;
        }
    }

    /// Whether a batch of `id` has not come to its end yet.
    fn is_under_way(&self, id: SpaceId) -> bool {
        self.batches.iter().chain(&self.moved).any(|batch| batch.space.id == id)
    }

    /// The evictor is done: the page table hears what became of each page, and what left is written.
    pub(super) fn finish(&mut self, mut batch: Batch, now: Instant) {
        let mut to_write = [None; BATCH_PAGES];
        let gone = batch.gone();
        let is_last = !self.is_under_way(batch.space.id);
        {
            let mut state = batch.space.lock();
            if batch.space.is_gone() {
                // Its space has ended, or will: nothing may come into it any more.
                batch.outcomes.fill(EvictOutcome::Absent);
            }
            // No thread has read the program's messages since the batch began. If there are none, what was not there is
            // gone; else it may be at another place.
            let may_have_moved = batch.outcomes.contains(&EvictOutcome::Absent) && batch.space.memory.is_changing();
            let mut held = self.shared.page_indexes();
            let page_indexes = &mut *held;
            for ((number, page, target), outcome) in batch.pages.iter().zip(&batch.outcomes) {
                match outcome {
                    EvictOutcome::Moved => {
                        self.shadows.left(*number);
                        let slot = match target {
                            Target::Copy(slot) => *slot,
                            Target::Pool(id, index) => self.staging.filled(*id, *index, &mut page_indexes.volume_pages),
                        };
                        self.count_out(*target);
                        let is_unused = state.page_table.left(*page, slot, page_indexes);
                        self.shared.counters.pages_prefetched_unused.add(is_unused.into());
                    }
                    // Its place in the pool and its slot are given back with the run. It is the program's own again
                    // when asked for, and new then.
                    EvictOutcome::Zero => self.shared.counters.pages_out_zero.add(1),
                    EvictOutcome::Absent if !may_have_moved => {
                        // The kernel took a page back that MADV_FREE had given up, without a message; its copy is one
                        // of its contents.
                        if let Target::Copy(slot) = target
                            && state.page_table.state(*page) == PageState::Clean(*slot)
                        {
                            state.page_table.left(*page, *slot, page_indexes);
                        }
                    }
                    EvictOutcome::Refused | EvictOutcome::Changing | EvictOutcome::Absent => {
                        self.shared.counters.refused.add(1);
                        state.page_table.listed_again(*page);
                        self.policy.refused(*number);
                    }
                }
            }
            for (place, id) in to_write.iter_mut().zip(&batch.runs) {
                *place = self.staging.evictor_ended(*id, &mut page_indexes.volume_pages).map(|run| (*id, run));
            }
            drop(held);
            let left = batch.pages.iter().zip(&batch.outcomes);
            let left = left.filter(|(_, outcome)| matches!(outcome, EvictOutcome::Moved | EvictOutcome::Zero));
            self.split_huge_pages(&batch.space, &state, left.map(|((_, page, _), _)| *page), now);
            state.batch = !is_last;
            if is_last && state.is_awaited {
                self.shared.faults.signal();
            }
            if is_last && std::mem::take(&mut state.is_hurried) {
                // They ring when a page has come.
                self.shared.call_fault_threads();
                self.start_at = self.start_at.max(now + HURRY_PAUSE);
            }
        }
        self.shared.counters.batches.add(1);
        to_write.into_iter().flatten().for_each(|(id, run)| self.write(id, run, now));
        let is_owning = self.own_again(&batch);
        if gone * FRUITLESS_SHARE < batch.pages.len() as i64 {
            // What becomes the program's own can leave then.
            if !is_owning {
                self.took_little(now);
            }
        } else {
            self.fruitless = 0;
            self.shared.budget.set_stuck(false);
        }
        batch.clear();
        self.spare.push(batch);
        self.shared.made_room();
    }

    /// Pages that a fork shared are refused by the kernel until they are written: then they are copied, or, if no
    /// thread else has them any more, the program's own again. A page that is write-protected stays so, since its
    /// copy is worth more; but where no thread hears of forks it gives that up, or it would never leave: no fault for
    /// it tells that the child is gone. Whether that has begun; what the kernel refuses even then is tried later.
    fn own_again(&mut self, batch: &Batch) -> bool {
        if batch.is_owned || !batch.space.has_forked.load(Ordering::Relaxed) {
            return false;
        }
        let mut owning = Vec::new();
        let (mut pages, mut count) = ([VirtualPage::at(0); BATCH_PAGES], 0);
        for ((number, page, target), outcome) in batch.pages.iter().zip(&batch.outcomes) {
            let is_its_own = matches!(target, Target::Pool(..));
            if *outcome == EvictOutcome::Refused && (is_its_own || self.give_copy_up(&batch.space, *page)) {
                owning.push((batch.space.id, *page, *number));
                pages[count] = *page;
                count += 1;
            }
        }
        let begun =
            count > 0 && lock(&batch.space.evictor).as_mut().is_some_and(|evictor| evictor.own(&pages[..count]));
        if begun {
            self.owning.push(Owning { space: Arc::clone(&batch.space), pages: owning });
        }
        begun
    }

    /// `page` is without write protection from now on, and its slot no copy of it any more. False if it cannot be.
    fn give_copy_up(&self, space: &AddressSpace, page: VirtualPage) -> bool {
        if !space.has_forked_untold.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = space.lock();
        if !state.mapping_events.is_empty() {
            return false;
        }
        let is_clean = matches!(state.page_table.victim(page), Some(Victim::Clean(_)));
        if is_clean && space.memory.unprotect(page.range()).is_ok() {
            state.page_table.written(page, &mut self.shared.page_indexes());
        }
        matches!(state.page_table.victim(page), Some(Victim::Dirty))
    }

    fn count_out(&self, target: Target) {
        let counters = &self.shared.counters;
        let counter =
            if matches!(target, Target::Copy(_)) { &counters.pages_out_clean } else { &counters.pages_out_dirty };
        counter.add(1);
    }
}

impl Batch {
    /// Whether its end is waited for: by a fault of its program, or by a fork page-in.
    fn is_waited_for(&self) -> bool {
        let state = self.space.lock();
        state.is_awaited || state.is_hurried || self.space.is_held()
    }

    /// How many pages left.
    fn gone(&self) -> i64 {
        self.outcomes.iter().filter(|outcome| matches!(outcome, EvictOutcome::Moved | EvictOutcome::Zero)).count()
            as i64
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.requests.clear();
        self.outcomes.clear();
        self.runs.clear();
    }

    /// Takes those of `candidates` that may leave; events of the program wait from now on, if there are any. False:
    /// faults come first.
    fn fill(
        &mut self,
        candidates: &[Candidate],
        staging: &mut Staging,
        shared: &PagerState,
        policy: &mut dyn Replacement,
    ) -> bool {
        let space = Arc::clone(&self.space);
        let mut guard = space.lock();
        let state = &mut *guard;
        state.is_batch_due = state.untried > 0;
        if state.is_batch_due {
            return false;
        }
        let kept = lock(&space.kept_pages);
        let page_indexes = &mut *shared.page_indexes();
        let mut dirty: Vec<(CachePage, VirtualPage)> = Vec::with_capacity(candidates.len());
        for (_, page, number) in candidates {
            if state.page_table.number(*page) != Some(*number) {
                // Its program gave it up since it was chosen, and may have something else there by now.
                continue;
            }
            // A page of a program that changes its mappings or is to fork, or that the kernel itself needs (rule 4),
            // stays.
            if !state.mapping_events.is_empty() || space.is_held() || kept.binary_search(page).is_ok() {
                state.page_table.listed_again(*page);
                policy.refused(*number);
                continue;
            }
            state.page_table.unlisted(*page);
            // Given up and come back since it was chosen, it may be listed again, and would be in two batches.
            policy.removed(*number);
            match state.page_table.victim(*page) {
                Some(Victim::Dirty) => dirty.push((*number, *page)),
                Some(Victim::Clean(slot)) => self.push(*number, *page, Target::Copy(slot)),
                // Away already, being removed, or in memory that is not known to be registered.
                None => {}
            }
        }
        self.place(&dirty, staging, page_indexes, |number, page| {
            state.page_table.listed_again(page);
            policy.refused(number);
        });
        state.batch |= !self.requests.is_empty();
        true
    }

    /// Gives pages that are to be written neighbouring slots of the volume, by runs of the pool.
    fn place(
        &mut self,
        mut dirty: &[(CachePage, VirtualPage)],
        staging: &mut Staging,
        page_indexes: &mut PageIndexes,
        mut refuse: impl FnMut(CachePage, VirtualPage),
    ) {
        while !dirty.is_empty() {
            let Some(run) = page_indexes.volume_pages.take(dirty.len().min(GROUP_PAGES)) else { break };
            let Some(id) = staging.take(run, &mut page_indexes.volume_pages) else {
                run.slots().for_each(|slot| page_indexes.volume_pages.give_back(slot));
                break;
            };
            self.runs.push(id);
            let (now, later) = dirty.split_at(run.count as usize);
            for (index, (number, page)) in now.iter().enumerate() {
                self.push(*number, *page, Target::Pool(id, index));
            }
            dirty = later;
        }
        dirty.iter().for_each(|(number, page)| refuse(*number, *page));
    }

    fn push(&mut self, number: CachePage, page: VirtualPage, target: Target) {
        self.pages.push((number, page, target));
        let target = if let Target::Pool(id, index) = target { Some(id.page(index)) } else { None };
        self.requests.push(EvictRequest { page, target });
    }
}
