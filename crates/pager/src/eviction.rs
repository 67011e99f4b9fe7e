//! Keeps programs within their budget: the decisions of the eviction thread.
//!
//! One batch: the policy names victims; they are taken in order of address, up to 32 neighbours to a slot of the write-back
//! pool and to neighbouring slots of the volume (`start`); the agent takes them out; the page table hears what became of each
//! (`finish`), and what left dirty is written (`poll_engine`). Unless a fault waited for the last batch, the agent has its next one
//! before it is done with this one (`may_follow`), or gets it before anything else is done about this one (`collect`): so it works while
//! this thread puts down and writes, and victims are chosen meanwhile.
//! A page that left is staged until its pool slot is used again. Clean pages leave without a write.
//!
//! Between high and low watermark this happens in the background; faults wait only when the budget itself is reached (rule 15).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::directory::{Coming, News, SpaceId};
use crate::limits::{
    BATCH_PAGES, BATCH_PATIENCE, BATCHES_IN_A_ROW_MAX, DISCARD_PAUSE, FRUITLESS_BATCHES_MAX, FRUITLESS_PAUSE,
    FRUITLESS_SHARE, GROUP_PAGES, HURRY_PAUSE, STAGED_SHARE, WITHDRAW_PATIENCE, WRITE_RETRY_PAUSE,
};
use crate::program::{AgentSeen, Errand, Fate};
use crate::shared::{Shared, Tenant, lock};
use crate::slots::{Slot, SlotRun};
use crate::space::group::PageState;
use crate::space::{Books, Victim};
use crate::staging::{RunId, Staging};
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::{BlockService, Waiting};
use spillway_policy::replacement::{Arrival, CachePage, Replacement, Shadows};

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// Where a page of a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// To a page of a pool slot, and from there to the volume.
    Pool(RunId, usize),
    /// Nowhere: the slot is a copy.
    Copy(Slot),
}

/// Pages that an agent takes out of one program.
struct Batch {
    tenant: Arc<Tenant>,
    pages: Vec<(CachePage, u64, Target)>,
    errands: Vec<Errand>,
    fates: Vec<Fate>,
    runs: Vec<RunId>,
    begun: Instant,
}

/// A page that is to leave.
type Candidate = (SpaceId, u64, CachePage);

/// See the module text.
pub struct Eviction {
    shared: Arc<Shared>,
    policy: Box<dyn Replacement>,
    shadows: Shadows,
    engine: Box<dyn BlockService>,
    staging: Staging,
    /// The engine's slot for discards, behind those of the pool.
    discard_slot: usize,
    discarding: Option<SlotRun>,
    discard_at: Instant,
    /// Writes that the engine has.
    writes: u32,
    /// Writes that failed and are tried again.
    retries: Vec<(RunId, Instant)>,
    batches: Vec<Batch>,
    /// Batches that agents are done with and that the page table has not heard of.
    moved: Vec<Batch>,
    /// Batches that followed one another without the table being free in between.
    in_a_row: u32,
    /// An agent whose batch has ended, until somebody asks.
    agent_seen: Option<AgentSeen>,
    /// No fault waited for the last batch.
    is_undisturbed: bool,
    /// Room of batches that ended.
    spare: Vec<Batch>,
    news: Vec<News>,
    /// Victims that the policy handed out and that were not tried yet.
    candidates: Vec<Candidate>,
    put_off: Vec<Candidate>,
    ended: Vec<(usize, Result<(), BlockError>)>,
    /// Programs whose agents make pages their own again (rule 2), and room for the fates of that.
    owning: Vec<Arc<Tenant>>,
    own_fates: Vec<Fate>,
    /// Batches in a row that took little or nothing out, and when the next may begin.
    fruitless: u32,
    start_at: Instant,
}

