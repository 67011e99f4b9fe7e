//! What the threads of a pager share.
//!
//! Locks, in the order in which they are taken: an address space's table, then read-ahead ([`crate::fault::pool`]),
//! then the page indexes, then the recorded faults or the huge blocks. All are held for microseconds, and never across
//! a wait; the thread that holds a table may change what is known of that address space.
//!
//! A batch of evictions is under way without the table's lock, so [`SpaceState::batch`] says so: no thread reads the
//! program's events then (rule 14 of docs/pager.md). That keeps every fault and event out of the batch: the kernel
//! lets no page be moved while an event waits to be read. Nor does a batch begin while events that were read are not
//! applied ([`crate::mappings::events`]).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use spillway_fabric::complaints::Complaints;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::epoll::{Epoll, Interest};
use spillway_sys::userfaultfd::PageError;

use crate::address_space::{AddressSpace, SpaceState, Wanted};
use crate::budget::Budget;
use crate::fault::pool::FaultPool;
use crate::fault::recording::FaultRecording;
use crate::fork::reservations::ForkReservations;
use crate::held_up::{self, LookClock};
use crate::huge_pages::blocks::HugeBlocks;
use crate::limits::FAILURES_MAX;
use crate::mappings::events::{Change, Evidence};
use crate::mappings::staying_tally::StayingReport;
use crate::page_table::PageIndexes;
use crate::page_table::page_indexes::SpaceId;
use crate::shared_memory::views::SharedObjects;
use crate::statistics::{BudgetExcess, Counters, PagerStatistics};
use crate::threads::bell::Bell;
use crate::threads::lock::lock;

/// See the module text.
pub struct PagerState {
    /// Volume pages and numbers of all address spaces.
    pub page_indexes: Mutex<PageIndexes>,
    /// Every address space that is served.
    pub spaces: Mutex<Vec<Arc<AddressSpace>>>,
    /// What programs map of shared objects.
    pub objects: Arc<SharedObjects>,
    /// The budget.
    pub budget: Budget,
    /// Memory that forks may fill.
    pub fork_reservations: ForkReservations,
    /// The counters.
    pub(crate) counters: Counters,
    /// Wakes the first fault thread: a batch ended, a program came or went.
    pub faults: Bell,
    /// What it shares with the others.
    pub fault_pool: FaultPool,
    /// What the first fault thread waits for: the messages of each address space under its number, and its bell.
    pub served: Epoll,
    /// Wakes the eviction thread: the budget is exceeded.
    pub eviction: Bell,
    /// Something is put off in a fault thread until pages have left.
    waits_for_room: AtomicBool,
    /// Wakes the survey: the budget is exceeded for the first time, a child came.
    pub survey: Bell,
    /// Since when the survey looks.
    pub look_clock: LookClock,
    /// All threads are to end.
    pub is_stopping: AtomicBool,
    /// What went wrong, in words.
    failures: Mutex<VecDeque<String>>,
    complaints: Mutex<Complaints>,
    /// Blocks that may be huge pages again.
    pub huge_blocks: Mutex<HugeBlocks>,
    /// How the budget was exceeded, for the statistics.
    pub excess: Mutex<BudgetExcess>,
    /// What stays local, for the statistics.
    pub staying: Mutex<StayingReport>,
    next_space: AtomicU32,
    /// Pages that are to come back without a fault.
    wanted: Mutex<Vec<Wanted>>,
    /// Descriptors that tell of programs' calls, for the survey; whether of forks, too.
    pub call_notices: Mutex<Vec<(OwnedFd, bool)>>,
    /// Records faults, if that is wanted.
    pub recording: Option<FaultRecording>,
}

