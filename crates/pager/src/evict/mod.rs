//! Keeps programs within their budget: the decisions of the eviction thread.
//!
//! One batch: the policy names victims; they are taken in order of address, up to 32 neighbours to a slot of the
//! write-back pool and to neighbouring slots of the volume (`start`); the evictor takes them out; the page table
//! hears what became of each (`finish`), and what left dirty is written (`poll_engine`). Unless a fault waited for
//! the last batch, the evictor has its next one before it is done with this one (`may_follow`), or gets it before
//! anything else is done about this one (`collect`): so it works while this thread puts down and writes, and victims
//! are chosen meanwhile. A page that left is staged until its pool slot is used again. Clean pages leave without a
//! write.
//!
//! Between high and low watermark this happens in the background; faults wait only when the budget itself is reached
//! (rule 15).

mod batch;
mod choose;
pub mod evictor;
mod huge_pages;
pub mod staging;
pub mod take_over;
mod write_back;

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_block::request::BlockError;
use spillway_block::service::{BlockService, Waiting};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_policy::replacement::{CachePage, Replacement, Shadows};

use self::batch::{Batch, Owning};
use self::huge_pages::Collapsing;
use crate::evict::staging::{RunId, Staging};
use crate::limits::{BATCH_PAGES, FRUITLESS_BATCHES_MAX, FRUITLESS_PAUSE};
use crate::page_table::page_indexes::{News, SpaceId};
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::VolumePageRun;
use crate::pager_state::PagerState;
use crate::process::memory::{EvictOutcome, EvictorSeen};
use crate::threads::lock::lock;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// A page that is to leave.
type Candidate = (SpaceId, VirtualPage, CachePage);

/// See the module text.
pub struct Eviction {
    shared: Arc<PagerState>,
    policy: Box<dyn Replacement>,
    shadows: Shadows,
    engine: Box<dyn BlockService>,
    staging: Staging,
    /// The engine's slot for discards, behind those of the pool.
    discard_slot: usize,
    discarding: Option<VolumePageRun>,
    discard_at: Instant,
    /// Writes that the engine has.
    writes: u32,
    /// Writes that failed and are tried again.
    retries: Vec<(RunId, Instant)>,
    batches: Vec<Batch>,
    /// Batches that evictors are done with and that the page table has not heard of.
    moved: Vec<Batch>,
    /// Batches that followed one another without the table being free in between.
    in_a_row: u32,
    /// An evictor whose batch has ended, until a thread asks.
    evictor_seen: Option<EvictorSeen>,
    /// No fault waited for the last batch.
    is_undisturbed: bool,
    /// Room of batches that ended.
    spare: Vec<Batch>,
    news: Vec<News>,
    /// Victims that the policy handed out and that were not tried yet.
    candidates: Vec<Candidate>,
    put_off: Vec<Candidate>,
    ended: Vec<(usize, Result<(), BlockError>)>,
    /// Programs whose evictors make pages their own again (rule 2), and room for the outcomes of that.
    owning: Vec<Owning>,
    /// Pages that became so.
    owned: Vec<Vec<Candidate>>,
    own_outcomes: Vec<EvictOutcome>,
    /// The huge page that an evictor makes.
    collapsing: Option<Collapsing>,
    /// When pages left last.
    left_at: Option<Instant>,
    /// Batches in a row that took little or nothing out, and when the next may begin.
    fruitless: u32,
    start_at: Instant,
}

impl Eviction {
    /// Writes through `engine`, whose buffers are the `pool_slots` slots of the write-back pool and one more for
    /// discards.
    pub fn new(
        shared: Arc<PagerState>,
        policy: Box<dyn Replacement>,
        engine: Box<dyn BlockService>,
        pool_slots: usize,
        now: Instant,
    ) -> Self {
        Self {
            shared,
            policy,
            shadows: Shadows::default(),
            engine,
            staging: Staging::new(pool_slots),
            discard_slot: pool_slots,
            discarding: None,
            discard_at: now,
            writes: 0,
            retries: Vec::new(),
            batches: Vec::new(),
            moved: Vec::new(),
            in_a_row: 0,
            evictor_seen: None,
            is_undisturbed: false,
            spare: Vec::new(),
            news: Vec::new(),
            candidates: Vec::with_capacity(BATCH_PAGES),
            put_off: Vec::with_capacity(BATCH_PAGES),
            ended: Vec::with_capacity(pool_slots),
            owning: Vec::new(),
            owned: Vec::new(),
            own_outcomes: vec![EvictOutcome::Refused; BATCH_PAGES],
            collapsing: None,
            left_at: None,
            fruitless: 0,
            start_at: now,
        }
    }

    /// Asks for the engine's events before a sleep; true: poll in place of sleeping.
    pub fn arm(&mut self) -> bool {
        self.engine.arm()
    }

    /// The engine, for its events.
    pub fn engine(&self) -> &dyn BlockService {
        &*self.engine
    }

    /// Does what can be done now, and says what to wait for: [`Waiting::Poll`] while an evictor works, or while the
    /// engine wants to be asked again at once.
    pub fn turn(&mut self, now: Instant) -> Waiting {
        self.hear();
        self.policy.resize(u32::try_from(self.shared.budget.limit_pages()).unwrap_or(u32::MAX));
        let mut waiting = self.poll_engine(now);
        if waiting == Waiting::Poll && self.writes == 0 {
            // What a discard frees is not urgent, and it would take the CPU for tens of milliseconds.
            waiting = Waiting::Retry;
        }
        self.collect(now);
        if self.batches.is_empty() && self.shared.budget.is_exceeded() {
            if now >= self.start_at {
                self.start(now);
            }
            waiting = waiting.max(Waiting::Retry);
        }
        while let Some(batch) = self.moved.pop() {
            self.finish(batch, now);
        }
        self.discard(now);
        self.look_ahead();
        self.give_huge_pages_back(now);
        if self.may_follow() {
            self.start(now);
        }
        if self.is_evictor_at_work() {
            return Waiting::Poll;
        }
        if self.retries.is_empty() { waiting } else { waiting.max(Waiting::Retry) }
    }

    /// Whether an evictor was given something that it is not done with.
    pub fn is_evictor_at_work(&self) -> bool {
        !self.batches.is_empty() || !self.owning.is_empty() || self.collapsing.is_some()
    }

    /// Sleeps until an evictor that works is done, at most for `patience`.
    pub fn await_evictor(&self, patience: Duration) {
        let owning = self.owning.iter().map(|owning| &owning.space);
        let spaces = self.batches.iter().map(|batch| &batch.space).chain(owning);
        let collapsing = self.collapsing.as_ref().map(|collapsing| &collapsing.space);
        let mut spaces = spaces.chain(collapsing);
        let Some(space) = spaces.next() else { return };
        if let Some(evictor) = lock(&space.evictor).as_ref() {
            evictor.wait(patience);
        }
    }

    /// An evictor that has ended a batch since this was asked last, if one has and knows its CPU.
    pub fn take_evictor_seen(&mut self) -> Option<EvictorSeen> {
        self.evictor_seen.take()
    }

    /// Backs off: what the kernel refuses now it refuses at once again (rule 2).
    fn took_little(&mut self, now: Instant) {
        self.fruitless += 1;
        self.start_at = now + (FRUITLESS_PAUSE * 2_u32.pow(self.fruitless.min(FRUITLESS_BATCHES_MAX)));
        if self.fruitless >= FRUITLESS_BATCHES_MAX || self.policy.listed() == 0 {
            self.shared.budget.set_stuck(true);
            // What is resident and unknown is looked for.
            self.shared.survey.signal();
        }
    }
}
