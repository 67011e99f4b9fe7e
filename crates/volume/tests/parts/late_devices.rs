//! Devices that move bytes although no thread polls, as those of RDMA do, when their session ends.
//!
//! Invariant: no buffer of an answered request is written to or sent by a queue pair that was replaced. Pages were lost
//! by that: a late read filled the buffer of a later write, which then brought wrong bytes to both donors.

use std::sync::Arc;
use std::time::Instant;

use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation};
use spillway_block::service::BlockService;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{PAGE_SIZE_BYTES, SlabHandle, SlabIndex};
use spillway_volume::engine::Engine;
use spillway_volume::engine::queue_pairs::{QueuePairChange, QueuePairMailbox, QueuePairSet};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::slab_map::page_bits::Bit;
use spillway_volume::slab_map::page_index::PageIndex;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};
use spillway_volume::slab_map::{Geometry, Volume};
use spillway_volume::test_support::{SharedStore, StoreQueuePair, model, store};

const GEOMETRY: Geometry = Geometry { slab_pages: 256, slab_count: 1 };
const SLAB_BYTES: usize = 256 * PAGE_SIZE_BYTES;

/// What the first pages hold at both donors.
const OLD: u8 = 1;
/// What is written later, to other pages.
const NEW: u8 = 2;
/// Where that is.
const LATER: u64 = 100;

struct World {
    volume: Arc<Volume>,
    engine: Engine,
    pool: Arc<BufferPool>,
    mailbox: Arc<QueuePairMailbox>,
    donors: [SharedStore; 2],
    answer: Option<Result<(), BlockError>>,
}

impl World {
    /// Two donors with the same pages, of which the first does not answer yet, and one buffer.
    fn new() -> Self {
        let redundancy = Redundancy { replicas: 2, disk: false };
        let volume = Arc::new(Volume::new(GEOMETRY, redundancy, None).unwrap());
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let mailbox = QueuePairMailbox::new();
        let queue_pairs = QueuePairSet::new(Arc::clone(&mailbox), None);
        let (metrics, now) = (Arc::new(Metrics::default()), Instant::now());
        let engine = Engine::new(Arc::clone(&volume), metrics, Arc::clone(&pool), queue_pairs, now);
        let donors = [u32::MAX, 0].map(|delay_polls| {
            let donor = store(SLAB_BYTES);
            let handle = donor.lock().unwrap().lend();
            donor.lock().unwrap().slab(handle).fill(OLD);
            donor.lock().unwrap().delay_polls = delay_polls;
            donor
        });
        for (slot, donor) in (0..).zip(&donors) {
            volume.begin_session(DonorSlot(slot));
            let queue_pair = Some(StoreQueuePair::by_device(donor, &pool, 8));
            mailbox.leave(QueuePairChange { donor: DonorSlot(slot), queue_pair });
            volume.slab(SlabIndex(0)).fill(slot.into(), Location { donor: DonorSlot(slot), handle: SlabHandle(0) });
            volume.bits.set(Bit::Copy(slot.into()), PageIndex(0), 4);
        }
        Self { volume, engine, pool, mailbox, donors, answer: None }
    }

    fn submit(&mut self, operation: BlockOperation, page: u64) {
        self.answer = None;
        self.engine.submit(model::request(0, operation, page, 1), Instant::now());
        self.poll();
    }

    fn poll(&mut self) {
        for _ in 0..4 {
            self.engine.poll(Instant::now(), &mut |_, result| self.answer = Some(result));
        }
    }

    /// The session with the first donor ends, or begins anew, and the I/O thread hears of that.
    fn change_session(&mut self, is_new: bool) {
        let donor = DonorSlot(0);
        let queue_pair = is_new.then(|| StoreQueuePair::by_device(&self.donors[0], &self.pool, 8));
        self.mailbox.leave(QueuePairChange { donor, queue_pair });
        self.poll();
    }

    /// Writes the buffer to another page, while the first donor's device carries out what it still has.
    fn write_later(&mut self) {
        self.pool.memory().write(0, &[NEW; PAGE_SIZE_BYTES]);
        self.donors[0].lock().unwrap().move_bytes();
        self.submit(BlockOperation::Write, LATER);
        assert_eq!(self.answer, Some(Ok(())));
    }

    fn byte_at(&self, donor: usize, page: u64) -> u8 {
        self.donors[donor].lock().unwrap().slab(SlabHandle(0))[page as usize * PAGE_SIZE_BYTES]
    }
}

#[test]
fn a_late_read_of_a_session_that_ended_fills_no_buffer_of_a_later_write() {
    for is_new in [false, true] {
        let mut world = World::new();
        world.submit(BlockOperation::Read, 0);
        assert_eq!(world.answer, None, "the first donor owes it");
        if is_new {
            // What comes after it is answered.
            world.donors[0].lock().unwrap().delay_polls = 0;
        }
        world.change_session(is_new);
        assert_eq!(world.answer, Some(Ok(())), "the other donor has it too");
        world.write_later();
        assert_eq!(world.byte_at(1, LATER), NEW, "it is what was written");
    }
}

#[test]
fn a_late_write_of_a_session_that_ended_sends_no_buffer_of_a_later_request() {
    let mut world = World::new();
    world.pool.memory().write(0, &[OLD + 8; PAGE_SIZE_BYTES]);
    world.submit(BlockOperation::Write, 1);
    assert_eq!(world.answer, None);
    world.change_session(false);
    assert_eq!(world.answer, Some(Ok(())));
    world.write_later();
    assert_eq!(world.byte_at(0, 1), OLD, "nothing arrives any more");
    assert_eq!((world.byte_at(1, 1), world.byte_at(1, LATER)), (OLD + 8, NEW));
}

#[test]
fn requests_wait_while_a_device_does_not_let_go_of_their_buffers() {
    let mut world = World::new();
    world.submit(BlockOperation::Read, 0);
    world.donors[0].lock().unwrap().refused_halts = u32::MAX;
    world.change_session(false);
    (0..10).for_each(|_| world.poll());
    assert_eq!(world.answer, None, "the buffer is the device's");
    world.donors[0].lock().unwrap().refused_halts = 0;
    world.poll();
    assert_eq!(world.answer, Some(Ok(())));
    world.write_later();
    assert_eq!(world.byte_at(1, LATER), NEW);
    assert!(!world.volume.bits.any(Bit::Busy, PageIndex(0), GEOMETRY.slab_pages));
}
