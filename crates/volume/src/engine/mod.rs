//! Decides what happens to a block request: one engine per I/O thread, a state machine that never blocks or allocates.
//!
//! One page on its way in: [`Engine::submit`] puts the request into the slot that its buffer has; [`Engine::poll`]
//! starts it: `read` passes the slab's gate, looks where the page's valid copies are, posts a sub-request to a queue
//! pair ([`queue_pairs`]), and at the poll that brings the completion leaves the gate and answers. `write` and
//! `discard` own their pages meanwhile.
//!
//! Each poll moves the requests that a thread waits for first ([`Priority::Demand`]), then the others, by class and
//! the oldest first. So what is free of a queue pair goes to them first, and a prefetch waits for no later one.
//!
//! - `active`: the state of one request; `in_place`: no request at all.
//! - `sealing`: the bytes that are sent for a page; `verify`: whether what came back is it; `proving`: what both need.
//! - [`queue_pairs`]: this thread's queue pairs. [`bandwidth`]: how many bytes go over all of the volume's.

mod active;
pub mod bandwidth;
mod discard;
mod in_place;
mod proving;
pub mod queue_pairs;
mod read;
mod sealing;
mod segment;
mod verify;
mod write;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_block::limits::{BLOCK_REQUEST_DEADLINE, BLOCK_REQUEST_DEADLINE_SOLE};
use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::{BlockService, Completed, UseMemory, Waiting};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::limits::REQUEST_DEADLINE;
use spillway_fabric::queue_pair::RequestError;
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority};

use self::active::{Active, Context, Stage, Step};
use self::bandwidth::{Bandwidth, Toll};
use self::proving::Proving;
use self::queue_pairs::{QueuePairSet, SubRequest, Target};
use crate::protection::PageProof;
use crate::settings::redundancy::Redundancy;
use crate::slab_map::Volume;
use crate::slab_map::page_bits::Bit;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::slab_entry::DonorSlot;
use crate::state::records::{Milestone, Records};

/// Serves a volume, see the module text.
pub struct Engine {
    volume: Arc<Volume>,
    metrics: Arc<Metrics>,
    pool: Arc<BufferPool>,
    queue_pairs: QueuePairSet,
    /// Unless pages are plain.
    proving: Option<Proving>,
    /// Unless its traffic has no bound.
    bandwidth: Option<Arc<Bandwidth>>,
    requests: Box<[Active]>,
    /// Requests that are not answered yet.
    under_way: usize,
    /// Of them, those that no thread waits for.
    not_awaited: usize,
    /// Requests so far.
    submitted: u64,
    /// Where the first request and the first that was carried out are noted.
    life: Option<Records>,
    has_answered: bool,
}

impl Engine {
    /// For requests whose data lies in `pool`: the request in slot `i` uses buffer `i`.
    pub fn new(
        volume: Arc<Volume>,
        metrics: Arc<Metrics>,
        pool: Arc<BufferPool>,
        queue_pairs: QueuePairSet,
        now: Instant,
    ) -> Self {
        let requests = (0..pool.slot_count()).map(|slot| Active::free(slot, now)).collect();
        let proving = volume.proofs.as_ref().map(|proofs| Proving::new(proofs.new_writer(), &pool));
        Self {
            volume,
            metrics,
            pool,
            queue_pairs,
            proving,
            bandwidth: None,
            requests,
            under_way: 0,
            not_awaited: 0,
            submitted: 0,
            life: None,
            has_answered: false,
        }
    }

    /// The same, whose traffic `bandwidth` bounds together with that of other engines.
    pub fn bounded_by(mut self, bandwidth: Option<Arc<Bandwidth>>) -> Self {
        self.bandwidth = bandwidth;
        self
    }

    /// The same, which notes in `records` that it is used.
    pub fn noting_in(mut self, records: Records) -> Self {
        self.life = Some(records);
        self
    }

    /// What the request in `slot` owes from here on, if `bandwidth` bounds it.
    fn charge(&mut self, slot: usize, now: Instant) {
        let (Some(bandwidth), active) = (&self.bandwidth, &mut self.requests[slot]) else { return };
        let moves = matches!(active.request.operation, BlockOperation::Read | BlockOperation::Write);
        active.toll = match active.request.priority {
            _ if !moves => Toll::Paid,
            Priority::Demand => bandwidth.reserve(active.request.length_bytes, now),
            _ => Toll::Open,
        };
        if let Toll::Due(at) = active.toll {
            // What it waits for here counts for no deadline of donors.
            active.arrived = at;
        }
    }

    /// Whether the request in `slot` may begin.
    fn may_begin(&mut self, slot: usize, now: Instant) -> bool {
        let active = &mut self.requests[slot];
        let is_free = match (active.toll, &self.bandwidth) {
            (Toll::Paid, _) | (_, None) => return true,
            (Toll::Due(at), _) => at <= now,
            (Toll::Open, Some(bandwidth)) => bandwidth.take(active.request.length_bytes, now),
        };
        if is_free {
            active.toll = Toll::Paid;
            active.arrived = active.arrived.max(now);
        }
        is_free
    }

