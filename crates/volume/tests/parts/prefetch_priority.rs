//! A read that a thread waits for is posted before the prefetches that wait for a credit, whatever slots they have; a
//! prefetch that becomes awaited is one of them; and prefetches leave room on a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::{BlockService, Waiting};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::queue_pair::Request;
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority, SlabIndex};
use spillway_volume::engine::Engine;
use spillway_volume::engine::queue_pairs::{QueuePairChange, QueuePairMailbox, QueuePairSet};
use spillway_volume::limits::{PREFETCHED_BYTES_FAR, PREFETCHED_BYTES_NEAR};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::slab_map::page_bits::Bit;
use spillway_volume::slab_map::page_index::PageIndex;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};
use spillway_volume::slab_map::{Geometry, Volume};
use spillway_volume::test_support::{SharedStore, StoreQueuePair, model, store};

const PAGES: u64 = 4096;
const GEOMETRY: Geometry = Geometry { slab_pages: PAGES, slab_count: 1 };
const SLOTS: usize = 12;
const SLOT_PAGES: u64 = 64;
const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// One donor that has every page.
struct World {
    engine: Engine,
    donor: SharedStore,
    now: Instant,
    answers: Vec<(usize, Result<(), BlockError>)>,
}

impl World {
    /// Its queue pair takes `depth` requests, each of which is answered `delay_polls` after those before it.
    fn new(depth: usize, delay_polls: u32) -> Self {
        let volume = Arc::new(Volume::new(GEOMETRY, Redundancy::NONE, None).unwrap());
        let pool = BufferPool::new(SLOTS, SLOT_PAGES as usize * PAGE_SIZE_BYTES).unwrap();
        let mailbox = QueuePairMailbox::new();
        let donor = store(PAGES as usize * PAGE_SIZE_BYTES);
        let handle = donor.lock().unwrap().lend();
        donor.lock().unwrap().delay_polls = delay_polls;
        donor.lock().unwrap().posted = Some(Vec::new());
        volume.begin_session(DonorSlot(0));
        let queue_pair = Some(StoreQueuePair::over_socket(&donor, &pool, depth));
        mailbox.leave(QueuePairChange { donor: DonorSlot(0), queue_pair });
        volume.slab(SlabIndex(0)).fill(0, Location { donor: DonorSlot(0), handle });
        volume.bits.set(Bit::Copy(0), PageIndex(0), PAGES);
        let now = Instant::now();
        let engine = Engine::new(volume, Arc::new(Metrics::default()), pool, QueuePairSet::new(mailbox, None), now);
        Self { engine, donor, now, answers: Vec::new() }
    }

    /// Reads as many pages, which lie where the number of the request says.
    fn read(&mut self, slot: usize, number: u64, pages: u64, priority: Priority) {
        let request = model::request(slot, BlockOperation::Read, number * SLOT_PAGES % PAGES, pages);
        self.engine.submit(BlockRequest { priority, ..request }, self.now);
    }

    fn poll(&mut self) -> Waiting {
        let answers = &mut self.answers;
        self.engine.poll(self.now, &mut |slot, result| answers.push((slot, result)))
    }

    /// What was posted since the last look: the class, and the number of the request.
    fn posted(&self) -> Vec<(Priority, u64)> {
        let number = |request: &Request| u64::from(request.remote.offset_bytes) / (SLOT_PAGES * PAGE);
        let posted = self.donor.lock().unwrap().posted.replace(Vec::new()).unwrap();
        posted.iter().map(|request| (request.priority, number(request))).collect()
    }
}

