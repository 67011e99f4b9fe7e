//! Reads for faults, and what comes along with them.
//!
//! A page that a program waits for is read alone and first; what the prefetcher names is asked for when that is under
//! way, in runs of neighbouring slots, as far as there is room. A read that ends fills the pages that still wait for
//! it. Where the donor's memory can be read in place, pages are filled from there at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority};
use spillway_policy::prefetch::WINDOW_MAX;
use spillway_sys::userfaultfd::{Fault, PageError};

use crate::address_space::{AddressSpace, SpaceState};
use crate::fault::fill::as_far_as_mapped;
use crate::fault::read_ahead::ReadAheadRun;
use crate::fault::{Faults, NO_THREAD, Outcome, PAGE};
use crate::limits::{ASK_PATIENCE, FAULT_READS_MAX, FAULT_READS_RESERVED, GROUP_PAGES, READ_ATTEMPTS_MAX};
use crate::page_table::PageTable;
use crate::page_table::group::PageState;
use crate::page_table::page_indexes::Coming;
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::VolumePage;
use crate::statistics::FaultKind;

/// A read under way.
pub(super) struct ReadUnderWay {
    space: Arc<AddressSpace>,
    along: ReadAheadRun,
    /// The fault that waits for it; `None` for pages that only come along.
    fault: Option<Fault>,
    arrived: Instant,
    begun: Instant,
    /// No other read was under way when it began, so it waited for none.
    is_alone: bool,
    attempts: u8,
    /// Pages that are done with.
    done: usize,
}

impl ReadUnderWay {
    /// Whether a thread of the program waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.fault.is_some_and(|fault| fault.thread != NO_THREAD)
    }
}

/// A page that was read for a fault: others come along with it.
pub(super) struct PrefetchRequest {
    space: Arc<AddressSpace>,
    thread: u32,
    page: VirtualPage,
    /// The page was read where it lies.
    is_near: bool,
    /// When it was found that there is no room.
    waits_since: Option<Instant>,
}

impl Faults {
    pub(super) fn begin_read(
        &mut self,
        space: &Arc<AddressSpace>,
        state: &mut SpaceState,
        fault: Fault,
        slot: VolumePage,
        arrived: Instant,
    ) -> Outcome {
        let page = VirtualPage::containing(fault.address);
        let filled = self.fill_from_slab(space, state, fault, slot, arrived);
        let is_near = filled.is_some();
        let outcome = filled.unwrap_or_else(|| {
            let has_begun = self.read(space, state, &ReadAheadRun::one(page, slot, Coming::Back), Some(fault), arrived);
            if has_begun { Outcome::Done } else { Outcome::PutOff }
        });
        if outcome != Outcome::Done || fault.thread == NO_THREAD {
            return outcome;
        }
        self.trace(space, fault, FaultKind::Fill, arrived);
        self.shared.fault_pool.demanded();
        if self.prefetch_requests.len() < FAULT_READS_MAX {
            let space = Arc::clone(space);
            self.prefetch_requests.push(PrefetchRequest {
                space,
                thread: fault.thread,
                page,
                is_near,
                waits_since: None,
            });
        }
        Outcome::Done
    }

    /// Fills the page that a program waits for from where it lies; `None` if it has to be read.
    fn fill_from_slab(
        &mut self,
        space: &AddressSpace,
        state: &mut SpaceState,
        fault: Fault,
        slot: VolumePage,
        arrived: Instant,
    ) -> Option<Outcome> {
        let page = VirtualPage::containing(fault.address);
        let (protect, result) = self.copy_from_slab(space, state, (page, slot), 1, fault.is_write)?;
        if result.as_ref().is_err_and(PageError::is_unreadable) {
            self.lost(space, fault, page, BlockError::InputOutput);
            space.memory.wake(page.range());
            return Some(Outcome::Done);
        }
        let told = (Coming::Back, FaultKind::Fill, arrived);
        Some(self.record_filled(space, state, page, protect, told, result))
    }

    /// Fills `count` neighbours from where they lie, the first of which is `first` with its content in `slot`: whether
    /// write-protected, and what came of it. `None` if they have to be read.
    fn copy_from_slab(
        &mut self,
        space: &AddressSpace,
        state: &mut SpaceState,
        (first, slot): (VirtualPage, VolumePage),
        count: usize,
        is_for_write: bool,
    ) -> Option<(bool, Result<u64, PageError>)> {
        let mut copied = None;
        self.engine.read_in_place(u64::from(slot.0) * PAGE, count as u64 * PAGE, &mut |memory, offset| {
            let protect = !is_for_write && !state.page_table.comes_writable(first);
            let result = as_far_as_mapped(count, |count| {
                space.memory.copy(first, memory, offset, count * PAGE_SIZE_BYTES, protect)
            });
            let used_bytes = *result.as_ref().unwrap_or(&0);
            copied = Some((protect, result));
            used_bytes
        });
        copied
    }

