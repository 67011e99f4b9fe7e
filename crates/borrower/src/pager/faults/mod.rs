//! Answers faults and follows events: the decisions of the fault thread.
//!
//! One fault: [`Faults::serve`] reads the program's messages with its table locked and no batch under way. For each fault the
//! page table says what it takes ([`Answer`]); zeroes and staged pages are filled at once, a page that is away is read from the
//! volume through this thread's engine and filled when the read ends ([`Faults::poll`]). What cannot be done now (the program
//! is changing its mappings, rule 11; the budget is exceeded, rule 15; all buffers are in use) is put off and tried again.
//!
//! Pages come write-protected for faults that read, so that they can leave without a write, and writable for faults that write.
//!
//! Nothing here allocates once the lists have grown to what the programs need, except a fork (a table for the child), a page
//! table that grows, events of ranges, and a doubt.
//!
//! - `reading`: reads for faults, and what comes along.

mod reading;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::{Fault, PageError};

use self::reading::{Ask, ReadUnderWay};
use super::ahead::Ahead;
use super::directory::Coming;
use super::doubt::Doubt;
use super::limits::{FAULT_READS_MAX, MESSAGES_MAX, ZEROES_AHEAD_MAX};
use super::program::Event;
use super::rechecked::Rechecked;
use super::shared::{Shared, Table, Tenant, Wanted};
use super::space::Answer;
use super::space::group::PageState;
use super::space::ranges::Ranges;
use super::statistics::FaultKind;
use crate::block::BlockError;
use crate::service::{BlockService, Waiting};

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// In place of the thread that waits, for pages that are wanted and not waited for.
const NOBODY: u32 = 0;

/// Finds the ranges of a process that read as zeroes in a child (MADV_WIPEONFORK, rule 5).
pub type WipedRanges = Box<dyn FnMut(&Tenant) -> Ranges + Send>;

/// A fault that is tried again.
struct PutOff {
    tenant: Arc<Tenant>,
    fault: Fault,
    arrived: Instant,
    is_held_back: bool,
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    PutOff,
    HeldBack,
}

/// See the module text.
pub struct Faults {
    shared: Arc<Shared>,
    engine: Box<dyn BlockService>,
    buffers: Arc<BufferPool>,
    /// The write-back pool.
    pool: Arc<BufferPool>,
    zeroes: Mapping,
    /// By buffer.
    reads: Box<[Option<ReadUnderWay>]>,
    put_off: VecDeque<PutOff>,
    rechecked: Rechecked,
    /// Faults of one reading.
    arrived: Vec<Fault>,
    /// Programs with changes that are not settled yet.
    unsettled: Vec<Arc<Tenant>>,
    /// Results of one poll, taken out of the engine's call.
    ended: Vec<(usize, Result<(), BlockError>)>,
    wiped: WipedRanges,
    /// Reads that threads wait for, since they were asked for.
    demands: u32,
    /// What comes along is read when those who wait have their pages.
    asks: Vec<Ask>,
    /// Taken out while it is asked.
    ahead: Option<Ahead>,
}

impl Faults {
    /// Reads through `engine` into `buffers`; staged pages lie in `pool`.
    pub fn new(
        shared: Arc<Shared>,
        engine: Box<dyn BlockService>,
        buffers: Arc<BufferPool>,
        pool: Arc<BufferPool>,
        wiped: WipedRanges,
    ) -> std::io::Result<Self> {
        let zeroes = Mapping::anonymous(PAGE_SIZE_BYTES)?;
        zeroes.zero(0, PAGE_SIZE_BYTES);
        let reads = (0..buffers.slot_count()).map(|_| None).collect();
        Ok(Self {
            shared,
            engine,
            buffers,
            pool,
            zeroes,
            reads,
            put_off: VecDeque::with_capacity(1024),
            rechecked: Rechecked::default(),
            arrived: Vec::with_capacity(MESSAGES_MAX),
            unsettled: Vec::with_capacity(64),
            ended: Vec::with_capacity(FAULT_READS_MAX),
            wiped,
            demands: 0,
            asks: Vec::with_capacity(FAULT_READS_MAX),
            ahead: Some(Ahead::default()),
        })
    }

