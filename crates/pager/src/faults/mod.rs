//! Answers faults: the decisions of the fault threads.
//!
//! One fault: [`Messages::serve`] reads the program's messages with its table locked and no batch under way. For each fault the
//! page table says what it takes ([`Answer`]); zeroes and staged pages are filled at once, and so is a page that is away if it lies in memory which is
//! mapped here. Else it is read from the volume through the thread's own engine and filled when the read ends ([`Faults::poll`]). What cannot be done now (the program
//! is changing its mappings, rule 11; the budget is exceeded, rule 15; all buffers are in use) is put off and tried again.
//!
//! Pages come write-protected for faults that read, so that they can leave without a write, and writable for faults that write.
//!
//! Nothing here allocates once the lists have grown to what the programs need, except a fork (a table for the child), a page
//! table that grows, events of ranges, a doubt, and a page that the kernel took back.
//!
//! - [`messages`]: what programs tell; [`crew`]: what several threads share; `reading`: reads for faults, and what comes along.

pub mod crew;
pub mod messages;
mod reading;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::{Fault, PageError};

use self::crew::Pending;
#[cfg(doc)]
use self::messages::Messages;
use self::reading::{Ask, ReadUnderWay};
use crate::directory::{Coming, SpaceId};
use crate::limits::{FAULT_READS_MAX, ZEROES_AHEAD_MAX};
use crate::shared::{Shared, Table, Tenant};
use crate::space::Answer;
#[cfg(doc)]
use crate::space::Space;
use crate::space::group::PageState;
use crate::statistics::FaultKind;
use spillway_block::request::BlockError;
use spillway_block::service::{BlockService, Waiting};

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// In place of the thread that waits, for pages that are wanted and not waited for.
const NOBODY: u32 = 0;

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    PutOff,
    HeldBack,
}

/// One thread's part of them, see the module text.
pub struct Faults {
    shared: Arc<Shared>,
    engine: Box<dyn BlockService>,
    buffers: Arc<BufferPool>,
    /// The write-back pool.
    pool: Arc<BufferPool>,
    zeroes: Mapping,
    /// By buffer.
    reads: Box<[Option<ReadUnderWay>]>,
    /// A bit for each buffer that a read has.
    busy: u32,
    /// Those in which the pages are, of which the program did not get all yet.
    here: u32,
    put_off: VecDeque<Pending>,
    /// Results of one poll, taken out of the engine's call.
    ended: Vec<(usize, Result<(), BlockError>)>,
    /// Reads were begun since the engine was polled.
    has_begun: bool,
    /// Who got a page that was read for it, until somebody asks.
    filled: Option<SpaceId>,
    /// What comes along is read when those who wait have their pages.
    asks: Vec<Ask>,
}

impl Faults {
    /// Reads through `engine` into `buffers`; staged pages lie in `pool`.
    pub fn new(
        shared: Arc<Shared>,
        engine: Box<dyn BlockService>,
        buffers: Arc<BufferPool>,
        pool: Arc<BufferPool>,
    ) -> std::io::Result<Self> {
        let zeroes = Mapping::anonymous(ZEROES_AHEAD_MAX * PAGE_SIZE_BYTES)?;
        // Read only, so that all of it is the kernel's one page of zeroes, which stays in the cache. Not missing when the kernel copies it.
        let mut touched = [0];
        (0..ZEROES_AHEAD_MAX).for_each(|page| zeroes.read(page * PAGE_SIZE_BYTES, &mut touched));
        const { assert!(FAULT_READS_MAX <= u32::BITS as usize, "a buffer is a bit of a word") };
        assert!(buffers.slot_count() <= FAULT_READS_MAX, "a read has a buffer");
        let reads = (0..buffers.slot_count()).map(|_| None).collect();
        Ok(Self {
            shared,
            engine,
            buffers,
            pool,
            zeroes,
            reads,
            busy: 0,
            here: 0,
            put_off: VecDeque::with_capacity(1024),
            ended: Vec::with_capacity(FAULT_READS_MAX),
            has_begun: false,
            filled: None,
            asks: Vec::with_capacity(FAULT_READS_MAX),
        })
    }

    /// Whether something is to be tried again soon.
    pub fn has_put_off(&self) -> bool {
        let has_tasks = !self.put_off.is_empty() || !self.asks.is_empty();
        has_tasks || self.here != 0
    }

    /// Whether somebody waits for a page that is being read.
    pub fn is_awaited(&self) -> bool {
        self.busy != 0 && self.reads.iter().flatten().any(ReadUnderWay::is_awaited)
    }

    /// Who got a page that it waited for and that was read, since this was asked last: it goes on, and may soon miss the next.
    pub fn take_filled(&mut self) -> Option<SpaceId> {
        self.filled.take()
    }

    /// The engine, for its events.
    pub fn engine(&self) -> &dyn BlockService {
        &*self.engine
    }

    /// Answers the next fault that was left to whoever is free. Whether there was one.
    pub fn answer_shared(&mut self) -> bool {
        let Some(Pending { tenant, fault, arrived, .. }) = self.shared.crew.take() else { return false };
        let mut table = tenant.lock_for_faults();
        table.untried -= 1;
        if !tenant.is_gone() {
            self.answer(&tenant, &mut table, fault, arrived);
        }
        true
    }

