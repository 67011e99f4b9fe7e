//! Donors want slabs back.

use std::time::Duration;

use spillway_fabric::units::{SlabHandle, SlabIndex};

use super::super::{Input, Note};
use super::world::World;
use crate::limits::RECALL_RETRY_PAUSE;
use crate::slab_map::slab_entry::DonorSlot;

/// A volume of `slabs` slabs with pages.
pub(super) fn filled(replicas: usize, has_disk: bool, slabs: u32, rooms: &[u64]) -> World {
    let mut world = World::new(replicas, has_disk, slabs as usize, rooms);
    for slab in 0..slabs {
        world.write(slab);
        world.settle();
        world.write(slab);
    }
    world.pass(Duration::from_secs(1));
    world
}

pub(super) fn recall_from(world: &mut World, donor: usize) {
    let handles: Vec<SlabHandle> = world.donors[donor].lent.iter().copied().collect();
    handles.into_iter().for_each(|handle| world.recall(donor, handle));
}

#[test]
fn a_recalled_slab_is_moved_with_its_pages() {
    let mut world = filled(1, false, 4, &[9, 9, 9]);
    let donor = usize::from(world.holders(2)[0]);
    recall_from(&mut world, donor);
    assert!(world.migrating.contains(&SlabIndex(2)));
    world.settle();
    assert!(world.donors[donor].lent.is_empty() && world.migrating.is_empty());
    assert!((0..4).all(|slab| world.slab(slab).is_stored && world.slab(slab).has_pages.contains(&true)));
    assert_eq!(world.steward.recalls_under_way(), 0);
    world.check_settled();
}

/// A slab of two copies of which one was lent, until `is_reached`; the donor that lent it, and its handle.
fn half_placed(world: &mut World, is_reached: impl Fn(&World) -> bool) -> (usize, SlabHandle) {
    world.write(0);
    while !is_reached(world) {
        world.answer(0);
    }
    let first = (0..).zip(&world.donors).find_map(|(at, donor)| Some((at, *donor.lent.first()?)));
    first.expect("one has lent a slab")
}

#[test]
fn a_lease_that_is_recalled_before_it_has_its_place_goes_back() {
    let has_lent = |world: &World| world.donors.iter().any(|donor| !donor.lent.is_empty());
    let mut world = World::new(2, false, 1, &[9, 9, 9]);
    let (donor, handle) = half_placed(&mut world, has_lent);
    world.recall(donor, handle);
    assert!(world.donors[donor].lent.is_empty(), "no page is there yet");
    world.settle();
    assert!(world.holders(0).len() == 2 && !world.holders(0).contains(&(donor as u16)));
    world.check_settled();
}

#[test]
fn a_lease_that_is_recalled_while_it_gets_its_place_is_moved() {
    for is_withdrawn in [false, true] {
        let mut world = World::new(2, false, 1, &[9, 9, 9]);
        let (donor, handle) = half_placed(&mut world, |world| !world.places.is_empty());
        world.recall(donor, handle);
        if is_withdrawn {
            world.withdraw(donor, handle);
        }
        world.settle();
        world.write(0);
        world.pass(Duration::from_secs(1));
        assert_eq!(world.donors[donor].lent.contains(&handle), is_withdrawn);
        assert_eq!((world.holders(0).len(), world.steward.recalls_under_way()), (2, 0));
        world.check_settled();
    }
}

#[test]
fn slabs_leave_a_donor_that_is_not_trusted_and_it_gets_no_more() {
    let mut world = filled(1, false, 4, &[9, 9, 9]);
    let donor = usize::from(world.holders(2)[0]);
    world.feed(Input::Distrusted { donor: DonorSlot(donor as u16) });
    world.settle();
    assert!(world.donors[donor].lent.is_empty() && world.migrating.is_empty());
    assert!((0..4).all(|slab| world.slab(slab).is_stored && world.slab(slab).has_pages.contains(&true)));
    // A new session changes nothing, and neither does a lack of room elsewhere.
    world.lose(donor);
    world.connect(donor);
    (0..3).filter(|other| *other != donor).for_each(|other| world.lose(other));
    (0..4).for_each(|slab| world.write(slab));
    world.pass(Duration::from_secs(5));
    assert!(world.donors[donor].lent.is_empty() && !world.mapping_possible);
}

