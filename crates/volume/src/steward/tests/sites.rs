//! Copies of one slab lie apart: in other zones, else in other racks, else at least at other donors.

use std::time::Duration;

use spillway_fabric::site::{Separation, Site};

use super::world::World;

/// Donors with room for so many slabs, each at its zone and rack.
fn world(replicas: usize, slabs: usize, donors: &[(u64, &str, &str)]) -> World {
    let rooms: Vec<u64> = donors.iter().map(|(room, ..)| *room).collect();
    let mut world = World::new(replicas, false, slabs, &rooms);
    for (index, (_, zone, rack)) in donors.iter().enumerate() {
        world.lose(index);
        world.donors[index].site = Site::parse(zone, rack).unwrap();
        world.connect(index);
    }
    world.settle();
    world
}

fn write_all(world: &mut World, slabs: u32) {
    for slab in 0..slabs {
        world.write(slab);
        world.settle();
        world.write(slab);
    }
}

/// How far apart the copies of a slab are, and how many there are.
fn apart(world: &World, slab: u32) -> (usize, Separation) {
    let holders = world.holders(slab);
    let site = |donor: u16| &world.donors[usize::from(donor)].site;
    let pairs =
        holders.iter().flat_map(|one| holders.iter().filter(move |other| *other < one).map(move |other| (one, other)));
    let nearest = pairs.map(|(one, other)| site(*one).separation(site(*other))).min();
    (holders.len(), nearest.unwrap_or(Separation::Zones))
}

#[test]
fn second_copies_are_in_another_zone_while_one_has_room() {
    let donors = [(30, "east", "1"), (30, "east", "2"), (30, "east", "3"), (30, "west", "1")];
    let mut world = world(2, 12, &donors);
    write_all(&mut world, 12);
    assert!((0..12).all(|slab| apart(&world, slab) == (2, Separation::Zones)));
}

#[test]
fn without_another_zone_they_are_in_another_rack_and_without_that_elsewhere() {
    let mut racks = world(2, 8, &[(30, "east", "1"), (30, "east", "1"), (30, "east", "2")]);
    write_all(&mut racks, 8);
    assert!((0..8).all(|slab| apart(&racks, slab) == (2, Separation::Racks)));
    let mut one_rack = world(2, 8, &[(30, "east", "1"), (30, "east", "1")]);
    write_all(&mut one_rack, 8);
    assert!((0..8).all(|slab| apart(&one_rack, slab) == (2, Separation::Unknown)), "a copy nearby beats none");
}

#[test]
fn a_full_zone_leaves_no_slab_with_one_copy() {
    let mut world = world(2, 10, &[(20, "east", "1"), (20, "east", "2"), (3, "west", "1")]);
    write_all(&mut world, 10);
    let separations: Vec<_> = (0..10).map(|slab| apart(&world, slab)).collect();
    assert!(separations.iter().all(|(copies, separation)| *copies == 2 && *separation >= Separation::Racks));
    assert_eq!(separations.iter().filter(|(_, separation)| *separation == Separation::Zones).count(), 3);
}

#[test]
fn what_moves_away_from_a_donor_stays_in_another_zone_than_the_copy_that_stays() {
    let donors = [(30, "east", "1"), (30, "west", "1"), (30, "west", "2"), (30, "east", "2")];
    let mut world = world(2, 6, &donors);
    write_all(&mut world, 6);
    world.lose(1);
    world.pass(Duration::from_secs(5));
    assert!((0..6).all(|slab| apart(&world, slab) == (2, Separation::Zones)), "the copies made anew are in the west");
}
