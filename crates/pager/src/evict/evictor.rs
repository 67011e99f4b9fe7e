//! The evictor inside a program, reached through its seat.
//!
//! What it evicts lies in the seat, which its program can write to, and is copied to the write-back pool, which no
//! program sees.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::protocol::{BATCHES, EvictorState, Phase, outcome};
use spillway_stub::seat::{Seat, Task};

use crate::evict::take_over::{Held, Rescue, is_stopped, thread_of_evictor};
use crate::limits::{BATCH_PAGES, EVICTOR_BATCHES_MAX};
use crate::page_table::virtual_page::VirtualPage;
use crate::process::memory::{CollapseOutcome, EvictOutcome, EvictRequest, Evictor};

/// `MADV_COLLAPSE` (Linux 6.1).
const COLLAPSE: u32 = 25;

/// See the module text.
pub struct SeatEvictor {
    seat: Seat,
    /// The write-back pool.
    pool: Arc<BufferPool>,
    /// The program's memory.
    held: Option<Held>,
    /// What each batch evicts.
    requests: [Vec<EvictRequest>; BATCHES],
    /// The batch that ends next, or that is posted next if none is under way.
    batch: usize,
    /// How many were posted and not taken back, from that one on.
    under_way: usize,
    /// The last of these were withdrawn before the evictor had them.
    withdrawn: usize,
    /// The next batch is still with the evictor, which was stopped in the middle of it: no thread waits for its
    /// results.
    is_rescued: bool,
    /// The process and the thread, while that was stopped when it was looked at last.
    stopped: Option<(u32, u32)>,
    /// It is to end: no batch begins any more.
    is_over: bool,
    /// And was told so.
    is_told: bool,
    /// The program's memory is gone, and its evictor with it.
    is_gone: Arc<AtomicBool>,
    /// Where its thread's number is told: its faults are never held back (rule 15).
    thread: Arc<AtomicU32>,
    tasks: Vec<Task>,
}

impl SeatEvictor {
    /// The evictor in `seat`, of a program that sets `is_gone` when it ends; its pages go to `pool`. Without `held` its
    /// batches wait for it when it is stopped.
    pub fn new(
        seat: Seat,
        pool: Arc<BufferPool>,
        held: Option<Held>,
        is_gone: Arc<AtomicBool>,
        thread: Arc<AtomicU32>,
    ) -> Self {
        let tasks = Vec::with_capacity(BATCH_PAGES);
        let requests = std::array::from_fn(|_| Vec::with_capacity(BATCH_PAGES));
        Self {
            seat,
            pool,
            held,
            requests,
            batch: 0,
            under_way: 0,
            withdrawn: 0,
            is_rescued: false,
            stopped: None,
            is_over: false,
            is_told: false,
            is_gone,
            thread,
            tasks,
        }
    }

    /// Whether another batch may be posted behind `under_way_max` others.
    fn is_ready(&mut self, under_way_max: usize) -> bool {
        self.stopped = self.stopped.filter(|(process, thread)| is_stopped(*process, *thread));
        self.take_rescued();
        if self.stopped.is_some() || self.is_rescued || self.withdrawn > 0 {
            return false;
        }
        let is_running = self.seat.state() == EvictorState::Running && !self.is_gone.load(Ordering::SeqCst);
        !self.is_over && self.under_way <= under_way_max && is_running
    }

    /// An evictor that goes on ends the batch that it was stopped in, and looks for the next one.
    fn take_rescued(&mut self) {
        if self.is_rescued && self.seat.phase(self.batch) == Phase::Done {
            self.seat.hold(false);
            self.seat.take(self.batch);
            self.batch = (self.batch + 1) % BATCHES;
            self.is_rescued = false;
        }
    }

    /// The batch that is posted next.
    fn next(&self) -> usize {
        (self.batch + self.under_way) % BATCHES
    }

    fn post(&mut self) -> bool {
        self.thread.store(self.seat.evictor_thread(), Ordering::Relaxed);
        self.seat.post(self.next(), &self.tasks);
        self.under_way += 1;
        true
    }
}

