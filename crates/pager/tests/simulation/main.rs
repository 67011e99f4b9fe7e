//! Tests of the real fault and eviction decisions against simulated programs: their memory is a map here, their
//! evictor takes pages out of it page by page, and the volume is memory of this process.
//!
//! - `engine`: the volume, `neighbours`: and that pages go there and come back together; `forks`: forks that the
//!   kernel does not tell of; `delays`: what waits, and for how long no thread asks again; `apart`: on which CPUs.
//!
//! The kernel's rules that matter are kept: nothing is filled or moved while an event waits to be read. An event's
//! own work is done before it is told (unmap, remap, fork) or after it was read (remove), pages that are not
//! registered are not moved, and nothing is filled where nothing is mapped.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod apart;
mod delays;
mod engine;
mod forks;
mod neighbours;
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::sched_getcpu;
use spillway_block::request::BlockRequest;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_pager::address_space::{AddressSpace, Wanted};
use spillway_pager::budget::Budget;
use spillway_pager::evict::Eviction;
use spillway_pager::fault::Faults;
use spillway_pager::fault::messages::Messages;
use spillway_pager::fault::pool::FaultPool;
use spillway_pager::limits;
use spillway_pager::page_table::page_indexes::CachePages;
use spillway_pager::page_table::ranges::Ranges;
use spillway_pager::page_table::virtual_page::VirtualPage;
use spillway_pager::page_table::volume_pages::VolumePages;
use spillway_pager::page_table::{PageIndexes, PageTable};
use spillway_pager::pager_state::PagerState;
use spillway_pager::process::memory::{Event, EvictOutcome, EvictRequest, Evictor, ProgramMemory};
use spillway_pager::threads::lock::lock;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_policy::replacement::clock::Clock;
use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::{Fault, PageError};

use self::engine::SimulatedEngine;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;
const PAGES: u64 = 320;
const BASE: u64 = 0x7000_0000;
const POOL_SLOTS: usize = 4;
const VOLUME_PAGES: u32 = 4096;

/// Content (0: zeroes) and write protection of a resident page.
type Page = (u64, bool);

#[derive(Default)]
struct Memory {
    resident: BTreeMap<u64, Page>,
    /// What was unmapped and not used since.
    holes: Ranges,
    events: VecDeque<Event>,
    /// What a read event of removal will take away.
    going: VecDeque<std::ops::Range<u64>>,
    poisoned: Vec<u64>,
    pool: Option<Arc<BufferPool>>,
    /// Where one mapping ends and the next begins.
    boundaries: Vec<u64>,
    /// Pages that the kernel does not let go.
    pinned: Vec<u64>,
    /// A change that happened and that its thread could not tell of yet.
    late: Option<Event>,
    /// Refuses to fill the next so many times, as if mappings were changing.
    agains: u32,
    /// How often it has refused to do something because mappings were changing.
    refusals: u64,
    /// And how often each page was one that was to be filled.
    refused_fills: BTreeMap<u64, u64>,
    /// What the evictor has to do, the oldest batch first.
    batches: VecDeque<Vec<(EvictRequest, EvictOutcome)>>,
    /// How many it had at most.
    batches_max: usize,
    /// Steps of the oldest batch that were done.
    steps: usize,
    /// The evictor ended in the middle of a batch.
    is_broken: bool,
    /// The evictor had the CPU of the thread that asks.
    shares_cpu: bool,
}

/// A program's memory, shared between the pager's side and the test's.
#[derive(Clone)]
struct Simulated(Arc<(Mutex<Memory>, EventFd)>);

impl Simulated {
    fn new(pool: &Arc<BufferPool>) -> Self {
        let memory = Memory { pool: Some(Arc::clone(pool)), ..Memory::default() };
        Self(Arc::new((Mutex::new(memory), EventFd::new().unwrap())))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        lock(&self.0.0)
    }

    fn changing(&self) -> Result<(), PageError> {
        let mut memory = self.lock();
        let is_early = memory.agains > 0;
        memory.agains -= u32::from(is_early);
        let waits =
            is_early || memory.late.is_some() || memory.events.iter().any(|event| !matches!(event, Event::Fault(_)));
        memory.refusals += u64::from(waits);
        if waits { Err(PageError::TryAgain) } else { Ok(()) }
    }

