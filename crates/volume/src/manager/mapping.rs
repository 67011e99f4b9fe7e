//! Copy indexes filled and emptied, as the [`Steward`](crate::steward) decided. Everything here happens under the
//! volume's assignment lock.

use std::time::{Duration, Instant};

use spillway_fabric::units::SlabIndex;

use super::ManagerState;
use crate::limits::{BACKLOG_AWAITED, COPIES_MAX};
use crate::slab_map::slab_entry::{DonorSlot, Location};
use crate::steward::Lease;

/// Puts leases into empty copy indexes of `slab`, as long as it has fewer than `copies_max`: the copy index of each,
/// or `None`. The copies start empty: the mover fills them with what the slab holds already.
pub fn place(shared: &ManagerState, slab: SlabIndex, leases: &[Lease], copies_max: usize) -> Vec<Option<usize>> {
    let _assignment = shared.volume.assignment();
    let is_first = shared.copies(slab) == 0;
    let entry = shared.volume.slab(slab);
    if is_first {
        entry.turn_mapping();
    }
    let place = |lease: &Lease| {
        // Another copy was put back that was nearly given up.
        (shared.copies(slab) < copies_max).then(|| fill_place(shared, slab, lease)).flatten()
    };
    let copy_indexes = leases.iter().map(place).collect();
    if is_first {
        entry.turn_mapping();
    }
    copy_indexes
}

/// Puts a leased slab into an empty copy index, unless its session has ended since. The caller holds the assignment
/// lock.
fn fill_place(shared: &ManagerState, slab: SlabIndex, lease: &Lease) -> Option<usize> {
    let entry = shared.volume.slab(slab);
    // The link thread empties all copy indexes of a lost donor under this lock, after it took the session away.
    shared.session_numbered(lease.location.donor, lease.session)?;
    let copy_index = entry.locations().iter().position(Option::is_none)?;
    entry.fill(copy_index, lease.location);
    Some(copy_index)
}

/// Takes the copy at `location` of `slab` away and gives its memory back, if every page of it has another copy, or
/// copies at `others_min` donors.
pub fn drop_covered_copy(shared: &ManagerState, slab: SlabIndex, location: Location, others_min: usize) -> bool {
    // Held until the slab is given back: a lost donor is not reached again before its copy indexes were emptied under
    // this lock, so the handle still means what it meant.
    let _assignment = shared.volume.assignment();
    let locations = shared.volume.slab(slab).locations();
    let Some(copy_index) = locations.iter().position(|other| *other == Some(location)) else { return false };
    let alive = |donor: DonorSlot| shared.is_within_reach(donor);
    let pause = || {
        if let Some(disk) = &shared.volume.disk {
            disk.backlog.hurry();
        }
        std::thread::sleep(Duration::from_micros(50));
    };
    let until = Instant::now() + BACKLOG_AWAITED;
    let may_wait = || Instant::now() < until && !shared.is_stopping();
    if shared.volume.remove_covered_copy(slab, copy_index, others_min, &alive, &may_wait, pause).is_none() {
        return false;
    }
    if let Some(session) = shared.session(location.donor) {
        session.give_back(location.handle);
    }
    true
}

/// Empties every copy index at a lost donor, whose requests have all ended or will. Returns pages that were lost by it.
pub fn forget_donor(shared: &ManagerState, donor: DonorSlot) -> u64 {
    let _assignment = shared.volume.assignment();
    let mut pages_lost = 0;
    for slab in shared.volume.geometry.slabs() {
        let locations = shared.volume.slab(slab).locations();
        for copy_index in
            (0..COPIES_MAX).filter(|copy_index| locations[*copy_index].is_some_and(|location| location.donor == donor))
        {
            let pause = || std::thread::sleep(Duration::from_micros(50));
            pages_lost += shared.volume.remove_copy(slab, copy_index, pause).map_or(0, |removed| removed.pages_lost);
        }
    }
    pages_lost
}