impl Eviction {
    /// Writes through `engine`, whose buffers are the `pool_slots` slots of the write-back pool and one more for discards.
    pub fn new(
        shared: Arc<Shared>,
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
            agent_seen: None,
            is_undisturbed: false,
            spare: Vec::new(),
            news: Vec::new(),
            candidates: Vec::with_capacity(BATCH_PAGES),
            put_off: Vec::with_capacity(BATCH_PAGES),
            ended: Vec::with_capacity(pool_slots),
            owning: Vec::new(),
            own_fates: vec![Fate::Refused; BATCH_PAGES],
            fruitless: 0,
            start_at: now,
        }
    }

    /// The engine, for its events.
    pub fn engine(&self) -> &dyn BlockService {
        &*self.engine
    }

    /// Does what can be done now, and says what to wait for: [`Waiting::Poll`] while an agent works, or while the engine wants to be asked
    /// again at once.
    pub fn turn(&mut self, now: Instant) -> Waiting {
        self.hear();
        self.policy.resize(u32::try_from(self.shared.budget.limit_pages()).unwrap_or(u32::MAX));
        let mut waiting = self.poll_engine(now);
        if waiting == Waiting::Poll && self.writes == 0 {
            // What a discard frees is nobody's hurry, and it would take the CPU for tens of milliseconds.
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
        if self.may_follow() {
            self.start(now);
        }
        if self.is_agent_at_work() {
            return Waiting::Poll;
        }
        if self.retries.is_empty() { waiting } else { waiting.max(Waiting::Retry) }
    }

    /// Whether an agent was given something that it is not done with.
    pub fn is_agent_at_work(&self) -> bool {
        !self.batches.is_empty() || !self.owning.is_empty()
    }

    /// Sleeps until an agent that works is done, at most for `patience`.
    pub fn await_agent(&self, patience: Duration) {
        let mut tenants = self.batches.iter().map(|batch| &batch.tenant).chain(&self.owning);
        let Some(tenant) = tenants.next() else { return };
        if let Some(agent) = lock(&tenant.agent).as_ref() {
            agent.wait(patience);
        }
    }

    /// An agent that has ended a batch since this was asked last, if one has and knows its CPU.
    pub fn take_agent_seen(&mut self) -> Option<AgentSeen> {
        self.agent_seen.take()
    }

    /// Tells the policy what happened.
    fn hear(&mut self) {
        let mut news = std::mem::take(&mut self.news);
        let pages = {
            let mut books = self.shared.books();
            books.directory.take_news(&mut news);
            books.directory.pages()
        };
        self.policy.grow(pages);
        self.shadows.grow(pages);
        for one in news.drain(..) {
            match one {
                News::Came(page, coming) => {
                    let arrival = self.arrival(page, coming);
                    self.policy.inserted(page, arrival);
                }
                News::Learnt(page, evidence) => self.policy.touched(page, evidence),
                News::Gone(page) => {
                    self.policy.removed(page);
                    self.shadows.forget(page);
                }
            }
        }
        self.news = news;
    }

    fn arrival(&self, page: CachePage, coming: Coming) -> Arrival {
        match coming {
            Coming::New => Arrival::New,
            Coming::Staged => Arrival::Staged,
            Coming::Ahead => Arrival::Prefetched,
            Coming::Back => {
                let distance = self.shadows.distance(page).unwrap_or(u32::MAX);
                self.shared.counters.refault(distance);
                Arrival::Refault { distance }
            }
        }
    }

    fn poll_engine(&mut self, now: Instant) -> Waiting {
        let mut ended = std::mem::take(&mut self.ended);
        let waiting = self.engine.poll(now, &mut |slot, result| ended.push((slot, result)));
        for (slot, result) in ended.drain(..) {
            self.request_ended(slot, result, now);
        }
        self.ended = ended;
        let due: Vec<RunId> = self.retries.iter().filter(|(_, at)| *at <= now).map(|(id, _)| *id).collect();
        self.retries.retain(|(_, at)| *at > now);
        for id in due {
            let run = self.staging.writing(id).expect("what is tried again is still to be written");
            self.write(id, run, now);
        }
        waiting
    }

    fn request_ended(&mut self, slot: usize, result: Result<(), BlockError>, now: Instant) {
        if slot == self.discard_slot {
            let run = self.discarding.take().expect("one discard was under way");
            // Donors that cannot be reached forget by themselves.
            self.shared.books().slots.end_discard(run);
            return;
        }
        self.writes -= 1;
        let id = RunId(slot as u32);
        match result {
            Ok(()) => self.staging.written(id, &mut self.shared.books().slots),
            Err(error) => {
                self.shared.fail(format!("pages cannot be stored: {error}; they stay in local memory meanwhile"));
                self.retries.push((id, now + WRITE_RETRY_PAUSE));
            }
        }
    }

    fn write(&mut self, id: RunId, run: SlotRun, now: Instant) {
        let request = BlockRequest {
            slot: id.0 as usize,
            operation: BlockOperation::Write,
            offset_bytes: u64::from(run.first.0) * PAGE,
            length_bytes: u64::from(run.count) * PAGE,
        };
        self.writes += 1;
        self.engine.submit(request, now);
    }

    fn discard(&mut self, now: Instant) {
        if self.discarding.is_some() || now < self.discard_at {
            return;
        }
        let Some(run) = self.shared.books().slots.begin_discard() else {
            self.discard_at = now + DISCARD_PAUSE;
            return;
        };
        self.discarding = Some(run);
        let request = BlockRequest {
            slot: self.discard_slot,
            operation: BlockOperation::Discard,
            offset_bytes: u64::from(run.first.0) * PAGE,
            length_bytes: u64::from(run.count) * PAGE,
        };
        self.engine.submit(request, now);
    }

    /// Chooses victims and hands them to agents.
    fn start(&mut self, now: Instant) {
        if self.candidates.is_empty() && !self.choose(0) {
            return;
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut put_off = std::mem::take(&mut self.put_off);
        for of_one in candidates.chunk_by(|one, next| one.0 == next.0) {
            let Some(tenant) = self.shared.tenant(of_one[0].0).filter(|tenant| !tenant.is_gone()) else { continue };
            // The fault thread has waited for the batch before: its turn comes first, or faults would wait forever.
            let is_ready = {
                let table = &mut *tenant.lock();
                !table.is_awaited && self.shared.settle(&tenant, table)
            };
            let is_owning = self.owning.iter().any(|owning| owning.id == tenant.id);
            if !is_ready || is_owning || !self.start_batch(&tenant, of_one, now) {
                put_off.extend_from_slice(of_one);
            }
        }
        candidates.clear();
        (self.candidates, self.put_off) = (put_off, candidates);
        if self.batches.is_empty() && self.candidates.is_empty() {
            self.took_little(now);
        }
    }

    /// Whether an agent gets another batch behind the one that it has. Only what was [looked ahead for](Self::look_ahead) is given to it,
    /// and to none whose program has forked: it may be needed for something else first (`own_again`).
    fn may_follow(&self) -> bool {
        let [batch] = &self.batches[..] else { return false };
        let is_free = self.is_undisturbed && self.in_a_row < BATCHES_IN_A_ROW_MAX;
        is_free && !self.candidates.is_empty() && !batch.tenant.has_forked.load(Ordering::Relaxed)
    }

    /// Chooses the next victims while agents work, if they will be needed.
    fn look_ahead(&mut self) {
        let leaving: usize = self.batches.iter().map(|batch| batch.pages.len()).sum();
        let budget = &self.shared.budget;
        let is_enough = leaving == 0 || budget.resident_pages() - leaving as i64 <= budget.high_pages();
        if self.candidates.is_empty() && !is_enough && self.staging.available() > 0 {
            self.choose(leaving as i64);
        }
    }

    /// Asks the policy for victims besides `leaving` pages. False: there is no room for any now.
    fn choose(&mut self, leaving: i64) -> bool {
        let budget = &self.shared.budget;
        let wanted = (budget.resident_pages() - leaving - budget.low_pages()).max(1) as usize;
        let wanted = wanted.min(BATCH_PAGES).min(self.staging.available() * GROUP_PAGES);
        if wanted == 0 {
            // The pool is full of pages that are being written; if they cannot be, nobody waits for them.
            self.shared.budget.set_stuck(!self.retries.is_empty());
            return false;
        }
        let mut victims = [CachePage(0); BATCH_PAGES];
        let count = self.policy.victims(&mut victims[..wanted]);
        let books = self.shared.books();
        let homes = victims[..count].iter().filter_map(|page| Some((books.directory.home(*page)?, *page)));
        self.candidates.extend(homes.map(|(home, page)| (home.space, home.base, page)));
        self.candidates.sort_unstable();
        true
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

    /// False: faults come first, see [`Table::untried`](crate::shared::Table::untried).
    fn start_batch(&mut self, tenant: &Arc<Tenant>, candidates: &[Candidate], now: Instant) -> bool {
        let mut batch = self.spare.pop().unwrap_or_else(|| Batch {
            tenant: Arc::clone(tenant),
            pages: Vec::with_capacity(BATCH_PAGES),
            errands: Vec::with_capacity(BATCH_PAGES),
            fates: Vec::with_capacity(BATCH_PAGES),
            runs: Vec::with_capacity(BATCH_PAGES),
            begun: now,
        });
        (batch.tenant, batch.begun) = (Arc::clone(tenant), now);
        self.staging.keep(u32::try_from(self.shared.budget.limit_pages() / STAGED_SHARE).unwrap_or(u32::MAX));
        let may_begin = batch.fill(candidates, &mut self.staging, &self.shared, &mut *self.policy);
        self.shared.budget.set_pool_pages(self.staging.used_pages());
        if batch.errands.is_empty() {
            self.spare.push(batch);
            return may_begin;
        }
        let started = lock(&tenant.agent).as_mut().is_some_and(|agent| agent.begin(&batch.errands));
        batch.fates.resize(batch.errands.len(), Fate::Refused);
        if started {
            self.batches.push(batch);
        } else {
            self.finish(batch, now);
        }
        true
    }

    /// Takes batches over that agents are done with. Where nobody waits for a batch to end, the agent gets the next one before the
    /// table hears of this one; [`Table::batch`](crate::shared::Table::batch) stays set meanwhile, so nothing is done by what the
    /// table does not know yet.
    fn collect(&mut self, now: Instant) {
        let fates = &mut self.own_fates;
        self.owning.retain(|tenant| !lock(&tenant.agent).as_mut().is_none_or(|agent| agent.poll(fates)));
        let mut index = 0;
        while index < self.batches.len() {
            let (before, rest) = self.batches.split_at_mut(index);
            let batch = &mut rest[0];
            if before.iter().any(|other| other.tenant.id == batch.tenant.id) {
                // Its agent is not done with the one before.
                index += 1;
                continue;
            }
            let mut agent = lock(&batch.tenant.agent);
            let mut ended = agent.as_mut().is_none_or(|agent| agent.poll(&mut batch.fates));
            if !ended && now.saturating_duration_since(batch.begun) > WITHDRAW_PATIENCE && batch.is_waited_for() {
                // All threads of the program may be stopped by somebody who waits for a page of it.
                let process = batch.tenant.process.load(Ordering::Relaxed);
                ended = agent.as_mut().is_some_and(|agent| agent.withdraw(process, &mut batch.fates));
                self.shared.counters.batches_withdrawn.add(u64::from(ended));
            }
            let is_broken = !ended && agent.as_ref().is_some_and(|agent| agent.is_broken());
            if let Some(cpu) = agent.as_ref().filter(|_| ended).and_then(|agent| agent.cpu()) {
                let process = batch.tenant.process.load(Ordering::Relaxed);
                let thread = batch.tenant.agent_thread.load(Ordering::Relaxed);
                self.agent_seen = Some(AgentSeen { process, thread, cpu });
            }
            drop(agent);
            if is_broken && !batch.tenant.is_gone() {
                let process = batch.tenant.process.load(Ordering::Relaxed);
                self.shared.fail(format!("process {process}: its agent ended while it held pages, so it is killed"));
                // Its batch ends when its memory is gone; nobody is told of pages until then.
                batch.tenant.kill();
                batch.tenant.is_gone.store(true, Ordering::SeqCst);
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
            // A program that has forked may need its agent for something else first (`own_again`).
            let is_hurried = batch.tenant.has_forked.load(Ordering::Relaxed) || batch.is_waited_for();
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
        self.batches.iter().chain(&self.moved).any(|batch| batch.tenant.id == id)
    }

    /// The agent is done: the page table hears what became of each page, and what left is written.
    fn finish(&mut self, mut batch: Batch, now: Instant) {
        let mut to_write = [None; BATCH_PAGES];
        let gone = batch.gone();
        let is_last = !self.is_under_way(batch.tenant.id);
        {
            let mut table = batch.tenant.lock();
            if batch.tenant.is_gone() {
                // Its space has ended, or will: nothing may come into it any more.
                batch.fates.fill(Fate::Absent);
            }
            // Nobody has read the program's messages since the batch began. If there are none, what was not there is gone; else it may
            // be at another place.
            let may_have_moved = batch.fates.contains(&Fate::Absent) && batch.tenant.memory.is_changing();
            let books = &mut *self.shared.books();
            for ((page, address, target), fate) in batch.pages.iter().zip(&batch.fates) {
                match fate {
                    Fate::Moved => {
                        self.shadows.left(*page);
                        let slot = match target {
                            Target::Copy(slot) => *slot,
                            Target::Pool(id, index) => self.staging.filled(*id, *index, &mut books.slots),
                        };
                        self.count_out(*target);
                        table.space.left(*address, slot, books);
                    }
                    // Its place in the pool and its slot are given back with the run. It is the program's own again when asked for, and new then.
                    Fate::Zero => self.shared.counters.pages_out_zero.add(1),
                    Fate::Absent if !may_have_moved => {
                        // The kernel took a page back that MADV_FREE had given up, without a message; its copy is one of its contents.
                        if let Target::Copy(slot) = target
                            && table.space.state(*address) == PageState::Clean(*slot)
                        {
                            table.space.left(*address, *slot, books);
                        }
                    }
                    Fate::Refused | Fate::Changing | Fate::Absent => {
                        self.shared.counters.refused.add(1);
                        table.space.listed_again(*address);
                        self.policy.refused(*page);
                    }
                }
            }
            for (place, id) in to_write.iter_mut().zip(&batch.runs) {
                *place = self.staging.agent_ended(*id, &mut books.slots).map(|run| (*id, run));
            }
            table.batch = !is_last;
            if is_last && table.is_awaited {
                self.shared.faults.signal();
            }
            if is_last && std::mem::take(&mut table.is_hurried) {
                // They ring when a page has come.
                self.shared.call_fault_threads();
                self.start_at = self.start_at.max(now + HURRY_PAUSE);
            }
        }
        self.shared.counters.batches.add(1);
        to_write.into_iter().flatten().for_each(|(id, run)| self.write(id, run, now));
        self.own_again(&batch);
        if gone * FRUITLESS_SHARE < batch.pages.len() as i64 {
            self.took_little(now);
        } else {
            self.fruitless = 0;
            self.shared.budget.set_stuck(false);
        }
        batch.clear();
        self.spare.push(batch);
        self.shared.made_room();
    }

    /// Pages that a fork shared are refused by the kernel until they are written: then they are copied, or, if nobody else has
    /// them any more, the program's own again. A page that is write-protected stays so, since its copy is worth more; but where
    /// nobody hears of forks it gives that up, or it would never leave: no fault for it tells that the child is gone.
    fn own_again(&mut self, batch: &Batch) {
        if !batch.tenant.has_forked.load(Ordering::Relaxed) {
            return;
        }
        let (mut addresses, mut count) = ([0; BATCH_PAGES], 0);
        for ((_, address, target), fate) in batch.pages.iter().zip(&batch.fates) {
            let is_its_own = matches!(target, Target::Pool(..));
            if *fate == Fate::Refused && (is_its_own || self.give_copy_up(&batch.tenant, *address)) {
                addresses[count] = *address;
                count += 1;
            }
        }
        let begun = count > 0 && lock(&batch.tenant.agent).as_mut().is_some_and(|agent| agent.own(&addresses[..count]));
        if begun {
            self.owning.push(Arc::clone(&batch.tenant));
        }
    }

    /// The page at `address` is without write protection from now on, and its slot no copy of it any more. False if it cannot be.
    fn give_copy_up(&self, tenant: &Tenant, address: u64) -> bool {
        if !tenant.has_forked_untold.load(Ordering::Relaxed) {
            return false;
        }
        let mut table = tenant.lock();
        if !table.unsettled.is_empty() {
            return false;
        }
        let is_clean = matches!(table.space.victim(address), Some(Victim::Clean(_)));
        if is_clean && tenant.memory.unprotect(address..address + PAGE).is_ok() {
            table.space.written(address, &mut self.shared.books());
        }
        matches!(table.space.victim(address), Some(Victim::Dirty))
    }

    fn count_out(&self, target: Target) {
        let counters = &self.shared.counters;
        let counter =
            if matches!(target, Target::Copy(_)) { &counters.pages_out_clean } else { &counters.pages_out_dirty };
        counter.add(1);
    }
}

impl Batch {
    /// Whether somebody waits for its end: a fault of its program, or who brings all its pages back.
    fn is_waited_for(&self) -> bool {
        let table = self.tenant.lock();
        table.is_awaited || table.is_hurried || self.tenant.is_held()
    }

    /// How many pages left.
    fn gone(&self) -> i64 {
        self.fates.iter().filter(|fate| matches!(fate, Fate::Moved | Fate::Zero)).count() as i64
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.errands.clear();
        self.fates.clear();
        self.runs.clear();
    }

    /// Takes those of `candidates` that may leave; events of the program wait from now on, if there are any. False: faults come first.
    fn fill(
        &mut self,
        candidates: &[Candidate],
        staging: &mut Staging,
        shared: &Shared,
        policy: &mut dyn Replacement,
    ) -> bool {
        let tenant = Arc::clone(&self.tenant);
        let mut guard = tenant.lock();
        let table = &mut *guard;
        table.is_batch_due = table.untried > 0;
        if table.is_batch_due {
            return false;
        }
        let kept = lock(&tenant.kept_pages);
        let books = &mut *shared.books();
        let mut dirty: Vec<(CachePage, u64)> = Vec::with_capacity(candidates.len());
        for (_, address, page) in candidates {
            if table.space.number(*address) != Some(*page) {
                // Its program gave it up since it was chosen, and may have something else there by now.
                continue;
            }
            // A page of a program that changes its mappings or is to fork, or that the kernel itself needs (rule 4), stays.
            if !table.unsettled.is_empty() || tenant.is_held() || kept.binary_search(address).is_ok() {
                table.space.listed_again(*address);
                policy.refused(*page);
                continue;
            }
            table.space.unlisted(*address);
            // Given up and come back since it was chosen, it may be listed again, and would be in two batches.
            policy.removed(*page);
            match table.space.victim(*address) {
                Some(Victim::Dirty) => dirty.push((*page, *address)),
                Some(Victim::Clean(slot)) => self.push(*page, *address, Target::Copy(slot)),
                // Away already, being removed, or in memory that is not known to be registered.
                None => {}
            }
        }
        self.place(&dirty, staging, books, |page, address| {
            table.space.listed_again(address);
            policy.refused(page);
        });
        table.batch |= !self.errands.is_empty();
        true
    }

    /// Gives pages that are to be written neighbouring slots of the volume, by runs of the pool.
    fn place(
        &mut self,
        mut dirty: &[(CachePage, u64)],
        staging: &mut Staging,
        books: &mut Books,
        mut refuse: impl FnMut(CachePage, u64),
    ) {
        while !dirty.is_empty() {
            let Some(run) = books.slots.take(dirty.len().min(GROUP_PAGES)) else { break };
            let Some(id) = staging.take(run, &mut books.slots) else {
                run.slots().for_each(|slot| books.slots.give_back(slot));
                break;
            };
            self.runs.push(id);
            let (now, later) = dirty.split_at(run.count as usize);
            for (index, (page, address)) in now.iter().enumerate() {
                self.push(*page, *address, Target::Pool(id, index));
            }
            dirty = later;
        }
        dirty.iter().for_each(|(page, address)| refuse(*page, *address));
    }

    fn push(&mut self, page: CachePage, address: u64, target: Target) {
        self.pages.push((page, address, target));
        let target = if let Target::Pool(id, index) = target { Some(id.page(index)) } else { None };
        self.errands.push(Errand { address, target });
    }
}