    /// Rule 8.
    fn within_one_mapping(&self, range: Range<u64>) -> Result<(), PageError> {
        let is_inside = |boundary: &u64| range.start < *boundary && *boundary < range.end;
        if self.lock().boundaries.iter().any(is_inside) { Err(PageError::NotMapped) } else { Ok(()) }
    }

    fn fill(&self, address: u64, content: u64, protect: bool) -> Result<u64, PageError> {
        if let Err(error) = self.changing() {
            *self.lock().refused_fills.entry(address).or_default() += 1;
            return Err(error);
        }
        let mut memory = self.lock();
        if memory.holes.contain(&(address..address + PAGE)) {
            return Err(PageError::NotMapped);
        }
        if memory.resident.contains_key(&address) {
            return Err(PageError::Exists);
        }
        memory.resident.insert(address, (content, protect));
        Ok(PAGE)
    }

    /// One more page of the batch.
    fn step(&self) {
        let waits = self.changing().is_err();
        let mut memory = self.lock();
        let next = memory.batches.front().and_then(|batch| batch.get(memory.steps)).copied();
        let Some((request, _)) = next else { return };
        let address = request.page.address();
        let outcome = match memory.resident.get(&address).copied() {
            _ if waits => EvictOutcome::Changing,
            None => EvictOutcome::Absent,
            Some(_) if memory.pinned.contains(&address) => EvictOutcome::Refused,
            Some((content, _)) => {
                memory.resident.remove(&address);
                if let (Some(target), Some(pool)) = (request.target, &memory.pool) {
                    pool.memory().write(target.0 as usize * PAGE_SIZE_BYTES, &content.to_ne_bytes());
                }
                EvictOutcome::Moved
            }
        };
        let step = memory.steps;
        memory.batches[0][step].1 = outcome;
        memory.steps += 1;
    }
}

impl ProgramMemory for Simulated {
    fn copy(
        &self,
        first: VirtualPage,
        source: &Mapping,
        offset: usize,
        length: usize,
        protect: bool,
    ) -> Result<u64, PageError> {
        let first = first.address();
        self.within_one_mapping(first..first + length as u64)?;
        let mut done = 0;
        while done < length as u64 {
            let mut content = [0; 8];
            source.read(offset + done as usize, &mut content);
            match self.fill(first + done, u64::from_ne_bytes(content), protect) {
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
                Ok(bytes) => done += bytes,
            }
        }
        Ok(done)
    }

    fn zero(&self, range: Range<u64>) -> Result<u64, PageError> {
        self.within_one_mapping(range.clone())?;
        let mut done = 0;
        for address in range.step_by(PAGE_SIZE_BYTES) {
            match self.fill(address, 0, false) {
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
                Ok(bytes) => done += bytes,
            }
        }
        Ok(done)
    }

    fn unprotect(&self, range: Range<u64>) -> Result<(), PageError> {
        self.changing()?;
        if let Some(page) = self.lock().resident.get_mut(&range.start) {
            page.1 = false;
        }
        Ok(())
    }

    fn wake(&self, _range: Range<u64>) {}

    fn poison(&self, range: Range<u64>) -> Result<u64, PageError> {
        self.lock().poisoned.push(range.start);
        Ok(PAGE)
    }

    fn register(&self, _range: Range<u64>) -> Result<(), PageError> {
        Ok(())
    }

    fn unregister(&self, _: Range<u64>) -> Result<(), PageError> {
        unreachable!("no program here has a userfaultfd of its own")
    }

    fn mark(&self, _: Range<u64>, _: bool) -> Result<(), PageError> {
        unreachable!("the survey does that, which is not simulated")
    }

    fn covers(&self, range: &Range<u64>) -> Result<bool, PageError> {
        self.changing()?;
        Ok(self.within_one_mapping(range.clone()).is_ok() && !self.lock().holes.contain(range))
    }

    fn is_changing(&self) -> bool {
        self.changing().is_err()
    }

    fn read_event(&self) -> std::io::Result<Option<Event>> {
        let mut memory = self.lock();
        // The kernel tells of faults first.
        let fault = memory.events.iter().position(|event| matches!(event, Event::Fault(_)));
        Ok(memory.events.remove(fault.unwrap_or(0)))
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.0.1.as_fd()
    }
}