    /// Begins with what comes along. While the budget is nearly used up that waits for the eviction, and while the
    /// program changes its mappings for the end of that, but not for long: a program that had to fault for each page
    /// of its window meanwhile would have lost the stream.
    pub(super) fn prefetch_all(&mut self, now: Instant) {
        let mut is_short = false;
        let mut prefetch_requests = std::mem::take(&mut self.prefetch_requests);
        prefetch_requests.retain_mut(|ask| {
            let PrefetchRequest { space, waits_since, .. } = ask;
            let space = Arc::clone(space);
            let state = &mut *space.lock_for_faults();
            // What came along with the one before is counted by now, if it was filled in place.
            let has_room = self.has_room_for_window();
            is_short |= !has_room;
            let is_ready = has_room && self.shared.apply_events(&space, state);
            if !is_ready {
                return now.saturating_duration_since(*waits_since.get_or_insert(now)) < ASK_PATIENCE;
            }
            self.prefetch(state, ask, now);
            false
        });
        self.prefetch_requests = prefetch_requests;
        if is_short {
            self.shared.eviction.signal();
        }
    }

    /// Whether a window has room; if not, pages that leave ring.
    fn has_room_for_window(&self) -> bool {
        let budget = &self.shared.budget;
        budget.has_room(WINDOW_MAX as i64) || {
            self.shared.put_off_for_room();
            budget.has_room(WINDOW_MAX as i64)
        }
    }

    /// Asks for what comes along with a page, and begins with it.
    fn prefetch(&mut self, state: &mut SpaceState, ask: &PrefetchRequest, now: Instant) {
        let PrefetchRequest { space, thread, page, is_near, .. } = ask;
        let budget = &self.shared.budget;
        let reads = self.reads.iter().flatten().take(self.busy.count_ones() as usize);
        let coming: usize = reads.map(|read| read.along.pages().len()).sum();
        let room = usize::try_from(budget.limit_pages() - budget.resident_pages()).unwrap_or(0).saturating_sub(coming);
        // A run takes a buffer, unless it is read in place.
        let room = room.min(self.buffers_for_prefetches() * GROUP_PAGES);
        let mut read_ahead = self.shared.fault_pool.read_ahead();
        if *is_near {
            read_ahead.read_took(Duration::ZERO);
        }
        read_ahead.ask(&mut state.page_table, *thread, *page, room, &mut self.shared.page_indexes());
        if !read_ahead.has_found() {
            return;
        }
        // What is to be read is copied out, since reading changes the table.
        let (mut runs, mut count) = ([const { None }; FAULT_READS_MAX], 0);
        read_ahead.reads(&state.page_table, &self.shared.page_indexes(), |run| {
            if let Some(place) = runs.get_mut(count) {
                *place = Some(run.clone());
                count += 1;
            }
        });
        drop(read_ahead);
        for run in runs.iter().flatten() {
            let done = self.prefetch_from_slab(space, state, run);
            if let Some(rest) = run.behind(done) {
                self.read(space, state, &rest, None, now);
            }
        }
    }

    /// Fills the first pages of a run from where they lie, and says how many.
    fn prefetch_from_slab(&mut self, space: &AddressSpace, state: &mut SpaceState, run: &ReadAheadRun) -> usize {
        let mut done = 0;
        while let Some(first) = run.pages().get(done).copied() {
            let rest = &run.pages()[done..];
            let count = neighbours(rest, &state.page_table, |(page, slot)| {
                state.page_table.state(page) == PageState::Away(slot)
            });
            let Some((protect, result)) = self.copy_from_slab(space, state, first, count, false) else {
                break;
            };
            match self.record_prefetched(space, state, rest, (run.coming(), protect), result) {
                0 => break,
                count => done += count,
            }
        }
        done
    }

    /// A thread waits for `page`, which a read brings. If it is a read of this thread that only brings what comes
    /// along, it goes ahead of the others from here on.
    pub(super) fn await_read(&mut self, space: &Arc<AddressSpace>, page: VirtualPage) {
        let brings = |read: &ReadUnderWay| {
            let has_page = || read.along.pages().iter().any(|(coming, _)| *coming == page);
            read.fault.is_none() && Arc::ptr_eq(&read.space, space) && has_page()
        };
        let in_engine = self.busy & !self.here;
        let buffer = self.reads.iter().position(|read| read.as_ref().is_some_and(brings));
        if let Some(buffer) = buffer.filter(|buffer| in_engine & 1 << buffer != 0) {
            self.engine.promote(buffer);
            self.has_begun = true;
        }
    }

