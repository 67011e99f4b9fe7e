//! Tests of the real fault and eviction decisions against simulated programs: their memory is a map here, their agent takes
//! pages out of it page by page, and the volume is memory of this process.
//!
//! The kernel's rules that matter are kept: nothing is filled or moved while an event waits to be read, an event's own work is
//! done before it is told (unmap, remap, fork) or after it was read (remove), pages that are not registered are not moved.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::event::EventFd;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::{Fault, PageError};

use crate::local_memory::LocalMemory;
use crate::metrics::Metrics;
use crate::page_cache::fifo::Fifo;
use crate::pager::directory::Directory;
use crate::pager::eviction::Eviction;
use crate::pager::faults::Faults;
use crate::pager::limits;
use crate::pager::program::{Agent, Errand, Event, Fate, ProgramMemory};
use crate::pager::shared::{Budget, Shared, Tenant, lock};
use crate::pager::slots::Slots;
use crate::pager::space::ranges::Ranges;
use crate::pager::space::{Books, Space};

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
    /// Pages that the kernel does not let go.
    pinned: Vec<u64>,
    /// A change that happened and that its thread could not tell of yet.
    late: Option<Event>,
    /// Refuses to fill the next so many times, as if mappings were changing.
    agains: u32,
    batch: Vec<(Errand, Fate)>,
    /// Steps of the batch that were not done yet.
    steps: usize,
    /// The agent ended in the middle of a batch.
    is_broken: bool,
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
        if memory.agains > 0 {
            memory.agains -= 1;
            return Err(PageError::TryAgain);
        }
        let waits = memory.late.is_some() || memory.events.iter().any(|event| !matches!(event, Event::Fault(_)));
        if waits { Err(PageError::TryAgain) } else { Ok(()) }
    }

    fn fill(&self, address: u64, content: u64, protect: bool) -> Result<u64, PageError> {
        self.changing()?;
        let mut memory = self.lock();
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
        let Some((errand, _)) = memory.batch.get(memory.steps).copied() else { return };
        let fate = match memory.resident.get(&errand.address).copied() {
            _ if waits => Fate::Changing,
            None => Fate::Absent,
            Some(_) if memory.pinned.contains(&errand.address) => Fate::Refused,
            Some((content, _)) => {
                memory.resident.remove(&errand.address);
                if let (Some(target), Some(pool)) = (errand.target, &memory.pool) {
                    pool.memory().write(target.0 as usize * PAGE_SIZE_BYTES, &content.to_ne_bytes());
                }
                Fate::Moved
            }
        };
        let step = memory.steps;
        memory.batch[step].1 = fate;
        memory.steps += 1;
    }
}

impl ProgramMemory for Simulated {
    fn copy(
        &self,
        target: u64,
        source: &Mapping,
        offset: usize,
        length: usize,
        protect: bool,
    ) -> Result<u64, PageError> {
        let mut done = 0;
        while done < length as u64 {
            let mut content = [0; 8];
            source.read(offset + done as usize, &mut content);
            match self.fill(target + done, u64::from_ne_bytes(content), protect) {
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
                Ok(bytes) => done += bytes,
            }
        }
        Ok(done)
    }