#[test]
fn a_slab_that_nothing_else_holds_stays_with_a_donor_that_is_not_trusted() {
    let mut world = filled(1, false, 2, &[9]);
    world.feed(Input::Distrusted { donor: DonorSlot(0) });
    world.settle();
    assert_eq!(world.donors[0].lent.len(), 2, "its pages may be right yet");
    world.pass(3 * RECALL_RETRY_PAUSE);
    assert_eq!((world.steward.recalls_under_way(), world.donors[0].lent.len()), (2, 2));
}

#[test]
fn without_another_donor_the_disk_has_to_do() {
    let mut world = filled(1, true, 2, &[9]);
    recall_from(&mut world, 0);
    world.settle();
    assert!(world.donors[0].lent.is_empty() && world.slab(0).is_on_disk);
    world.check_settled();
}

#[test]
fn a_slab_that_nothing_else_holds_stays_and_leaves_as_soon_as_there_is_room() {
    let mut world = filled(1, false, 2, &[9, 0]);
    recall_from(&mut world, 0);
    world.settle();
    assert_eq!(world.donors[0].lent.len(), 2, "no page is lost for a donor that wants its memory");
    let stuck = |slab| Note::Stuck { slab: SlabIndex(slab), donor: DonorSlot(0) };
    let told: Vec<Note> = (0..2).map(stuck).collect();
    assert_eq!(world.notes, told);
    world.pass(10 * RECALL_RETRY_PAUSE);
    assert_eq!(world.notes, told, "told once");
    assert_eq!(world.migrating.len(), 2, "and seen in the status");
    world.donors[1].room_slabs = 2;
    world.pass(3 * RECALL_RETRY_PAUSE);
    assert!(world.donors[0].lent.is_empty() && world.donors[1].lent.len() == 2);
    world.check_settled();
}

#[test]
fn two_donors_that_want_their_copies_of_a_slab_do_not_get_them_together() {
    let mut world = filled(2, false, 1, &[9, 9, 9, 9]);
    let recalled: Vec<_> = world.slab(0).locations.into_iter().flatten().collect();
    for location in &recalled {
        recall_from(&mut world, usize::from(location.donor.0));
    }
    while !world.messages.is_empty() || !world.places.is_empty() || world.job.is_some() {
        if !world.places.is_empty() {
            world.place();
        } else if world.job.is_some() {
            world.move_on();
        } else {
            world.answer(0);
        }
        assert!(world.slab(0).has_pages.iter().filter(|has| **has).count() >= 2, "one copy less than promised");
    }
    // The second one may have to wait until the first copy has left: a slab has a bounded number of copies.
    world.pass(2 * RECALL_RETRY_PAUSE);
    // One that has room again may get another slab.
    assert_eq!((world.steward.recalls_under_way(), world.holders(0).len()), (0, 2));
    assert!(recalled.iter().all(|location| !world.slab(0).locations.contains(&Some(*location))), "{recalled:?}");
    world.check_settled();
}

#[test]
fn a_donor_that_is_lost_wants_nothing_back() {
    let mut world = filled(1, true, 3, &[9, 0]);
    recall_from(&mut world, 0);
    world.lose(0);
    world.settle();
    assert!(world.migrating.is_empty() && world.steward.recalls_under_way() == 0);
    world.connect(0);
    world.pass(Duration::from_secs(2));
    assert!((0..3).all(|slab| world.holders(slab).is_empty() || world.holders(slab) == [0]));
    world.check_settled();
}

#[test]
fn a_copy_that_cannot_leave_is_copied_once() {
    let mut world = filled(1, false, 1, &[9, 9, 9, 9]);
    let first = usize::from(world.holders(0)[0]);
    world.keeps_copies = true;
    recall_from(&mut world, first);
    world.settle();
    world.pass(5 * RECALL_RETRY_PAUSE);
    assert_eq!(world.holders(0).len(), 2, "every try made one more");
    world.keeps_copies = false;
    world.pass(2 * RECALL_RETRY_PAUSE);
    assert!(world.holders(0).len() == 1 && world.donors[first].lent.is_empty());
    world.check_settled();
}

