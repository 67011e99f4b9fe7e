//! The RDMA transport in real kernels: soft-RoCE over the loopback interface of guests with stock Debian kernels,
//! because few hosts have an adapter.
//!
//! [`stock_kernels_move_pages_by_rdma`] boots the machines and runs this very program in each, once for each test that
//! is marked to run in a guest. On a machine with a device that has the address 127.0.0.1 they run without one:
//! `cargo test -- --ignored --test-threads=1`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::patience::Patience;
use spillway_fabric::queue_pair::{Completion, Operation, PostError, QueuePair, RequestError};
use spillway_fabric::rdma::port::PooledPort;
use spillway_fabric::units::SlabHandle;
use spillway_sys::allocation_guard::{GuardedAllocator, forbid_allocation};
use spillway_sys::skipping::skip;
use spillway_virtual_machine::{Failure, Kernel, VirtualMachine, emulated};

use support::conformance::{self, Check, SLAB_COUNT};
use support::rdma::{ADDRESS, over_rdma, over_rdma_with};
use support::*;

#[global_allocator]
static ALLOCATOR: GuardedAllocator = GuardedAllocator;

/// How long one test may take in a guest that is emulated on a loaded host.
const WITHIN: Duration = Duration::from_secs(600);

/// Makes the device.
const DEVICE: &str = "modprobe rdma_rxe && rdma link add rxe_lo type rxe netdev lo";

/// Tests that run in the guest, one after the other.
const IN_GUEST: [&str; 7] = [
    "the_promises_of_every_transport_are_kept",
    "nothing_is_allocated_on_the_path",
    "a_discard_is_seen_by_both_ends",
    "a_write_after_its_slab_was_taken_back_breaks_the_connection_and_no_memory",
    "the_event_tells_of_completions_that_come_after_it_was_armed",
    "a_connection_that_broke_is_mended_and_every_request_ends_once",
    "a_device_goes_on_without_polls_until_it_is_halted",
];

#[test]
fn stock_kernels_move_pages_by_rdma() {
    for kernel in Kernel::ALL {
        emulated(|| {
            let machine = match VirtualMachine::builder().kernel(kernel).modules(&["rdma_rxe", "ib_uverbs"]).start() {
                Err(Failure::Missing { what, remedy }) => return skip(format_args!("{what} ({remedy})")),
                result => result.unwrap_or_else(|failure| panic!("{failure}")),
            };
            let made = machine.run(DEVICE, WITHIN).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(made.status, 0, "{made:?}");
            let program = std::env::current_exe().unwrap();
            for test in IN_GUEST {
                let started = Instant::now();
                let script =
                    format!("ulimit -l unlimited; exec '{}' --exact {test} --ignored --nocapture", program.display());
                let said = machine.run(&script, WITHIN).unwrap_or_else(|failure| panic!("{failure}"));
                let passed = said.status == 0 && said.output.contains("1 passed");
                assert!(passed, "{test}: {said:#?}\n{}", machine.console());
                println!("in the guest with {}: {test} ({:?})", kernel.name(), started.elapsed());
            }
            assert_eq!(machine.complaints(), Vec::<String>::new());
            machine.end().unwrap_or_else(|failure| panic!("{failure}"));
        });
    }
}

fn on_rdma(slots: usize, check: Check<'_>) {
    let buffers = pool(slots, 256 * 1024);
    let (mut pair, _lending) = over_rdma(SLAB_COUNT, &buffers);
    check(&mut pair, &buffers);
}

#[test]
#[ignore = "runs in a guest"]
fn the_promises_of_every_transport_are_kept() {
    conformance::random_requests_behave_like_the_model(&on_rdma, 4);
    conformance::what_is_not_lent_is_refused_and_the_rest_goes_on(&on_rdma);
    conformance::a_refusal_among_many_disturbs_no_neighbour(&on_rdma);
    conformance::a_discard_may_be_longer_than_the_pool(&on_rdma);
    conformance::lower_classes_never_take_the_credits_of_demand(&on_rdma);
}

/// Posts a full batch of `operation`, refused ones among them, and polls until all ended, arming now and then.
fn batch(pair: &mut dyn QueuePair, pool: &BufferPool, operation: Operation) {
    let end = Instant::now() + PATIENCE;
    let slots = pool.slot_count();
    forbid_allocation(|| {
        for slot in 0..slots {
            // Every fourth slab does not exist.
            let request = request(operation, slot as u32 % 4, slot / 4 * 65536, pool.slot(slot), slot as u32);
            pair.post(request, Instant::now()).unwrap();
        }
        let mut ended = 0;
        while ended < slots && Instant::now() < end {
            pair.poll(Instant::now(), &mut |completion| {
                assert_eq!(completion.result.is_err(), completion.tag.0 % 4 == 3, "{:?}", completion.tag);
                ended += 1;
            });
            pair.arm();
        }
        assert_eq!(ended, slots);
    });
}

