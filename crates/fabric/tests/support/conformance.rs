//! The promises that every transport keeps. Each takes `on_each`, which runs a check on each transport that it knows.

use std::collections::HashMap;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::limits::{CREDITS_RESERVED_FOR_DEMAND, QUEUE_DEPTH_MAX};
use spillway_fabric::queue_pair::{Operation, PostError, QueuePair, Request, RequestError};
use spillway_fabric::units::{BufferRange, Priority};

use super::*;

pub const SLAB_COUNT: u32 = 3;
const PAGES_PER_SLAB: usize = SLAB_SIZE_BYTES / PAGE;

/// A check of one queue pair.
pub type Check<'a> = &'a dyn Fn(&mut dyn QueuePair, &BufferPool);

/// Runs a check on each transport, with a pool of so many slots of 256 KiB.
pub type OnEach<'a> = &'a dyn Fn(usize, Check<'_>);

#[derive(Clone, Debug)]
struct Step {
    operation: Operation,
    slab: u32,
    page: usize,
    pages: usize,
    byte: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let operation = prop_oneof![3 => Just(Operation::Read), 3 => Just(Operation::Write), 1 => Just(Operation::Discard)];
    (operation, 0..SLAB_COUNT, 0..PAGES_PER_SLAB, 1_usize..=64, 1_u8..).prop_map(
        |(operation, slab, page, pages, byte)| Step {
            operation,
            slab,
            page,
            pages: pages.min(PAGES_PER_SLAB - page),
            byte,
        },
    )
}

/// The obvious implementation: a byte for each page.
#[derive(Default)]
struct Model {
    pages: HashMap<(u32, usize), u8>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        for page in step.page..step.page + step.pages {
            match step.operation {
                Operation::Write => drop(self.pages.insert((step.slab, page), step.byte)),
                Operation::Discard => drop(self.pages.remove(&(step.slab, page))),
                Operation::Read => {}
            }
        }
    }

    fn check(&self, step: &Step, bytes: &[u8]) {
        for (index, page) in bytes.chunks(PAGE).enumerate() {
            let expected = self.pages.get(&(step.slab, step.page + index)).copied().unwrap_or(0);
            assert!(page.iter().all(|&byte| byte == expected), "page {} of {step:?}", step.page + index);
        }
    }
}

fn overlaps(one: &Step, other: &Step) -> bool {
    one.slab == other.slab && one.page < other.page + other.pages && other.page < one.page + one.pages
}

/// Posts as many steps at once as do not overlap, which is what callers promise.
fn run_steps(pair: &mut dyn QueuePair, pool: &BufferPool, steps: &[Step]) {
    let mut model = Model::default();
    let mut rest = steps;
    while !rest.is_empty() {
        let together = (1..=rest.len().min(pool.slot_count()))
            .take_while(|&count| !rest[..count - 1].iter().any(|step| overlaps(step, &rest[count - 1])))
            .count();
        let batch = &rest[..together];
        for (slot, step) in batch.iter().enumerate() {
            let buffer = pool.slot(slot).part(0, step.pages * PAGE);
            fill(pool, buffer, step.byte);
            let request = request(step.operation, step.slab, step.page * PAGE, buffer, slot as u32);
            pair.post(request, Instant::now()).unwrap();
        }
        let mut tags: Vec<_> = complete(pair, together).iter().map(|ended| (ended.tag.0, ended.result)).collect();
        tags.sort_unstable_by_key(|&(tag, _)| tag);
        assert_eq!(tags, (0..together as u32).map(|tag| (tag, Ok(()))).collect::<Vec<_>>());
        for (slot, step) in batch.iter().enumerate() {
            model.apply(step);
            if step.operation == Operation::Read {
                model.check(step, &content(pool, pool.slot(slot).part(0, step.pages * PAGE)));
            }
        }
        rest = &rest[together..];
    }
    assert_eq!(pair.in_flight(), 0);
}