impl Evictor for SeatEvictor {
    fn begin(&mut self, requests: &[EvictRequest]) -> bool {
        if !self.is_ready(EVICTOR_BATCHES_MAX - 1) {
            return false;
        }
        self.tasks.clear();
        self.tasks.extend(requests.iter().map(|request| match request.target {
            Some(_) => Task::evict_copy(request.page.address()),
            None => Task::evict_drop(request.page.address()),
        }));
        let next = self.next();
        self.requests[next].clear();
        self.requests[next].extend_from_slice(requests);
        self.post()
    }

    fn own(&mut self, pages: &[VirtualPage]) -> bool {
        if !self.is_ready(0) {
            return false;
        }
        self.tasks.clear();
        self.tasks.extend(pages.iter().map(|page| Task::populate(page.address(), PAGE_SIZE_BYTES as u64)));
        let next = self.next();
        self.requests[next].clear();
        self.post()
    }

    fn collapse(&mut self, block: Range<u64>) -> bool {
        if !self.is_ready(0) {
            return false;
        }
        self.tasks.clear();
        self.tasks.push(Task::advise(block.start, block.end - block.start, COLLAPSE));
        let next = self.next();
        self.requests[next].clear();
        self.post()
    }

    fn collapsed(&mut self) -> Option<CollapseOutcome> {
        if self.seat.phase(self.batch) != Phase::Done {
            let is_gone = self.is_gone.load(Ordering::SeqCst) || self.is_broken();
            return is_gone.then_some(CollapseOutcome::Gone);
        }
        let outcome = collapse_outcome(self.seat.result(self.batch, 0));
        self.seat.take(self.batch);
        self.batch = (self.batch + 1) % BATCHES;
        self.under_way -= 1;
        Some(outcome)
    }

    fn end(&mut self, status: u8) {
        self.is_over = true;
        self.take_rescued();
        if self.under_way == 0 && !self.is_rescued && !self.is_told {
            self.is_told = true;
            self.seat.post(self.batch, &[Task::exit(status)]);
        }
    }

    fn poll(&mut self, outcomes: &mut [EvictOutcome]) -> bool {
        if self.withdrawn > 0 && self.withdrawn == self.under_way {
            outcomes.fill(EvictOutcome::Refused);
            self.withdrawn -= 1;
            self.under_way -= 1;
            return true;
        }
        if self.seat.phase(self.batch) != Phase::Done {
            // What was moved of a program that is gone is gone too, and no batch begins any more.
            let is_gone = self.is_gone.load(Ordering::SeqCst);
            if is_gone {
                outcomes.fill(EvictOutcome::Absent);
            }
            return is_gone;
        }
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            *outcome = fate_of(self.seat.result(self.batch, index));
            let target = self.requests[self.batch].get(index).and_then(|request| request.target);
            if let Some(page) = target.filter(|_| *outcome == EvictOutcome::Moved) {
                self.seat.read_page(self.batch, index, self.pool.memory(), page.0 as usize * PAGE_SIZE_BYTES);
            }
        }
        // Set by a rescue that came to nothing.
        self.seat.hold(false);
        self.seat.take(self.batch);
        self.batch = (self.batch + 1) % BATCHES;
        self.under_way -= 1;
        true
    }

    fn withdraw(&mut self, process: u32, outcomes: &mut [EvictOutcome]) -> bool {
        let Some(thread) = thread_of_evictor(process).filter(|thread| is_stopped(process, *thread)) else {
            return false;
        };
        self.stopped = Some((process, thread));
        if self.under_way - self.withdrawn == 2 && self.seat.withdraw((self.batch + 1) % BATCHES) {
            self.withdrawn = 1;
        }
        if self.withdrawn + 1 != self.under_way {
            // It is done with the first.
            return false;
        }
        if self.seat.withdraw(self.batch) {
            outcomes.fill(EvictOutcome::Refused);
        } else {
            let Some(held) = &self.held else { return false };
            let requests = &self.requests[self.batch];
            let (seat, pool) = (&self.seat, self.pool.memory());
            let rescue = Rescue { seat, batch: self.batch, process, thread, held, requests, pool };
            if requests.is_empty() || !rescue.run(outcomes).unwrap_or(false) {
                return false;
            }
            self.is_rescued = true;
        }
        self.under_way -= 1;
        true
    }

    fn wait(&self, patience: Duration) {
        if self.under_way > 0 {
            // Whatever it says, the batch is looked at next.
            let _ = self.seat.wait(self.batch, Phase::Done, 0, Instant::now() + patience);
        }
    }

    fn cpu(&self) -> Option<usize> {
        self.seat.evictor_cpu()
    }

    fn is_broken(&self) -> bool {
        let has_ended = matches!(self.seat.state(), EvictorState::Failed | EvictorState::Ended | EvictorState::Absent);
        self.under_way > 0 && has_ended && self.seat.phase(self.batch) != Phase::Done
    }
}