    /// Whether something is to be tried again soon.
    pub fn has_put_off(&self) -> bool {
        let has_tasks = !self.put_off.is_empty() || !self.unsettled.is_empty() || !self.asks.is_empty();
        has_tasks || self.reads.iter().flatten().any(|read| read.is_here)
    }

    /// How many threads began to wait for a page from elsewhere since this was asked.
    pub fn take_demands(&mut self) -> u32 {
        std::mem::take(&mut self.demands)
    }

    /// The engine, for its events.
    pub fn engine(&self) -> &dyn BlockService {
        &*self.engine
    }

    /// Reads and answers what `tenant` has to tell. False: that has to wait, and its end will be signalled.
    pub fn serve(&mut self, tenant: &Arc<Tenant>) -> bool {
        let mut guard = tenant.lock();
        let table = &mut *guard;
        table.is_awaited = table.batch;
        if !table.may_read() {
            return false;
        }
        let now = Instant::now();
        let mut arrived = std::mem::take(&mut self.arrived);
        self.read_events(tenant, table, &mut arrived, now);
        // The kernel hands faults out first, whatever came first. A child has the pages as of the fork, and a page that comes back
        // belongs to the mapping that is there now, so what changes mappings goes first. A fault that is old by then does no harm.
        for fault in arrived.drain(..) {
            let outcome = self.fault(tenant, table, fault, now);
            self.after(tenant, fault, now, outcome);
        }
        self.arrived = arrived;
        true
    }

    /// One by one, so that nobody goes on whose change is in doubt.
    fn read_events(&mut self, tenant: &Arc<Tenant>, table: &mut Table, arrived: &mut Vec<Fault>, now: Instant) {
        for _ in 0..MESSAGES_MAX {
            match tenant.memory.read_event() {
                Ok(None) => return,
                Ok(Some(Event::Fault(fault))) => arrived.push(fault),
                Ok(Some(change)) => {
                    if self.changed(tenant, table, change) {
                        let process = tenant.process.load(Ordering::Relaxed);
                        table.doubt = Some(Doubt::begin(process, now));
                        self.shared.counters.doubts.add(1);
                        return;
                    }
                }
                Err(error) => {
                    // A child's memory that cannot be taken over (no descriptor is free) would read as zeroes.
                    let process = tenant.process.load(Ordering::Relaxed);
                    self.shared.fail(format!(
                        "process {process}: its memory's messages cannot be read ({error}), so it is killed"
                    ));
                    return tenant.kill();
                }
            }
        }
    }

    /// Moves reads and what was put off as far as they go; what the engine waits for.
    pub fn poll(&mut self, now: Instant) -> Waiting {
        let mut waiting = self.poll_engine(now);
        if !self.asks.is_empty() {
            if waiting == Waiting::Poll {
                // Over shared memory what somebody waits for is here by now.
                self.poll_engine(now);
            }
            self.bring_all_along(now);
            waiting = self.poll_engine(now);
        }
        self.settle(now);
        self.retry();
        waiting
    }

    fn poll_engine(&mut self, now: Instant) -> Waiting {
        let mut ended = std::mem::take(&mut self.ended);
        let waiting = self.engine.poll(now, &mut |buffer, result| ended.push((buffer, result)));
        for (buffer, result) in ended.drain(..) {
            self.read_ended(buffer, result);
        }
        self.ended = ended;
        waiting
    }

    /// Brings pages back that nobody waits for (rule 4: a control block of a thread that was found late; a fork).
    pub fn fetch_wanted(&mut self) {
        let now = Instant::now();
        for Wanted { space, address, is_writable } in self.shared.take_wanted() {
            if let Some(tenant) = self.shared.tenant(space) {
                let fault = Fault { address, is_write: is_writable, is_write_protected: false, thread: NOBODY };
                self.put_off.push_back(PutOff { tenant, fault, arrived: now, is_held_back: false });
            }
        }
    }

    fn settle(&mut self, now: Instant) {
        let shared = &self.shared;
        self.unsettled.retain(|tenant| {
            let table = &mut *tenant.lock();
            if let Some(doubt) = table.doubt.take_if(|doubt| doubt.is_over(now)) {
                table.unsettled.seen_under_way(&doubt.moves_under_way());
                shared.faults.signal();
            }
            !(shared.settle(tenant, table) && table.doubt.is_none())
        });
    }