#[test]
fn a_demand_read_is_posted_before_prefetches_that_wait_for_a_credit() {
    let mut world = World::new(2, 3);
    (0..6).for_each(|number| world.read(number as usize, number, 1, Priority::Prefetch));
    assert_eq!(world.poll(), Waiting::Event, "those that wait need no look before a credit is free");
    assert_eq!(world.posted(), [(Priority::Prefetch, 0), (Priority::Prefetch, 1)]);
    world.read(9, 9, 1, Priority::Demand);
    world.engine.promote(4);
    while world.answers.len() < 7 {
        world.poll();
    }
    let order = [(Priority::Demand, 4), (Priority::Demand, 9), (Priority::Prefetch, 2), (Priority::Prefetch, 3)];
    let posted = world.posted();
    assert_eq!(posted[..4], order);
    assert_eq!(posted[4..], [(Priority::Prefetch, 5)]);
    assert!(world.answers.iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn prefetches_in_flight_leave_room_on_the_connection() {
    let mut world = World::new(64, 1000);
    (0..10).for_each(|number| world.read(number as usize, number, SLOT_PAGES, Priority::Prefetch));
    world.poll();
    assert_eq!(world.posted().len() as u64, PREFETCHED_BYTES_NEAR / (SLOT_PAGES * PAGE));
    world.read(10, 10, SLOT_PAGES, Priority::Demand);
    world.poll();
    assert_eq!(world.posted(), [(Priority::Demand, 10)]);
    // Those of a connection that is lost count no more.
    world.donor.lock().unwrap().down = true;
    world.poll();
    assert_eq!(world.engine.poll(world.now, &mut |_, _| {}), Waiting::Retry, "all wait for their donor");
}

#[test]
fn a_window_from_a_donor_that_is_far_is_not_held_back() {
    let mut world = World::new(64, 0);
    world.read(0, 0, 1, Priority::Demand);
    world.poll();
    world.now += Duration::from_millis(2);
    world.poll();
    assert_eq!((world.answers.len(), world.posted().len()), (1, 1));
    world.donor.lock().unwrap().delay_polls = 1000;
    (0..10).for_each(|number| world.read(number as usize, number, SLOT_PAGES, Priority::Prefetch));
    world.poll();
    assert_eq!(world.posted().len() as u64, PREFETCHED_BYTES_FAR / (SLOT_PAGES * PAGE));
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read { slot: usize, is_awaited: bool },
    Promote { slot: usize },
    Poll,
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        3 => (0..SLOTS, any::<bool>()).prop_map(|(slot, is_awaited)| What::Read { slot, is_awaited }),
        1 => (0..SLOTS).prop_map(|slot| What::Promote { slot }),
        3 => Just(What::Poll),
    ]
}

/// What a look posts: first what threads wait for, then prefetches in the order in which they came, and none of them
/// while a read of the classes before waits.
fn check_look(waiting: &mut Vec<(Priority, u64)>, posted: &[(Priority, u64)]) -> Result<(), TestCaseError> {
    let is_awaited = |turn: &(Priority, u64)| turn.0 == Priority::Demand;
    let demands = posted.iter().take_while(|turn| is_awaited(turn)).count();
    let prefetches = &posted[demands..];
    prop_assert!(prefetches.is_sorted() && !prefetches.iter().any(is_awaited), "{:?}", posted);
    waiting.retain(|turn| !posted.contains(turn));
    prop_assert!(prefetches.is_empty() || !waiting.iter().any(is_awaited), "{:?} before {:?}", posted, waiting);
    let before = |turn: &&(Priority, u64)| prefetches.last().is_some_and(|last| *turn < last);
    prop_assert_eq!(waiting.iter().find(before), None, "older than one of {:?}", posted);
    Ok(())
}

proptest! {
    #[test]
    fn reads_are_posted_in_the_order_of_their_classes(
        depth in 1_usize..4,
        steps in proptest::collection::vec(what(), 1..60),
    ) {
        let mut world = World::new(depth, 2);
        let mut slots: [Option<u64>; SLOTS] = [None; SLOTS];
        let mut waiting: Vec<(Priority, u64)> = Vec::new();
        let mut number = 0;
        for step in steps {
            match step {
                What::Read { slot, is_awaited } if slots[slot].is_none() => {
                    let priority = if is_awaited { Priority::Demand } else { Priority::Prefetch };
                    world.read(slot, number, 1, priority);
                    waiting.push((priority, number));
                    slots[slot] = Some(number);
                    number += 1;
                }
                What::Promote { slot } => {
                    let Some(number) = slots[slot] else { continue };
                    world.engine.promote(slot);
                    waiting.iter_mut().filter(|turn| turn.1 == number).for_each(|turn| turn.0 = Priority::Demand);
                }
                What::Read { .. } => {}
                What::Poll => {
                    world.poll();
                    check_look(&mut waiting, &world.posted())?;
                    world.answers.drain(..).for_each(|(slot, result)| {
                        assert_eq!(result, Ok(()));
                        slots[slot] = None;
                    });
                }
            }
        }
    }
}
