//! A process that dies between any two of its stores, and the one that goes on.
//!
//! Random requests run against donors and a disk of plain memory. Before a chosen store of the volume's words
//! everything that outlives a process is copied: words, backlog contents, donors, disk. A new volume is recovered
//! from the copy, and every page must read as what was last acknowledged. Or, where a request was under way, as
//! before or after it, and the same at each look. Recovery itself dies in the same way.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation};
use spillway_block::service::BlockService;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{PAGE_SIZE_BYTES, SlabHandle, SlabIndex};
use spillway_sys::atomic_words::AtomicWords;

use crate::engine::Engine;
use crate::engine::queue_pairs::{QueuePairMailbox, QueuePairSet};
use crate::limits::MOVE_BATCH_PAGES;
use crate::manager::refill::Refill;
use crate::protection::{Protection, ProtectionKind, VOLUME_KEY_BYTES};
use crate::settings::redundancy::Redundancy;
use crate::slab_map::backlog::Backlog;
use crate::slab_map::journal::Journal;
use crate::slab_map::page_bits::Bit;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::proofs::PageProofs;
use crate::slab_map::words::{Words, crash};
use crate::slab_map::{DiskCopy, Geometry, Volume};
use crate::test_support::model::{self, AT_ONCE, Move, QueuePairEnds, content};
use crate::test_support::{SharedStore, Store, StoreQueuePair, store};

const GEOMETRY: Geometry = Geometry { slab_pages: 64, slab_count: 3 };
const SLAB_BYTES: usize = 64 * PAGE_SIZE_BYTES;
const DONORS: usize = 3;
const SLOTS: usize = 3;
const SLOT_PAGES: u64 = 12;
const BACKLOG: usize = 48;
const DEPTH: usize = 2;

/// How a volume keeps its pages: copies and protection.
type Safety = (Redundancy, ProtectionKind);

/// What a page may read as: the number of a content, 0 for zeroes.
type Content = u32;

/// What the requests were promised.
#[derive(Clone, Debug, Default)]
struct Promises {
    acknowledged: BTreeMap<u64, Content>,
    /// By slot: pages and what they become.
    under_way: [Option<(u64, u64, Content)>; SLOTS],
    /// How the last read ended.
    read: Option<Result<(), BlockError>>,
}

impl Promises {
    fn allowed(&self, page: u64) -> Vec<Content> {
        let covers = |(first, count, _): &&(u64, u64, Content)| (*first..first + count).contains(&page);
        let new = self.under_way.iter().flatten().filter(covers).map(|(_, _, content)| *content);
        std::iter::once(self.acknowledged.get(&page).copied().unwrap_or(0)).chain(new).collect()
    }

    fn answered(&mut self, slot: usize, result: Result<(), BlockError>) {
        let Some((first, count, content)) = self.under_way[slot].take() else {
            self.read = Some(result);
            return;
        };
        result.expect("nothing fails in this world");
        self.acknowledged.extend((first..first + count).map(|page| (page, content)));
    }
}

/// Everything that outlives a process.
struct Surviving {
    words: Vec<u64>,
    contents: Vec<u8>,
    donors: Vec<Store>,
    disk: Store,
    promises: Promises,
}

struct World {
    words: Words,
    volume: Arc<Volume>,
    /// The donor that is there now; a lost donor's place is taken by a new one.
    donors: Rc<RefCell<Vec<SharedStore>>>,
    disk: SharedStore,
    mailboxes: Vec<Arc<QueuePairMailbox>>,
    pools: Vec<Arc<BufferPool>>,
    engine: Engine,
    refill: Refill,
    promises: Rc<RefCell<Promises>>,
    clock: Content,
}

fn word_count((redundancy, kind): Safety) -> usize {
    let proofs = if kind == ProtectionKind::Plain { 0 } else { PageProofs::words(GEOMETRY.page_count()) };
    Volume::surviving_words(GEOMETRY) + if redundancy.disk { Journal::words(BACKLOG) } else { 0 } + proofs
}

