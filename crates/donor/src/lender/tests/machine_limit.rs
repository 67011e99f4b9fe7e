//! No machine holds more than the donor lends to one, however many volumes it has.

use std::net::IpAddr;
use std::time::Instant;

use spillway_fabric::control::message::Message;

use super::super::{Input, Output};
use super::world::{SIZE, World, hello};
use crate::connections::{Machine, Source};
use crate::limits::{ACTIVITY_DEADLINE, NEED_TIME};

fn at(last: u8) -> Machine {
    Source::of_address(IpAddr::from([10, 0, 0, last])).into()
}

fn free_bytes(outputs: &[Output]) -> Option<u64> {
    outputs.iter().find_map(|output| match output {
        Output::Send { message: Message::Free { free_bytes, .. }, .. } => Some(*free_bytes),
        _ => None,
    })
}

#[test]
fn the_volumes_of_one_machine_share_its_limit_and_others_have_their_own() {
    let mut world = World::with_machine_limit(8, 3);
    world.machine = at(1);
    let (one, two) = (world.enter(1, hello(1)), world.enter(2, hello(2)));
    let first = world.lease(one).unwrap();
    assert!(world.lease(two).is_some() && world.lease(one).is_some());
    assert_eq!(free_bytes(&world.say(two, Message::Query { request: 1 })), Some(0), "the machine has its three");
    let outputs = world.say(two, Message::Lease { request: 2 });
    let is_told = |output: &Output| match output {
        Output::Send { message: Message::Refused { full: true, reason, .. }, .. } => reason.contains("one machine"),
        _ => false,
    };
    assert!(outputs.iter().any(is_told), "{outputs:?}");
    world.machine = at(2);
    let other = world.enter(3, hello(3));
    (0..3).for_each(|_| assert!(world.lease(other).is_some()));
    world.say(one, Message::Release { slab: first });
    assert_eq!(free_bytes(&world.say(two, Message::Query { request: 3 })), Some(SIZE));
    assert!(world.lease(two).is_some() && world.lease(two).is_none());
}

#[test]
fn slabs_of_a_volume_that_may_come_back_count() {
    let mut world = World::with_machine_limit(8, 2);
    world.machine = at(1);
    let mut lingering = hello(1);
    lingering.linger_seconds = 60;
    let gone = world.enter(1, lingering);
    (0..2).for_each(|_| assert!(world.lease(gone).is_some()));
    world.feed(Input::Ended { session: gone });
    let next = world.enter(2, hello(2));
    assert!(world.lease(next).is_none(), "its slabs linger");
}

#[test]
fn without_a_limit_one_machine_has_all_until_another_one_asks_for_its_share() {
    let mut world = World::new(8, 0, 1, Instant::now());
    world.machine = at(1);
    let greedy = world.enter(1, hello(1));
    (0..8).for_each(|_| assert!(world.lease(greedy).is_some()));
    world.machine = at(2);
    let other = world.enter(2, hello(2));
    let mut asked = 0;
    for round in 0..6 {
        let before = world.log.len();
        assert!(world.lease(other).is_none(), "there is no room yet");
        world.pass(ACTIVITY_DEADLINE);
        let back = World::recalled(&world.log[before..]);
        assert!(back.len() <= 1, "no more than is needed");
        asked += back.len();
        let Some((session, slab)) = back.first().copied() else {
            assert!(round >= 4, "only half of it is asked back");
            continue;
        };
        assert_eq!(session, greedy);
        world.say(greedy, Message::Release { slab });
        assert_eq!(free_bytes(&world.say(greedy, Message::Query { request: 9 })), Some(0), "it is not for this one");
        assert!(world.lease(greedy).is_none());
        assert!(world.lease(other).is_some(), "but for that one");
    }
    assert_eq!((asked, world.lender.slabs_held(greedy), world.lender.slabs_held(other)), (4, 4, 4));
    world.say(other, Message::Goodbye { reason: String::new() });
    world.pass(2 * NEED_TIME);
    (0..4).for_each(|_| assert!(world.lease(greedy).is_some(), "no other machine asks any more"));
}

#[test]
fn the_volumes_of_one_machine_ask_nothing_back_of_each_other() {
    let mut world = World::new(4, 0, 1, Instant::now());
    world.machine = at(1);
    let (one, two) = (world.enter(1, hello(1)), world.enter(2, hello(2)));
    (0..4).for_each(|_| assert!(world.lease(one).is_some()));
    assert!(world.lease(two).is_none());
    world.pass(ACTIVITY_DEADLINE);
    assert_eq!(World::recalled(&world.log), []);
}

#[test]
fn loopback_and_sockets_of_this_host_are_one_machine() {
    let loopback = Source::of_address(IpAddr::from([127, 0, 0, 1]));
    assert_eq!(Machine::from(loopback), Machine::from(Source::User(1000)));
    assert_ne!(at(1), at(2));
}
