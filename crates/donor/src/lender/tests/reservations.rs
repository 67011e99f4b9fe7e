//! Slabs kept for borrowers that asked.

use std::time::Instant;

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::limits::RESERVATION_TIME;

use super::super::leases::SessionId;
use super::super::{Input, Output};
use super::world::{HEADROOM_SLABS, SIZE, World, hello, sample};
use crate::limits::RESERVATIONS_PER_SESSION_MAX;

/// Asks; whether a slab is kept, and what could be lent.
fn ask(world: &mut World, session: SessionId, request: u32) -> (bool, u64) {
    let outputs = world.say(session, Message::Ask { request });
    let offered = outputs.iter().find_map(|output| match output {
        Output::Send { message: Message::Offered { request: of, free_bytes, is_reserved }, .. } if *of == request => {
            Some((*is_reserved, *free_bytes / SIZE))
        }
        _ => None,
    });
    offered.expect("every question is answered")
}

/// Whether a lease by this number is granted.
fn take(world: &mut World, session: SessionId, request: u32) -> bool {
    let begin = world.log.len();
    world.say(session, Message::Lease { request });
    world.make_all();
    let is_lease = |output: &Output| matches!(output, Output::Send { message: Message::Leased { request: of, .. }, .. } if *of == request);
    world.log[begin..].iter().any(is_lease)
}

fn world(quota_slabs: u64) -> (World, SessionId, SessionId) {
    let mut world = World::new(quota_slabs, 0, 1, Instant::now());
    let (one, other) = (world.enter(1, hello(1)), world.enter(2, hello(2)));
    (world, one, other)
}

#[test]
fn what_is_kept_for_one_is_neither_offered_nor_lent_to_another() {
    let (mut world, one, other) = world(1);
    assert_eq!(ask(&mut world, one, 5), (true, 1));
    assert_eq!(ask(&mut world, other, 5), (false, 0));
    assert!(!take(&mut world, other, 5), "it is kept");
    assert_eq!(world.lender.free_to_lend_bytes(), 0);
    assert!(take(&mut world, one, 5));
    assert_eq!(world.lender.holdings().reserved_bytes, 0, "taken, it is kept no more");
}

#[test]
fn a_borrower_is_told_of_the_room_that_is_kept_for_it() {
    let (mut world, one, other) = world(3);
    assert_eq!(ask(&mut world, one, 1), (true, 3));
    assert_eq!(ask(&mut world, one, 2), (true, 3));
    assert_eq!(ask(&mut world, other, 1), (true, 1));
}

#[test]
fn it_ends_when_it_is_declined_when_it_is_old_and_with_its_session() {
    let (mut world, one, other) = world(1);
    ask(&mut world, one, 5);
    world.say(one, Message::Decline { request: 5 });
    assert_eq!(ask(&mut world, other, 6), (true, 1));
    let until = world.now + RESERVATION_TIME;
    assert_eq!(world.wake_at, Some(until));
    world.pass(RESERVATION_TIME);
    assert_eq!(ask(&mut world, one, 7), (true, 1));
    world.say(one, Message::Goodbye { reason: String::new() });
    assert_eq!(ask(&mut world, other, 8), (true, 1));
    assert!(take(&mut world, other, 8));
}

#[test]
fn the_machine_comes_first() {
    let (mut world, one, other) = world(2);
    assert!(ask(&mut world, one, 1).0);
    world.now += RESERVATION_TIME / 2;
    assert!(ask(&mut world, other, 1).0);
    world.feed(Input::Quota { bytes: SIZE });
    assert!(take(&mut world, one, 1), "the older one stands");
    assert!(!take(&mut world, other, 1));
    let (mut world, one, _) = self::world(2);
    assert!(ask(&mut world, one, 1).0);
    for _ in 0..40 {
        world.feed(Input::Sample(sample(HEADROOM_SLABS)));
    }
    assert_eq!(world.lender.holdings().reserved_bytes, 0, "its programs need the memory");
    assert!(!take(&mut world, one, 1));
}

#[test]
fn a_drain_ends_all_and_offers_nothing() {
    let (mut world, one, _) = world(2);
    assert!(ask(&mut world, one, 1).0);
    world.feed(Input::Drain);
    assert!(!take(&mut world, one, 1));
    assert_eq!(ask(&mut world, one, 2), (false, 0));
}

#[test]
fn one_session_cannot_keep_everything_from_others() {
    let (mut world, one, other) = world(2 * RESERVATIONS_PER_SESSION_MAX as u64);
    for request in 0..RESERVATIONS_PER_SESSION_MAX as u32 {
        assert!(ask(&mut world, one, request).0);
    }
    assert!(!ask(&mut world, one, 99).0);
    assert!(!ask(&mut world, one, 0).0, "one slab for a number");
    assert!(ask(&mut world, other, 1).0);
}

#[test]
fn what_is_kept_counts_for_the_limit_of_a_machine() {
    let mut world = World::with_machine_limit(8, 2);
    let (one, other) = (world.enter(1, hello(1)), world.enter(2, Hello { ..hello(2) }));
    assert_eq!((ask(&mut world, one, 1), ask(&mut world, other, 1)), ((true, 2), (true, 1)));
    assert_eq!(ask(&mut world, one, 2), (false, 1));
    assert!(take(&mut world, one, 1) && take(&mut world, other, 1));
}

#[test]
fn slabs_made_ahead_do_not_use_up_what_is_kept() {
    // The first slab made ahead fails, and the machine has memory for one.
    let mut world = World::new(8, 1, 1, Instant::now());
    for _ in 0..60 {
        world.feed(Input::Sample(sample(HEADROOM_SLABS)));
    }
    let slab = *world.making.keys().next().expect("one is made ahead");
    world.feed(Input::MakeFailed { slab, reason: "no room".to_owned() });
    let one = world.enter(1, hello(1));
    assert_eq!(ask(&mut world, one, 1), (true, 1));
    // Tried again with the next sample, if that took nothing from borrowers.
    world.feed(Input::Sample(sample(HEADROOM_SLABS + 1)));
    assert!(world.making.is_empty());
    assert!(take(&mut world, one, 1));
}