#[test]
#[ignore = "runs in a guest"]
fn nothing_is_allocated_on_the_path() {
    let pool = pool(32, 65536);
    let (mut pair, lending) = over_rdma(3, &pool);
    for _ in 0..2 {
        for operation in [Operation::Write, Operation::Read, Operation::Discard] {
            batch(&mut pair, &pool, operation);
        }
    }
    drop(lending);
    let end = Instant::now() + PATIENCE;
    forbid_allocation(|| {
        let _ = pair.post(request(Operation::Write, 0, 0, pool.slot(0), 1), Instant::now());
        while !pair.is_down() || pair.in_flight() > 0 {
            assert!(Instant::now() < end);
            pair.arm();
            pair.poll(Instant::now(), &mut |_| {});
        }
    });
}

#[test]
#[ignore = "runs in a guest"]
fn a_discard_is_seen_by_both_ends() {
    let pool = pool(2, PAGE);
    let (mut pair, lending) = over_rdma(1, &pool);
    let memory = lending.slabs.memory(SlabHandle(0));
    let mut seen = [1; PAGE];
    for byte in 1..4 {
        fill(&pool, pool.slot(0), byte);
        assert_eq!(carry_out(&mut pair, request(Operation::Write, 0, PAGE, pool.slot(0), 0)), Ok(()));
        memory.read(PAGE, &mut seen);
        assert_eq!(seen, [byte; PAGE], "what the device wrote is what the donor sees");
        assert_eq!(carry_out(&mut pair, request(Operation::Discard, 0, PAGE, pool.slot(0), 0)), Ok(()));
        memory.read(PAGE, &mut seen);
        assert_eq!(seen, [0; PAGE]);
        assert_eq!(carry_out(&mut pair, request(Operation::Read, 0, PAGE, pool.slot(1), 0)), Ok(()));
        assert_eq!(content(&pool, pool.slot(1)), vec![0; PAGE]);
    }
}

/// A borrower that goes on writing to a slab that was taken back, as a broken one might.
#[test]
#[ignore = "runs in a guest"]
fn a_write_after_its_slab_was_taken_back_breaks_the_connection_and_no_memory() {
    let pool = pool(1, PAGE);
    let (mut pair, lending) = over_rdma(2, &pool);
    fill(&pool, pool.slot(0), 7);
    assert_eq!(carry_out(&mut pair, request(Operation::Write, 0, 0, pool.slot(0), 0)), Ok(()));
    let memory = lending.slabs.memory(SlabHandle(0));
    lending.regions().take_back(SlabHandle(0));
    fill(&pool, pool.slot(0), 9);
    let late = carry_out(&mut pair, request(Operation::Write, 0, 0, pool.slot(0), 1));
    assert_eq!(late, Err(RequestError::Down));
    let mut seen = [0; PAGE];
    memory.read(0, &mut seen);
    assert_eq!(seen, [7; PAGE], "nothing was written");
    assert!(pair.is_down());
    let post = pair.post(request(Operation::Read, 1, 0, pool.slot(0), 2), Instant::now());
    assert_eq!(post, Err(PostError::Down));
    // What is lent no more in the table is refused here, and disturbs nothing.
    let (mut pair, lending) = over_rdma(2, &pool);
    lending.table.remove(SlabHandle(0));
    let refused = carry_out(&mut pair, request(Operation::Write, 0, 0, pool.slot(0), 1));
    assert_eq!(refused, Err(RequestError::NotLent));
    assert_eq!(carry_out(&mut pair, request(Operation::Write, 1, 0, pool.slot(0), 1)), Ok(()));
}

/// Sleeps on the event until something came.
fn sleep(pair: &mut dyn QueuePair) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    if pair.arm() {
        return;
    }
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut waits = [PollFd::from_borrowed_fd(pair.event().unwrap(), PollFlags::IN)];
    assert_eq!(poll(&mut waits, Some(&limit)).unwrap(), 1, "no event came");
}

#[test]
#[ignore = "runs in a guest"]
fn the_event_tells_of_completions_that_come_after_it_was_armed() {
    let pool = pool(8, PAGE);
    let (mut pair, _lending) = over_rdma(1, &pool);
    for round in 0..200_u32 {
        let operation = [Operation::Write, Operation::Read, Operation::Discard][round as usize % 3];
        let count = 1 + round % 8;
        for slot in 0..count {
            let offset = slot as usize * PAGE;
            pair.post(request(operation, 0, offset, pool.slot(slot as usize), slot), Instant::now()).unwrap();
        }
        let mut left = count;
        while left > 0 {
            sleep(&mut pair);
            pair.poll(Instant::now(), &mut |ended| {
                assert_eq!(ended.result, Ok(()));
                left -= 1;
            });
        }
    }
}

