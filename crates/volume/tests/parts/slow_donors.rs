//! Donors that are slow and alive: what others have too is read from them, and no late answer reaches a buffer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation};
use spillway_block::service::{BlockService, Waiting};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{PAGE_SIZE_BYTES, SlabHandle, SlabIndex};
use spillway_volume::engine::Engine;
use spillway_volume::engine::queue_pairs::{QueuePairChange, QueuePairMailbox, QueuePairSet};
use spillway_volume::limits::{AVOIDANCE_MIN, READ_PATIENCE_DEFAULT};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::slab_map::backlog::Backlog;
use spillway_volume::slab_map::page_bits::Bit;
use spillway_volume::slab_map::page_index::PageIndex;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};
use spillway_volume::slab_map::{DiskCopy, Geometry, Volume};
use spillway_volume::test_support::{SharedStore, StoreQueuePair, model, store};

const GEOMETRY: Geometry = Geometry { slab_pages: 256, slab_count: 1 };
const SLAB_BYTES: usize = 256 * PAGE_SIZE_BYTES;

/// What the pages hold at the first donor, at the second one, and on the disk: the bytes tell where a page was read.
const FIRST: u8 = 1;
const SECOND: u8 = 2;
const DISK: u8 = 3;
/// What the buffer holds before.
const UNTOUCHED: u8 = 9;

struct World {
    volume: Arc<Volume>,
    engine: Engine,
    pool: Arc<BufferPool>,
    donors: [SharedStore; 2],
    now: Instant,
    answer: Option<Result<(), BlockError>>,
}

impl World {
    /// Two donors that are reached over sockets and have all pages, as has the disk if there is one. Neither answers
    /// yet.
    fn new(redundancy: Redundancy) -> Self {
        let disk = redundancy
            .disk
            .then(|| DiskCopy { backlog: Backlog::new(64), pool: BufferPool::new(64, PAGE_SIZE_BYTES).unwrap() });
        let volume = Arc::new(Volume::new(GEOMETRY, redundancy, disk).unwrap());
        let pool = BufferPool::new(1, 4 * PAGE_SIZE_BYTES).unwrap();
        let mailbox = QueuePairMailbox::new();
        let file = redundancy.disk.then(|| {
            let disk = store(SLAB_BYTES);
            disk.lock().unwrap().slab(SlabHandle(0)).fill(DISK);
            StoreQueuePair::boxed(&disk, &pool, 4)
        });
        let queue_pairs = QueuePairSet::new(Arc::clone(&mailbox), file).watched_by(&volume.latencies);
        let now = Instant::now();
        let engine =
            Engine::new(Arc::clone(&volume), Arc::new(Metrics::default()), Arc::clone(&pool), queue_pairs, now);
        let donors = [FIRST, SECOND].map(|content| {
            let donor = store(SLAB_BYTES);
            let handle = donor.lock().unwrap().lend();
            donor.lock().unwrap().slab(handle).fill(content);
            donor.lock().unwrap().delay_polls = u32::MAX;
            donor
        });
        for (slot, donor) in (0..).zip(&donors) {
            volume.begin_session(DonorSlot(slot));
            let queue_pair = Some(StoreQueuePair::over_socket(donor, &pool, 8));
            mailbox.leave(QueuePairChange { donor: DonorSlot(slot), queue_pair });
            volume.slab(SlabIndex(0)).fill(slot.into(), Location { donor: DonorSlot(slot), handle: SlabHandle(0) });
        }
        Self { volume, engine, pool, donors, now, answer: None }
    }

    fn set(&self, bit: Bit, pages: u64) {
        self.volume.bits.set(bit, PageIndex(0), pages);
    }

    /// Requests that a donor gets from now on are answered at the next poll.
    fn answers_at_once(&self, donor: usize) {
        self.donors[donor].lock().unwrap().delay_polls = 0;
    }

    fn read(&mut self, pages: u64) {
        (0..4 * PAGE_SIZE_BYTES).for_each(|copy_index| self.pool.memory().write(copy_index, &[UNTOUCHED]));
        self.answer = None;
        self.engine.submit(model::request(0, BlockOperation::Read, 0, pages), self.now);
        self.poll();
    }

    fn poll(&mut self) -> Waiting {
        let mut waiting = Waiting::Nothing;
        for _ in 0..4 {
            waiting = self.engine.poll(self.now, &mut |_, result| self.answer = Some(result));
        }
        waiting
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.poll();
    }

    /// The first byte of each of the buffer's pages.
    fn buffer(&self) -> [u8; 4] {
        std::array::from_fn(|page| {
            let mut byte = [0];
            self.pool.memory().read(page * PAGE_SIZE_BYTES, &mut byte);
            byte[0]
        })
    }
}