    /// Some buffers stay free for threads that wait for their pages.
    fn buffers_for_prefetches(&self) -> usize {
        let reserved = (self.reads.len() * FAULT_READS_RESERVED / FAULT_READS_MAX).max(1);
        self.buffers_free().saturating_sub(reserved)
    }

    fn buffers_free(&self) -> usize {
        self.reads.len() - self.busy.count_ones() as usize
    }

    /// Begins a read; false when all buffers are in use.
    fn read(
        &mut self,
        space: &Arc<AddressSpace>,
        state: &mut SpaceState,
        along: &ReadAheadRun,
        fault: Option<Fault>,
        arrived: Instant,
    ) -> bool {
        let free = self.buffers_free();
        if free == 0 || fault.is_none() && self.buffers_for_prefetches() == 0 {
            return false;
        }
        let buffer = (!self.busy).trailing_zeros() as usize;
        self.busy |= 1 << buffer;
        {
            let page_indexes = &mut self.shared.page_indexes();
            along.pages().iter().for_each(|(page, slot)| state.page_table.reading(*page, *slot, page_indexes));
        }
        self.reads[buffer] = Some(ReadUnderWay {
            space: Arc::clone(space),
            along: along.clone(),
            fault,
            arrived,
            begun: Instant::now(),
            is_alone: free == self.reads.len(),
            attempts: 1,
            done: 0,
        });
        let priority = if fault.is_some() { Priority::Demand } else { Priority::Prefetch };
        self.submit_read(buffer, along, priority);
        true
    }

    fn submit_read(&mut self, buffer: usize, along: &ReadAheadRun, priority: Priority) {
        let (_, first) = along.pages()[0];
        let request = BlockRequest {
            slot: buffer,
            operation: BlockOperation::Read,
            offset_bytes: u64::from(first.0) * PAGE,
            length_bytes: along.pages().len() as u64 * PAGE,
            priority,
        };
        self.has_begun = true;
        self.engine.submit(request, Instant::now());
    }

    pub(super) fn read_ended(&mut self, buffer: usize, result: Result<(), BlockError>) {
        let read = self.reads[buffer].as_mut().expect("a read that ends was begun");
        match result {
            Ok(()) => {
                if read.is_alone && read.attempts == 1 {
                    self.shared.fault_pool.read_ahead().read_took(read.begun.elapsed());
                }
                self.here |= 1 << buffer;
                self.fill_from_buffer(buffer);
            }
            Err(BlockError::TimedOut) if read.fault.is_some() && read.attempts < READ_ATTEMPTS_MAX => {
                read.attempts += 1;
                let along = read.along.clone();
                self.submit_read(buffer, &along, Priority::Demand);
            }
            Err(error) => {
                let (space, along) = (Arc::clone(&read.space), read.along.clone());
                if self.shared.apply_events(&space, &mut space.lock_for_faults()) {
                    self.read_failed(buffer, error);
                } else {
                    // A thread may have come to wait for it.
                    self.submit_read(buffer, &along, Priority::Demand);
                }
            }
        }
    }

    /// Gives the program the pages that lie in `buffer`, neighbours together.
    pub(super) fn fill_from_buffer(&mut self, buffer: usize) {
        let mut read = self.reads[buffer].take().expect("a read that is here");
        let space = Arc::clone(&read.space);
        let mut guard = space.lock_for_faults();
        let state = &mut *guard;
        while read.done < read.along.pages().len() {
            let is_settled = self.shared.apply_events(&space, state);
            let count = if is_settled { self.fill_run(buffer, &read, state) } else { 0 };
            if count == 0 {
                // The program changes its mappings; its events come first.
                drop(guard);
                self.reads[buffer] = Some(read);
                return;
            }
            let page_indexes = &mut self.shared.page_indexes();
            for (page, slot) in &read.along.pages()[read.done..read.done + count] {
                state.page_table.read_ended(*page, *slot, page_indexes);
            }
            read.done += count;
        }
        self.is_over(buffer);
    }

    /// A buffer is free again.
    fn is_over(&mut self, buffer: usize) {
        self.busy &= !(1 << buffer);
        self.here &= !(1 << buffer);
    }

