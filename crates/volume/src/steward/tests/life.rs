//! One slab after the other, from its first write to its end.

use std::time::Duration;

use spillway_fabric::control::message::Message;

use super::super::Input;
use super::world::World;
use crate::limits::{CONTROL_REPLY_DEADLINE, EMPTY_SLAB_INTERVAL, FREE_INTERVAL, PLACEMENTS_MAX, REFUSAL_PAUSE};
use crate::slab_map::slab_entry::DonorSlot;

fn mapped(world: &mut World, slab: u32) {
    world.write(slab);
    world.settle();
    world.write(slab);
}

#[test]
fn a_wanted_slab_gets_all_its_copies_at_once_at_different_donors() {
    let mut world = World::new(2, false, 1, &[5, 5, 5]);
    world.write(0);
    while world.places.is_empty() {
        assert!(world.holders(0).is_empty(), "a writer would see one copy of two");
        world.answer(0);
    }
    assert_eq!(world.places[0].1.len(), 2);
    world.settle();
    let holders = world.holders(0);
    assert!(holders.len() == 2 && holders[0] != holders[1], "{holders:?}");
    world.check_settled();
}

#[test]
fn of_two_that_were_drawn_the_one_with_more_room_lends() {
    let mut world = World::new(1, false, 8, &[2, 20]);
    (0..8).for_each(|slab| mapped(&mut world, slab));
    let at_second = (0..8).filter(|slab| world.holders(*slab) == [1]).count();
    // The first slab of each goes to a donor that holds nothing yet.
    assert!(at_second >= 7, "{at_second} of 8");
}

#[test]
fn two_addresses_of_one_donor_count_once() {
    let mut world = World::new(2, false, 1, &[9, 9]);
    world.lose(1);
    world.donors[1].identity = world.donors[0].identity;
    world.connect(1);
    mapped(&mut world, 0);
    assert_eq!(world.holders(0).len(), 1, "the second copy would be lost with the first");
}

#[test]
fn full_and_silent_donors_are_passed_over() {
    let mut world = World::new(1, false, 2, &[0, 5, 5]);
    world.donors[1].is_mute = true;
    world.write(0);
    world.settle();
    assert!(world.holders(0).is_empty() || world.holders(0) == [2]);
    world.now += CONTROL_REPLY_DEADLINE;
    world.feed(super::super::Input::Tick);
    world.settle();
    // One that says nothing to a lease is given a little longer than to a question.
    world.pass(CONTROL_REPLY_DEADLINE);
    assert_eq!(world.holders(0), [2]);
    let silent = world.steward.donor(DonorSlot(1)).unwrap();
    assert!(silent.refused_until.is_some(), "the silent one was asked");
}

#[test]
fn a_slab_that_is_lent_after_all_goes_back() {
    let mut world = World::new(1, false, 1, &[1, 0]);
    world.write(0);
    let lease =
        |world: &World| world.messages.iter().position(|(.., message)| matches!(message, Message::Lease { .. }));
    while lease(&world).is_none() {
        world.answer(0);
    }
    let late = world.messages.remove(lease(&world).unwrap());
    world.pass(Duration::from_secs(1));
    assert!(world.holders(0).is_empty());
    world.messages.push(late);
    world.answer(0);
    assert_eq!(world.donors[0].lent.len(), 0, "it was given back");
    // And the donor is asked again later.
    world.pass(REFUSAL_PAUSE * 2);
    mapped(&mut world, 0);
    assert_eq!(world.holders(0), [0]);
    world.check_settled();
}