impl World {
    fn new(safety: Safety) -> Self {
        let mut disk = Store::default();
        std::mem::swap(&mut disk, &mut store(SLAB_BYTES).lock().unwrap());
        GEOMETRY.slabs().for_each(|slab| assert_eq!(disk.slab(SlabHandle(slab.0)).len(), SLAB_BYTES));
        let donors = (0..DONORS).map(|_| store(SLAB_BYTES).lock().unwrap().clone()).collect();
        let words = vec![0; word_count(safety)];
        let contents = vec![0; BACKLOG * PAGE_SIZE_BYTES];
        Self::over(safety, Surviving { words, contents, donors, disk, promises: Promises::default() })
    }

    fn over((redundancy, kind): Safety, surviving: Surviving) -> Self {
        let words = Words::over(AtomicWords::anonymous(surviving.words.len()).unwrap());
        surviving.words.iter().enumerate().for_each(|(index, word)| words.store(index, *word));
        let own = Volume::surviving_words(GEOMETRY);
        let disk_copy = redundancy.disk.then(|| {
            let pool = BufferPool::new(BACKLOG, PAGE_SIZE_BYTES).unwrap();
            pool.memory().write(0, &surviving.contents);
            DiskCopy { backlog: Backlog::over(words.part(own, Journal::words(BACKLOG))), pool }
        });
        let proofs = Protection::new(kind, &[7; VOLUME_KEY_BYTES]).map(|protection| {
            let first = own + if redundancy.disk { Journal::words(BACKLOG) } else { 0 };
            let pages = GEOMETRY.page_count();
            PageProofs::over(pages, protection, &words.part(first, PageProofs::words(pages)))
        });
        let volume = Volume::over(GEOMETRY, redundancy, disk_copy, &words.part(0, own)).unwrap();
        let volume = Arc::new(volume.with_proofs(proofs));
        let donors: Vec<SharedStore> =
            surviving.donors.into_iter().map(|donor| Arc::new(std::sync::Mutex::new(donor))).collect();
        let disk = Arc::new(std::sync::Mutex::new(surviving.disk));
        let pools = vec![
            BufferPool::new(SLOTS, SLOT_PAGES as usize * PAGE_SIZE_BYTES).unwrap(),
            BufferPool::new(1, MOVE_BATCH_PAGES * PAGE_SIZE_BYTES).unwrap(),
        ];
        let mailboxes: Vec<_> = pools.iter().map(|_| QueuePairMailbox::new()).collect();
        let queue_pairs = |index: usize| {
            let file = redundancy.disk.then(|| StoreQueuePair::boxed(&disk, &pools[index], DEPTH));
            QueuePairSet::new(Arc::clone(&mailboxes[index]), file)
        };
        let metrics = Arc::new(Metrics::default());
        let engine = Engine::new(Arc::clone(&volume), metrics, Arc::clone(&pools[0]), queue_pairs(0), Instant::now());
        let refill = Refill::new(Arc::clone(&volume), queue_pairs(1), Arc::clone(&pools[1]));
        let clock = surviving.promises.acknowledged.values().max().map_or(0, |newest| newest + 100);
        let promises = Rc::new(RefCell::new(surviving.promises));
        let donors = Rc::new(RefCell::new(donors));
        let world = Self { words, volume, donors, disk, mailboxes, pools, engine, refill, promises, clock };
        (0..DONORS).for_each(|donor| world.connect(donor));
        world.volume.set_mapping_possible(true);
        world
    }

    fn donor(&self, donor: usize) -> SharedStore {
        Arc::clone(&self.donors.borrow()[donor])
    }