impl Evictor for Simulated {
    fn begin(&mut self, requests: &[EvictRequest]) -> bool {
        let mut memory = self.lock();
        assert!(requests.len() <= limits::BATCH_PAGES && !requests.is_empty());
        let has_room = memory.batches.len() < limits::EVICTOR_BATCHES_MAX;
        if has_room {
            memory.batches.push_back(requests.iter().map(|request| (*request, EvictOutcome::Changing)).collect());
            memory.batches_max = memory.batches_max.max(memory.batches.len());
        }
        has_room
    }

    fn own(&mut self, pages: &[VirtualPage]) -> bool {
        let mut memory = self.lock();
        if !memory.batches.is_empty() {
            return false;
        }
        memory.pinned.retain(|address| !pages.contains(&VirtualPage::at(*address)));
        true
    }

    /// Programs here have no threads that could end.
    fn end(&mut self, _: u8) {}

    fn is_broken(&self) -> bool {
        self.lock().is_broken
    }

    fn cpu(&self) -> Option<usize> {
        self.lock().shares_cpu.then(sched_getcpu)
    }

    fn poll(&mut self, outcomes: &mut [EvictOutcome]) -> bool {
        let mut memory = self.lock();
        if memory.batches.front().is_some_and(|batch| memory.steps < batch.len()) {
            return false;
        }
        let batch = memory.batches.pop_front().unwrap_or_default();
        for (outcome, (_, result)) in outcomes.iter_mut().zip(batch) {
            *outcome = result;
        }
        memory.steps = 0;
        true
    }
}

/// Knuth's generator (MMIX); any would do.
fn roll(dice: &mut u64) -> u64 {
    *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *dice
}

/// A program as the test plays it.
struct Program {
    memory: Simulated,
    space: Arc<AddressSpace>,
    truth: BTreeMap<u64, u64>,
}

struct World {
    shared: Arc<PagerState>,
    messages: Messages,
    /// One for each fault thread.
    faults: Vec<Faults>,
    /// Decides which thread has a CPU.
    dice: u64,
    /// Programs are asked before it is known that they have something to tell, by chance.
    guesses: bool,
    eviction: Eviction,
    pool: Arc<BufferPool>,
    programs: Vec<Program>,
    volume: Arc<Mapping>,
    /// See [`SimulatedEngine`]; none at first.
    mapped_quarters: Arc<AtomicU64>,
    /// Requests of fault threads.
    submitted: Arc<Mutex<Vec<BlockRequest>>>,
    /// And of the eviction thread.
    written: Arc<Mutex<Vec<BlockRequest>>>,
    /// No read is answered.
    is_stalled: Arc<AtomicBool>,
    clock: u64,
    /// The pager's time: a moment more with each of its turns.
    now: Instant,
}

fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

fn virtual_page(page: u64) -> VirtualPage {
    VirtualPage::at(address(page))
}

impl World {
    fn new(budget_pages: u64) -> Self {
        Self::with_fault_threads(budget_pages, 1)
    }

    fn with_fault_threads(budget_pages: u64, threads: usize) -> Self {
        let pool = BufferPool::new(POOL_SLOTS + 1, limits::GROUP_SIZE_BYTES as usize).unwrap();
        let page_indexes =
            PageIndexes { volume_pages: VolumePages::new(VOLUME_PAGES), cache_pages: CachePages::default() };
        let budget = Budget::new(budget_pages * PAGE, POOL_SLOTS as u64 * limits::GROUP_SIZE_BYTES);
        let fault_pool = FaultPool::new(threads, PrefetchPolicy::default()).unwrap();
        let shared = Arc::new(PagerState::new(page_indexes, budget, fault_pool).unwrap());
        let volume = Arc::new(Mapping::anonymous(VOLUME_PAGES as usize * PAGE_SIZE_BYTES).unwrap());
        let mapped_quarters = Arc::new(AtomicU64::new(0));
        let (submitted, written) = (Arc::default(), Arc::default());
        let engine = SimulatedEngine::new(&volume, &pool, &mapped_quarters, &written, &Arc::default());
        let now = Instant::now();
        let eviction = Eviction::new(
            Arc::clone(&shared),
            Box::new(Clock::new(0, budget_pages as u32)),
            Box::new(engine),
            POOL_SLOTS,
            now,
        );
        let wiped = Box::new(|_: &AddressSpace| Ranges::default());
        let messages = Messages::new(Arc::clone(&shared), wiped, now);
        let mut world = Self {
            shared,
            messages,
            faults: Vec::new(),
            dice: 1,
            guesses: false,
            eviction,
            pool,
            programs: Vec::new(),
            volume,
            mapped_quarters,
            submitted,
            written,
            is_stalled: Arc::default(),
            clock: 0,
            now,
        };
        world.faults = (0..threads).map(|_| world.fault_thread(&world.volume, 4)).collect();
        let mut page_table = PageTable::new(world.shared.next_space());
        page_table.registered.insert(address(0)..address(PAGES));
        page_table.surveyed.insert(address(0)..address(PAGES));
        let memory = Simulated::new(&world.pool);
        world.admit(page_table, memory, BTreeMap::new());
        world
    }

