//! Answers faults: the decisions of the fault threads.
//!
//! One fault: [`Messages::serve`] reads the program's messages with its table locked and no batch under way. For each
//! fault the page table says what it takes ([`Answer`](crate::page_table::Answer)); zeroes and staged pages are
//! filled at once, and so is a page that is away if it lies in memory which is mapped here. Else it is read from the
//! volume through the thread's own engine and filled when the read ends ([`Faults::poll`]). What cannot be done now
//! (the program is changing its mappings, rule 11; the budget is exceeded, rule 15; all buffers are in use) is put
//! off and tried again.
//!
//! Pages come write-protected for faults that read, so that they can leave without a write, and writable for faults
//! that write.
//!
//! Nothing here allocates once the lists have grown to what the programs need. Exceptions are a fork (a table for the
//! child), a page table that grows, events of ranges, a late event, and a page that the kernel took back.
//!
//! Three verbs: *read* asks the volume for a page, *fill* puts a page into the program, *prefetch* does both for
//! pages that come along. *record* then says in the page table and the budget what came of it.
//!
//! - [`messages`]: what programs tell; `answer`: what one fault takes; `fill`: pages into programs' memory.
//! - `read`: reads from the volume; [`read_ahead`]: what comes along; [`recheck`]: faults on pages that are there.
//! - [`pool`]: what several fault threads share; [`recording`]: the faults for a trace, if one is recorded.

mod answer;
mod fill;
pub mod messages;
pub mod pool;
mod read;
pub mod read_ahead;
pub mod recheck;
pub mod recording;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use spillway_block::request::BlockError;
use spillway_block::service::{BlockService, Waiting};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::mapping::Mapping;
use spillway_sys::userfaultfd::Fault;

#[cfg(doc)]
use self::messages::Messages;
use self::pool::Pending;
use self::read::{PrefetchRequest, ReadUnderWay};
use crate::address_space::AddressSpace;
use crate::limits::{FAULT_READS_MAX, ZEROES_AHEAD_MAX};
#[cfg(doc)]
use crate::page_table::PageTable;
use crate::page_table::page_indexes::SpaceId;
use crate::pager_state::PagerState;
use crate::statistics::FaultKind;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// In place of the thread that waits, for pages that are wanted and not waited for.
const NO_THREAD: u32 = 0;

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    PutOff,
    HeldBack,
}

/// One thread's part of them, see the module text.
pub struct Faults {
    shared: Arc<PagerState>,
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
    /// The address space that got a page last, until this is asked for.
    filled: Option<SpaceId>,
    /// What comes along is read when the programs that wait have their pages.
    prefetch_requests: Vec<PrefetchRequest>,
}

impl Faults {
    /// Reads through `engine` into `buffers`; staged pages lie in `pool`.
    pub fn new(
        shared: Arc<PagerState>,
        engine: Box<dyn BlockService>,
        buffers: Arc<BufferPool>,
        pool: Arc<BufferPool>,
    ) -> std::io::Result<Self> {
        let zeroes = Mapping::anonymous(ZEROES_AHEAD_MAX * PAGE_SIZE_BYTES)?;
        // Read only, so that all of it is the kernel's one page of zeroes, which stays in the cache. Not missing when
        // the kernel copies it.
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
            prefetch_requests: Vec::with_capacity(FAULT_READS_MAX),
        })
    }

    /// Whether something is to be tried again soon.
    pub fn has_put_off(&self) -> bool {
        let has_tasks = !self.put_off.is_empty() || !self.prefetch_requests.is_empty();
        has_tasks || self.here != 0
    }

    /// Whether a program waits for a page that is being read.
    pub fn is_awaited(&self) -> bool {
        self.busy != 0 && self.reads.iter().flatten().any(ReadUnderWay::is_awaited)
    }

    /// The address space that got a page that it waited for, since this was asked last: it goes on, and may soon miss
    /// the next.
    pub fn take_filled(&mut self) -> Option<SpaceId> {
        self.filled.take()
    }

    /// Asks for the engine's events before a sleep; true: poll in place of sleeping.
    pub fn arm(&mut self) -> bool {
        self.engine.arm()
    }

    /// The engine, for its events.
    pub fn engine(&self) -> &dyn BlockService {
        &*self.engine
    }

    /// Answers the next fault that was left to the thread that is free. Whether there was one.
    pub fn answer_shared(&mut self) -> bool {
        let Some(Pending { space, fault, arrived, .. }) = self.shared.fault_pool.take() else { return false };
        let mut state = space.lock_for_faults();
        state.untried -= 1;
        if !space.is_gone() {
            self.answer(&space, &mut state, fault, arrived);
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
        if !self.prefetch_requests.is_empty() {
            if waiting == Waiting::Poll {
                // Over shared memory what a program waits for is here by now.
                self.poll_engine(now);
            }
            self.prefetch_all(now);
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

    /// So much at a time that no other thread's messages wait for long. Whether there is more that could be done at
    /// once.
    fn retry(&mut self) -> bool {
        let mut here = self.here;
        while here != 0 {
            self.fill_from_buffer(here.trailing_zeros() as usize);
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
        let Pending { space, fault, is_held_back, .. } = &pending;
        if space.is_gone() {
            return;
        }
        if *is_held_back && self.holds_back(space, *fault) {
            return self.put_off(pending);
        }
        let mut state = space.lock_for_faults();
        if state.batch {
            state.is_hurried = true;
            drop(state);
            return self.put_off(pending);
        }
        self.answer(space, &mut state, *fault, pending.arrived);
    }

    fn put_off(&mut self, pending: Pending) {
        self.put_off.push_back(pending);
    }

    /// Puts a fault into the trace, if one is recorded: a page of this kind came, or comes.
    fn trace(&self, space: &AddressSpace, fault: Fault, answered: FaultKind, arrived: Instant) {
        if let Some(recording) = &self.shared.recording
            && fault.thread != NO_THREAD
            && !space.is_evictor(fault.thread)
        {
            recording.note(space.id, fault, answered, arrived);
        }
    }
}