    fn queue_pair_ends(&self) -> QueuePairEnds<'_> {
        QueuePairEnds { mailboxes: &self.mailboxes, pools: &self.pools }
    }

    fn connect(&self, donor: usize) {
        self.queue_pair_ends().connect(&self.volume, donor, &self.donor(donor), DEPTH);
    }

    /// Copies everything before store `number` from now on.
    fn die_at(&self, number: usize) -> Rc<RefCell<Option<Surviving>>> {
        let left: Rc<RefCell<Option<Surviving>>> = Rc::default();
        let (found, words, volume) = (Rc::clone(&left), self.words.clone(), Arc::clone(&self.volume));
        let (donors, disk, promises) = (Rc::clone(&self.donors), Arc::clone(&self.disk), Rc::clone(&self.promises));
        let mut stores = 0;
        crash::observe(Some(Box::new(move || {
            if stores == number {
                *found.borrow_mut() = Some(Surviving {
                    words: (0..words.count()).map(|index| words.load(index)).collect(),
                    contents: volume.disk.as_ref().map(|disk| contents_that_count(disk, &words)).unwrap_or_default(),
                    donors: donors.borrow().iter().map(|donor| donor.lock().unwrap().clone()).collect(),
                    disk: disk.lock().unwrap().clone(),
                    promises: promises.borrow().clone(),
                });
            }
            stores += 1;
        })));
        left
    }

    /// What the new process does first; the `missing` donor and those that died before did not keep their slabs.
    fn recover(&mut self, missing: Option<usize>) {
        self.volume.recover(Instant::now());
        let gone = |donor: &usize| Some(*donor) == missing || self.donor(*donor).lock().unwrap().down;
        let gone: Vec<usize> = (0..DONORS).filter(gone).collect();
        gone.iter().for_each(|donor| self.lose(*donor));
        self.volume.settle_writes(&|donor| !gone.contains(&usize::from(donor.0)), || {});
        if self.volume.proofs.is_some() {
            // What the mover does when it finds pages in doubt.
            for (slab, copy_index, location) in model::copies(&self.volume) {
                self.refill.fill(slab, copy_index, location);
            }
        }
    }

    /// The donor in `donor` dies, and another one is there in its place.
    fn lose(&mut self, donor: usize) {
        self.donor(donor).lock().unwrap().down = true;
        self.queue_pair_ends().disconnect(donor);
        let volume = Arc::clone(&self.volume);
        for (slab, copy_index) in model::copies_at(&volume, donor) {
            volume.remove_copy(slab, copy_index, || self.poll()).unwrap();
        }
        self.donors.borrow_mut()[donor] = store(SLAB_BYTES);
        self.connect(donor);
    }

    fn poll(&mut self) {
        let promises = &self.promises;
        self.engine.poll(Instant::now(), &mut |slot, result| promises.borrow_mut().answered(slot, result));
    }

    fn map(&self, first_choice: usize) {
        model::map(&self.volume, &self.donors.borrow(), first_choice);
    }

    fn refill_all(&mut self) {
        self.map(0);
        for (slab, copy_index, location) in model::copies(&self.volume) {
            self.refill.fill(slab, copy_index, location);
        }
    }

    fn migrate(&mut self, slab: SlabIndex, choice: usize) {
        let moved = model::begin_move(&self.volume, &self.donors.borrow(), slab, choice);
        let Some(Move { old, new, target }) = moved else { return };
        self.refill.fill(slab, new, target);
        if let Some(removed) = self.volume.remove_covered_copy(slab, old, 0, &|_| true, &|| false, || {}) {
            model::give_back(&self.donors.borrow(), removed.location);
        }
    }

    /// What the disk thread does; some writes still run when it returns.
    fn write_disk(&mut self, pages: usize) {
        let volume = Arc::clone(&self.volume);
        let Some(copy) = &volume.disk else { return };
        let mut batch = Vec::with_capacity(pages.max(1));
        copy.backlog.take(AT_ONCE, &mut batch);
        for (number, taken) in batch.into_iter().enumerate() {
            // Requests go on while writes are in flight.
            if number % 4 == 0 {
                self.poll();
            }
            model::write_out(&volume, copy, &mut self.disk.lock().unwrap(), &taken);
            assert!(!copy.backlog.complete(&volume.bits, &[taken], true, Instant::now()));
        }
    }

    fn submit(&mut self, slot: usize, operation: BlockOperation, first: u64, count: u64) {
        self.engine.submit(model::request(slot, operation, first, count), Instant::now());
    }

    fn begin_write(&mut self, slot: usize, first: u64, count: u64) {
        self.clock += 1;
        let offset = self.pools[0].slot(slot).offset_bytes as usize;
        for page in 0..count {
            let bytes = content(first + page, self.clock);
            self.pools[0].memory().write(offset + page as usize * PAGE_SIZE_BYTES, &bytes);
        }
        self.promises.borrow_mut().under_way[slot] = Some((first, count, self.clock));
        self.submit(slot, BlockOperation::Write, first, count);
    }

    /// Until every request is answered.
    fn finish(&mut self) {
        for round in 0..100_000 {
            self.poll();
            if self.promises.borrow().under_way.iter().all(Option::is_none) {
                return;
            }
            self.write_disk(8);
            if round % 8 == 7 {
                self.map(round);
            }
        }
        panic!("a request was never answered");
    }

    fn apply(&mut self, action: &Action) {
        match *action {
            Action::Write { first, count } => {
                self.begin_write(0, first, count);
                self.finish();
            }
            Action::Writes { first } => {
                // Neighbours in three slots at once.
                (0..SLOTS).for_each(|slot| self.begin_write(slot, first + slot as u64 * 4, 4));
                self.finish();
            }
            Action::Discard { first, count } => {
                let count = count.min(GEOMETRY.page_count() - first);
                self.promises.borrow_mut().under_way[0] = Some((first, count, 0));
                self.submit(0, BlockOperation::Discard, first, count);
                self.finish();
            }
            Action::Migrate { slab, choice } => self.migrate(SlabIndex(slab), choice),
            Action::WriteDisk(pages) => self.write_disk(pages),
            Action::Lose(donor) => {
                self.lose(donor);
                self.refill_all();
            }
            Action::Slow { donor, polls } => self.donor(donor).lock().unwrap().delay_polls = polls,
        }
    }

    /// What a page reads as; nothing when it is lost.
    fn read(&mut self, page: u64) -> Option<Content> {
        self.submit(2, BlockOperation::Read, page, 1);
        for _ in 0..100_000 {
            self.poll();
            if self.promises.borrow().read.is_some() {
                break;
            }
            self.write_disk(8);
        }
        let answer = self.promises.borrow_mut().read.take().expect("a read is answered");
        if answer == Err(BlockError::InputOutput) {
            return None;
        }
        answer.unwrap_or_else(|error| panic!("page {page}: {error}"));
        let mut bytes = vec![0; PAGE_SIZE_BYTES];
        self.pools[0].memory().read(self.pools[0].slot(2).offset_bytes as usize, &mut bytes);
        let number = Content::from_le_bytes(bytes[PAGE_SIZE_BYTES - 4..].try_into().unwrap());
        let whole = if number == 0 { bytes.iter().all(|byte| *byte == 0) } else { bytes == content(page, number) };
        assert!(whole, "page {page} holds a mixture, or another page");
        Some(number)
    }

    /// Every page is as promised, and stays so when what can go is gone; from here on it is what was read. A page
    /// that was being written to a donor that is gone may be lost (two failures at once) until its request comes
    /// again.
    fn check(&mut self, donor_is_gone: bool) {
        // Requests of the dead process are answered by no thread.
        let promises = self.promises.replace(Promises::default());
        let mut seen: HashMap<u64, Content> = HashMap::new();
        for page in 0..GEOMETRY.page_count() {
            let allowed = promises.allowed(page);
            let found = self.read(page);
            let content = found.unwrap_or_else(|| {
                // Donors that were reached have the new content, and the proof is of the old one.
                let is_unproven = self.volume.proofs.is_some();
                assert!(
                    (donor_is_gone || is_unproven) && self.volume.disk.is_none() && allowed.len() > 1,
                    "page {page} is lost"
                );
                self.begin_write(0, page, 1);
                self.finish();
                self.clock
            });
            let kept = found.is_none() || allowed.contains(&content);
            assert!(kept, "page {page} reads {content}, promised was one of {allowed:?}");
            seen.insert(page, content);
        }
        self.write_disk(BACKLOG);
        self.refill_all();
        if self.volume.redundancy != Redundancy::NONE {
            self.lose(0);
        }
        for (page, content) in &seen {
            assert_eq!(self.read(*page), Some(*content), "page {page} changed by itself");
        }
        let settled = Promises { acknowledged: seen.into_iter().collect(), ..Promises::default() };
        *self.promises.borrow_mut() = settled;
        assert!(!self.volume.bits.any(Bit::Writing, PageIndex(0), GEOMETRY.page_count()), "nothing is under way");
    }
}

