//! What Infiniswap's published code got wrong on the side of the donor, one test each, so that ours does not.

use std::time::Instant;

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::limits::{HEARTBEAT_INTERVAL, SILENCE_DEADLINE};
use spillway_fabric::units::SlabHandle;

use super::super::{Input, Output};
use super::world::{SIZE, World, hello};
use crate::limits::EVICTION_SAMPLE_PERCENT;

fn world(quota_slabs: u64) -> World {
    World::new(quota_slabs, 0, 1, Instant::now())
}

/// There, counts were added up without an end, and overflowed within seconds, so that evictions ranked noise.
#[test]
fn activity_of_any_size_ranks_as_it_is() {
    let mut world = world(8);
    let session = world.enter(1, hello(1));
    (0..8).for_each(|_| assert!(world.lease(session).is_some()));
    world.feed(Input::Quota { bytes: 4 * SIZE });
    let (_, request, slabs) = world.questions.pop().unwrap();
    assert_eq!(slabs.len() as u64, 4 * EVICTION_SAMPLE_PERCENT / 100);
    let activity = |slab: SlabHandle| u64::MAX - 1 - (u64::from(slab.0) << 32);
    let outputs = world.say(
        session,
        Message::Activity { request, values: slabs.iter().map(|slab| (*slab, activity(*slab))).collect() },
    );
    let mut recalled: Vec<u32> = World::recalled(&outputs).iter().map(|(_, slab)| slab.0).collect();
    recalled.sort_unstable();
    assert_eq!(recalled, [4, 5, 6, 7]);
}

/// There, a borrower that lost power was waited for without an end.
#[test]
fn a_borrower_without_power_is_given_up() {
    let mut world = world(8);
    let session = world.enter(1, hello(1));
    world.lease(session).unwrap();
    let waits = SILENCE_DEADLINE.as_millis() / HEARTBEAT_INTERVAL.as_millis();
    (1..waits).for_each(|_| drop(world.feed(Input::Quiet { session })));
    assert!(world.open.contains(&session));
    world.feed(Input::Quiet { session });
    assert_eq!((world.open.len(), world.memory.len()), (0, 0));
}

/// There, one bad completion killed the daemon, and the memory of all of its borrowers with it.
#[test]
fn nonsense_of_one_borrower_costs_no_other_one_a_slab() {
    let slab = SlabHandle(0);
    for nonsense in [
        Message::Release { slab },
        Message::Hello(hello(1)),
        Message::Leased { request: 0, slab, key: None },
        Message::Recall { slabs: vec![slab], deadline_ms: 0 },
    ] {
        let mut world = world(8);
        let (good, bad) = (world.enter(1, hello(1)), world.enter(2, hello(2)));
        assert_eq!(world.lease(good), Some(slab));
        world.say(bad, nonsense.clone());
        assert!(!world.open.contains(&bad), "{nonsense:?}");
        assert_eq!(world.handles.keys().collect::<Vec<_>>(), [&(good, slab)]);
        assert_eq!(world.say(bad, Message::Lease { request: 1 }), [], "what it still says is not heard");
    }
}

/// There, slabs of a borrower that had left stayed registered, with its pages in them.
#[test]
fn slabs_of_a_borrower_that_left_are_freed_and_never_lent_to_another_one() {
    let mut world = world(2);
    let first = world.enter(1, hello(1));
    (0..2).for_each(|_| assert!(world.lease(first).is_some()));
    let theirs: Vec<_> = world.memory.keys().copied().collect();
    let outputs = world.feed(Input::Ended { session: first });
    let freed = |output: &&Output| matches!(output, Output::Free { slab } if theirs.contains(slab));
    assert_eq!(outputs.iter().filter(freed).count(), 2);
    let second = world.enter(2, hello(2));
    (0..2).for_each(|_| assert!(world.lease(second).is_some()));
    assert!(world.handles.values().all(|slab| !theirs.contains(slab)), "each lease has a slab of its own");
}

/// There, messages had no version.
#[test]
fn a_borrower_of_another_version_hears_so() {
    let mut world = world(2);
    let newer = Hello { version: hello(1).version + 1, ..hello(1) };
    let session = world.knock(1, newer);
    let Some(Output::Reject { reason, .. }) = world.log.last() else { panic!("{:?}", world.log) };
    assert!(reason.contains("wire version") && !world.open.contains(&session));
}

/// There, swap that was freed never came back to the donor.
#[test]
fn what_a_borrower_gives_back_can_be_lent_to_others() {
    let mut world = world(1);
    let (one, other) = (world.enter(1, hello(1)), world.enter(2, hello(2)));
    for _ in 0..10 {
        let slab = world.lease(one).unwrap();
        assert_eq!(world.lease(other), None);
        world.say(one, Message::Release { slab });
        let slab = world.lease(other).unwrap();
        world.say(other, Message::Release { slab });
    }
    assert_eq!(world.taken_bytes(), 0);
}

/// There, only the last second of a quiet borrower was known; one that does not answer must not lose most.
#[test]
fn a_borrower_that_does_not_tell_its_activity_counts_as_active() {
    let mut world = world(8);
    let (tells, silent) = (world.enter(1, hello(1)), world.enter(2, hello(2)));
    for _ in 0..4 {
        assert!(world.lease(tells).is_some() && world.lease(silent).is_some());
    }
    world.feed(Input::Quota { bytes: 4 * SIZE });
    let (_, request, slabs) = world.questions.iter().find(|(of, ..)| *of == tells).cloned().unwrap();
    let values = slabs.iter().map(|slab| (*slab, 1 << 40)).collect();
    world.say(tells, Message::Activity { request, values });
    world.pass(crate::limits::ACTIVITY_DEADLINE);
    let recalled = World::recalled(&world.log);
    assert!(recalled.len() == 4 && recalled.iter().all(|(session, _)| *session == tells), "{recalled:?}");
}
