//! The life of a slab, stage by stage, as the Lender's module text tells it.

use std::time::{Duration, Instant};

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::units::SlabHandle;

use super::super::leases::SessionId;
use super::super::{Input, Output, SlabId};
use super::world::{HEADROOM_SLABS, MACHINE_SLABS, SIZE, World, hello, sample};
use crate::limits::{ACTIVITY_DEADLINE, LINGER_MAX, RECALL_DEADLINE};

fn world(quota_slabs: u64) -> World {
    World::new(quota_slabs, 0, 1, Instant::now())
}

#[test]
fn a_slab_is_made_before_it_is_lent_and_freed_when_it_is_released() {
    let mut world = world(4);
    let session = world.enter(1, hello(1));
    let outputs = world.say(session, Message::Lease { request: 3 });
    let [Output::Make(make)] = outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((make.size_bytes, make.wanted_by), (SIZE, Some(session)));
    let (slab, handle) = (make.slab, SlabHandle(0));
    let leased = Output::Send { session, message: Message::Leased { request: 3, slab: handle, key: None } };
    assert_eq!(world.feed(Input::Made { slab }), [Output::Attach { slab, session, handle }, leased]);
    let released = Output::Send { session, message: Message::Released { slab: handle } };
    let outputs = world.say(session, Message::Release { slab: handle });
    assert_eq!(outputs, [Output::Detach { session, handle }, Output::Free { slab }, released]);
    assert_eq!((world.lender.holdings().lent_bytes, world.taken_bytes()), (0, 0));
}

#[test]
fn a_slab_that_cannot_be_made_is_refused_and_costs_nothing() {
    let mut world = world(1);
    let session = world.enter(1, hello(1));
    for _ in 0..3 {
        world.say(session, Message::Lease { request: 1 });
        let slab = *world.making.keys().next().unwrap();
        let outputs = world.feed(Input::MakeFailed { slab, reason: "no room".to_owned() });
        let refused = |output: &Output| match output {
            Output::Send { message: Message::Refused { full: true, reason, .. }, .. } => reason.contains("no room"),
            _ => false,
        };
        assert!(outputs.iter().any(refused), "{outputs:?}");
    }
    assert!(world.lease(session).is_some(), "the quota of one slab is free again");
    assert_eq!(world.lease(session), None);
}

#[test]
fn two_borrowers_are_not_promised_the_same_memory_while_it_is_made() {
    let mut world = world(1);
    let (one, other) = (world.enter(1, hello(1)), world.enter(2, hello(2)));
    world.say(one, Message::Lease { request: 1 });
    let outputs = world.say(other, Message::Lease { request: 1 });
    assert!(matches!(outputs[..], [Output::Send { message: Message::Refused { full: true, .. }, .. }]), "{outputs:?}");
}

#[test]
fn a_slab_made_ahead_is_lent_at_once_and_replaced() {
    let mut world = World::new(8, 2, 1, Instant::now());
    let session = world.enter(1, hello(1));
    world.make_all();
    assert_eq!(world.lender.holdings().prepared_bytes, 2 * SIZE);
    let outputs = world.say(session, Message::Lease { request: 1 });
    assert!(matches!(outputs[0], Output::Attach { slab: SlabId(0), .. }), "the oldest: {outputs:?}");
    assert!(matches!(outputs[2], Output::Make(make) if make.wanted_by.is_none()), "{outputs:?}");
    assert_eq!(world.lender.counters().leases_unprepared, 0);
}

#[test]
fn under_pressure_slabs_made_ahead_go_first_then_the_least_active_are_asked_back() {
    let mut world = World::new(MACHINE_SLABS, 2, 1, Instant::now());
    let session = world.enter(1, hello(1));
    (0..10).for_each(|_| assert!(world.lease(session).is_some()));
    // The machine's own programs take all of the rest.
    for _ in 0..60 {
        world.feed(Input::Sample(sample(0)));
        while let Some((_, request, mut slabs)) = world.questions.pop() {
            assert!(world.questions.is_empty(), "one question at a time");
            let values = slabs.iter().map(|slab| (*slab, u64::from(100 - slab.0))).collect();
            let outputs = world.say(session, Message::Activity { request, values });
            let mut recalled: Vec<_> = World::recalled(&outputs).into_iter().map(|(_, slab)| slab).collect();
            slabs.sort_unstable();
            recalled.sort_unstable();
            assert!(!recalled.is_empty() && slabs.ends_with(&recalled), "the highest handles are the least active");
        }
    }
    let holdings = world.lender.holdings();
    assert_eq!((holdings.prepared_bytes, holdings.recalled_bytes), (0, HEADROOM_SLABS * SIZE));
    assert_eq!(world.handles.len(), 10, "they stay lent");
}

#[test]
fn a_slab_is_asked_for_again_only_after_its_deadline_and_until_it_is_back() {
    let mut world = world(4);
    let session = world.enter(1, hello(1));
    let slab = world.lease(session).unwrap();
    world.feed(Input::Quota { bytes: 0 });
    world.pass(ACTIVITY_DEADLINE);
    let recalls = |world: &World| World::recalled(&world.log).len();
    assert_eq!(recalls(&world), 1);
    world.pass(RECALL_DEADLINE - Duration::from_millis(1));
    assert_eq!(recalls(&world), 1);
    world.pass(Duration::from_millis(1));
    assert_eq!((recalls(&world), world.lender.recalls().overdue), (2, 1));
    world.say(session, Message::Release { slab });
    world.pass(2 * RECALL_DEADLINE);
    assert_eq!((recalls(&world), world.lender.recalls().returned, world.wake_at), (2, 1, None));
}