#[test]
fn a_read_that_waits_too_long_is_asked_of_the_other_copy_and_the_late_answer_touches_nothing() {
    let mut world = World::new(Redundancy::NONE);
    (0..2).for_each(|copy_index| world.set(Bit::Copy(copy_index), 4));
    world.answers_at_once(1);
    world.read(4);
    world.pass(READ_PATIENCE_DEFAULT - Duration::from_millis(1));
    assert_eq!((world.answer, world.buffer()), (None, [UNTOUCHED; 4]));
    world.pass(Duration::from_millis(1));
    assert_eq!((world.answer, world.buffer()), (Some(Ok(())), [SECOND; 4]));
    let status = |world: &World| world.volume.latencies.status(DonorSlot(0), world.now);
    assert_eq!(status(&world).reads_taken_elsewhere, 1);
    assert!(status(&world).waiting_us > 0.0, "it still owes the answer");
    // The buffer is another request's when the answer comes; no thread waits for it, and it is received all the same.
    world.read(2);
    assert_eq!(world.buffer(), [SECOND, SECOND, UNTOUCHED, UNTOUCHED], "the slow donor is avoided");
    world.donors[0].lock().unwrap().down = true;
    assert_eq!(world.poll(), Waiting::Nothing);
    assert_eq!(world.buffer(), [SECOND, SECOND, UNTOUCHED, UNTOUCHED]);
}

#[test]
fn a_late_answer_is_thrown_away_and_its_donor_tried_again_after_a_pause() {
    let mut world = World::new(Redundancy::NONE);
    (0..2).for_each(|copy_index| world.set(Bit::Copy(copy_index), 4));
    world.answers_at_once(1);
    // Answers after some polls, of which the first read sees a few.
    world.donors[0].lock().unwrap().delay_polls = 14;
    world.read(4);
    world.pass(READ_PATIENCE_DEFAULT);
    assert_eq!(world.buffer(), [SECOND; 4]);
    world.answers_at_once(0);
    world.read(1);
    (0..20).for_each(|_| _ = world.poll());
    assert_eq!(world.buffer(), [SECOND, UNTOUCHED, UNTOUCHED, UNTOUCHED], "the late answer went nowhere");
    assert_eq!(world.volume.latencies.status(DonorSlot(0), world.now).waiting_us, 0.0);
    world.pass(AVOIDANCE_MIN);
    world.read(1);
    assert_eq!((world.answer, world.buffer()[0]), (Some(Ok(())), FIRST), "it is in time again");
}

#[test]
fn a_donor_that_says_nothing_is_not_asked_in_place_of_a_slow_one() {
    let mut world = World::new(Redundancy::NONE);
    (0..2).for_each(|copy_index| world.set(Bit::Copy(copy_index), 4));
    world.answers_at_once(1);
    world.volume.set_silent(DonorSlot(1), true);
    world.read(4);
    world.pass(READ_PATIENCE_DEFAULT);
    assert_eq!((world.answer, world.buffer()), (None, [UNTOUCHED; 4]));
    world.volume.set_silent(DonorSlot(1), false);
    world.pass(READ_PATIENCE_DEFAULT);
    assert_eq!((world.answer, world.buffer()), (Some(Ok(())), [SECOND; 4]), "it is heard again");
}

#[test]
fn the_disk_is_another_copy_too() {
    let mut world = World::new(Redundancy::DISK);
    world.set(Bit::Copy(0), 4);
    world.set(Bit::Disk, 4);
    world.read(4);
    world.pass(READ_PATIENCE_DEFAULT);
    assert_eq!((world.answer, world.buffer()), (Some(Ok(())), [DISK; 4]));
}

#[test]
fn a_page_that_no_other_has_is_awaited() {
    let mut world = World::new(Redundancy::NONE);
    world.set(Bit::Copy(0), 4);
    world.set(Bit::Copy(1), 3);
    world.answers_at_once(1);
    world.read(4);
    world.pass(READ_PATIENCE_DEFAULT * 10);
    assert_eq!((world.answer, world.buffer()), (None, [UNTOUCHED; 4]), "the fourth page is at the slow donor only");
    assert_eq!(world.volume.latencies.status(DonorSlot(0), world.now).reads_taken_elsewhere, 0);
    // Its donor is lost at last, and with it the page.
    world.donors[0].lock().unwrap().down = true;
    (0..4).for_each(|_| _ = world.poll());
    assert_eq!(world.answer, None, "parked until its donor is back, or given up");
}

#[test]
fn when_all_are_slow_the_last_one_asked_is_waited_for() {
    let mut world = World::new(Redundancy::NONE);
    (0..2).for_each(|copy_index| world.set(Bit::Copy(copy_index), 4));
    world.donors[1].lock().unwrap().delay_polls = 30;
    world.read(4);
    world.pass(READ_PATIENCE_DEFAULT);
    (0..6).for_each(|_| world.pass(READ_PATIENCE_DEFAULT));
    assert_eq!((world.answer, world.buffer()), (None, [UNTOUCHED; 4]));
    assert_eq!(world.volume.latencies.status(DonorSlot(1), world.now).reads_taken_elsewhere, 0);
    (0..6).for_each(|_| _ = world.poll());
    assert_eq!((world.answer, world.buffer()), (Some(Ok(())), [SECOND; 4]));
}