/// Contents of the backlog's slots; those that no process may use are spoilt, as a copy that was under way is.
fn contents_that_count(disk: &DiskCopy, words: &Words) -> Vec<u8> {
    let mut contents = vec![0xEE; BACKLOG * PAGE_SIZE_BYTES];
    let journal = words.part(Volume::surviving_words(GEOMETRY), Journal::words(BACKLOG));
    for recorded in Journal::over(journal).newest() {
        let start = recorded.slot as usize * PAGE_SIZE_BYTES;
        disk.pool.memory().read(start, &mut contents[start..start + PAGE_SIZE_BYTES]);
    }
    contents
}

#[derive(Clone, Debug)]
enum Action {
    Write { first: u64, count: u64 },
    Writes { first: u64 },
    Discard { first: u64, count: u64 },
    Migrate { slab: u32, choice: usize },
    WriteDisk(usize),
    Lose(usize),
    Slow { donor: usize, polls: u32 },
}

/// Mostly few pages, so that they are written again while they wait.
fn action() -> impl Strategy<Value = Action> {
    let first = || prop_oneof![3 => 0..20u64, 1 => 0..GEOMETRY.page_count() - SLOT_PAGES];
    prop_oneof![
        6 => (first(), 1..=SLOT_PAGES).prop_map(|(first, count)| Action::Write { first, count }),
        4 => first().prop_map(|first| Action::Writes { first }),
        2 => (first(), 1..80u64).prop_map(|(first, count)| Action::Discard { first, count }),
        2 => (0..GEOMETRY.slab_count, 0..DONORS).prop_map(|(slab, choice)| Action::Migrate { slab, choice }),
        2 => (1..20usize).prop_map(Action::WriteDisk),
        1 => (0..DONORS).prop_map(Action::Lose),
        1 => (0..DONORS, 0..4u32).prop_map(|(donor, polls)| Action::Slow { donor, polls }),
    ]
}