    fn retry(&mut self) {
        for buffer in 0..self.reads.len() {
            if self.reads[buffer].as_ref().is_some_and(|read| read.is_here) {
                self.fill_from(buffer);
            }
        }
        for _ in 0..self.put_off.len() {
            let Some(PutOff { tenant, fault, arrived, is_held_back }) = self.put_off.pop_front() else { break };
            if tenant.is_gone() {
                continue;
            }
            if is_held_back && self.holds_back(&tenant, fault) {
                self.put_off.push_back(PutOff { tenant, fault, arrived, is_held_back });
                continue;
            }
            let outcome = {
                let mut table = tenant.lock();
                if table.batch { Outcome::PutOff } else { self.fault(&tenant, &mut table, fault, arrived) }
            };
            self.after(&tenant, fault, arrived, outcome);
        }
    }

    fn after(&mut self, tenant: &Arc<Tenant>, fault: Fault, arrived: Instant, outcome: Outcome) {
        if outcome != Outcome::Done {
            let is_held_back = outcome == Outcome::HeldBack;
            self.put_off.push_back(PutOff { tenant: Arc::clone(tenant), fault, arrived, is_held_back });
        }
    }

    /// Whether a fault has to wait for the budget (rule 15); those of a program that is to fork do not.
    fn holds_back(&self, tenant: &Tenant, fault: Fault) -> bool {
        self.shared.budget.holds_back() && !tenant.is_agent(fault.thread) && !tenant.is_held()
    }

    /// Answers one fault, if that can be done now.
    fn fault(&mut self, tenant: &Arc<Tenant>, table: &mut Table, fault: Fault, arrived: Instant) -> Outcome {
        if !self.shared.settle(tenant, table) {
            return Outcome::PutOff;
        }
        let address = fault.address & !(PAGE - 1);
        let answer = table.space.answer(address, fault.is_write_protected, &self.shared.books().slots);
        let page = address..address + PAGE;
        match answer {
            Answer::Wait => Outcome::Done,
            Answer::Recheck(slot) if self.rechecked.is_gone(tenant.id, fault) => {
                table.space.taken_back(address, &mut self.shared.books());
                self.rechecked.took(tenant.id, address, slot);
                self.fault(tenant, table, fault, arrived)
            }
            Answer::Wake | Answer::Recheck(_) => {
                tenant.memory.wake(page);
                Outcome::Done
            }
            Answer::Unprotect => {
                let result = tenant.memory.unprotect(page.clone());
                if matches!(result, Err(PageError::TryAgain)) {
                    return Outcome::PutOff;
                }
                if result.is_err() {
                    // The mapping was replaced: whoever waits finds the new one.
                    tenant.memory.wake(page);
                }
                table.space.written(address, &mut self.shared.books());
                self.shared.counters.fault(FaultKind::Write, arrived.elapsed());
                Outcome::Done
            }
            _ if self.holds_back(tenant, fault) => {
                self.shared.eviction.signal();
                self.shared.counters.held_back.add(1);
                Outcome::HeldBack
            }
            Answer::Zero => {
                let result = if fault.is_write {
                    tenant.memory.copy(address, &self.zeroes, 0, PAGE_SIZE_BYTES, false)
                } else {
                    tenant.memory.zero(page)
                };
                let outcome =
                    self.filled(tenant, table, address, false, (Coming::New, FaultKind::Zero, arrived), result);
                if outcome == Outcome::Done && fault.is_write {
                    self.zero_along(tenant, table, address);
                }
                outcome
            }
            Answer::Staged(_, pool_page) => {
                // The books stay locked, so that the pool page is not used for another meanwhile.
                let books = self.shared.books();
                let Answer::Staged(slot, again) = table.space.answer(address, false, &books.slots) else {
                    return Outcome::PutOff;
                };
                debug_assert!(slot.0 < u32::MAX && again == pool_page);
                let offset = again.0 as usize * PAGE_SIZE_BYTES;
                let protect = !fault.is_write && !table.space.comes_writable(address);
                let result = tenant.memory.copy(address, self.pool.memory(), offset, PAGE_SIZE_BYTES, protect);
                drop(books);
                self.filled(tenant, table, address, protect, (Coming::Staged, FaultKind::Staged, arrived), result)
            }
            Answer::Read(slot) => self.begin_read(tenant, table, fault, slot, arrived),
        }
    }