    /// Fills the next pages of a read that are neighbours. How many are done with; none if it is to be tried again.
    fn fill_run(&mut self, buffer: usize, read: &ReadUnderWay, state: &mut SpaceState) -> usize {
        let (space, rest) = (&read.space, &read.along.pages()[read.done..]);
        let (first, slot) = rest[0];
        if space.is_gone() || !state.page_table.awaits(first, slot) {
            // Removed, moved or unmapped meanwhile: the thread that still waits looks again.
            space.memory.wake(first.range());
            return 1;
        }
        let count = neighbours(rest, &state.page_table, |(page, slot)| state.page_table.awaits(page, slot));
        let offset = self.buffers.slot(buffer).offset_bytes as usize + read.done * PAGE_SIZE_BYTES;
        let is_for_write = read.fault.is_some_and(|fault| fault.is_write);
        let protect = !is_for_write && !state.page_table.comes_writable(first);
        let result = as_far_as_mapped(count, |count| {
            space.memory.copy(first, self.buffers.memory(), offset, count * PAGE_SIZE_BYTES, protect)
        });
        if read.fault.is_some() {
            let told = (read.along.coming(), FaultKind::Fill, read.arrived);
            let goes_on = result.is_ok() && read.is_awaited();
            self.filled = goes_on.then_some(space.id).or(self.filled);
            return usize::from(self.record_filled(space, state, first, protect, told, result) == Outcome::Done);
        }
        self.record_prefetched(space, state, rest, (read.along.coming(), protect), result)
    }

    /// Says in the table what filling pages, of which the first are `pages`, came to that no thread waits for. How many
    /// are done with; none if they are to be filled later.
    fn record_prefetched(
        &mut self,
        space: &AddressSpace,
        state: &mut SpaceState,
        pages: &[(VirtualPage, VolumePage)],
        (coming, protect): (Coming, bool),
        result: Result<u64, PageError>,
    ) -> usize {
        match result {
            Ok(bytes) => {
                let count = (bytes / PAGE) as usize;
                let page_indexes = &mut self.shared.page_indexes();
                pages[..count]
                    .iter()
                    .for_each(|(page, _)| state.page_table.filled(*page, protect, coming, page_indexes));
                self.shared.budget.count(count as i64);
                self.shared.counters.pages_prefetched.add(count as u64);
                self.shared.call_eviction();
                count
            }
            Err(PageError::TryAgain) => 0,
            Err(error) => {
                self.record_not_filled(space, state, pages[0].0, &error);
                1
            }
        }
    }

    /// The pages could not be read. If a program waits for one its content is lost: its program gets SIGBUS when it
    /// touches it, never another content. Pages that were to come along are asked for again by the thread that needs
    /// them.
    fn read_failed(&mut self, buffer: usize, error: BlockError) {
        let ReadUnderWay { space, along, fault, .. } = self.reads[buffer].take().expect("a read that failed");
        self.is_over(buffer);
        let mut state = space.lock_for_faults();
        for (page, slot) in along.pages().iter().copied() {
            if let Some(fault) = fault
                && state.page_table.awaits(page, slot)
            {
                self.lost(&space, fault, page, error);
            }
            state.page_table.read_ended(page, slot, &mut self.shared.page_indexes());
            space.memory.wake(page.range());
        }
    }

    fn lost(&self, space: &AddressSpace, fault: Fault, page: VirtualPage, error: BlockError) {
        if fault.thread == NO_THREAD {
            // A thread that touches it finds out whether it is.
            space.unread.fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.shared.counters.pages_lost.add(1);
        let process = space.process.load(Ordering::Relaxed);
        self.shared.fail(format!("process {process}: the page at {page:#x} is lost ({error}); it gets SIGBUS"));
        if let Err(error) = space.memory.poison(page.range()) {
            self.shared.fail(format!("process {process}: the lost page at {page:#x} stays missing: {error}"));
        }
    }
}

/// How many of these pages are neighbours of the first that come like it, as far as `waits` says that they are still
/// to come.
fn neighbours(
    pages: &[(VirtualPage, VolumePage)],
    page_table: &PageTable,
    waits: impl Fn((VirtualPage, VolumePage)) -> bool,
) -> usize {
    let first = pages[0].0;
    let expects_write = page_table.expects_write(first);
    let follows = |(index, page): &(usize, &(VirtualPage, VolumePage))| {
        page.0 == first + *index as u64 && waits(**page) && page_table.expects_write(page.0) == expects_write
    };
    pages.iter().enumerate().take_while(follows).count()
}