/// A donor makes one slab after the other: the last of four that were asked for together comes four times as late.
#[test]
fn a_donor_has_more_time_for_leases_that_wait_for_others() {
    let mut world = World::new(1, false, PLACEMENTS_MAX, &[9]);
    (0..PLACEMENTS_MAX as u32).for_each(|slab| world.write(slab));
    assert_eq!(world.messages.len(), PLACEMENTS_MAX, "all are asked for");
    for _ in 0..PLACEMENTS_MAX {
        // Each takes nearly as long as one may.
        world.now += CONTROL_REPLY_DEADLINE - Duration::from_millis(20);
        world.feed(super::super::Input::Tick);
        world.answer(0);
    }
    world.settle();
    assert!((0..PLACEMENTS_MAX as u32).all(|slab| world.holders(slab) == [0]), "none was given up");
    world.check_settled();
}

#[test]
fn a_lost_donor_is_replaced_and_the_hottest_slab_is_first() {
    let mut world = World::new(2, false, 12, &[20, 20]);
    (0..12).for_each(|slab| mapped(&mut world, slab));
    world.pass(Duration::from_secs(2));
    for _ in 0..20 {
        world.volume.0.borrow_mut()[9].accesses += 1000;
        world.pass(Duration::from_millis(500));
    }
    world.lose(0);
    assert!((0..12).all(|slab| world.holders(slab) == [1]));
    world.donors[0].identity = 99;
    world.connect(0);
    world.now += Duration::from_millis(200);
    world.look();
    let mut order = Vec::new();
    while order.len() < 12 {
        if let Some((slab, ..)) = world.places.first() {
            order.push(slab.0);
            world.place();
        } else {
            world.answer(0);
        }
    }
    let first = order.iter().position(|slab| *slab == 9).unwrap();
    assert!(first < PLACEMENTS_MAX, "{order:?}");
    world.settle();
    assert!((0..12).all(|slab| world.holders(slab).len() == 2));
    assert!((0..12).all(|slab| world.slab(slab).has_pages.iter().filter(|has| **has).count() == 2), "filled");
    world.check_settled();
}

#[test]
fn a_slab_without_a_page_goes_back_after_a_while() {
    let mut world = World::new(1, false, 3, &[5]);
    mapped(&mut world, 1);
    world.volume.0.borrow_mut()[1].is_stored = false;
    world.pass(EMPTY_SLAB_INTERVAL / 2);
    assert_eq!(world.holders(1).len(), 1);
    world.pass(EMPTY_SLAB_INTERVAL);
    assert!(world.holders(1).is_empty() && world.donors[0].lent.is_empty());
    world.check_settled();
}

#[test]
fn without_room_mapping_is_not_possible_until_there_is() {
    let mut world = World::new(1, true, 2, &[1]);
    assert!(world.mapping_possible);
    mapped(&mut world, 0);
    world.pass(Duration::from_secs(1));
    assert!(!world.mapping_possible);
    world.donors[0].room_slabs = 3;
    world.pass(Duration::from_secs(1));
    assert!(world.mapping_possible);
    world.lose(0);
    assert!(!world.mapping_possible);
}

#[test]
fn what_was_leased_in_a_lost_session_is_not_used_in_the_next() {
    let mut world = World::new(1, false, 1, &[5]);
    world.write(0);
    while world.places.is_empty() {
        world.answer(0);
    }
    world.lose(0);
    world.connect(0);
    world.settle();
    assert!(world.holders(0).is_empty(), "its handle means another slab now");
    mapped(&mut world, 0);
    assert_eq!(world.holders(0), [0]);
    world.check_settled();
}

/// What the world's donors were told, while slabs `0..slabs` get their copies one after the other.
fn told(world: &mut World, slabs: u32) -> Vec<Message> {
    let mut told = Vec::new();
    for slab in 0..slabs {
        world.write(slab);
        while !world.places.is_empty() || !world.messages.is_empty() {
            if world.places.is_empty() {
                told.push(world.messages[0].2.clone());
                world.answer(0);
            } else {
                world.place();
            }
        }
    }
    told
}

