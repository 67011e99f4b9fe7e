//! No transport allocates or frees once it was made: an I/O thread that pages out must not wait for memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::time::Instant;

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::queue_pair::{Operation, QueuePair};
use spillway_fabric::units::Tag;
use spillway_sys::allocation_guard::{GuardedAllocator, forbid_allocation};

use support::*;

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

const SLOTS: usize = 32;

/// Posts a full batch of `operation`, refused ones among them, and polls until all ended, without one allocation.
fn batch(pair: &mut dyn QueuePair, pool: &BufferPool, operation: Operation) {
    let end = Instant::now() + PATIENCE;
    forbid_allocation(|| {
        for slot in 0..SLOTS {
            // Every fourth slab does not exist.
            let request = request(operation, slot as u32 % 4, slot / 4 * 65536, pool.slot(slot), slot as u32);
            pair.post(request, Instant::now()).unwrap();
        }
        let mut ended = 0;
        while ended < SLOTS && Instant::now() < end {
            pair.poll(Instant::now(), &mut |completion| {
                assert_eq!(completion.result.is_err(), completion.tag.0 % 4 == 3, "{:?}", completion.tag);
                ended += 1;
            });
        }
        assert_eq!(ended, SLOTS);
    });
}

fn all_operations(pair: &mut dyn QueuePair, pool: &BufferPool) {
    for _ in 0..3 {
        for operation in [Operation::Write, Operation::Read, Operation::Discard] {
            batch(pair, pool, operation);
        }
    }
}

#[test]
fn shared_memory_does_not_allocate() {
    let pool = pool(SLOTS, 65536);
    all_operations(&mut over_shm(3, &pool).0, &pool);
}

#[test]
fn tcp_does_not_allocate() {
    let pool = pool(SLOTS, 65536);
    let (mut pair, _serving) = over_tcp(&Slabs::with_count(3), &pool);
    all_operations(&mut pair, &pool);
}

#[test]
fn a_connection_that_goes_down_does_not_allocate() {
    let pool = pool(SLOTS, 65536);
    let (mut pair, serving) = over_tcp(&Slabs::with_count(3), &pool);
    drop(serving);
    let end = Instant::now() + PATIENCE;
    forbid_allocation(|| {
        let _ = pair.post(request(Operation::Write, 0, 0, pool.slot(0), 1), Instant::now());
        while !pair.is_down() || pair.in_flight() > 0 {
            assert!(Instant::now() < end);
            pair.poll(Instant::now(), &mut |_| {});
        }
    });
}

#[test]
fn the_backing_file_does_not_allocate() {
    let pool = pool(SLOTS, 65536);
    let (mut pair, _file, _directory) = over_file(3, &pool);
    all_operations(&mut pair, &pool);
}

#[test]
fn the_run_writer_does_not_allocate() {
    let pool = pool(SLOTS, 65536);
    let (_pair, file, _directory) = over_file(3, &pool);
    let mut writer = file.writer(pool.clone(), 8).unwrap();
    forbid_allocation(|| {
        for run in 0..8 {
            writer.post(run * 65536 * 4, (0..4).map(|slot| pool.slot(slot)), Tag(run as u32)).unwrap();
        }
        let mut ended = 0;
        while writer.in_flight() > 0 {
            ended += writer.wait(&mut |completion| completion.result.unwrap()).unwrap();
        }
        assert_eq!(ended, 8);
    });
}