#[test]
fn the_lender_wakes_for_its_deadlines_by_itself() {
    let mut world = world(4);
    let session = world.enter(1, Hello { linger_seconds: 5, ..hello(1) });
    world.lease(session).unwrap();
    assert_eq!(world.wake_at, None);
    world.feed(Input::Quota { bytes: 0 });
    assert_eq!(world.wake_at, Some(world.now + ACTIVITY_DEADLINE));
    world.pass(ACTIVITY_DEADLINE);
    assert_eq!(world.wake_at, Some(world.now + RECALL_DEADLINE));
    world.feed(Input::Ended { session });
    assert_eq!(world.wake_at, Some(world.now + Duration::from_secs(5)));
    world.pass(Duration::from_secs(5));
    assert_eq!((world.wake_at, world.memory.len()), (None, 0));
}

#[test]
fn a_drain_asks_for_everything_and_lends_nothing() {
    let mut world = World::new(8, 2, 1, Instant::now());
    let session = world.enter(1, hello(1));
    (0..3).for_each(|_| assert!(world.lease(session).is_some()));
    let outputs = world.feed(Input::Drain);
    assert_eq!(World::recalled(&outputs).len(), 3);
    assert_eq!((world.lender.holdings().prepared_bytes, world.lender.free_to_lend_bytes()), (0, 0));
    assert_eq!(world.lease(session), None);
    let late = world.knock(2, hello(2));
    assert!(!world.open.contains(&late));
}

#[test]
fn a_session_that_dies_while_its_slab_is_made_leaves_nothing() {
    for linger_seconds in [0, LINGER_MAX.as_secs() as u16] {
        let mut world = world(4);
        let session = world.enter(1, Hello { linger_seconds, ..hello(1) });
        world.say(session, Message::Lease { request: 1 });
        world.feed(Input::Ended { session });
        assert_eq!(world.lender.lingering_count(), 0, "it holds nothing that it knows of");
        world.make_all();
        assert_eq!((world.memory.len(), world.lender.holdings().lent_bytes), (0, 0));
    }
}

#[test]
fn a_stopped_borrower_is_told_nothing_until_it_speaks() {
    let mut world = world(4);
    let session = world.enter(1, Hello { wants_shared_memory: true, patience_seconds: u16::MAX, ..hello(1) });
    world.lease(session).unwrap();
    let quiet = Input::Quiet { session };
    let is_pinged = |world: &mut World| !world.feed(quiet.clone()).is_empty();
    assert!(is_pinged(&mut world));
    (0..1000).for_each(|_| drop(world.feed(quiet.clone())));
    assert!(!is_pinged(&mut world) && world.open.contains(&session), "it is stopped, and waited for");
    assert_eq!(World::recalled(&world.feed(Input::Drain)), []);
    world.say(session, Message::Pong);
    assert!(is_pinged(&mut world));
    world.pass(RECALL_DEADLINE);
    assert_eq!(World::recalled(&world.log).len(), 1);
}

/// The slabs of `outputs` that may stay after all.
fn withdrawn(outputs: &[Output]) -> Vec<(SessionId, SlabHandle)> {
    let slabs = |output: &Output| match output {
        Output::Send { session, message: Message::RecallWithdrawn { slabs } } => {
            slabs.iter().map(|slab| (*session, *slab)).collect()
        }
        _ => Vec::new(),
    };
    outputs.iter().flat_map(slabs).collect()
}

#[test]
fn a_drain_that_is_undone_lets_borrowers_keep_what_is_still_there() {
    let mut world = world(4);
    let session = world.enter(1, hello(1));
    let slabs: Vec<_> = (0..3).map(|_| world.lease(session).unwrap()).collect();
    assert_eq!(World::recalled(&world.feed(Input::Drain)).len(), 3);
    world.say(session, Message::Release { slab: slabs[0] });
    world.pass(RECALL_DEADLINE);
    assert_eq!(world.lender.recalls().overdue, 2);
    let outputs = world.feed(Input::Undrain);
    assert_eq!(withdrawn(&outputs), [(session, slabs[1]), (session, slabs[2])]);
    let recalls = world.lender.recalls();
    assert_eq!((recalls.asked, recalls.returned, recalls.withdrawn, recalls.overdue), (3, 1, 2, 0));
    assert_eq!((world.lender.holdings().recalled_bytes, world.wake_at), (0, None));
    world.pass(RECALL_DEADLINE);
    assert!(world.lease(session).is_some(), "it lends again");
    assert_eq!(withdrawn(&world.feed(Input::Undrain)), [], "said once");
    assert_eq!(World::recalled(&world.feed(Input::Drain)).len(), 3, "and it can be drained again");
}

#[test]
fn what_the_machine_was_short_of_still_comes_back_when_a_drain_is_undone() {
    let mut world = world(4);
    let session = world.enter(1, hello(1));
    (0..4).for_each(|_| assert!(world.lease(session).is_some()));
    world.feed(Input::Quota { bytes: 3 * SIZE });
    world.pass(ACTIVITY_DEADLINE);
    assert_eq!(world.lender.holdings().recalled_bytes, SIZE);
    world.feed(Input::Drain);
    assert_eq!(world.lender.holdings().recalled_bytes, 4 * SIZE);
    assert_eq!(withdrawn(&world.feed(Input::Undrain)).len(), 3);
    assert_eq!(world.lender.holdings().recalled_bytes, SIZE);
}