/// A process that dies in the middle of a move leaves two copies to the next one, which knows of no recall.
#[test]
fn a_copy_too_many_goes_back() {
    let mut world = filled(1, false, 1, &[9, 9, 9]);
    world.copy_unasked(0);
    assert_eq!(world.holders(0).len(), 2);
    world.pass(Duration::from_secs(2));
    assert!(world.holders(0).len() == 1 && world.slab(0).has_pages.contains(&true));
}

/// The copies that a donor has, by slab.
fn copies_at(world: &World, donor: usize) -> Vec<SlabHandle> {
    world.donors[donor].lent.iter().copied().collect()
}

#[test]
fn a_recall_that_is_withdrawn_before_its_turn_moves_nothing() {
    // No other donor has room, so the slabs wait.
    let mut world = filled(1, false, 4, &[9, 9]);
    let donor = usize::from(world.holders(0)[0]);
    let before = copies_at(&world, donor);
    world.donors[1 - donor].room_slabs = 0;
    recall_from(&mut world, donor);
    world.pass(Duration::from_secs(2));
    assert_eq!((copies_at(&world, donor), world.steward.recalls_under_way()), (before.clone(), before.len()));
    before.iter().for_each(|handle| world.withdraw(donor, *handle));
    assert!(world.migrating.is_empty());
    world.donors[1 - donor].room_slabs = 9;
    world.pass(Duration::from_secs(3));
    assert_eq!((copies_at(&world, donor), world.steward.recalls_under_way()), (before, 0));
    world.check_settled();
}

#[test]
fn a_move_that_looks_for_a_donor_or_waits_for_the_mover_is_called_off() {
    for is_placed in [false, true] {
        let mut world = filled(1, false, 6, &[9, 9, 9]);
        let donor = usize::from(world.holders(0)[0]);
        let before = copies_at(&world, donor);
        recall_from(&mut world, donor);
        // Every move has asked another donor; the mover is busy with the first.
        while is_placed && (!world.messages.is_empty() || !world.places.is_empty()) {
            if world.places.is_empty() {
                world.answer(0);
            } else {
                world.place();
            }
        }
        assert_eq!(world.job.is_some(), is_placed);
        before.iter().for_each(|handle| world.withdraw(donor, *handle));
        world.settle();
        world.pass(Duration::from_secs(3));
        let gone = before.len() - copies_at(&world, donor).len();
        assert_eq!(gone, usize::from(is_placed), "only the slab whose pages were being copied is moved");
        assert_eq!(world.steward.recalls_under_way(), 0);
        assert!(world.migrating.is_empty());
        assert!((0..6).all(|slab| world.holders(slab).len() == 1 && world.slab(slab).is_stored));
        world.check_settled();
    }
}

#[test]
fn a_recall_that_comes_again_counts() {
    let mut world = filled(1, false, 4, &[9, 9, 9]);
    let donor = usize::from(world.holders(0)[0]);
    let before = copies_at(&world, donor);
    recall_from(&mut world, donor);
    before.iter().for_each(|handle| world.withdraw(donor, *handle));
    recall_from(&mut world, donor);
    world.pass(Duration::from_secs(2));
    assert_eq!(copies_at(&world, donor), []);
    world.check_settled();
}

#[test]
fn a_donor_that_is_removed_or_not_trusted_keeps_nothing_though_it_wants_to() {
    for is_removed in [true, false] {
        let mut world = filled(1, false, 4, &[9, 9, 9]);
        let donor = usize::from(world.holders(0)[0]);
        let before = copies_at(&world, donor);
        recall_from(&mut world, donor);
        if is_removed {
            world.remove(donor);
        } else {
            world.feed(Input::Distrusted { donor: DonorSlot(donor as u16) });
        }
        before.iter().for_each(|handle| world.withdraw(donor, *handle));
        world.pass(Duration::from_secs(3));
        assert_eq!(copies_at(&world, donor), []);
        world.check_settled();
    }
}
