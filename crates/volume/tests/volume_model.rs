//! The engine, the volume and the mover against a plain array, while donors and the disk fail.
//!
//! Two engines share a volume, as two I/O threads do. Random requests run interleaved with the deaths of donors, with
//! removals, new mappings, refills and disk writes; every page read must be what was last written, as long as the
//! redundancy promises it. Each call of an engine runs under an allocator that aborts.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use spillway_block::limits::BLOCK_REQUEST_DEADLINE;
use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::BlockService;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{PAGE_SIZE_BYTES, SlabHandle, SlabIndex};
use spillway_sys::allocation_guard::{GuardedAllocator, forbid_allocation};
use spillway_volume::engine::Engine;
use spillway_volume::engine::queue_pairs::{QueuePairMailbox, QueuePairSet};
use spillway_volume::limits::MOVE_BATCH_PAGES;
use spillway_volume::manager::refill::Refill;
use spillway_volume::protection::ProtectionKind;
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::slab_map::backlog::Backlog;
use spillway_volume::slab_map::page_bits::Bit;
use spillway_volume::slab_map::slab_entry::DonorSlot;
use spillway_volume::slab_map::{DiskCopy, Geometry, Volume};
use spillway_volume::test_support::model::{self, AT_ONCE, Move, QueuePairEnds, content};
use spillway_volume::test_support::{SharedStore, StoreQueuePair, protected, store};

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const GEOMETRY: Geometry = Geometry { slab_pages: 256, slab_count: 3 };
const SLAB_BYTES: usize = 256 * PAGE_SIZE_BYTES;
const DONORS: usize = 4;
const ENGINES: usize = 2;
const SLOTS: usize = 3;
const SLOT_PAGES: u64 = 80;
const DEPTH: usize = 4;

type Answer = Option<Result<(), BlockError>>;

struct World {
    volume: Arc<Volume>,
    donors: Vec<SharedStore>,
    disk: SharedStore,
    mailboxes: Vec<Arc<QueuePairMailbox>>,
    pools: Vec<Arc<BufferPool>>,
    engines: Vec<Engine>,
    answers: Vec<[Answer; SLOTS]>,
    refill: Refill,
    /// Content number of each page; absent: zeroes.
    model: HashMap<u64, u32>,
    clock: u32,
}

impl World {
    fn new(redundancy: Redundancy) -> Self {
        Self::protected(redundancy, ProtectionKind::Plain)
    }

    fn protected(redundancy: Redundancy, kind: ProtectionKind) -> Self {
        let disk_copy = redundancy
            .disk
            .then(|| DiskCopy { backlog: Backlog::new(200), pool: BufferPool::new(200, PAGE_SIZE_BYTES).unwrap() });
        let volume = Arc::new(protected(Volume::new(GEOMETRY, redundancy, disk_copy).unwrap(), kind));
        let disk = store(SLAB_BYTES);
        // Every read that is not answered at once is asked of another copy, where there is one and the donor is
        // reached over a socket.
        volume.latencies.set_read_patience(Duration::ZERO);
        GEOMETRY.slabs().for_each(|slab| assert_eq!(disk.lock().unwrap().slab(SlabHandle(slab.0)).len(), SLAB_BYTES));
        let mut pools: Vec<_> =
            (0..ENGINES).map(|_| BufferPool::new(SLOTS, SLOT_PAGES as usize * PAGE_SIZE_BYTES).unwrap()).collect();
        pools.push(BufferPool::new(1, MOVE_BATCH_PAGES * PAGE_SIZE_BYTES).unwrap());
        let mailboxes: Vec<_> = pools.iter().map(|_| QueuePairMailbox::new()).collect();
        let queue_pairs = |index: usize| {
            let file = redundancy.disk.then(|| StoreQueuePair::boxed(&disk, &pools[index], DEPTH));
            QueuePairSet::new(Arc::clone(&mailboxes[index]), file)
        };
        let engine = |index: usize| {
            let pool = Arc::clone(&pools[index]);
            Engine::new(Arc::clone(&volume), Arc::new(Metrics::default()), pool, queue_pairs(index), Instant::now())
        };
        let engines = (0..ENGINES).map(engine).collect();
        let refill = Refill::new(Arc::clone(&volume), queue_pairs(ENGINES), Arc::clone(&pools[ENGINES]));
        let mut world = Self {
            volume,
            donors: Vec::new(),
            disk,
            mailboxes,
            pools,
            engines,
            answers: vec![[None; SLOTS]; ENGINES],
            refill,
            model: HashMap::new(),
            clock: 0,
        };
        (0..DONORS).for_each(|donor| world.connect(donor));
        world
    }