    fn admit(&mut self, page_table: PageTable, memory: Simulated, truth: BTreeMap<u64, u64>) {
        let space = Arc::new(AddressSpace::new(page_table, Box::new(memory.clone()), None));
        *lock(&space.evictor) = Some(Box::new(memory.clone()));
        self.shared.admit(Arc::clone(&space));
        self.programs.push(Program { memory, space, truth });
    }

    /// What the kernel counts.
    fn count(&self) -> i64 {
        self.programs.iter().map(|program| program.memory.lock().resident.len() as i64).sum()
    }

    /// The pager's threads run for a moment; evictors too.
    fn run(&mut self) {
        for program in 0..self.programs.len() {
            let space = Arc::clone(&self.programs[program].space);
            // The program that had something to tell is asked first, whether there is something or not.
            let guesses = self.guesses && self.dice >> 63 == 0;
            if !(guesses && self.messages.guess(&space, &mut self.faults[0], self.now)) {
                self.serve(&space);
            }
            // What was announced goes, now that it was read.
            let mut memory = self.programs[program].memory.lock();
            if !memory.events.iter().any(|event| matches!(event, Event::Remove(_))) {
                for range in std::mem::take(&mut memory.going) {
                    memory.resident.retain(|address, _| !range.contains(address));
                }
            }
            drop(memory);
            self.programs[program].memory.step();
        }
        self.turn();
    }

    fn turn(&mut self) {
        self.now += Duration::from_micros(100);
        for index in 0..self.faults.len() {
            self.poll(index);
        }
        self.eviction.turn(self.now);
    }

    /// The first fault thread reads what a program has to tell.
    fn serve(&mut self, space: &Arc<AddressSpace>) -> bool {
        self.messages.serve(space, &mut self.faults[0], self.now)
    }

    fn fetch_wanted(&mut self) {
        self.messages.fetch_wanted(&mut self.faults[0]);
    }

    /// A fault thread gets on, if it has a CPU: the first always, the others by chance.
    fn poll(&mut self, index: usize) {
        if roll(&mut self.dice) >> 62 == 0 && index > 0 {
            return;
        }
        let faults = &mut self.faults[index];
        faults.answer_shared();
        if index == 0 {
            self.messages.apply_events(self.now);
        }
        faults.poll(self.now);
    }

    fn has_put_off(&self) -> bool {
        self.messages.are_unsettled() || self.faults.iter().any(Faults::has_put_off)
    }

    fn apply_events(&mut self) {
        for _ in 0..10_000 {
            self.run();
            let is_working = self.programs.iter().any(|program| {
                let memory = program.memory.lock();
                !memory.batches.is_empty() || !memory.events.is_empty() || !memory.going.is_empty()
            });
            if !is_working && !self.has_put_off() {
                return;
            }
        }
        panic!("the pager never comes to rest");
    }