    /// Gives a program that touches fresh memory page by page the zeroes of the next pages too.
    fn zero_along(&self, tenant: &Tenant, table: &mut Table, address: u64) {
        let range = table.space.first_touches_ahead(address);
        if range.is_empty() || !self.shared.budget.has_room(2 * ZEROES_AHEAD_MAX as i64) {
            return;
        }
        // Whatever stops it half way stops the program there too, which then asks.
        let count = ((range.end - range.start) / PAGE) as usize;
        let filled =
            as_far_as_mapped(count, |count| tenant.memory.zero(range.start..range.start + count as u64 * PAGE));
        if let Ok(bytes) = filled {
            let books = &mut self.shared.books();
            let pages = (range.start..range.start + bytes).step_by(PAGE_SIZE_BYTES);
            pages.for_each(|page| table.space.filled(page, false, Coming::New, books));
            self.shared.budget.count((bytes / PAGE).cast_signed());
        }
    }

    /// Says in the table what filling a page came to.
    fn filled(
        &mut self,
        tenant: &Tenant,
        table: &mut Table,
        address: u64,
        clean: bool,
        (coming, kind, arrived): (Coming, FaultKind, Instant),
        result: Result<u64, PageError>,
    ) -> Outcome {
        match result {
            Ok(_) => {
                table.space.filled(address, clean, coming, &mut self.shared.books());
                self.rechecked.came(tenant.id, address);
                self.shared.budget.count(1);
                self.shared.counters.fault(kind, arrived.elapsed());
                self.shared.call_eviction();
                Outcome::Done
            }
            Err(PageError::TryAgain) => Outcome::PutOff,
            Err(error) => {
                self.not_filled(tenant, table, address, &error);
                Outcome::Done
            }
        }
    }

    fn not_filled(&mut self, tenant: &Tenant, table: &mut Table, address: u64, error: &PageError) {
        match error {
            PageError::Exists => {
                // Its own page, found there by an old message; or, if it was thought to be away, what the program sees counts.
                let books = &mut self.shared.books();
                if let PageState::Away(slot) | PageState::Coming(slot) = table.space.state(address)
                    && self.rechecked.was_taken(tenant.id, address, slot)
                {
                    table.space.filled(address, true, Coming::New, books);
                } else if table.space.is_away(address) {
                    self.shared.fail(format!("a page at {address:#x} was there that had been taken out"));
                    table.space.filled(address, false, Coming::New, books);
                }
            }
            PageError::Gone => {
                tenant.is_gone.store(true, Ordering::SeqCst);
                self.shared.survey.signal();
            }
            // The mapping changed since: an event will tell, and the thread finds out when it looks again.
            _ => {}
        }
        tenant.memory.wake(address..address + PAGE);
    }

    /// Notes a change of mappings. True: another one must precede it and is still to be told.
    fn changed(&mut self, tenant: &Arc<Tenant>, table: &mut Table, change: Event) -> bool {
        if self.unsettled.iter().all(|other| other.id != tenant.id) {
            self.unsettled.push(Arc::clone(tenant));
        }
        let Table { space, unsettled, .. } = table;
        match change {
            Event::Fault(_) => unreachable!("faults are answered elsewhere"),
            Event::Remove(range) => unsettled.remove(range),
            Event::Unmap(range) => unsettled.unmap(range),
            Event::Remap { from, to, length } => unsettled.remap(from, to, length),
            Event::Fork(memory) => {
                tenant.has_forked.store(true, Ordering::Relaxed);
                // A program none of whose pages is known has none away or clean, and most fork to execute another.
                let wiped = if space.is_empty() { Ranges::default() } else { (self.wiped)(tenant) };
                unsettled.fork(memory, wiped);
            }
        }
        unsettled.is_in_doubt(|range| space.known_mapped(range))
    }
}

/// Fills a run of `count` pages, or less of it: the kernel refuses one that a mapping ends in as a whole (rule 8), so it is halved until its beginning
/// fits. Mappings end in few runs, so most cost one call as ever.
fn as_far_as_mapped(mut count: usize, mut fill: impl FnMut(usize) -> Result<u64, PageError>) -> Result<u64, PageError> {
    loop {
        match fill(count) {
            Err(PageError::NotMapped) if count > 1 => count /= 2,
            result => return result,
        }
    }
}