    fn is_valid(&self, request: &BlockRequest) -> bool {
        let page = PAGE_SIZE_BYTES as u64;
        let data = matches!(request.operation, BlockOperation::Read | BlockOperation::Write);
        let end = request.offset_bytes.checked_add(request.length_bytes);
        request.length_bytes > 0
            && request.offset_bytes.is_multiple_of(page)
            && request.length_bytes.is_multiple_of(page)
            && end.is_some_and(|end| end <= self.volume.geometry.page_count() * page)
            && (!data || request.length_bytes <= self.pool.slot_size_bytes() as u64)
    }
}

impl BlockService for Engine {
    fn submit(&mut self, request: BlockRequest, now: Instant) {
        self.requests[request.slot].accept(request, self.submitted, self.volume.geometry, now);
        self.charge(request.slot, now);
        if let (0, Some(life)) = (self.submitted, &self.life) {
            life.reach(Milestone::Asked);
        }
        self.submitted += 1;
        self.under_way += 1;
        self.not_awaited += usize::from(request.priority != Priority::Demand);
    }

    fn promote(&mut self, slot: usize) {
        let active = &mut self.requests[slot];
        assert!(active.stage != Stage::Free, "a request that is promoted was submitted and has not ended");
        self.not_awaited -= usize::from(active.turn().is_some());
        active.request.priority = Priority::Demand;
        if active.toll == Toll::Open {
            self.charge(slot, Instant::now());
        }
    }

    fn read_in_place(&mut self, offset_bytes: u64, length_bytes: u64, use_memory: UseMemory<'_>) -> bool {
        // With a bound they are requests, which wait their turn.
        self.bandwidth.is_none() && self.use_mapped(offset_bytes, length_bytes, use_memory)
    }

    fn poll(&mut self, now: Instant, completed: Completed<'_>) -> Waiting {
        self.queue_pairs.adopt();
        if self.under_way == 0 && self.queue_pairs.in_flight() == 0 {
            return Waiting::Nothing;
        }
        let (requests, volume) = (&mut self.requests, &self.volume);
        self.queue_pairs.poll(now, &mut |sub_request, result| piece_ended(requests, volume, sub_request, result));
        let mut waiting = Waiting::Nothing;
        for slot in 0..self.requests.len() {
            let active = &self.requests[slot];
            if active.stage != Stage::Free && active.turn().is_none() {
                waiting = waiting.max(self.look_at(slot, now, completed));
            }
        }
        let mut last = None;
        while self.not_awaited > 0
            && let Some((turn, slot)) = self.next_turn(last)
        {
            waiting = waiting.max(self.look_at(slot, now, completed));
            last = Some(turn);
        }
        if self.queue_pairs.needs_polling() {
            waiting = Waiting::Poll;
        }
        waiting
    }

    fn arm(&mut self) -> bool {
        self.queue_pairs.arm()
    }

    fn for_each_event<'a>(&'a self, visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {
        self.queue_pairs.for_each_event(visit);
    }
}

impl Engine {
    /// Moves one request, and says what it waits for.
    fn look_at(&mut self, slot: usize, now: Instant, completed: Completed<'_>) -> Waiting {
        if !self.may_begin(slot, now) {
            return Waiting::Retry;
        }
        let Some(result) = self.step(slot, now) else { return wait_of(&self.requests[slot]) };
        self.finish(slot, result, now);
        completed(slot, result);
        Waiting::Nothing
    }

    /// The request that no thread waits for whose turn is next, after `last`.
    fn next_turn(&self, last: Option<(Priority, u64)>) -> Option<((Priority, u64), usize)> {
        let turns = self.requests.iter().filter_map(|active| Some((active.turn()?, active.slot)));
        turns.filter(|(turn, _)| last.is_none_or(|last| *turn > last)).min()
    }

    /// Takes one request as far as it goes now; its result when it is over.
    fn step(&mut self, slot: usize, now: Instant) -> Option<Result<(), BlockError>> {
        if self.requests[slot].stage == Stage::Parked
            && (self.requests[slot].request.operation == BlockOperation::Flush || !self.is_valid_slot(slot))
        {
            // Acknowledged writes are at a donor or on disk already, so a flush has nothing to wait for.
            let flush = self.requests[slot].request.operation == BlockOperation::Flush;
            return Some(if flush { Ok(()) } else { Err(BlockError::Invalid) });
        }
        loop {
            let active = &mut self.requests[slot];
            let mut context = Context {
                volume: &self.volume,
                queue_pairs: &mut self.queue_pairs,
                pool: &self.pool,
                proving: self.proving.as_mut(),
                now,
            };
            match advance(active, &mut context) {
                Step::Pending => return expired(active, &self.volume, now),
                Step::Park => {
                    active.stage = Stage::Parked;
                    return expired(active, &self.volume, now);
                }
                Step::Finished(Err(error)) => return Some(Err(error)),
                Step::Finished(Ok(())) => {
                    self.metrics.count_disk_pages(active.disk_pages);
                    self.volume.slab(active.segment.slab).count_accesses(active.segment.count);
                    active.stage = Stage::Parked;
                    if !active.next_segment(self.volume.geometry, now) {
                        return Some(Ok(()));
                    }
                }
            }
        }
    }

