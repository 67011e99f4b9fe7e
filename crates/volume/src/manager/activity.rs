//! How active the slabs of one donor are: what it asks before it chooses which to want back.
//!
//! A donor asks for hundreds of slabs at once, and a volume has thousands: the volume is walked once for all of them.

use std::collections::HashMap;

use spillway_fabric::units::SlabHandle;

use crate::slab_map::Volume;
use crate::slab_map::slab_entry::DonorSlot;

/// Page I/Os of each slab that `donor` knows by one of `handles`, in their order; zero for those that it does not
/// lend us.
pub fn of_slabs(volume: &Volume, donor: DonorSlot, handles: Vec<SlabHandle>) -> Vec<(SlabHandle, u64)> {
    let lent = volume.geometry.slabs().filter_map(|slab| {
        let entry = volume.slab(slab);
        let copy_index = entry.locations().into_iter().flatten().find(|copy_index| copy_index.donor == donor)?;
        Some((copy_index.handle, entry.accesses()))
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

    use spillway_fabric::units::SlabIndex;

    use super::*;
    use crate::settings::redundancy::Redundancy;
    use crate::slab_map::Geometry;
    use crate::slab_map::slab_entry::Location;

    #[test]
    fn each_donor_hears_of_its_own_slabs() {
        let geometry = Geometry { slab_pages: 256, slab_count: 6 };
        let volume = Volume::new(geometry, Redundancy { replicas: 2, disk: false }, None).unwrap();
        let (ours, other) = (DonorSlot(1), DonorSlot(2));
        for (index, slab) in geometry.slabs().enumerate() {
            let entry = volume.slab(slab);
            entry.count_accesses(10 * index as u64);
            // Handles of different donors coincide.
            entry.fill(1, Location { donor: other, handle: SlabHandle(index as u32) });
            if index >= 3 {
                entry.fill(0, Location { donor: ours, handle: SlabHandle(5 - index as u32) });
            }
        }
        let asked = [2, 0, 7, 1].map(SlabHandle).to_vec();
        let expected = [(2, 30), (0, 50), (7, 0), (1, 40)].map(|(handle, value)| (SlabHandle(handle), value));
        assert_eq!(of_slabs(&volume, ours, asked), expected);
        assert_eq!(of_slabs(&volume, other, vec![SlabHandle(2)]), [(SlabHandle(2), 20)]);
        assert_eq!(volume.slab(SlabIndex(5)).accesses(), 50);
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