/// The donor ends the queue pair, as a link that was down does, and the control thread makes another one.
#[test]
#[ignore = "runs in a guest"]
fn a_connection_that_broke_is_mended_and_every_request_ends_once() {
    let pool = pool(32, PAGE);
    let (mut pair, lending) = over_rdma_with(1, &pool, Arc::new(Patience::with_sole_copies()));
    let repair = Arc::clone(pair.repair());
    for slot in 0..32 {
        fill(&pool, pool.slot(slot), slot as u8 + 1);
    }
    // Another queue pair of the same number takes the place of the donor's end.
    let stranger = PooledPort::find(ADDRESS).unwrap().port().connection().unwrap();
    lending.regions().connect(0, &stranger.endpoint).unwrap();
    let post = |pair: &mut dyn QueuePair, slot: usize| {
        let write = request(Operation::Write, 0, slot * PAGE, pool.slot(slot), slot as u32);
        pair.post(write, Instant::now()).unwrap();
    };
    (0..16).for_each(|slot| post(&mut pair, slot));
    let mut ended: Vec<Completion> = Vec::new();
    let mut asked = None;
    wait_until(|| {
        pair.poll(Instant::now(), &mut |completion| ended.push(completion));
        asked = repair.begin();
        asked.is_some()
    });
    assert!(!pair.is_down() && pair.in_flight() == 16, "its requests wait: {ended:?}");
    // Requests of the time between wait too.
    (16..32).for_each(|slot| post(&mut pair, slot));
    let theirs = lending.regions().connect(0, &asked.unwrap().unwrap()).unwrap();
    repair.finish(Some(&theirs)).unwrap();
    wait_until(|| {
        pair.poll(Instant::now(), &mut |completion| ended.push(completion));
        pair.in_flight() == 0
    });
    let mut tags: Vec<_> = ended.iter().map(|ended| (ended.tag.0, ended.result)).collect();
    tags.sort_unstable_by_key(|&(tag, _)| tag);
    assert_eq!(tags, (0..32).map(|tag| (tag, Ok(()))).collect::<Vec<_>>());
    let memory = lending.slabs.memory(SlabHandle(0));
    for slot in 0..32 {
        let mut seen = [0; PAGE];
        memory.read(slot * PAGE, &mut seen);
        assert_eq!(seen, [slot as u8 + 1; PAGE], "page {slot}");
    }
    // A donor that refuses ends the wait.
    lending.regions().connect(0, &stranger.endpoint).unwrap();
    post(&mut pair, 0);
    ended.clear();
    wait_until(|| {
        pair.poll(Instant::now(), &mut |completion| ended.push(completion));
        repair.begin().is_some()
    });
    repair.finish(None).unwrap_err();
    wait_until(|| {
        pair.poll(Instant::now(), &mut |completion| ended.push(completion));
        pair.is_down()
    });
    assert_eq!(ended.iter().map(|ended| ended.result).collect::<Vec<_>>(), [Err(RequestError::Down)]);
}

/// Slots of `pool` that a read of `byte` filled.
fn filled(pool: &BufferPool, byte: u8) -> usize {
    (0..pool.slot_count()).filter(|slot| content(pool, pool.slot(*slot)).contains(&byte)).count()
}

/// As when a session ends on the control channel while its device works: the buffers are other requests' from then on.
#[test]
#[ignore = "runs in a guest"]
fn a_device_goes_on_without_polls_until_it_is_halted() {
    const OLD: u8 = 3;
    let pool = pool(32, 65536);
    let post_reads = |pair: &mut dyn QueuePair| {
        (0..32).for_each(|slot| fill(&pool, pool.slot(slot), 0));
        for slot in 0..32 {
            let read = request(Operation::Read, 0, slot % 4 * 65536, pool.slot(slot), slot as u32);
            pair.post(read, Instant::now()).unwrap();
        }
    };
    let (mut pair, lending) = over_rdma(1, &pool);
    lending.slabs.memory(SlabHandle(0)).write(0, &[OLD; 4 * 65536]);
    // Without the halt, bytes come although no thread polls.
    post_reads(&mut pair);
    wait_until(|| filled(&pool, OLD) == 32);
    let mut ended = 0;
    wait_until(|| {
        pair.poll(Instant::now(), &mut |_| ended += 1);
        ended == 32
    });
    for round in 0..8 {
        let (mut pair, lending) = over_rdma(1, &pool);
        lending.slabs.memory(SlabHandle(0)).write(0, &[OLD; 4 * 65536]);
        post_reads(&mut pair);
        // Some of them have come, of others a part.
        wait_until(|| filled(&pool, OLD) >= 2 * round);
        assert!(pair.halt(), "the device lets go");
        assert!(pair.is_down());
        (0..32).for_each(|slot| fill(&pool, pool.slot(slot), 0));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(filled(&pool, OLD), 0, "round {round}: a late read touched a buffer");
        assert_eq!(pair.post(request(Operation::Read, 0, 0, pool.slot(0), 0), Instant::now()), Err(PostError::Down));
    }
}
