//! Reads what programs have to tell, and follows what changes their mappings: the first fault thread's part.
//!
//! One thread reads all messages, so that changes of mappings have one order and what one reading brings is seen as a
//! whole ([`crate::mappings::events`]).

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use spillway_sys::userfaultfd::Fault;

use crate::address_space::{AddressSpace, SpaceState, Wanted};
use crate::fault::pool::Pending;
use crate::fault::{Faults, NO_THREAD};
use crate::limits::MESSAGES_MAX;
use crate::mappings::late_event::LateEvent;
use crate::page_table::ranges::Ranges;
use crate::pager_state::PagerState;
use crate::process::memory::Event;
use crate::threads::spin::Spin;

/// Finds the ranges of a process that read as zeroes in a child (MADV_WIPEONFORK, rule 5).
pub type WipedRanges = Box<dyn FnMut(&AddressSpace) -> Ranges + Send>;

/// See the module text.
pub struct Messages {
    shared: Arc<PagerState>,
    /// Faults of one reading.
    arrived: Vec<Fault>,
    /// Programs with changes that are not applied yet.
    mapping_events: Vec<Arc<AddressSpace>>,
    wiped: WipedRanges,
    /// Whether several faults come at once again and again.
    crowds: Spin,
    /// The last reading brought one fault and no more.
    was_alone: bool,
}

impl Messages {
    /// Of all programs of `shared`.
    pub fn new(shared: Arc<PagerState>, wiped: WipedRanges, now: Instant) -> Self {
        Self {
            shared,
            arrived: Vec::with_capacity(MESSAGES_MAX),
            mapping_events: Vec::with_capacity(64),
            wiped,
            crowds: Spin::new(now),
            was_alone: false,
        }
    }

    /// Whether something is to be looked at again soon.
    pub fn are_unsettled(&self) -> bool {
        !self.mapping_events.is_empty()
    }

    /// Reads what `space` has to tell, and has it answered by `faults`. False: that has to wait, and its end will be
    /// signalled.
    pub fn serve(&mut self, space: &Arc<AddressSpace>, faults: &mut Faults, now: Instant) -> bool {
        let mut state = space.lock_for_faults();
        state.is_awaited = state.batch;
        let may_read = state.may_read();
        if may_read {
            self.read_and_answer(space, state, faults, now);
        }
        may_read
    }

    /// Does the same where no thread has said that `space` has something to tell: most programs that had a fault have
    /// the next. Whether there was something.
    pub fn guess(&mut self, space: &Arc<AddressSpace>, faults: &mut Faults, now: Instant) -> bool {
        let state = space.lock_for_faults();
        state.may_read() && self.read_and_answer(space, state, faults, now)
    }

    /// Whether there was something to read.
    fn read_and_answer(
        &mut self,
        space: &Arc<AddressSpace>,
        mut guard: MutexGuard<'_, SpaceState>,
        faults: &mut Faults,
        now: Instant,
    ) -> bool {
        let state = &mut *guard;
        let mut arrived = std::mem::take(&mut self.arrived);
        let has_read = self.read_events(space, state, &mut arrived, now);
        // The kernel hands faults out first, whatever came first. A child has the pages as of the fork, and a page
        // that comes back belongs to the mapping that is there now, so what changes mappings goes first, as far as it
        // was read; while something is not, the kernel refuses to fill. A fault that is old by then does no harm.
        let own = self.own_part(state, &arrived, now);
        state.untried += (arrived.len() - own) as u32;
        for fault in &arrived[..own] {
            faults.answer(space, state, *fault, now);
        }
        drop(guard);
        if own < arrived.len() {
            let pending = |fault: &Fault| Pending::new(Arc::clone(space), *fault, now);
            self.shared.fault_pool.share(arrived[own..].iter().map(pending));
        }
        arrived.clear();
        self.arrived = arrived;
        has_read
    }