/// Runs `actions` until store `number`; what the process leaves there, if it comes so far.
fn run_and_die(world: &mut World, actions: &[Action], number: usize) -> Option<Surviving> {
    let left = world.die_at(number);
    for action in actions {
        world.apply(action);
        if left.borrow().is_some() {
            break;
        }
    }
    crash::observe(None);
    left.take()
}

/// Recovers from `remains`, dying at store `again` of that first; checks everything, and that work goes on.
fn recover_and_check(safety: Safety, surviving: Surviving, again: usize, missing: Option<usize>) {
    let mut world = World::over(safety, surviving);
    let left = world.die_at(again);
    world.recover(missing);
    crash::observe(None);
    if let Some(surviving) = left.take() {
        world = World::over(safety, surviving);
        world.recover(missing);
    }
    world.check(missing.is_some());
    for action in [Action::Writes { first: 3 }, Action::Discard { first: 5, count: 3 }, Action::WriteDisk(9)] {
        world.apply(&action);
    }
    world.check(false);
}

fn kind() -> impl Strategy<Value = ProtectionKind> {
    prop_oneof![
        1 => Just(ProtectionKind::Plain),
        1 => Just(ProtectionKind::Checked),
        1 => Just(ProtectionKind::Sealed),
    ]
}

fn without_losses(actions: Vec<Action>) -> Vec<Action> {
    actions.into_iter().filter(|action| !matches!(action, Action::Lose(_))).collect()
}