/// By the result of MADV_COLLAPSE (`madvise_collapse_errno` in mm/khugepaged.c).
fn collapse_outcome(result: i32) -> CollapseOutcome {
    match result {
        outcome::DONE => CollapseOutcome::Done,
        // ENOMEM: no huge page is free. EAGAIN: pages were in use. EBUSY: that, or one is away.
        NO_MEMORY | outcome::TRY_LATER | outcome::BUSY => CollapseOutcome::Later,
        _ => CollapseOutcome::Refused,
    }
}

/// `-ENOMEM`.
const NO_MEMORY: i32 = -12;

fn fate_of(result: i32) -> EvictOutcome {
    match result {
        outcome::DONE => EvictOutcome::Moved,
        outcome::ZERO => EvictOutcome::Zero,
        outcome::ABSENT => EvictOutcome::Absent,
        outcome::TRY_LATER => EvictOutcome::Changing,
        _ => EvictOutcome::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::volume_pages::PoolPage;

    fn evictor() -> SeatEvictor {
        let pool = BufferPool::unlocked(1, PAGE_SIZE_BYTES).unwrap();
        SeatEvictor::new(Seat::create().unwrap(), pool, None, Arc::default(), Arc::default())
    }

    #[test]
    fn without_a_running_evictor_nothing_begins() {
        let mut evictor = evictor();
        assert!(!evictor.begin(&[EvictRequest { page: VirtualPage::at(4096), target: Some(PoolPage(0)) }]));
    }

    #[test]
    fn an_evictor_is_told_to_end_once_when_its_batch_is_over() {
        let mut evictor = evictor();
        evictor.under_way = 1;
        evictor.end(3);
        assert_eq!(evictor.seat.phase(0), Phase::Idle, "the batch under way comes first");
        evictor.under_way = 0;
        evictor.end(3);
        assert_eq!(evictor.seat.phase(0), Phase::Posted);
        // A second one would find its batch in use.
        evictor.end(3);
        assert!(!evictor.is_ready(0), "and nothing follows");
    }

    #[test]
    fn results_say_whether_a_block_may_become_a_huge_page_later() {
        let outcomes = [outcome::DONE, -12, -11, -16, -22, -38].map(collapse_outcome);
        let [done, later, refused] = [CollapseOutcome::Done, CollapseOutcome::Later, CollapseOutcome::Refused];
        assert_eq!(outcomes, [done, later, later, later, refused, refused]);
    }

    #[test]
    fn results_say_what_is_next() {
        let outcomes =
            [outcome::DONE, outcome::ZERO, outcome::ABSENT, outcome::TRY_LATER, outcome::BUSY, outcome::REFUSED]
                .map(fate_of);
        assert_eq!(
            outcomes,
            [
                EvictOutcome::Moved,
                EvictOutcome::Zero,
                EvictOutcome::Absent,
                EvictOutcome::Changing,
                EvictOutcome::Refused,
                EvictOutcome::Refused
            ]
        );
    }
}
