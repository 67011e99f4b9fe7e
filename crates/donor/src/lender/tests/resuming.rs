//! Sessions whose slabs go over to the next one of the same borrower.

use std::time::{Duration, Instant};

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::limits::SILENCE_DEADLINE;
use spillway_fabric::units::SlabHandle;

use super::super::leases::SessionId;
use super::super::{EndReason, Input, Output};
use super::world::{SIZE, World, hello};
use crate::limits::RESUME_DEADLINE;

fn lingering(borrower: u128) -> Hello {
    Hello { linger_seconds: 10, ..hello(borrower) }
}

/// A session with two slabs, and the hello of the process after it.
fn begin() -> (World, SessionId, Hello) {
    let mut world = World::new(4, 0, 1, Instant::now());
    let session = world.enter(1, lingering(1));
    (0..2).for_each(|_| assert!(world.lease(session).is_some()));
    let back = Hello { resume: Some(world.secrets[&session]), ..lingering(1) };
    (world, session, back)
}

fn handles_of(world: &World, session: SessionId) -> Vec<SlabHandle> {
    world.handles.keys().filter(|(of, _)| *of == session).map(|(_, handle)| *handle).collect()
}

#[test]
fn slabs_go_over_when_nothing_of_the_old_session_reaches_them() {
    let (mut world, old, back) = begin();
    world.feed(Input::Ended { session: old });
    let new = world.knock(2, back);
    assert!(world.waiting.contains(&new), "data connections of the old session are still there");
    let outputs = world.feed(Input::Gone { session: old });
    let told = |output: &Output| matches!(output, Output::Send { message: Message::Held { .. }, .. });
    assert!(matches!(outputs[2], Output::Welcome { held: 2, .. }), "{outputs:?}");
    assert_eq!(outputs.iter().filter(|output| told(output)).count(), 2);
    assert_eq!(handles_of(&world, new), [SlabHandle(0), SlabHandle(1)]);
    assert_eq!(world.secrets[&new], world.secrets[&old], "one secret for all sessions in a row");
    assert_eq!(world.lender.counters().sessions_resumed, 1);
}

#[test]
fn a_borrower_that_is_back_before_its_death_is_known_ends_its_old_session() {
    let (mut world, old, back) = begin();
    let new = world.knock(2, back);
    assert!(matches!(world.log.last(), Some(Output::WakeAt(Some(_)))));
    assert!(!world.open.contains(&old) && world.waiting.contains(&new));
    world.feed(Input::Ended { session: old });
    world.feed(Input::Gone { session: old });
    assert_eq!(handles_of(&world, new).len(), 2);
}

#[test]
fn connections_that_do_not_leave_are_waited_for_only_so_long() {
    let (mut world, _, back) = begin();
    let new = world.knock(2, back);
    world.pass(RESUME_DEADLINE);
    assert!(world.open.contains(&new) && handles_of(&world, new).is_empty(), "it begins with nothing");
    assert_eq!(world.lender.holdings().lent_bytes, 2 * SIZE, "the old slabs linger on");
    world.pass(Duration::from_secs(10));
    assert_eq!(world.lender.holdings().lent_bytes, 0);
}

#[test]
fn of_two_that_come_back_the_later_one_gets_the_slabs() {
    let (mut world, old, back) = begin();
    let (second, third) = (world.knock(2, back.clone()), world.knock(3, back));
    world.feed(Input::Gone { session: old });
    assert!(!world.open.contains(&second) && world.waiting.contains(&third));
    world.feed(Input::Gone { session: second });
    assert_eq!(handles_of(&world, third).len(), 2);
}

#[test]
fn another_borrower_another_secret_or_another_size_gets_nothing() {
    let (mut world, old, back) = begin();
    world.feed(Input::Ended { session: old });
    world.feed(Input::Gone { session: old });
    let mut wrong = back.clone();
    wrong.resume.as_mut().unwrap().0[31] ^= 1;
    let thief = Hello { resume: back.resume, ..lingering(2) };
    let other_size = Hello { slab_size_bytes: 2 * SIZE, ..back.clone() };
    for (number, hello) in (2..).zip([wrong, thief, other_size]) {
        let session = world.enter(number, hello);
        assert!(handles_of(&world, session).is_empty() && world.secrets[&session] != world.secrets[&old]);
    }
    let owner = world.enter(9, back);
    assert_eq!(handles_of(&world, owner).len(), 2);
}

#[test]
fn a_goodbye_or_nonsense_frees_at_once_and_silence_lingers() {
    let silence = SILENCE_DEADLINE.as_millis() / spillway_fabric::limits::HEARTBEAT_INTERVAL.as_millis();
    let (mut world, session, _) = begin();
    (0..silence).for_each(|_| drop(world.feed(Input::Quiet { session })));
    let silent = Output::End { session, reason: EndReason::Silence(SILENCE_DEADLINE) };
    assert!(world.log.contains(&silent) && world.lender.lingering_count() == 1);
    for last in [Message::Goodbye { reason: "done".to_owned() }, Message::Released { slab: SlabHandle(0) }] {
        let (mut world, session, _) = begin();
        world.say(session, last);
        assert_eq!((world.lender.lingering_count(), world.memory.len()), (0, 0));
    }
}

#[test]
fn one_that_speaks_before_its_welcome_is_turned_away_and_the_slabs_stay() {
    let (mut world, old, back) = begin();
    let new = world.knock(2, back);
    world.say(new, Message::Lease { request: 1 });
    assert!(!world.waiting.contains(&new) && !world.open.contains(&new));
    world.feed(Input::Gone { session: old });
    assert_eq!((world.lender.lingering_count(), world.lender.holdings().lent_bytes), (1, 2 * SIZE));
}