    /// Moves reads and what was put off as far as they go; what the engine waits for.
    pub fn poll(&mut self, now: Instant) -> Waiting {
        let mut waiting = self.poll_engine(now);
        let has_more = self.retry();
        if self.has_begun {
            waiting = self.poll_engine(now);
        }
        if !self.asks.is_empty() {
            if waiting == Waiting::Poll {
                // Over shared memory what somebody waits for is here by now.
                self.poll_engine(now);
            }
            self.bring_all_along(now);
            waiting = self.poll_engine(now);
        }
        // A read that failed may have been begun again.
        match (has_more, self.has_begun) {
            (true, _) => Waiting::Poll,
            (false, true) => waiting.max(Waiting::Retry),
            (false, false) => waiting,
        }
    }

    fn poll_engine(&mut self, now: Instant) -> Waiting {
        self.has_begun = false;
        let mut ended = std::mem::take(&mut self.ended);
        let waiting = self.engine.poll(now, &mut |buffer, result| ended.push((buffer, result)));
        for (buffer, result) in ended.drain(..) {
            self.read_ended(buffer, result);
        }
        self.ended = ended;
        waiting
    }

    /// So much at a time that nobody's messages wait for long. Whether there is more that could be done at once.
    fn retry(&mut self) -> bool {
        let mut here = self.here;
        while here != 0 {
            self.fill_from(here.trailing_zeros() as usize);
            here &= here - 1;
        }
        let mut answered = 0;
        for _ in 0..self.put_off.len() {
            let Some(pending) = self.put_off.pop_front() else { break };
            let others = self.put_off.len();
            self.try_again(pending);
            answered += usize::from(self.put_off.len() == others);
            if answered == FAULT_READS_MAX {
                return !self.put_off.is_empty();
            }
        }
        false
    }

    fn try_again(&mut self, pending: Pending) {
        let Pending { tenant, fault, is_held_back, .. } = &pending;
        if tenant.is_gone() {
            return;
        }
        if *is_held_back && self.holds_back(tenant, *fault) {
            return self.put_off(pending);
        }
        let mut table = tenant.lock_for_faults();
        if table.batch {
            table.is_hurried = true;
            drop(table);
            return self.put_off(pending);
        }
        self.answer(tenant, &mut table, *fault, pending.arrived);
    }

    fn put_off(&mut self, pending: Pending) {
        self.put_off.push_back(pending);
    }

    /// Answers one fault, now or later.
    fn answer(&mut self, tenant: &Arc<Tenant>, table: &mut Table, fault: Fault, arrived: Instant) {
        let outcome = self.fault(tenant, table, fault, arrived);
        if outcome != Outcome::Done {
            let is_held_back = outcome == Outcome::HeldBack;
            self.put_off(Pending { tenant: Arc::clone(tenant), fault, arrived, is_held_back });
        }
    }

    /// Whether a fault has to wait for the budget (rule 15), until pages have left; those of a program that is to fork do not.
    fn holds_back(&self, tenant: &Tenant, fault: Fault) -> bool {
        let budget = &self.shared.budget;
        let may_wait = budget.holds_back() && !tenant.is_agent(fault.thread) && !tenant.is_held();
        if may_wait {
            self.shared.put_off_for_room();
        }
        // What left before that rang nobody.
        may_wait && budget.holds_back()
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
            // What is still to be told may be where the page went (mremap with MREMAP_DONTUNMAP), and nothing is filled here that the kernel would refuse.
            Answer::Recheck(_) if tenant.memory.is_changing() => Outcome::PutOff,
            Answer::Recheck(slot) if table.rechecked.is_gone(fault) => {
                table.space.taken_back(address, &mut self.shared.books());
                table.rechecked.took(address, slot);
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
            Answer::Zero if tenant.staging().is_some_and(|area| area.contains(&address)) => fill_staging(tenant, page),
            Answer::Zero => {
                // Where there are guards the one call that leaves them alone ([`Space::guard`]).
                let is_guarded = table.space.is_guarded(address);
                let result = if fault.is_write && !is_guarded {
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

    /// Gives a program that touches fresh memory page by page the next pages too.
    fn zero_along(&self, tenant: &Tenant, table: &mut Table, address: u64) {
        let range = table.space.first_touches_ahead(address);
        if range.is_empty() || !self.shared.budget.has_room(2 * ZEROES_AHEAD_MAX as i64) {
            return;
        }
        // Whatever stops it half way stops the program there too, which then asks. Not into another mapping: one that has no page yet, and of
        // which the program protects a part just now, would stay in parts (`Survey::register_mapping`).
        let count = ((range.end - range.start) / PAGE) as usize;
        let filled = as_far_as_mapped(count, |count| {
            let end = range.start + count as u64 * PAGE;
            let is_one_mapping = tenant.memory.covers(&(address..end))?;
            if !is_one_mapping {
                return Err(PageError::NotMapped);
            }
            tenant.memory.copy(range.start, &self.zeroes, 0, (end - range.start) as usize, false)
        });
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
                table.rechecked.came(address);
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
                    && table.rechecked.was_taken(address, slot)
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
}

/// Fills a page of the staging area, which a program that locks all its memory waits for. It is nothing of the program's, so nobody takes note of it.
fn fill_staging(tenant: &Tenant, page: Range<u64>) -> Outcome {
    if matches!(tenant.memory.zero(page.clone()), Err(PageError::TryAgain)) {
        return Outcome::PutOff;
    }
    tenant.memory.wake(page);
    Outcome::Done
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
