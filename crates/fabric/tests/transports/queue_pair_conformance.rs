//! Every transport keeps the same promises: what was written is read, what was discarded reads as zeroes, nothing else
//! changes, each request ends once, and what is not lent is refused without harm. RDMA keeps them in `rdma.rs`.

use std::time::Instant;

use spillway_fabric::queue_pair::{Operation, QueuePair, Request};
use spillway_fabric::units::Priority;

use crate::support::conformance::{self, Check, SLAB_COUNT};
use crate::support::*;

/// Runs `check` on each transport.
fn on_each(slots: usize, check: Check<'_>) {
    let buffers = pool(slots, 256 * 1024);
    let slabs = Slabs::with_count(SLAB_COUNT);
    check(&mut over_shm(SLAB_COUNT, &buffers).0, &buffers);
    let (mut pair, _file, _directory) = over_file(SLAB_COUNT, &buffers);
    check(&mut pair, &buffers);
    let (mut pair, _serving) = over_tcp(&slabs, &buffers);
    check(&mut pair, &buffers);
    let slabs = Slabs::with_count(SLAB_COUNT);
    let (mut pair, _serving) = over_unix(&slabs, &buffers);
    check(&mut pair, &buffers);
}

#[test]
fn random_requests_behave_like_the_model() {
    conformance::random_requests_behave_like_the_model(&on_each, 12);
}

#[test]
fn what_is_not_lent_is_refused_and_the_rest_goes_on() {
    conformance::what_is_not_lent_is_refused_and_the_rest_goes_on(&on_each);
}

#[test]
fn a_refusal_among_many_disturbs_no_neighbour() {
    conformance::a_refusal_among_many_disturbs_no_neighbour(&on_each);
}

#[test]
fn a_discard_may_be_longer_than_the_pool() {
    conformance::a_discard_may_be_longer_than_the_pool(&on_each);
}

#[test]
fn lower_classes_never_take_the_credits_of_demand() {
    conformance::lower_classes_never_take_the_credits_of_demand(&on_each);
}

/// A discard that waits to be sent must not come after a write that was posted later: it would take that away.
#[test]
fn over_sockets_nothing_passes_what_changes_pages() {
    let buffers = pool(2, PAGE);
    let slabs = Slabs::with_count(SLAB_COUNT);
    let check = |pair: &mut dyn QueuePair| {
        fill(&buffers, buffers.slot(0), 7);
        let post = |pair: &mut dyn QueuePair, operation, slot: usize, priority| {
            let posted = Request { priority, ..request(operation, 0, 0, buffers.slot(slot), slot as u32) };
            pair.post(posted, Instant::now()).unwrap();
        };
        // The first goes at once, the others with the next poll.
        post(pair, Operation::Read, 1, Priority::Prefetch);
        post(pair, Operation::Discard, 1, Priority::WriteBack);
        post(pair, Operation::Write, 0, Priority::Demand);
        post(pair, Operation::Read, 1, Priority::Demand);
        complete(pair, 4);
        assert_eq!(content(&buffers, buffers.slot(1)), vec![7; PAGE]);
    };
    let (mut pair, _serving) = over_tcp(&slabs, &buffers);
    check(&mut pair);
    let (mut pair, _serving) = over_unix(&slabs, &buffers);
    check(&mut pair);
}

/// What is in the queue to be sent gives way; what was begun to be sent does not.
#[test]
fn over_sockets_demand_goes_ahead_of_prefetches_that_were_not_sent() {
    let buffers = pool(8, PAGE);
    let slabs = Slabs::with_count(SLAB_COUNT);
    let check = |pair: &mut dyn QueuePair| {
        for page in 0..8 {
            fill(&buffers, buffers.slot(page), page as u8 + 1);
            let write = request(Operation::Write, 0, page * PAGE, buffers.slot(page), page as u32);
            assert_eq!(carry_out(pair, write), Ok(()));
            fill(&buffers, buffers.slot(page), 0);
        }
        use Priority::{Demand, Prefetch, WriteBack};
        // The first goes at once, the others with the next poll.
        let classes = [Prefetch, WriteBack, Prefetch, Demand, Prefetch, Demand, WriteBack, Demand];
        for (page, priority) in classes.into_iter().enumerate() {
            let read = request(Operation::Read, 0, page * PAGE, buffers.slot(page), page as u32);
            pair.post(Request { priority, ..read }, Instant::now()).unwrap();
        }
        let order: Vec<u32> = complete(pair, 8).iter().map(|ended| ended.tag.0).collect();
        assert_eq!(order, [0, 3, 5, 7, 2, 4, 1, 6]);
        for page in 0..8 {
            assert_eq!(content(&buffers, buffers.slot(page)), vec![page as u8 + 1; PAGE], "page {page}");
        }
    };
    let (mut pair, _serving) = over_tcp(&slabs, &buffers);
    check(&mut pair);
    let (mut pair, _serving) = over_unix(&slabs, &buffers);
    check(&mut pair);
}