    fn zero(&self, range: Range<u64>) -> Result<u64, PageError> {
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

    fn covers(&self, range: &Range<u64>) -> Result<bool, PageError> {
        self.changing()?;
        Ok(!self.lock().holes.contain(range))
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

impl Agent for Simulated {
    fn begin(&mut self, errands: &[Errand]) -> bool {
        let mut memory = self.lock();
        assert!(errands.len() <= limits::BATCH_PAGES);
        memory.batch = errands.iter().map(|errand| (*errand, Fate::Changing)).collect();
        memory.steps = 0;
        true
    }

    fn own(&mut self, addresses: &[u64]) -> bool {
        let mut memory = self.lock();
        memory.pinned.retain(|address| !addresses.contains(address));
        true
    }

    fn is_broken(&self) -> bool {
        self.lock().is_broken
    }

    fn poll(&mut self, fates: &mut [Fate]) -> bool {
        let mut memory = self.lock();
        if memory.steps < memory.batch.len() {
            return false;
        }
        for (fate, (_, result)) in fates.iter_mut().zip(&memory.batch) {
            *fate = *result;
        }
        memory.batch.clear();
        memory.steps = 0;
        true
    }
}

/// A program as the test plays it.
struct Program {
    memory: Simulated,
    tenant: Arc<Tenant>,
    truth: BTreeMap<u64, u64>,
}

struct World {
    shared: Arc<Shared>,
    faults: Faults,
    eviction: Eviction,
    pool: Arc<BufferPool>,
    programs: Vec<Program>,
    volume: Arc<Mapping>,
    clock: u64,
    /// The pager's time: a moment more with each of its turns.
    now: Instant,
}

fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

impl World {
    fn new(budget_pages: u64) -> Self {
        let pool = BufferPool::new(POOL_SLOTS + 1, limits::GROUP_SIZE_BYTES as usize).unwrap();
        let buffers = BufferPool::new(4, limits::GROUP_SIZE_BYTES as usize).unwrap();
        let books = Books { slots: Slots::new(VOLUME_PAGES), directory: Directory::default() };
        let shared = Arc::new(Shared::new(books, Budget::new(budget_pages * PAGE, 0)).unwrap());
        let volume = Arc::new(Mapping::anonymous(VOLUME_PAGES as usize * PAGE_SIZE_BYTES).unwrap());
        let engine = |pool: &Arc<BufferPool>| {
            Box::new(LocalMemory::new(Arc::clone(&volume), Arc::new(Metrics::default()), Arc::clone(pool)))
        };
        let now = Instant::now();
        let eviction = Eviction::new(
            Arc::clone(&shared),
            Box::new(Fifo::new(0, budget_pages as u32)),
            engine(&pool),
            POOL_SLOTS,
            now,
        );
        let wiped = Box::new(|_: &Tenant| Ranges::default());
        let faults = Faults::new(Arc::clone(&shared), engine(&buffers), buffers, Arc::clone(&pool), wiped).unwrap();
        let mut world = Self { shared, faults, eviction, pool, programs: Vec::new(), volume, clock: 0, now };
        let mut space = Space::new(world.shared.next_space());
        space.registered.insert(address(0)..address(PAGES));
        space.surveyed.insert(address(0)..address(PAGES));
        let memory = Simulated::new(&world.pool);
        world.admit(space, memory, BTreeMap::new());
        world
    }

    fn admit(&mut self, space: Space, memory: Simulated, truth: BTreeMap<u64, u64>) {
        let tenant = Arc::new(Tenant::new(space, Box::new(memory.clone()), None));
        *lock(&tenant.agent) = Some(Box::new(memory.clone()));
        self.shared.admit(Arc::clone(&tenant));
        self.programs.push(Program { memory, tenant, truth });
    }

    /// What the kernel counts.
    fn count(&self) -> i64 {
        self.programs.iter().map(|program| program.memory.lock().resident.len() as i64).sum()
    }

    /// The pager's threads run for a moment; agents too.
    fn run(&mut self) {
        for program in 0..self.programs.len() {
            let tenant = Arc::clone(&self.programs[program].tenant);
            self.faults.serve(&tenant);
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
        self.faults.poll(self.now);
        self.eviction.turn(self.now);
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.run();
            let is_working = self.programs.iter().any(|program| {
                let memory = program.memory.lock();
                !memory.batch.is_empty() || !memory.events.is_empty() || !memory.going.is_empty()
            });
            if !is_working && !self.faults.has_put_off() {
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
                if !is_queued && !self.faults.has_put_off() {
                    memory.events.push_back(Event::Fault(fault));
                }
            }
            self.run();
        }
        panic!("program {program} waits for page {page} forever");
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
        let one = &mut self.programs[program];
        one.truth.retain(|address, _| !range.contains(address));
        // The kernel tells only of what is registered, and the survey had done that.
        one.tenant.lock().space.surveyed.insert(range.clone());
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
        let before = self.shared.tenants().len();
        self.await_events(program);
        self.settle();
        let tenants = self.shared.tenants();
        assert_eq!(tenants.len(), before + 1);
        let tenant = Arc::clone(tenants.last().unwrap());
        *lock(&tenant.agent) = Some(Box::new(child.clone()));
        {
            let mut table = tenant.lock();
            let resident: Vec<u64> = child.lock().resident.keys().copied().collect();
            resident.iter().for_each(|address| table.space.found(*address, &mut self.shared.books()));
            table.space.scanned();
        }
        self.shared.budget.set_resident(self.count());
        self.programs.push(Program { memory: child, tenant, truth });
    }

    /// Whoever changes mappings waits until that was read.
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
        self.settle();
        for program in std::mem::take(&mut self.programs) {
            self.shared.dismiss(&program.tenant);
        }
        for _ in 0..100 {
            self.turn();
        }
        let books = self.shared.books();
        assert_eq!((books.slots.in_use(), books.directory.groups_open()), (0, 0));
    }
}

fn address_of(page: u64) -> u64 {
    address(page)
}

#[test]
fn a_program_four_times_its_budget_reads_what_it_wrote() {
    let mut world = World::new(96);
    for round in 0..3 {
        for page in 0..PAGES {
            world.touch(0, page, true);
            assert!(world.count() <= 96, "rule 15: round {round}, page {page}: {} pages", world.count());
        }
    }
    let report = world.shared.counters.report(0, Vec::new());
    assert!(report.pages_out_dirty > 2 * PAGES && report.fill.count > PAGES, "{report:?}");
    world.end();
}

#[test]
fn memory_that_is_touched_page_by_page_comes_by_stretches() {
    let mut world = World::new(256);
    (0..128).for_each(|page| world.touch(0, page, true));
    let report = world.shared.counters.report(0, Vec::new());
    assert!(report.zero.count <= 16, "each stretch is twice as long as the one before: {report:?}");
    (200..232).rev().for_each(|page| world.touch(0, page, true));
    assert_eq!(
        world.shared.counters.report(0, Vec::new()).zero.count,
        report.zero.count + 32,
        "and backwards one by one"
    );
    world.end();
}

#[test]
fn clean_pages_leave_without_a_write() {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    let before = world.shared.counters.report(0, Vec::new());
    (0..2).for_each(|_| (0..PAGES).for_each(|page| world.touch(0, page, false)));
    let after = world.shared.counters.report(0, Vec::new());
    assert_eq!(after.pages_out_dirty, before.pages_out_dirty);
    assert!(after.pages_out_clean >= before.pages_out_clean + PAGES, "{after:?}");
    world.end();
}

#[test]
fn a_page_that_left_a_moment_ago_comes_back_from_the_pool() {
    let mut world = World::new(128);
    (0..160).for_each(|page| world.touch(0, page, true));
    world.settle();
    let youngest_gone =
        (0..160).rev().find(|page| !world.programs[0].memory.lock().resident.contains_key(&address(*page)));
    world.touch(0, youngest_gone.unwrap(), false);
    let report = world.shared.counters.report(0, Vec::new());
    assert_eq!((report.staged.count, report.fill.count), (1, 0));
    world.end();
}

#[test]
fn nobody_waits_when_nothing_can_leave() {
    let mut world = World::new(96);
    world.programs[0].memory.lock().pinned = (0..PAGES).map(address).collect();
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    assert_eq!(world.count(), PAGES as i64, "the program goes on beyond its budget");
    let refused = world.shared.counters.report(0, Vec::new()).refused;
    assert!(refused < 200 * PAGES, "rule 2: {refused} refusals for {PAGES} pages");
    world.end();
}

#[test]
fn pages_that_a_fork_shared_leave_after_the_agent_made_them_the_programs_own() {
    // Rule 2.
    let mut world = World::new(96);
    world.programs[0].tenant.has_forked.store(true, std::sync::atomic::Ordering::Relaxed);
    (0..80).for_each(|page| world.touch(0, page, true));
    world.programs[0].memory.lock().pinned = (0..80).map(address).collect();
    (80..PAGES).for_each(|page| world.touch(0, page, true));
    world.settle();
    assert!(world.programs[0].memory.lock().pinned.len() < 40, "the agent was asked");
    world.end();
}

#[test]
fn a_program_whose_agent_ends_in_the_middle_of_a_batch_is_not_served_any_more() {
    let mut world = World::new(96);
    (0..95).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_resident(96);
    world.turn();
    assert!(world.programs[0].tenant.lock().batch);
    world.programs[0].memory.lock().is_broken = true;
    world.turn();
    assert!(world.programs[0].tenant.is_gone());
    assert!(world.shared.failures()[0].contains("killed"), "{:?}", world.shared.failures());
}

#[test]
fn kept_pages_never_leave() {
    // Rule 4.
    let mut world = World::new(96);
    let kept: Vec<u64> = [3, 17, 200].map(address).to_vec();
    *lock(&world.programs[0].tenant.kept_pages) = kept.clone();
    for page in 0..PAGES {
        world.touch(0, page, true);
        let memory = world.programs[0].memory.lock();
        assert!(kept.iter().all(|at| *at > address(page) || memory.resident.contains_key(at)), "page {page}");
    }
    world.end();
}

#[test]
fn nothing_is_read_from_a_program_while_its_batch_is_under_way() {
    // Rule 14.
    let mut world = World::new(96);
    (0..95).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_resident(96);
    world.turn();
    let tenant = Arc::clone(&world.programs[0].tenant);
    assert!(tenant.lock().batch);
    world.programs[0].memory.lock().events.push_back(Event::Unmap(address(0)..address(4)));
    assert!(!world.faults.serve(&tenant), "not before the batch has ended");
    assert_eq!(world.programs[0].memory.lock().events.len(), 1);
    assert!(tenant.lock().is_awaited);
    while tenant.lock().batch {
        world.programs[0].memory.step();
        world.turn();
    }
    assert!(world.shared.faults.clear(), "its end is signalled");
    assert!(world.faults.serve(&tenant));
    world.programs[0].memory.lock().resident.retain(|at, _| *at >= address(4));
    world.programs[0].truth.retain(|at, _| *at >= address(4));
    world.end();
}

#[test]
fn a_clean_page_that_the_kernel_took_back_comes_from_its_copy() {
    // MADV_FREE.
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    world.settle();
    let taken: Vec<u64> = {
        let mut memory = world.programs[0].memory.lock();
        let clean = memory.resident.iter().filter(|(_, (_, is_protected))| *is_protected).map(|(at, _)| *at);
        let taken: Vec<u64> = clean.take(8).collect();
        memory.resident.retain(|at, _| !taken.contains(at));
        taken
    };
    assert_eq!(taken.len(), 8);
    for at in taken {
        world.touch(0, (at - BASE) / PAGE, at % (2 * PAGE) == 0);
    }
    world.end();
}

#[test]
fn a_page_that_moved_away_from_a_batch_is_not_taken_for_gone() {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    (0..PAGES).for_each(|page| world.touch(0, page, false));
    world.settle();
    // A batch begins, and the program moves a clean page that it is to take out before the agent comes to it.
    world.shared.budget.set_resident(96);
    world.turn();
    let memory = world.programs[0].memory.clone();
    let clean =
        memory.lock().batch.iter().position(|(errand, _)| errand.target.is_none()).expect("a clean page leaves");
    (0..clean).for_each(|_| memory.step());
    let page = (memory.lock().batch[clean].0.address - BASE) / PAGE;
    let to = (page + PAGES / 2) % PAGES;
    let gone = address(to)..address(to + 1);
    world.programs[0].truth.remove(&gone.start);
    {
        let mut memory = memory.lock();
        memory.resident.remove(&gone.start);
        memory.batch[clean].1 = Fate::Absent;
        memory.steps += 1;
        memory.events.push_back(Event::Unmap(gone));
    }
    world.shift(0, page, to, 1);
    world.await_events(0);
    // It is there, and only protected.
    world.touch(0, to, true);
    world.end();
}

#[test]
fn pages_that_move_to_addresses_whose_end_is_told_late_are_kept() {
    // Rule 11.
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.reuse(0, 0, 200, 40);
    assert_eq!(world.shared.counters.doubts.get(), 1);
    world.reuse(0, 200, 20, 40);
    world.end();
}

#[test]
fn a_child_of_a_program_that_ends_before_it_goes_on_is_served() {
    let mut world = World::new(96);
    let child = Simulated::new(&world.pool);
    let memory = &world.programs[0].memory;
    memory.lock().events.push_back(Event::Fork(Box::new(child)));
    memory.lock().agains = u32::MAX;
    world.faults.serve(&Arc::clone(&world.programs[0].tenant));
    assert_eq!(world.shared.tenants().len(), 1, "the fork is not settled");
    world.shared.dismiss(&world.programs[0].tenant);
    assert_eq!(world.shared.tenants().len(), 1);
    assert_eq!(world.shared.tenants()[0].parent, Some(world.programs[0].tenant.id));
}

/// A program at rest, beyond its budget, whose agent is done with a batch that left half of the pool free.
fn world_after_a_batch() -> (World, Arc<Tenant>, u64) {
    let mut world = World::new(10_000);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_bytes(280 * PAGE);
    world.shared.budget.set_resident(world.count());
    world.turn();
    let (memory, tenant) = (world.programs[0].memory.clone(), Arc::clone(&world.programs[0].tenant));
    let pages = memory.lock().batch.len() as u64;
    (0..pages).for_each(|_| memory.step());
    world.shared.budget.set_resident(world.count() + 200);
    (world, tenant, pages)
}

fn away(tenant: &Tenant) -> u64 {
    let table = tenant.lock();
    (0..PAGES).filter(|page| table.space.is_away(address(*page))).count() as u64
}

#[test]
fn an_agent_has_its_next_batch_when_the_table_hears_of_the_last() {
    let (mut world, tenant, pages) = world_after_a_batch();
    assert_eq!(away(&tenant), 0);
    world.turn();
    assert_eq!(away(&tenant), pages);
    assert!(!world.programs[0].memory.lock().batch.is_empty(), "the agent works on");
    assert!(tenant.lock().batch, "and messages stay unread");
    world.settle();
    world.end();
}

#[test]
fn a_fault_that_waits_for_a_batch_comes_before_the_next_one() {
    let (mut world, tenant, pages) = world_after_a_batch();
    assert!(!world.faults.serve(&tenant));
    world.turn();
    assert_eq!(away(&tenant), pages);
    assert!(!tenant.lock().batch && world.programs[0].memory.lock().batch.is_empty());
    assert!(world.faults.serve(&tenant));
    world.turn();
    assert!(tenant.lock().batch, "then it goes on");
    world.settle();
    world.end();
}

#[test]
fn what_comes_along_waits_for_room() {
    let mut world = World::new(200);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.settle();
    let is_there = |world: &World, page: u64| world.programs[0].memory.lock().resident.contains_key(&address(page));
    let first = (0..PAGES - 3).find(|page| (*page..page + 3).all(|page| !is_there(&world, page))).unwrap();
    world.shared.budget.set_resident(world.shared.budget.limit_pages() - 2);
    (first..first + 2).for_each(|page| world.programs[0].memory.lock().events.push_back(fault_at(page)));
    let tenant = Arc::clone(&world.programs[0].tenant);
    world.faults.serve(&tenant);
    (0..3).for_each(|_| _ = world.faults.poll(world.now));
    assert!(is_there(&world, first + 1) && !is_there(&world, first + 2), "what was waited for is there");
    assert!(world.faults.has_put_off());
    world.shared.budget.set_resident(10);
    (0..3).for_each(|_| _ = world.faults.poll(world.now));
    assert!(is_there(&world, first + 2) && !world.faults.has_put_off());
    world.shared.budget.set_resident(world.count());
    world.end();
}

fn fault_at(page: u64) -> Event {
    Event::Fault(Fault { address: address(page), is_write: false, is_write_protected: false, thread: 1 })
}

#[test]
fn a_fault_that_meets_a_change_is_answered_later() {
    // Rule 11.
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.programs[0].memory.lock().agains = 5;
    (0..20).for_each(|page| world.touch(0, page, page % 2 == 0));
    world.end();
}

#[test]
fn an_unreadable_page_is_poisoned_and_never_filled() {
    let mut world = World::new(96);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.settle();
    let gone = {
        let memory = world.programs[0].memory.lock();
        (0..PAGES).find(|page| !memory.resident.contains_key(&address(*page))).unwrap()
    };
    // The volume ends before that page.
    let short = Arc::new(Mapping::anonymous(PAGE_SIZE_BYTES).unwrap());
    let buffers = BufferPool::new(1, limits::GROUP_SIZE_BYTES as usize).unwrap();
    let engine = Box::new(LocalMemory::new(short, Arc::new(Metrics::default()), Arc::clone(&buffers)));
    let wiped = Box::new(|_: &Tenant| Ranges::default());
    world.faults = Faults::new(Arc::clone(&world.shared), engine, buffers, Arc::clone(&world.pool), wiped).unwrap();
    let (gone, slot_is_zero) = (gone + 1, false);
    assert!(!slot_is_zero);
    let fault = Fault { address: address(gone), is_write: false, is_write_protected: false, thread: 1 };
    world.programs[0].memory.lock().events.push_back(Event::Fault(fault));
    world.run();
    world.run();
    let memory = world.programs[0].memory.lock();
    assert_eq!(memory.poisoned, [address(gone)]);
    assert!(!memory.resident.contains_key(&address(gone)));
    drop(memory);
    assert_eq!(world.shared.counters.pages_lost.get(), 1);
    assert!(world.shared.failures()[0].contains("SIGBUS"), "{:?}", world.shared.failures());
    assert!(world.volume.length() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn programs_see_their_own_memory(
        steps in proptest::collection::vec((0_u8..15, 0_usize..3, 0..PAGES, 0..PAGES), 1..120)
    ) {
        let mut world = World::new(100);
        (0..PAGES / 2).for_each(|page| world.touch(0, page, true));
        for (step, program, page, other) in steps {
            let program = program % world.programs.len();
            let pages = (other % 70 + 1).min(PAGES - page);
            match step {
                0..=3 => (page..page + pages).for_each(|page| world.touch(program, page, true)),
                4..=6 => (page..page + pages).for_each(|page| world.touch(program, page, false)),
                7 => world.remove(program, page, pages),
                8 => world.unmap(program, page, pages),
                9 => world.remap(program, page, other, pages),
                10 => world.fork(program),
                11 => world.programs[program].memory.lock().agains = 3,
                13 => world.reuse(program, page, other, pages.min(40)),
                12 => world.programs[program].memory.lock().pinned = (page..page + pages).map(address).collect(),
                _ => world.run(),
            }
        }
        world.end();
    }
}