    /// The program reads or writes a page.
    fn touch(&mut self, program: usize, page: u64, is_write: bool) {
        let at = address(page);
        self.programs[program].memory.lock().holes.remove(&(at..at + PAGE));
        for _ in 0..10_000 {
            let seen = self.programs[program].memory.lock().resident.get(&at).copied();
            if let Some((content, is_protected)) = seen.filter(|(_, is_protected)| !(is_write && *is_protected)) {
                let one = &mut self.programs[program];
                assert_eq!(content, one.truth.get(&at).copied().unwrap_or(0), "program {program}, page {page}");
                if is_write {
                    self.clock += 1;
                    one.memory.lock().resident.insert(at, (self.clock, is_protected));
                    one.truth.insert(at, self.clock);
                }
                return;
            }
            let fault = Fault { address: at, is_write, is_write_protected: seen.is_some(), thread: 1 };
            {
                let mut memory = self.programs[program].memory.lock();
                let is_queued =
                    memory.events.iter().any(|event| matches!(event, Event::Fault(other) if *other == fault));
                if !is_queued && !self.has_put_off() {
                    memory.events.push_back(Event::Fault(fault));
                }
            }
            self.run();
        }
        panic!("program {program} waits for page {page} forever");
    }

    /// Many threads of the program miss pages at once, twice one right after the other, and go on.
    fn crowd(&mut self, program: usize, page: u64, pages: u64, is_write: bool) {
        let space = Arc::clone(&self.programs[program].space);
        for part in [page..page + pages / 2, page + pages / 2..page + pages] {
            let mut memory = self.programs[program].memory.lock();
            let (page_table, missing) = (part.clone(), |page: &u64| !memory.resident.contains_key(&address(*page)));
            let missing: Vec<u64> = page_table.filter(missing).collect();
            memory.events.extend(missing.into_iter().map(|page| {
                let thread = 100 + page as u32;
                Event::Fault(Fault { address: address(page), is_write, is_write_protected: false, thread })
            }));
            drop(memory);
            self.serve(&space);
        }
        (page..page + pages).for_each(|page| self.touch(program, page, is_write));
    }

    fn fault_thread(&self, volume: &Arc<Mapping>, buffers: usize) -> Faults {
        let buffers = BufferPool::new(buffers, limits::GROUP_SIZE_BYTES as usize).unwrap();
        let engine = SimulatedEngine::new(volume, &buffers, &self.mapped_quarters, &self.submitted, &self.is_stalled);
        Faults::new(Arc::clone(&self.shared), Box::new(engine), buffers, Arc::clone(&self.pool)).unwrap()
    }

    /// The engine and buffers of another volume, for the first fault thread.
    fn read_from(&mut self, volume: &Arc<Mapping>, buffers: usize) {
        self.faults[0] = self.fault_thread(volume, buffers);
    }

    /// Of four reads so many find their pages mapped from now on.
    fn map_quarters(&self, quarters: u64) {
        self.mapped_quarters.store(quarters, Ordering::Relaxed);
    }

    fn remove(&mut self, program: usize, page: u64, pages: u64) {
        let range = address(page)..address(page + pages);
        let one = &mut self.programs[program];
        one.truth.retain(|address, _| !range.contains(address));
        let mut memory = one.memory.lock();
        memory.events.push_back(Event::Remove(range.clone()));
        memory.going.push_back(range);
        drop(memory);
        self.await_events(program);
    }

    fn unmap(&mut self, program: usize, page: u64, pages: u64) {
        let range = address(page)..address(page + pages);
        let one = &mut self.programs[program];
        one.truth.retain(|address, _| !range.contains(address));
        let mut memory = one.memory.lock();
        memory.resident.retain(|address, _| !range.contains(address));
        memory.holes.insert(range.clone());
        memory.events.push_back(Event::Unmap(range));
        drop(memory);
        self.await_events(program);
    }

    fn remap(&mut self, program: usize, from: u64, to: u64, pages: u64) {
        if from.abs_diff(to) < pages || from.max(to) + pages > PAGES {
            return;
        }
        self.unmap(program, to, pages);
        self.shift(program, from, to, pages);
        self.await_events(program);
    }