impl PagerState {
    /// For a volume and a budget, with these fault threads.
    pub fn new(page_indexes: PageIndexes, budget: Budget, fault_pool: FaultPool) -> std::io::Result<Self> {
        let counters = Counters::default();
        counters.budget_bytes_peak.set(budget.bytes());
        Ok(Self {
            page_indexes: Mutex::new(page_indexes),
            spaces: Mutex::default(),
            objects: Arc::default(),
            budget,
            fork_reservations: ForkReservations::default(),
            counters,
            faults: Bell::new()?,
            fault_pool,
            served: Epoll::new()?,
            eviction: Bell::new()?,
            waits_for_room: AtomicBool::new(false),
            survey: Bell::new()?,
            look_clock: LookClock::default(),
            is_stopping: AtomicBool::new(false),
            failures: Mutex::default(),
            complaints: Mutex::default(),
            huge_blocks: Mutex::default(),
            excess: Mutex::default(),
            staying: Mutex::default(),
            next_space: AtomicU32::new(0),
            wanted: Mutex::default(),
            call_notices: Mutex::default(),
            recording: None,
        })
    }

    /// A number for a new address space.
    pub fn next_space(&self) -> SpaceId {
        SpaceId(self.next_space.fetch_add(1, Ordering::Relaxed))
    }

