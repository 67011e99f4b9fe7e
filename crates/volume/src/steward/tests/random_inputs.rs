//! Random events, in any order that threads and networks allow.

use std::time::Duration;

use proptest::prelude::*;
use spillway_fabric::units::SlabHandle;

use super::super::Input;
use super::super::placement::{Random, XorShift};
use super::world::World;

const SLABS: u32 = 6;

/// One event; what cannot happen now does not.
fn happen(world: &mut World, random: &mut XorShift) {
    let donors = world.donors.len();
    let donor = random.below(donors);
    match random.below(17) {
        0 | 1 => world.write(random.below(SLABS as usize) as u32),
        2 if world.donors[donor].session.is_some() => world.lose(donor),
        2 | 3 if world.donors[donor].session.is_none() && !world.leaving.contains_key(&donor) => world.connect(donor),
        what @ (4 | 16) => {
            let lent: Vec<SlabHandle> = world.donors[donor].lent.iter().copied().collect();
            if !lent.is_empty() {
                let slab = lent[random.below(lent.len())];
                if what == 4 { world.recall(donor, slab) } else { world.withdraw(donor, slab) }
            }
        }
        5 => world.donors[donor].room_slabs = world.donors[donor].room_slabs.min(2) + random.below(2) as u64,
        6 => world.donors[donor].is_mute = random.below(4) == 0,
        7 => {
            world.now += Duration::from_millis(random.below(400) as u64);
            if world.wake_at.is_some_and(|at| at <= world.now) {
                world.feed(Input::Tick);
            }
        }
        8 => world.look(),
        14 if world.leaving.len() < 2 => world.remove(donor),
        15 if random.below(2) == 0 => world.close_empty(),
        15 => {
            if let Some(donor) = world.leaving.keys().next().copied() {
                world.add(donor);
            }
        }
        9 if !world.places.is_empty() => world.place(),
        10 if world.job.is_some() => world.move_on(),
        _ if !world.messages.is_empty() => {
            let index = random.below(world.messages.len());
            world.answer(index);
        }
        _ => {}
    }
}

/// A run, and what it came to; the world checks every step.
fn run(seed: u64, replicas: usize, has_disk: bool) -> String {
    let mut world = World::new(replicas, has_disk, SLABS as usize, &[4, 1, 9, 3]);
    let mut random = XorShift::new(seed);
    (0..600).for_each(|_| happen(&mut world, &mut random));
    // The storm is over: every donor is there, answers, and has room.
    let leaving: Vec<usize> = world.leaving.keys().copied().collect();
    leaving.iter().skip(1).for_each(|donor| world.add(*donor));
    for donor in 0..world.donors.len() {
        world.donors[donor].is_mute = false;
        world.donors[donor].room_slabs = 20;
        if world.donors[donor].session.is_none() {
            world.connect(donor);
        }
    }
    world.pass(Duration::from_secs(30));
    world.check_settled();
    for (donor, is_empty) in &world.leaving {
        assert!(*is_empty && world.donors[*donor].lent.is_empty(), "every removal ends");
    }
    assert_eq!(world.steward.recalls_under_way(), 0, "every recall ends");
    for slab in (0..SLABS).map(|slab| world.slab(slab)).filter(|slab| slab.is_stored) {
        let copies = slab.has_pages.iter().filter(|has| **has).count();
        assert!(copies == replicas, "{copies} copies of {replicas}: {slab:?}");
    }
    format!("{:?} {:?}", world.volume, world.notes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_lease_is_lost_and_every_copy_comes_back(seed: u64, replicas in 1usize..=3, has_disk: bool) {
        run(seed, replicas, has_disk);
    }

    #[test]
    fn a_seed_repeats_a_run(seed: u64) {
        prop_assert_eq!(run(seed, 2, false), run(seed, 2, false));
    }
}