    fn queue_pair_ends(&self) -> QueuePairEnds<'_> {
        QueuePairEnds { mailboxes: &self.mailboxes, pools: &self.pools }
    }

    /// A new donor in slot `donor`.
    fn connect(&mut self, donor: usize) {
        let fresh = store(SLAB_BYTES);
        self.queue_pair_ends().connect(&self.volume, donor, &fresh, DEPTH);
        if donor < self.donors.len() {
            self.donors[donor] = fresh;
        } else {
            self.donors.push(fresh);
        }
    }

    /// What the manager does when a donor is lost, after `engines` had their chance to notice.
    fn lose(&mut self, donor: usize) -> u64 {
        self.donors[donor].lock().unwrap().down = true;
        let lost = self.end_session(donor);
        self.connect(donor);
        lost
    }

    /// The first part of that. The device may still have requests in flight: a session also ends where only its
    /// control connection does.
    fn end_session(&mut self, donor: usize) -> u64 {
        self.queue_pair_ends().disconnect(donor);
        let volume = Arc::clone(&self.volume);
        let mut lost = 0;
        for (slab, copy_index) in model::copies_at(&volume, donor) {
            let (engines, answers) = (&mut self.engines, &mut self.answers);
            let removed = volume.remove_copy(slab, copy_index, || poll_all(engines, answers));
            lost += removed.expect("the place was taken").pages_lost;
        }
        lost
    }

    /// A request is in flight to `donor` when its session ends: a write in slot 0, a read in slot 2. A write has the
    /// buffer next, while the device carries out what it still has. Pages lost, and the last answer.
    fn lose_amidst(
        &mut self,
        donor: usize,
        [engine, slot]: [usize; 2],
        [first, count]: [u64; 2],
    ) -> (u64, Result<(), BlockError>) {
        self.donors[donor].lock().unwrap().delay_polls = u32::MAX;
        let is_write = slot == 0;
        if is_write {
            self.begin_write(engine, slot, first, count);
        } else {
            self.submit(engine, slot, BlockOperation::Read, first, count);
        }
        poll_all(&mut self.engines, &mut self.answers);
        let lost = self.end_session(donor);
        (0..100).for_each(|_| poll_all(&mut self.engines, &mut self.answers));
        let is_answered = self.answers[engine][slot] == Some(Ok(()));
        if !is_answered {
            // Without another copy it waits for the next session.
            self.connect(donor);
        }
        let answer = if is_write { self.end_write(engine, slot, first, count) } else { self.run(engine, slot) };
        if !is_answered {
            return (lost, answer);
        }
        let next = GEOMETRY.page_count() - SLOT_PAGES - first;
        self.begin_write(engine, slot, next, count);
        self.donors[donor].lock().unwrap().move_bytes();
        self.connect(donor);
        let answer = self.end_write(engine, slot, next, count).and_then(|()| self.check(engine, 2, next, count));
        (lost, answer)
    }

    /// Brings every wanted slab to as many copies as asked for.
    fn map(&self, first_choice: usize) {
        model::map(&self.volume, &self.donors, first_choice);
    }

    /// Moves one copy of `slab` to a donor that holds none, as for a recall.
    fn migrate(&mut self, slab: SlabIndex, choice: usize) {
        let moved = model::begin_move(&self.volume, &self.donors, slab, choice);
        let Some(Move { old, new, target }) = moved else { return };
        // Requests that own pages are on this very thread: end them, so that the mover finds every page free.
        self.settle();
        self.refill.fill(slab, new, target);
        let (engines, answers) = (&mut self.engines, &mut self.answers);
        if let Some(removed) =
            self.volume.remove_covered_copy(slab, old, 0, &|_| true, &|| false, || poll_all(engines, answers))
        {
            assert_eq!(removed.pages_lost, 0, "a moved slab loses nothing");
            model::give_back(&self.donors, removed.location);
        }
    }

    /// What the disk thread does with up to `pages` pages.
    fn write_disk(&mut self, pages: usize) {
        let volume = Arc::clone(&self.volume);
        let Some(copy) = &volume.disk else { return };
        let mut batch = Vec::with_capacity(pages.max(1));
        copy.backlog.take(AT_ONCE, &mut batch);
        for taken in batch {
            let written = {
                let mut disk = self.disk.lock().unwrap();
                model::write_out(&volume, copy, &mut disk, &taken);
                !disk.failing
            };
            if copy.backlog.complete(&volume.bits, &[taken], written, Instant::now()) {
                let (engines, answers) = (&mut self.engines, &mut self.answers);
                volume.disk_write_failed(taken.page, || poll_all(engines, answers));
            }
        }
    }

    fn submit(&mut self, engine: usize, slot: usize, operation: BlockOperation, first: u64, count: u64) {
        let request = model::request(slot, operation, first, count);
        self.answers[engine][slot] = None;
        let now = Instant::now();
        forbid_allocation(|| self.engines[engine].submit(request, now));
    }

    /// Polls until everything is answered; the disk thread and the manager do their part.
    fn settle(&mut self) {
        let give_up = Instant::now() + BLOCK_REQUEST_DEADLINE * 2;
        while self.engines.iter_mut().any(|engine| poll_once(engine, &mut |_, _| {}).is_none()) {
            assert!(Instant::now() < give_up, "requests hang");
        }
    }

    /// Writes `pages` pages from the volume's page 500 on, none of which gets to the disk.
    fn fill_backlog(&mut self, pages: u64) {
        for first in (0..pages).step_by(SLOT_PAGES as usize) {
            self.submit(1, 0, BlockOperation::Write, 500 + first, SLOT_PAGES.min(pages - first));
            (0..10).for_each(|_| poll_all(&mut self.engines, &mut self.answers));
            assert_eq!(self.answers[1][0], Some(Ok(())));
        }
        self.map(0);
    }

    /// Polls until everything is answered, while the disk works.
    fn settle_with_disk(&mut self) {
        let mut idle = false;
        for _ in 0..1_000_000 {
            if std::mem::replace(&mut idle, self.volume.disk.as_ref().unwrap().backlog.length() == 0) {
                return;
            }
            poll_all(&mut self.engines, &mut self.answers);
            self.write_disk(64);
        }
        panic!("the backlog never became empty");
    }

    fn run(&mut self, engine: usize, slot: usize) -> Result<(), BlockError> {
        for round in 0..1_000_000 {
            poll_all(&mut self.engines, &mut self.answers);
            if let Some(answer) = self.answers[engine][slot] {
                return answer;
            }
            self.write_disk(64);
            if round % 8 == 7 {
                self.map(round);
            }
        }
        panic!("a request was never answered");
    }

    fn write(&mut self, engine: usize, slot: usize, first: u64, count: u64) -> Result<(), BlockError> {
        self.begin_write(engine, slot, first, count);
        self.end_write(engine, slot, first, count)
    }

    fn begin_write(&mut self, engine: usize, slot: usize, first: u64, count: u64) {
        self.clock += 1;
        for page in 0..count {
            let offset = self.pools[engine].slot(slot).offset_bytes as usize + page as usize * PAGE_SIZE_BYTES;
            self.pools[engine].memory().write(offset, &content(first + page, self.clock));
        }
        self.submit(engine, slot, BlockOperation::Write, first, count);
    }

    fn end_write(&mut self, engine: usize, slot: usize, first: u64, count: u64) -> Result<(), BlockError> {
        let answer = self.run(engine, slot);
        if answer.is_ok() {
            self.model.extend((first..first + count).map(|page| (page, self.clock)));
        }
        answer
    }

    fn discard(&mut self, engine: usize, first: u64, count: u64) {
        self.submit(engine, 1, BlockOperation::Discard, first, count);
        self.run(engine, 1).expect("a discard never fails");
        self.model.retain(|page, _| !(first..first + count).contains(page));
    }

    /// Reads and compares; `Err` when the device says that it lost a page.
    fn check(&mut self, engine: usize, slot: usize, first: u64, count: u64) -> Result<(), BlockError> {
        let offset = self.pools[engine].slot(slot).offset_bytes as usize;
        self.pools[engine].memory().write(offset, &vec![0xAA; count as usize * PAGE_SIZE_BYTES]);
        self.submit(engine, slot, BlockOperation::Read, first, count);
        self.run(engine, slot)?;
        let mut bytes = vec![0; PAGE_SIZE_BYTES];
        for page in 0..count {
            self.pools[engine].memory().read(offset + page as usize * PAGE_SIZE_BYTES, &mut bytes);
            let expected =
                self.model.get(&(first + page)).map_or(vec![0; PAGE_SIZE_BYTES], |clock| content(first + page, *clock));
            assert!(bytes == expected, "page {} is wrong", first + page);
        }
        Ok(())
    }
}