    /// Another thread gets the addresses that one gives up, before that one has told of it.
    fn reuse(&mut self, program: usize, from: u64, to: u64, pages: u64) {
        if from.abs_diff(to) < pages || from.max(to) + pages > PAGES {
            return;
        }
        let range = address(to)..address(to + pages);
        let space = Arc::clone(&self.programs[program].space);
        let mut state = space.lock();
        if !self.shared.apply_events(&space, &mut state) {
            // Nor does the survey register anything while changes are not applied.
            return;
        }
        // The kernel tells only of what is registered, and the survey had done that.
        state.page_table.surveyed.insert(range.clone());
        drop(state);
        let one = &mut self.programs[program];
        one.truth.retain(|address, _| !range.contains(address));
        let mut memory = one.memory.lock();
        memory.resident.retain(|address, _| !range.contains(address));
        memory.late = Some(Event::Unmap(range));
        drop(memory);
        self.shift(program, from, to, pages);
        (0..7).for_each(|_| self.run());
        let mut memory = self.programs[program].memory.lock();
        let late = memory.late.take();
        memory.events.extend(late);
        drop(memory);
        self.await_events(program);
    }

    /// The pages move to where nothing is mapped.
    fn shift(&mut self, program: usize, from: u64, to: u64, pages: u64) {
        let shift = |address: u64| address - address_of(from) + address_of(to);
        let one = &mut self.programs[program];
        let range = address(from)..address(from + pages);
        let mut memory = one.memory.lock();
        let moved: Vec<_> = memory.resident.extract_if(range.clone(), |_, _| true).collect();
        memory.resident.extend(moved.into_iter().map(|(address, page)| (shift(address), page)));
        let moved: Vec<_> = one.truth.extract_if(range.clone(), |_, _| true).collect();
        one.truth.extend(moved.into_iter().map(|(address, content)| (shift(address), content)));
        memory.holes.remove(&(address(to)..address(to + pages)));
        memory.holes.insert(range.clone());
        memory.events.push_back(Event::Remap { from: address(from), to: address(to), length: pages * PAGE });
        memory.events.push_back(Event::Unmap(range));
    }

    fn fork(&mut self, program: usize) {
        if self.programs.len() > 2 {
            return;
        }
        let child = Simulated::new(&self.pool);
        let one = &self.programs[program];
        child.lock().resident = one.memory.lock().resident.clone();
        let truth = one.truth.clone();
        one.memory.lock().events.push_back(Event::Fork(Box::new(child.clone())));
        let before = self.shared.spaces().len();
        self.await_events(program);
        self.apply_events();
        let spaces = self.shared.spaces();
        assert_eq!(spaces.len(), before + 1);
        let space = Arc::clone(spaces.last().unwrap());
        *lock(&space.evictor) = Some(Box::new(child.clone()));
        {
            let mut state = space.lock();
            let resident: Vec<_> = child.lock().resident.keys().copied().map(VirtualPage::at).collect();
            resident.iter().for_each(|page| state.page_table.found(*page, &mut self.shared.page_indexes()));
            state.page_table.scanned();
        }
        self.shared.budget.set_resident(self.count());
        self.programs.push(Program { memory: child, space, truth });
    }

    /// A thread that changes mappings waits until that was read.
    fn await_events(&mut self, program: usize) {
        for _ in 0..10_000 {
            if self.programs[program].memory.lock().events.is_empty() {
                self.shared.budget.set_resident(self.count());
                return;
            }
            self.run();
        }
        panic!("an event is never read");
    }

    fn check_everything(&mut self) {
        for program in 0..self.programs.len() {
            for page in 0..PAGES {
                self.touch(program, page, false);
            }
        }
    }

    /// The programs end; every slot must come back.
    fn end(mut self) {
        self.check_everything();
        assert_eq!(self.shared.failures(), Vec::<String>::new());
        for program in &self.programs {
            program.memory.lock().pinned.clear();
        }
        self.apply_events();
        for program in std::mem::take(&mut self.programs) {
            self.shared.dismiss(&program.space);
        }
        // A discard has the slots that it is about for a turn, the last one too.
        let is_in_use = |world: &Self| world.shared.page_indexes().volume_pages.in_use() > 0;
        for turn in 0..200 {
            if turn >= 100 && !is_in_use(&self) {
                break;
            }
            self.turn();
        }
        let page_indexes = self.shared.page_indexes();
        assert_eq!((page_indexes.volume_pages.in_use(), page_indexes.cache_pages.groups_open()), (0, 0));
    }
}

fn address_of(page: u64) -> u64 {
    address(page)
}