    /// The page indexes, for this moment.
    pub fn page_indexes(&self) -> MutexGuard<'_, PageIndexes> {
        lock(&self.page_indexes)
    }

    /// Serves `space` from now on.
    pub fn admit(&self, space: Arc<AddressSpace>) {
        self.push(space);
        self.faults.signal();
        self.survey.signal();
    }

    /// As [`PagerState::admit`], and wakes no thread: the fault thread gets to know it by its first message.
    pub fn admit_quietly(&self, space: &Arc<AddressSpace>) {
        space.is_listened_to.store(true, Ordering::SeqCst);
        self.push(Arc::clone(space));
        // It is known by now to the thread that looks for whose message it is.
        if self.served.add(space.memory.event(), space.id.0.into(), Interest::Readable).is_err() {
            // The fault thread tries again, and says what is wrong.
            space.is_listened_to.store(false, Ordering::SeqCst);
            self.faults.signal();
        }
    }

    fn push(&self, space: Arc<AddressSpace>) {
        let mut spaces = lock(&self.spaces);
        self.counters.programs.add(u64::from(!space.is_object));
        spaces.push(space);
        self.counters.programs_now.set(programs_in(&spaces));
    }

    /// `space` is gone; its slots come back. Its evictor's seat goes with it.
    pub fn dismiss(&self, space: &AddressSpace) {
        space.is_gone.store(true, Ordering::SeqCst);
        *lock(&space.evictor) = None;
        lock(&self.huge_blocks).keep(space.id, |_| false);
        let mut spaces = lock(&self.spaces);
        spaces.retain(|other| other.id != space.id);
        self.counters.programs_now.set(programs_in(&spaces));
        drop(spaces);
        let mut state = space.lock();
        // A child that it made last lives on.
        self.take_over_changes(space, &mut state);
        self.objects.gone(space.id);
        state.page_table.end(&mut self.page_indexes());
        drop(state);
        self.faults.signal();
    }

    /// Something is to be put off in the calling fault thread until pages have left; it looks once more afterwards.
    pub fn put_off_for_room(&self) {
        self.waits_for_room.store(true, Ordering::SeqCst);
    }

    /// Pages have left: wakes the fault threads if one of them has put something off for that.
    pub fn made_room(&self) {
        if self.waits_for_room.swap(false, Ordering::SeqCst) {
            self.call_fault_threads();
        }
    }

    /// Wakes all fault threads: any of them may have put a fault off.
    pub fn call_fault_threads(&self) {
        self.faults.signal();
        self.fault_pool.bells().iter().for_each(Bell::signal);
    }

    /// Wakes the eviction thread if pages are to leave.
    pub fn call_eviction(&self) {
        if self.budget.is_exceeded() {
            self.eviction.signal();
        }
    }

    /// Brings the table of `space` up to date with what was told of its mappings. False: it is changing them, and
    /// what was told may not be all.
    pub fn apply_events(&self, space: &AddressSpace, state: &mut SpaceState) -> bool {
        if state.mapping_events.is_empty() {
            return true;
        }
        if space.memory.is_changing() {
            return false;
        }
        self.take_over_changes(space, state)
    }

    fn take_over_changes(&self, space: &AddressSpace, state: &mut SpaceState) -> bool {
        let SpaceState { page_table, mapping_events, .. } = state;
        // Of memory that is gone nothing matters but its children.
        let page = PAGE_SIZE_BYTES as u64;
        let covers = |range| match space.memory.covers(&range) {
            Err(PageError::TryAgain) if !space.is_gone() => None,
            answer => Some(matches!(answer, Ok(true))),
        };
        let is_mapped = |to: u64, address: u64| {
            Some(match (covers(address..address + page)?, covers(to.saturating_sub(page)..to + page)?) {
                (false, _) => Evidence::Hole,
                (true, false) => Evidence::Mapped,
                (true, true) => Evidence::None,
            })
        };
        let Some(changes) = mapping_events.apply_events(|range| page_table.known_mapped(range), is_mapped) else {
            return false;
        };
        for change in changes {
            let page_indexes = &mut self.page_indexes();
            match change {
                Change::Remove(range) => page_table.remove(&range, page_indexes),
                Change::Unmap(range) => {
                    page_table.unmap(&range, page_indexes);
                    self.objects.unmapped(space, &range);
                }
                Change::Remap { from, to, length } => {
                    page_table.remap(from, to, length, page_indexes);
                    self.objects.moved(space, from, to, length);
                }
                Change::Fork(memory, wiped) => {
                    let child = page_table.fork(self.next_space(), &wiped, page_indexes);
                    let child = Arc::new(AddressSpace::new(child, memory, Some(space.id)));
                    self.objects.forked(space.id, &child);
                    self.admit(child);
                }
            }
        }
        true
    }

    /// Every address space that is served now.
    pub fn spaces(&self) -> Vec<Arc<AddressSpace>> {
        lock(&self.spaces).clone()
    }

    /// The address space with number `id`, if it is still served.
    pub fn space(&self, id: SpaceId) -> Option<Arc<AddressSpace>> {
        lock(&self.spaces).iter().find(|space| space.id == id).cloned()
    }

    /// The fault thread shall bring `pages` back.
    pub fn want(&self, pages: impl IntoIterator<Item = Wanted>) {
        let mut wanted = lock(&self.wanted);
        wanted.extend(pages);
        let is_empty = wanted.is_empty();
        drop(wanted);
        if !is_empty {
            self.faults.signal();
        }
    }

    /// What was wanted so far.
    pub fn take_wanted(&self) -> Vec<Wanted> {
        std::mem::take(&mut *lock(&self.wanted))
    }

    /// Says `text`, and remembers it for the statistics; what is remembered is not said again. Programs can cause as
    /// many texts as they like, so of those that there is no place for some are said now and then.
    pub fn fail(&self, text: String) {
        let mut failures = lock(&self.failures);
        if failures.contains(&text) {
            return;
        }
        if failures.len() < FAILURES_MAX {
            tracing::error!("{text}");
            failures.push_back(text);
            return;
        }
        drop(failures);
        self.complain(&text);
    }

    /// Tells of a look at the programs that does not end.
    pub fn tell_of_look(&self, now: Instant) {
        let numbers = self.spaces().into_iter().map(|space| space.process.load(Ordering::Relaxed));
        if let Some(told) = held_up::told(&self.look_clock, numbers, now) {
            self.fail(told);
        }
    }

    /// Says now and then what processes cause that are maybe not of this run. Strangers can do that as often as they
    /// like, so their processes are not named.
    pub fn complain(&self, text: &str) {
        if let Some(line) = lock(&self.complaints).take(text, Instant::now()) {
            tracing::error!("{line}");
        }
    }

    /// Everything that was counted so far.
    pub fn report(&self) -> PagerStatistics {
        self.counters.report(self.budget.bytes(), &lock(&self.excess), &lock(&self.staying), self.failures())
    }

    /// What went wrong so far.
    pub fn failures(&self) -> Vec<String> {
        lock(&self.failures).iter().cloned().collect()
    }

    /// Kills every program whose process is known: their pages are not served any more.
    pub fn kill_programs(&self) {
        self.spaces().iter().for_each(|space| space.kill());
    }

    /// Whether all threads are to end.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}

fn programs_in(spaces: &[Arc<AddressSpace>]) -> u64 {
    spaces.iter().filter(|space| !space.is_object).count() as u64
}