    /// How many of the faults that arrived this thread answers itself: one if they come in crowds and others can take
    /// the rest.
    fn own_part(&mut self, state: &SpaceState, arrived: &[Fault], now: Instant) -> usize {
        if arrived.len() < 2 || state.is_batch_due || !self.shared.fault_pool.has_helpers() {
            return arrived.len();
        }
        self.crowds.worked(now);
        if self.crowds.goes_on(now) { 1 } else { arrived.len() }
    }

    /// One by one, so that no thread goes on whose change may be told late. Whether there was something to read.
    fn read_events(
        &mut self,
        space: &Arc<AddressSpace>,
        state: &mut SpaceState,
        arrived: &mut Vec<Fault>,
        now: Instant,
    ) -> bool {
        self.was_alone = false;
        for count in 0..MESSAGES_MAX {
            match space.memory.read_event() {
                Ok(None) => {
                    self.was_alone = count == 1 && arrived.len() == 1;
                    return count > 0;
                }
                Ok(Some(Event::Fault(fault))) => arrived.push(fault),
                Ok(Some(change)) => {
                    if self.changed(space, state, change) {
                        let process = space.process.load(Ordering::Relaxed);
                        state.late_event = Some(LateEvent::begin(process, now));
                        self.shared.counters.doubts.add(1);
                        return true;
                    }
                }
                Err(error) => {
                    // A child's memory that cannot be taken over (no descriptor is free) would read as zeroes.
                    let process = space.process.load(Ordering::Relaxed);
                    self.shared.fail(format!(
                        "process {process}: its memory's messages cannot be read ({error}), so it is killed"
                    ));
                    space.kill();
                    return true;
                }
            }
        }
        true
    }

    /// Whether the last reading brought one fault, and nothing else.
    pub fn was_alone(&self) -> bool {
        self.was_alone
    }

    /// Notes a change of mappings. True: another one must precede it and is still to be told.
    fn changed(&mut self, space: &Arc<AddressSpace>, state: &mut SpaceState, change: Event) -> bool {
        if self.mapping_events.iter().all(|other| other.id != space.id) {
            self.mapping_events.push(Arc::clone(space));
        }
        let SpaceState { page_table, mapping_events, .. } = state;
        match change {
            Event::Fault(_) => unreachable!("faults are answered elsewhere"),
            Event::Remove(range) => mapping_events.remove(range),
            Event::Unmap(range) => mapping_events.unmap(range),
            Event::Remap { from, to, length } => mapping_events.remap(from, to, length),
            Event::Fork(memory) => {
                space.has_forked.store(true, Ordering::Relaxed);
                // A program none of whose pages is known has none away or clean, and most fork to execute another.
                let wiped = if page_table.is_empty() { Ranges::default() } else { (self.wiped)(space) };
                mapping_events.fork(memory, wiped);
            }
        }
        mapping_events.is_in_doubt(|range| page_table.known_mapped(range))
    }

    /// Takes over what is applied by now.
    pub fn apply_events(&mut self, now: Instant) {
        let shared = &self.shared;
        self.mapping_events.retain(|space| {
            let state = &mut *space.lock_for_faults();
            if let Some(late_event) = state.late_event.take_if(|late_event| late_event.is_over(now)) {
                state.mapping_events.seen_under_way(&late_event.moves_under_way());
                shared.faults.signal();
            }
            !(shared.apply_events(space, state) && state.late_event.is_none())
        });
    }

    /// Brings pages back that no thread waits for (rule 4: a control block of a thread that was found late; a fork).
    pub fn fetch_wanted(&mut self, faults: &mut Faults) {
        let now = Instant::now();
        for Wanted { space, page, is_writable } in self.shared.take_wanted() {
            if let Some(space) = self.shared.space(space) {
                let address = page.address();
                let fault = Fault { address, is_write: is_writable, is_write_protected: false, thread: NO_THREAD };
                faults.put_off(Pending::new(space, fault, now));
            }
        }
    }
}