/// What was written is read, what was discarded reads as zeroes, and nothing else changes.
pub fn random_requests_behave_like_the_model(on_each: OnEach<'_>, cases: u32) {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    let outcome = runner.run(&proptest::collection::vec(step(), 1..60), |steps| {
        on_each(16, &|pair, pool| run_steps(pair, pool, &steps));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

pub fn what_is_not_lent_is_refused_and_the_rest_goes_on(on_each: OnEach<'_>) {
    on_each(4, &|pair, pool| {
        let page = pool.slot(0).part(0, PAGE);
        let large = pool.slot(1);
        fill(pool, page, 5);
        for operation in [Operation::Read, Operation::Write, Operation::Discard] {
            for (slab, offset, buffer) in [
                (SLAB_COUNT, 0, page),
                (u32::MAX, 0, large),
                (0, SLAB_SIZE_BYTES, page),
                (0, SLAB_SIZE_BYTES - PAGE, large),
                (0, u32::MAX as usize - PAGE + 1, page),
            ] {
                let result = carry_out(pair, request(operation, slab, offset, buffer, 1));
                assert_eq!(result, Err(RequestError::NotLent), "{operation:?} {slab} {offset}");
            }
        }
        fill(pool, page, 5);
        assert_eq!(carry_out(pair, request(Operation::Write, 0, 0, page, 2)), Ok(()));
        let other = pool.slot(2).part(0, PAGE);
        assert_eq!(carry_out(pair, request(Operation::Read, 0, 0, other, 3)), Ok(()));
        assert_eq!(content(pool, other), vec![5; PAGE]);
        assert!(!pair.is_down());
    });
}

pub fn a_refusal_among_many_disturbs_no_neighbour(on_each: OnEach<'_>) {
    on_each(8, &|pair, pool| {
        for slot in 0..4 {
            fill(pool, pool.slot(slot), slot as u8 + 1);
            let write = request(Operation::Write, slot as u32, 0, pool.slot(slot), slot as u32);
            pair.post(write, Instant::now()).unwrap();
        }
        for slot in 4..8 {
            let read = request(Operation::Read, slot as u32 - 4, 512 * 1024, pool.slot(slot), slot as u32);
            pair.post(read, Instant::now()).unwrap();
        }
        for ended in complete(pair, 8) {
            let expected = if ended.tag.0 % 4 < SLAB_COUNT { Ok(()) } else { Err(RequestError::NotLent) };
            assert_eq!(ended.result, expected, "{:?}", ended.tag);
        }
        for slab in 0..SLAB_COUNT {
            let buffer = pool.slot(7);
            assert_eq!(carry_out(pair, request(Operation::Read, slab, 0, buffer, 9)), Ok(()));
            assert_eq!(content(pool, buffer), vec![slab as u8 + 1; buffer.length_bytes as usize]);
        }
    });
}

pub fn a_discard_may_be_longer_than_the_pool(on_each: OnEach<'_>) {
    on_each(1, &|pair, pool| {
        fill(pool, pool.slot(0), 7);
        assert_eq!(carry_out(pair, request(Operation::Write, 1, 256 * 1024, pool.slot(0), 0)), Ok(()));
        let whole_slab = BufferRange { offset_bytes: 0, length_bytes: SLAB_SIZE_BYTES as u32 };
        assert!(whole_slab.length_bytes as usize > pool.slot_size_bytes());
        assert_eq!(carry_out(pair, request(Operation::Discard, 1, 0, whole_slab, 0)), Ok(()));
        assert_eq!(carry_out(pair, request(Operation::Read, 1, 256 * 1024, pool.slot(0), 0)), Ok(()));
        assert_eq!(content(pool, pool.slot(0)), vec![0; 256 * 1024]);
    });
}

/// Posts reads of that class as long as it has credits; how many were taken.
fn take_all(pair: &mut dyn QueuePair, pool: &BufferPool, priority: Priority) -> usize {
    let page = pool.slot(0).part(0, PAGE);
    let of_class = |tag| Request { priority, ..request(Operation::Read, 0, 0, page, tag) };
    let taken = (0..).take_while(|&tag| pair.post(of_class(tag), Instant::now()).is_ok()).count();
    assert_eq!(pair.post(of_class(9999), Instant::now()), Err(PostError::Busy));
    taken
}

pub fn lower_classes_never_take_the_credits_of_demand(on_each: OnEach<'_>) {
    for priority in [Priority::Prefetch, Priority::WriteBack] {
        on_each(2, &|pair, pool| {
            let taken = take_all(pair, pool, priority);
            assert!(taken <= QUEUE_DEPTH_MAX - CREDITS_RESERVED_FOR_DEMAND);
            for demand in 0..CREDITS_RESERVED_FOR_DEMAND as u32 {
                let demand = request(Operation::Read, 1, 0, pool.slot(1).part(0, PAGE), 5000 + demand);
                assert_eq!(pair.post(demand, Instant::now()), Ok(()));
            }
            assert_eq!(pair.in_flight(), taken + CREDITS_RESERVED_FOR_DEMAND);
            let ended = complete(pair, taken + CREDITS_RESERVED_FOR_DEMAND);
            let demands = ended.iter().filter(|ended| ended.tag.0 >= 5000).count();
            assert_eq!(demands, CREDITS_RESERVED_FOR_DEMAND);
            assert_eq!(take_all(pair, pool, priority), taken);
            complete(pair, taken);
        });
    }
}