#[test]
fn an_offer_that_was_not_used_saves_the_next_question() {
    let mut world = World::new(1, false, 40, &[99, 99, 99, 99]);
    let told = told(&mut world, 40);
    let count = |is_it: fn(&Message) -> bool| told.iter().filter(|message| is_it(message)).count();
    let (asks, leases) =
        (count(|told| matches!(told, Message::Ask { .. })), count(|told| matches!(told, Message::Lease { .. })));
    assert_eq!((leases, count(|told| matches!(told, Message::Decline { .. }))), (40, 0));
    // Each slab uses up one answer, and three are drawn for each: without those left over there would be 120.
    assert!(asks <= 40 + 4, "{asks} questions");
}

#[test]
fn where_room_is_scarce_a_slab_that_is_not_needed_is_declined() {
    let mut world = World::new(1, false, 4, &[4, 4]);
    let told = told(&mut world, 4);
    let declines = told.iter().filter(|message| matches!(message, Message::Decline { .. })).count();
    assert!(declines >= 3, "{told:?}");
    assert!(world.donors.iter().all(|donor| donor.kept.is_empty()));
}

#[test]
fn an_offer_that_comes_too_late_is_declined() {
    let mut world = World::new(1, false, 2, &[9, 9, 9, 9]);
    world.write(0);
    let asked: Vec<_> = world.messages.clone();
    assert!(asked.iter().all(|(.., message)| matches!(message, Message::Ask { .. })));
    world.now += CONTROL_REPLY_DEADLINE;
    world.feed(Input::Tick);
    world.settle();
    assert!(world.slab(0).locations.iter().any(Option::is_some), "another donor was found");
    assert!(world.donors.iter().map(|donor| donor.kept.len()).sum::<usize>() <= 1);
}

#[test]
fn a_good_answer_is_not_refused_however_many_placements_draw_by_it() {
    // Four placements at a time, and as many slabs as there is room for.
    let mut world = World::new(1, false, 12, &[6, 6]);
    (0..12).for_each(|slab| world.write(slab));
    let mut refused = 0;
    while !world.places.is_empty() || !world.messages.is_empty() {
        if world.places.is_empty() {
            let (slot, _, message) = world.messages[0].clone();
            let before = world.donors[usize::from(slot.0)].lent.len();
            world.answer(0);
            let is_lent = world.donors[usize::from(slot.0)].lent.len() > before;
            refused += usize::from(matches!(message, Message::Lease { .. }) && !is_lent);
        } else {
            world.place();
        }
    }
    assert_eq!(refused, 0);
}

/// The donors that are asked for a slab by a look at all slabs, a while after the one before.
fn asked_at_a_look(world: &mut World) -> Vec<u16> {
    world.now += FREE_INTERVAL;
    world.look();
    let asks = world.messages.iter().filter(|(_, _, message)| matches!(message, Message::Ask { .. }));
    let asked = asks.map(|(donor, ..)| donor.0).collect();
    world.settle();
    asked
}

/// It may ask another machine, which holds more than its share, for as much.
#[test]
fn a_donor_without_room_is_told_that_a_slab_needs_some() {
    for has_disk in [true, false] {
        let mut world = World::new(1, has_disk, 2, &[0, 0]);
        let mut told = Vec::new();
        for _ in 0..20 {
            world.write(0);
            world.settle();
            told.extend(asked_at_a_look(&mut world));
        }
        assert!(told.contains(&0) && told.contains(&1) && told.len() <= 20, "{told:?}");
        world.donors[1].room_slabs = 1;
        asked_at_a_look(&mut world);
        mapped(&mut world, 0);
        assert_eq!(world.holders(0), [1]);
    }
}

#[test]
fn a_donor_is_told_of_no_need_that_it_cannot_meet() {
    let mut world = World::new(2, true, 1, &[1]);
    mapped(&mut world, 0);
    assert_eq!(world.holders(0), [0]);
    let told: Vec<u16> = (0..20).flat_map(|_| asked_at_a_look(&mut world)).collect();
    assert!(told.is_empty(), "the second copy belongs to another donor");
}