    fn is_valid_slot(&self, slot: usize) -> bool {
        self.is_valid(&self.requests[slot].request)
    }

    fn finish(&mut self, slot: usize, result: Result<(), BlockError>, now: Instant) {
        give_up_turn(&mut self.requests[slot], &self.volume);
        let active = &mut self.requests[slot];
        assert!(active.pass.is_none() && active.outstanding == 0, "a finished request uses nothing");
        self.not_awaited -= usize::from(active.turn().is_some());
        active.stage = Stage::Free;
        self.under_way -= 1;
        if result.is_ok() && !self.has_answered {
            self.has_answered = true;
            self.life.iter().for_each(|life| life.reach(Milestone::Answered));
        }
        let latency = now.saturating_duration_since(active.arrived);
        self.metrics.record(&active.request, result.is_ok(), latency);
    }
}

/// A request that ends, or whose thread does, wants no room in the backlog any more.
fn give_up_turn(active: &mut Active, volume: &Volume) {
    if let (Some(ticket), Some(disk)) = (active.ticket.take(), &volume.disk) {
        disk.backlog.give_up(ticket);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.requests.iter_mut().for_each(|active| give_up_turn(active, &self.volume));
    }
}

fn advance(active: &mut Active, context: &mut Context<'_>) -> Step {
    let operation = active.request.operation;
    match (active.stage, operation) {
        (Stage::Parked, BlockOperation::Read) => read::start(active, context),
        (Stage::Parked, BlockOperation::Write) => write::start(active, context),
        (Stage::Parked, BlockOperation::Discard) => discard::start(active, context),
        (Stage::Moving, BlockOperation::Read) => read::advance(active, context),
        (Stage::Moving, BlockOperation::Write) => write::advance(active, context),
        (Stage::Moving, BlockOperation::Discard) => discard::advance(active, context),
        (Stage::AwaitingDisk, _) => write::await_disk(active, context.volume),
        (Stage::Free, _) | (_, BlockOperation::Flush) => unreachable!("only requests under way advance"),
    }
}

fn piece_ended(requests: &mut [Active], volume: &Volume, sub_request: SubRequest, result: Result<(), RequestError>) {
    let active = &mut requests[sub_request.owner];
    assert!(active.stage == Stage::Moving && active.outstanding > 0, "a sub-request ends while its owner waits for it");
    if let (Target::Donor(donor), Err(RequestError::Down | RequestError::NotLent)) = (sub_request.target, result) {
        volume.report_trouble(donor);
    }
    match active.request.operation {
        BlockOperation::Read => read::ended(active, sub_request, result),
        BlockOperation::Write => write::ended(active, sub_request, result),
        BlockOperation::Discard => discard::ended(active),
        BlockOperation::Flush => unreachable!("a flush posts nothing"),
    }
}

/// Gives a request up that cannot go on; one whose sub-requests are in flight ends through them, each has a deadline.
fn expired(active: &Active, volume: &Volume, now: Instant) -> Option<Result<(), BlockError>> {
    let parked = matches!(active.stage, Stage::Parked | Stage::AwaitingDisk);
    let waited = now.saturating_duration_since(active.arrived);
    if !parked || waited < BLOCK_REQUEST_DEADLINE {
        return None;
    }
    let no_room = active.request.operation == BlockOperation::Write && !volume.mapping_possible();
    if !no_room && waited < request_deadline(volume.redundancy) {
        return None;
    }
    Some(Err(if no_room { BlockError::NoSpace } else { BlockError::TimedOut }))
}

/// The owned `page`, which came from `donor` or from the disk, is not what `proof` is of: counts that, and makes it be
/// read from elsewhere if there is another copy. `bit` says which copy it was.
pub(crate) fn refuse_page(volume: &Volume, page: PageIndex, proof: PageProof, bit: Bit, donor: Option<DonorSlot>) {
    verify::refuse(volume, page, proof, bit, donor);
}

/// How long a request may wait for what can still come.
fn request_deadline(redundancy: Redundancy) -> Duration {
    if redundancy.disk { BLOCK_REQUEST_DEADLINE } else { BLOCK_REQUEST_DEADLINE_SOLE }
}

/// How long a request takes at most: one that waited so long may have been posted at the last moment. (That a donor
/// with the only copy stops just then, after another long wait, is not counted: the thread that waits this long waits
/// for one silence.)
pub fn answer_deadline(redundancy: Redundancy) -> Duration {
    request_deadline(redundancy) + REQUEST_DEADLINE
}

fn wait_of(active: &Active) -> Waiting {
    match active.stage {
        Stage::Moving if active.unposted.contains(&true) => Waiting::Retry,
        Stage::Moving => Waiting::Event,
        // A sub-request that has one ends with an event.
        Stage::Parked if active.awaits_credit => Waiting::Event,
        Stage::Parked | Stage::AwaitingDisk => Waiting::Retry,
        Stage::Free => Waiting::Nothing,
    }
}