fn model(safety: Safety, actions: &[Action], numbers: (usize, usize), missing: Option<usize>) {
    let mut world = World::new(safety);
    world.map(0);
    if let Some(surviving) = run_and_die(&mut world, actions, numbers.0) {
        recover_and_check(safety, surviving, numbers.1, missing);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn with_a_disk_copy_a_crash_costs_nothing_even_with_every_donors_loss(
        actions in prop::collection::vec(action(), 1..20), at in 0..1200usize, again in 0..400usize, kind in kind(), missing in 0..DONORS,
    ) {
        model((Redundancy::DISK, kind), &actions, (at, again), Some(missing));
    }

    #[test]
    fn with_replicas_a_crash_costs_nothing_while_donors_keep_their_slabs(
        actions in prop::collection::vec(action(), 1..20), at in 0..1200usize, again in 0..400usize, kind in kind(),
    ) {
        model((Redundancy { replicas: 2, disk: false }, kind), &actions, (at, again), None);
    }

    #[test]
    fn with_replicas_a_crash_and_the_loss_of_a_donor_cost_nothing(
        actions in prop::collection::vec(action(), 1..20), at in 0..1200usize, again in 0..400usize, kind in kind(), missing in 0..DONORS,
    ) {
        let actions = without_losses(actions);
        model((Redundancy { replicas: 2, disk: false }, kind), &actions, (at, again), Some(missing));
    }

    #[test]
    fn with_both_a_crash_costs_nothing(
        actions in prop::collection::vec(action(), 1..20), at in 0..1200usize, again in 0..400usize, kind in kind(), missing in 0..DONORS,
    ) {
        model((Redundancy { replicas: 2, disk: true }, kind), &actions, (at, again), Some(missing));
    }

    #[test]
    fn without_redundancy_a_crash_costs_nothing_while_donors_keep_their_slabs(
        actions in prop::collection::vec(action(), 1..20), at in 0..1200usize, again in 0..400usize, kind in kind(),
    ) {
        model((Redundancy::NONE, kind), &without_losses(actions), (at, again), None);
    }
}

/// One history with every transition, and a death before each of its stores; before each fifth where pages have
/// proofs.
#[test]
fn every_store_of_a_history_may_be_the_last() {
    let history = [
        Action::Slow { donor: 0, polls: 1 },
        Action::Write { first: 0, count: 6 },
        Action::WriteDisk(3),
        Action::Write { first: 2, count: 8 },
        Action::Migrate { slab: 0, choice: 1 },
        Action::Writes { first: 1 },
        Action::Discard { first: 3, count: 4 },
        Action::WriteDisk(20),
        Action::Write { first: 3, count: 2 },
    ];
    let redundancies = [Redundancy::DISK, Redundancy { replicas: 2, disk: false }, Redundancy::NONE];
    let kinds = [ProtectionKind::Plain, ProtectionKind::Checked];
    for safety in redundancies.into_iter().flat_map(|redundancy| kinds.map(|kind| (redundancy, kind))) {
        let mut deaths = 0;
        loop {
            let mut world = World::new(safety);
            world.map(0);
            let Some(surviving) = run_and_die(&mut world, &history, deaths) else { break };
            recover_and_check(safety, surviving, usize::MAX, None);
            // A proof takes six stores.
            deaths += if safety.1 == ProtectionKind::Plain { 1 } else { 5 };
        }
        assert!(deaths > 20, "the history has stores");
    }
}