fn poll_once(engine: &mut Engine, completed: &mut dyn FnMut(usize, Result<(), BlockError>)) -> Option<()> {
    use spillway_block::service::Waiting;
    let now = Instant::now();
    let waiting = forbid_allocation(|| engine.poll(now, completed));
    (waiting == Waiting::Nothing).then_some(())
}

fn poll_all(engines: &mut [Engine], answers: &mut [[Answer; SLOTS]]) {
    for (engine, answers) in engines.iter_mut().zip(answers) {
        poll_once(engine, &mut |slot, result| answers[slot] = Some(result));
    }
}

/// What happens. A donor is lost amidst a request of an engine and slot for some pages.
#[derive(Clone, Copy, Debug)]
enum Action {
    Write { engine: usize, first: u64, count: u64 },
    Read { engine: usize, first: u64, count: u64 },
    Discard { engine: usize, first: u64, count: u64 },
    Lose(usize),
    LoseAmidst(usize, [usize; 2], [u64; 2]),
    Migrate { slab: u32, choice: usize },
    WriteDisk(usize),
    FailDisk(bool),
    Slow { donor: usize, polls: u32 },
    RefillAll,
}

fn kind() -> impl Strategy<Value = ProtectionKind> {
    prop_oneof![
        1 => Just(ProtectionKind::Plain),
        1 => Just(ProtectionKind::Checked),
        2 => Just(ProtectionKind::Sealed),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let range = || (0..ENGINES, 0..GEOMETRY.page_count() - SLOT_PAGES, 1..=SLOT_PAGES);
    prop_oneof![
        6 => range().prop_map(|(engine, first, count)| Action::Write { engine, first, count }),
        6 => range().prop_map(|(engine, first, count)| Action::Read { engine, first, count }),
        2 => (0..ENGINES, 0..300u64, 1..400u64).prop_map(|(engine, first, count)| Action::Discard { engine, first, count }),
        2 => (0..DONORS).prop_map(Action::Lose),
        2 => (range(), 0..DONORS, 0..=1usize).prop_map(|((engine, first, count), donor, half)| {
            Action::LoseAmidst(donor, [engine, 2 * half], [first, count])
        }),
        2 => (0..GEOMETRY.slab_count, 0..DONORS).prop_map(|(slab, choice)| Action::Migrate { slab, choice }),
        1 => (1..100usize).prop_map(Action::WriteDisk),
        1 => any::<bool>().prop_map(Action::FailDisk),
        1 => (0..DONORS, 0..4u32).prop_map(|(donor, polls)| Action::Slow { donor, polls }),
        1 => Just(Action::RefillAll),
    ]
}

impl World {
    /// Refills every copy that misses pages.
    fn refill_all(&mut self) {
        self.map(0);
        self.settle();
        for (slab, copy_index, location) in model::copies(&self.volume) {
            self.refill.fill(slab, copy_index, location);
        }
    }

    /// Applies one action; requests may fail only where `may_lose`.
    fn apply(&mut self, action: Action, may_lose: bool) {
        match action {
            Action::Write { engine, first, count } => {
                let answer = self.write(engine, 0, first, count);
                assert!(answer.is_ok() || may_lose, "{answer:?}");
            }
            Action::Read { engine, first, count } => {
                let answer = self.check(engine, 2, first, count);
                assert!(answer.is_ok() || may_lose, "{answer:?}");
            }
            Action::Discard { engine, first, count } => self.discard(engine, first, count),
            Action::Lose(donor) => {
                let lost = self.lose(donor);
                assert!(lost == 0 || may_lose, "{lost} pages lost");
                if self.volume.redundancy.replicas > 1 {
                    // The promise holds for one loss at a time.
                    self.refill_all();
                }
            }
            Action::LoseAmidst(donor, place, range) => {
                let (lost, answer) = self.lose_amidst(donor, place, range);
                assert!(may_lose || lost == 0 && answer.is_ok(), "{lost} pages lost, {answer:?}");
                if self.volume.redundancy.replicas > 1 {
                    self.refill_all();
                }
            }
            Action::Migrate { slab, choice } => self.migrate(SlabIndex(slab), choice),
            Action::WriteDisk(pages) => self.write_disk(pages),
            Action::FailDisk(failing) => self.disk.lock().unwrap().failing = failing && may_lose,
            Action::Slow { donor, polls } => self.donors[donor].lock().unwrap().delay_polls = polls,
            Action::RefillAll => self.refill_all(),
        }
    }

    fn check_everything(&mut self, may_lose: bool) {
        for first in (0..GEOMETRY.page_count()).step_by(64) {
            let answer = self.check(0, 0, first, 64);
            assert!(answer.is_ok() || may_lose, "{answer:?}");
        }
        (0..DONORS as u16).for_each(|donor| {
            assert_eq!(self.volume.trust.failures(Some(DonorSlot(donor))), 0, "an honest donor was blamed");
        });
        assert_eq!(self.volume.trust.failures(None), 0, "an honest disk was blamed");
        for slab in GEOMETRY.slabs() {
            let first = GEOMETRY.pages(slab).start;
            assert!(!self.volume.bits.any(Bit::Busy, first, GEOMETRY.slab_pages), "pages are still owned");
        }
    }
}

fn run_model(redundancy: Redundancy, kind: ProtectionKind, actions: Vec<Action>, may_lose: bool) {
    let mut world = World::protected(redundancy, kind);
    world.volume.set_mapping_possible(true);
    world.map(0);
    for action in actions {
        world.apply(action, may_lose);
    }
    world.check_everything(may_lose);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn with_a_disk_copy_nothing_is_lost(actions in prop::collection::vec(action(), 1..60), kind in kind()) {
        run_model(Redundancy::DISK, kind, actions, false);
    }

    #[test]
    fn with_two_replicas_nothing_is_lost(actions in prop::collection::vec(action(), 1..60), kind in kind()) {
        run_model(Redundancy { replicas: 2, disk: false }, kind, actions, false);
    }

    #[test]
    fn with_both_nothing_is_lost(actions in prop::collection::vec(action(), 1..60), kind in kind()) {
        run_model(Redundancy { replicas: 2, disk: true }, kind, actions, false);
    }

    /// Pages may be lost here, and then reads say so; but what is read is right.
    #[test]
    fn without_redundancy_or_with_a_failing_disk_no_byte_is_wrong(
        actions in prop::collection::vec(action(), 1..60),
        disk: bool,
        kind in kind(),
    ) {
        run_model(Redundancy { replicas: 1, disk }, kind, actions, true);
    }
}

#[test]
fn pages_lost_with_their_only_donor_fail_until_they_are_written_again() {
    let mut world = World::new(Redundancy::NONE);
    world.map(0);
    world.write(0, 0, 10, 4).unwrap();
    assert_eq!(world.lose(0), 4);
    assert_eq!(world.check(0, 0, 11, 1), Err(BlockError::InputOutput));
    world.check(0, 0, 20, 4).expect("pages that were never written read as zeroes");
    world.write(0, 0, 11, 1).unwrap();
    world.check(0, 0, 11, 1).unwrap();
    world.discard(0, 10, 4);
    world.check(0, 0, 10, 4).expect("discarded pages read as zeroes");
}

/// The bug behind this test: a read that waited because its copy was lost was later posted to the fresh copy in the
/// same copy index, which did not have the page yet, and read zeroes.
#[test]
fn a_read_that_waits_for_a_lost_copy_does_not_take_the_next_copy_in_its_place_for_it() {
    let mut world = World::new(Redundancy::DISK);
    world.map(0);
    for page in 5..8 {
        let offset = world.pools[0].slot(0).offset_bytes as usize + (page as usize - 5) * PAGE_SIZE_BYTES;
        world.pools[0].memory().write(offset, &content(page, 1));
        world.model.insert(page, 1);
    }
    world.submit(0, 0, BlockOperation::Write, 5, 3);
    (0..10).for_each(|_| poll_all(&mut world.engines, &mut world.answers));
    assert_eq!(world.answers[0][0], Some(Ok(())), "acknowledged before the disk has it");
    // The donor dies before the pages are on disk; the read finds neither.
    world.donors[0].lock().unwrap().down = true;
    world.engines[0].submit(model::request(2, BlockOperation::Read, 5, 3), Instant::now());
    (0..10).for_each(|_| poll_all(&mut world.engines, &mut world.answers));
    assert_eq!(world.answers[0][2], None, "the read waits");
    // The copy is replaced by a fresh, empty one in the same copy index.
    assert_eq!(world.lose(0), 0, "the backlog has the pages");
    world.map(0);
    (0..10).for_each(|_| poll_all(&mut world.engines, &mut world.answers));
    assert_eq!(world.answers[0][2], None, "the fresh copy has nothing yet");
    world.write_disk(64);
    (0..10).for_each(|_| poll_all(&mut world.engines, &mut world.answers));
    assert_eq!(world.answers[0][2], Some(Ok(())));
    world.check(0, 2, 5, 3).unwrap();
}

#[test]
fn a_full_backlog_holds_writers_up_and_loses_nothing() {
    let mut world = World::new(Redundancy::DISK);
    world.map(0);
    world.write(0, 0, 0, 80).unwrap();
    let first_backlog = world.volume.disk.as_ref().unwrap().backlog.length();
    assert!(first_backlog <= 200);
    for round in 0..8 {
        world.write(round % 2, 0, round as u64 * 80, 80).unwrap();
    }
    world.check_everything(false);
}

/// Small writes that come one after the other took each page of room as soon as it was there, and a large one behind
/// them failed at its deadline.
#[test]
fn a_large_write_at_a_full_backlog_gets_its_turn_among_small_ones() {
    let mut world = World::new(Redundancy::DISK);
    world.map(0);
    world.fill_backlog(200);
    assert_eq!(world.volume.disk.as_ref().unwrap().backlog.length(), 200, "full");
    world.submit(0, 2, BlockOperation::Write, 0, 80);
    let (mut page, mut small_writes) = (100, 0);
    for round in 0.. {
        assert!(round < 2000, "the large write starves; {small_writes} small ones went before it");
        for slot in 0..2 {
            if round == 0 || world.answers[0][slot].is_some() {
                small_writes += 1;
                world.submit(0, slot, BlockOperation::Write, page, 1);
                page = 100 + (page + 1) % 300;
            }
        }
        poll_all(&mut world.engines, &mut world.answers);
        if world.answers[0][2] == Some(Ok(())) {
            break;
        }
        // The disk gives one page of room at a time.
        world.write_disk(1);
    }
    world.settle_with_disk();
    assert!(world.answers[0].iter().all(|answer| *answer == Some(Ok(()))));
}

#[test]
fn a_write_that_is_given_up_at_a_full_backlog_leaves_its_turn_to_others() {
    let mut world = World::new(Redundancy::DISK);
    world.map(0);
    world.volume.set_mapping_possible(true);
    world.fill_backlog(190);
    world.submit(0, 0, BlockOperation::Write, 0, 80);
    poll_all(&mut world.engines, &mut world.answers);
    assert_eq!(world.answers[0][0], None, "ten pages are free");
    let late = Instant::now() + BLOCK_REQUEST_DEADLINE;
    world.engines[0].poll(late, &mut |slot, result| assert_eq!((slot, result), (0, Err(BlockError::TimedOut))));
    // The room that was set aside for it is there for others, and so it is when a whole thread ends.
    world.submit(0, 1, BlockOperation::Write, 100, 80);
    poll_all(&mut world.engines, &mut world.answers);
    drop(world.engines.remove(0));
    world.submit(0, 0, BlockOperation::Write, 300, 10);
    (0..10).for_each(|_| poll_all(&mut world.engines, &mut world.answers));
    assert_eq!(world.answers[0][0], Some(Ok(())));
}

#[test]
fn requests_outside_the_device_or_of_odd_size_are_invalid() {
    let mut world = World::new(Redundancy::NONE);
    let bytes = GEOMETRY.page_count() * PAGE_SIZE_BYTES as u64;
    for (offset_bytes, length_bytes) in [(bytes, 4096), (0, 100), (7, 4096), (bytes - 4096, 8192), (u64::MAX - 1, 4096)]
    {
        let request = BlockRequest { offset_bytes, length_bytes, ..model::request(0, BlockOperation::Read, 0, 1) };
        world.answers[0][0] = None;
        world.engines[0].submit(request, Instant::now());
        assert_eq!(world.run(0, 0), Err(BlockError::Invalid));
    }
}
