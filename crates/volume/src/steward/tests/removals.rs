//! Donors are added, and removed while they hold slabs.

use std::time::Duration;

use super::recalls::{filled, recall_from};
use super::world::World;

fn all_have(world: &World, slabs: u32, copies: usize) -> bool {
    (0..slabs).all(|slab| world.slab(slab).has_pages.iter().filter(|has| **has).count() == copies)
}

/// Goes on step by step, and looks after each one.
fn step_until_settled(world: &mut World, mut check: impl FnMut(&World)) {
    while !world.messages.is_empty() || !world.places.is_empty() || world.job.is_some() {
        if !world.places.is_empty() {
            world.place();
        } else if world.job.is_some() {
            world.move_on();
        } else {
            world.answer(0);
        }
        check(world);
    }
}

#[test]
fn an_added_donor_is_drawn() {
    let mut world = filled(1, false, 1, &[9]);
    world.new_donor(9);
    world.remove(0);
    world.settle();
    assert_eq!(world.holders(0), [1]);
    let mut world = World::new(1, false, 2, &[9, 9]);
    world.lose(1);
    world.remove(1);
    assert!(world.leaving[&1], "without a session there is nothing to wait for");
    world.add(1);
    world.connect(1);
    world.write(0);
    world.settle();
    world.write(1);
    world.settle();
    assert!(world.donors.iter().all(|donor| donor.lent.len() == 1), "one that holds nothing comes first");
}

#[test]
fn a_removed_donor_is_emptied_with_every_promised_copy_elsewhere_at_each_step() {
    for (replicas, has_disk) in [(1, false), (2, false), (3, false), (2, true)] {
        let mut world = filled(replicas, has_disk, 6, &[9, 9, 9, 9]);
        let before = world.donors[0].lent.len();
        assert!(before > 0);
        world.remove(0);
        step_until_settled(&mut world, |world| {
            for slab in (0..6).map(|slab| world.slab(slab)) {
                let copies = slab.has_pages.iter().filter(|has| **has).count();
                assert!(copies >= replicas, "{copies} copies of {replicas}: {slab:?}");
            }
        });
        assert!(world.donors[0].lent.is_empty() && world.leaving[&0], "{replicas} {has_disk}");
        assert!(all_have(&world, 6, replicas) && world.migrating.is_empty());
        world.close_empty();
        world.pass(Duration::from_secs(2));
        world.check_settled();
        assert!(all_have(&world, 6, replicas));
    }
}

#[test]
fn a_removed_donor_gets_no_slab_and_its_room_counts_for_nothing() {
    let mut world = World::new(1, false, 2, &[9, 1]);
    world.remove(0);
    world.write(0);
    world.settle();
    assert_eq!(world.holders(0), [1]);
    world.pass(Duration::from_secs(1));
    assert!(!world.mapping_possible, "the other one is full");
}

#[test]
fn leases_that_come_from_a_donor_that_was_removed_meanwhile_go_back() {
    let mut world = World::new(2, false, 1, &[9, 9, 9]);
    world.write(0);
    while world.donors.iter().all(|donor| donor.lent.is_empty()) {
        world.answer(0);
    }
    let lender = world.donors.iter().position(|donor| !donor.lent.is_empty()).unwrap();
    world.remove(lender);
    world.settle();
    assert!(world.donors[lender].lent.is_empty() && world.leaving[&lender]);
    assert_eq!(world.holders(0).len(), 2);
    world.check_settled();
}

#[test]
fn without_room_elsewhere_a_copy_that_was_promised_stays_until_there_is_some() {
    let mut world = filled(2, false, 2, &[9, 9, 0]);
    world.remove(0);
    world.settle();
    world.pass(Duration::from_secs(5));
    assert!(world.donors[0].lent.len() == 2 && !world.leaving[&0], "one copy of two is not what was promised");
    assert_eq!(world.notes.len(), 2, "told once a slab");
    world.donors[2].room_slabs = 2;
    world.pass(Duration::from_secs(5));
    assert!(world.donors[0].lent.is_empty() && world.leaving[&0] && all_have(&world, 2, 2));
}

#[test]
fn the_disk_takes_over_from_the_last_donor() {
    let mut world = filled(1, true, 3, &[9]);
    world.remove(0);
    world.settle();
    assert!(world.donors[0].lent.is_empty() && world.leaving[&0]);
    assert!((0..3).all(|slab| world.slab(slab).is_on_disk && world.slab(slab).is_stored));
    world.check_settled();
}

#[test]
fn a_donor_that_dies_while_it_is_removed_is_empty_and_its_copies_are_made_anew() {
    let mut world = filled(2, false, 4, &[9, 9, 9]);
    world.remove(0);
    world.answer(0);
    world.lose(0);
    world.pass(Duration::from_secs(2));
    assert!(world.leaving[&0] && all_have(&world, 4, 2));
    assert!((0..4).all(|slab| !world.holders(slab).contains(&0)));
    world.check_settled();
}

#[test]
fn a_removal_that_is_called_off_leaves_copies_where_they_are() {
    let mut world = filled(1, false, 4, &[9, 0]);
    world.remove(0);
    world.settle();
    assert_eq!(world.migrating.len(), 4);
    world.add(0);
    assert!(world.migrating.is_empty() && world.steward.recalls_under_way() == 0);
    world.donors[1].room_slabs = 9;
    world.pass(Duration::from_secs(5));
    assert_eq!(world.donors[0].lent.len(), 4);
    // One whose copy is being taken away may lose it, and no other one does.
    world.remove(0);
    while world.job.is_none() {
        world.answer(0);
        if !world.places.is_empty() {
            world.place();
        }
    }
    world.add(0);
    world.settle();
    world.pass(Duration::from_secs(5));
    assert!(world.migrating.is_empty() && world.steward.recalls_under_way() == 0 && all_have(&world, 4, 1));
    world.check_settled();
}

#[test]
fn what_a_removed_donor_wants_back_itself_needs_one_other_copy() {
    let mut world = filled(2, false, 1, &[9, 9]);
    world.remove(0);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.donors[0].lent.len(), 1);
    recall_from(&mut world, 0);
    world.pass(Duration::from_secs(2));
    assert!(world.donors[0].lent.is_empty() && world.leaving[&0], "its machine needs the memory");
}
