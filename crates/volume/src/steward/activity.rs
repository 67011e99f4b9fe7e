//! How active the slabs of one donor are: what it asks before it chooses which to want back.
//!
//! The answer is the average of [`Heat`], so it means the same on every borrower, however long that has run: a donor
//! ranks slabs of all its borrowers by it. A donor asks for hundreds of slabs at once, and a volume has thousands: the
//! volume is walked once for all of them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::HashMap;
use std::time::Instant;

use spillway_fabric::units::{SlabHandle, SlabIndex};

use super::heat::Heat;
use super::pages::Pages;
use crate::slab_map::slab_entry::DonorSlot;

/// Page I/Os a second of each slab that `donor` knows by one of `handles`, in their order, in thousandths; zero for
/// those that it does not lend us. What was used since the last look counts, so that a young volume has an answer too.
pub fn of_slabs(
    heat: &mut Heat,
    now: Instant,
    donor: DonorSlot,
    handles: Vec<SlabHandle>,
    pages: &dyn Pages,
) -> Vec<(SlabHandle, u64)> {
    heat.look(now, |slab| pages.accesses(slab), |_| {});
    // A slab that is used once a minute is more active than one that is not used, so whole pages are too coarse.
    let thousandths = |slab: SlabIndex| (heat.pages_per_s(slab) * 1000.0) as u64;
    let lent = (0..pages.slab_count()).map(SlabIndex).filter_map(|slab| {
        let location = pages.locations(slab).into_iter().flatten().find(|location| location.donor == donor)?;
        Some((location.handle, thousandths(slab)))
    });
    look_up(lent, handles)
}

/// Finds every handle by one pass over `lent`.
fn look_up(lent: impl Iterator<Item = (SlabHandle, u64)>, handles: Vec<SlabHandle>) -> Vec<(SlabHandle, u64)> {
    let known: HashMap<SlabHandle, u64> = lent.collect();
    handles.into_iter().map(|handle| (handle, known.get(&handle).copied().unwrap_or(0))).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::settings::redundancy::Redundancy;
    use crate::slab_map::slab_entry::Location;
    use crate::slab_map::{Geometry, Volume};

    const GEOMETRY: Geometry = Geometry { slab_pages: 256, slab_count: 6 };
    const OURS: DonorSlot = DonorSlot(1);

    /// A volume whose slabs are all lent by [`OURS`], by the handles of their numbers.
    fn volume() -> Volume {
        let volume = Volume::new(GEOMETRY, Redundancy { replicas: 2, disk: false }, None).unwrap();
        for (slab, handle) in GEOMETRY.slabs().zip(0..) {
            volume.slab(slab).fill(0, Location { donor: OURS, handle: SlabHandle(handle) });
        }
        volume
    }

    fn activity(volume: &Volume, heat: &mut Heat, handle: u32, now: Instant) -> u64 {
        of_slabs(heat, now, OURS, vec![SlabHandle(handle)], volume)[0].1
    }

    /// Uses a slab so many times a second; when that ends.
    fn use_steadily(volume: &Volume, heat: &mut Heat, slab: u32, rate: u64, seconds: u32, start: Instant) -> Instant {
        for second in 1..=seconds {
            volume.slab(SlabIndex(slab)).count_accesses(rate);
            heat.look(start + Duration::from_secs(1) * second, |slab| volume.slab(slab).accesses(), |_| {});
        }
        start + Duration::from_secs(1) * seconds
    }

    #[test]
    fn each_donor_hears_of_its_own_slabs() {
        let volume = Volume::new(GEOMETRY, Redundancy { replicas: 2, disk: false }, None).unwrap();
        let (mut heat, start, other) = (Heat::new(GEOMETRY.slab_count), Instant::now(), DonorSlot(2));
        heat.look(start, |_| 0, |_| {});
        for (index, slab) in GEOMETRY.slabs().enumerate() {
            let entry = volume.slab(slab);
            entry.count_accesses(10 * index as u64);
            // Handles of different donors coincide.
            entry.fill(1, Location { donor: other, handle: SlabHandle(index as u32) });
            if index >= 3 {
                entry.fill(0, Location { donor: OURS, handle: SlabHandle(5 - index as u32) });
            }
        }
        let now = start + Duration::from_secs(1);
        let asked = [2, 0, 7, 1].map(SlabHandle).to_vec();
        // One second weighs a fifth.
        let expected = [(2, 6000), (0, 10_000), (7, 0), (1, 8000)].map(|(handle, value)| (SlabHandle(handle), value));
        assert_eq!(rounded(of_slabs(&mut heat, now, OURS, asked, &volume)), expected);
        let of_other = of_slabs(&mut heat, now, other, vec![SlabHandle(2)], &volume);
        assert_eq!(rounded(of_other), [(SlabHandle(2), 4000)]);
    }

    /// Without what a float loses.
    fn rounded(values: Vec<(SlabHandle, u64)>) -> Vec<(SlabHandle, u64)> {
        values.into_iter().map(|(handle, value)| (handle, (value + 5) / 10 * 10)).collect()
    }

    /// Infiniswap's published code added counts up for ever, so that a slab stayed active that was used long ago.
    #[test]
    fn a_slab_that_was_used_long_ago_is_less_active_than_one_that_is_used_now() {
        let (volume, mut heat, start) = (volume(), Heat::new(GEOMETRY.slab_count), Instant::now());
        let later = use_steadily(&volume, &mut heat, 0, 100_000, 60, start);
        let now = use_steadily(&volume, &mut heat, 1, 50, 60, later);
        assert!(activity(&volume, &mut heat, 0, now) < activity(&volume, &mut heat, 1, now));
    }

    #[test]
    fn activity_means_the_same_on_a_young_and_on_an_old_borrower() {
        let of_age = |seconds| {
            let (volume, mut heat, start) = (volume(), Heat::new(GEOMETRY.slab_count), Instant::now());
            let now = use_steadily(&volume, &mut heat, 0, 200, seconds, start);
            activity(&volume, &mut heat, 0, now)
        };
        let (young, old) = (of_age(40), of_age(4000));
        assert!(old.abs_diff(200_000) < 1000 && young.abs_diff(old) < 1000, "{young} {old}");
    }

    #[test]
    fn rare_use_is_told_from_none() {
        let (volume, mut heat, start) = (volume(), Heat::new(GEOMETRY.slab_count), Instant::now());
        let now = use_steadily(&volume, &mut heat, 0, 1, 2, start);
        assert!(activity(&volume, &mut heat, 0, now) > 0 && activity(&volume, &mut heat, 1, now) == 0);
    }

    #[test]
    fn the_volume_is_walked_once_however_much_is_asked() {
        let visits = Cell::new(0);
        let lent = (0..1000).map(|index| {
            visits.set(visits.get() + 1);
            (SlabHandle(index), u64::from(index) * 2)
        });
        let answer = look_up(lent, (0..1000).rev().map(SlabHandle).collect());
        assert_eq!(visits.get(), 1000);
        assert!(answer.iter().all(|(handle, value)| u64::from(handle.0) * 2 == *value));
    }
}
