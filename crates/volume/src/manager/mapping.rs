//! Mapping slabs to donors and giving them back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use spillway_fabric::units::SlabIndex;

use super::ManagerState;
use super::donors::{DonorEntry, Session};
use super::placement::{self, Candidate, XorShift};
use crate::limits::COPIES_MAX;
use crate::slab_map::slab_entry::{DonorSlot, Location};

/// Copy indexes and donors for slabs, see the module text.
pub struct Mapper {
    random: Mutex<XorShift>,
}

impl Mapper {
    /// `seed` decides the draws.
    pub fn new(seed: u64) -> Self {
        Self { random: Mutex::new(XorShift::new(seed)) }
    }

    /// Borrows one more copy of `slab`, at a donor that holds none and is not `avoid`, as long as it has fewer than
    /// `copies_max`. It starts empty: the mover fills it with what the slab holds already.
    pub fn add_copy(
        &self,
        shared: &ManagerState,
        slab: SlabIndex,
        avoid: Option<DonorSlot>,
        copies_max: usize,
    ) -> Option<(usize, Location)> {
        let mut avoided: Vec<DonorSlot> = avoid.into_iter().collect();
        loop {
            let donor = self.choose(shared, slab, &avoided)?;
            let entry = &shared.donors[usize::from(donor.0)];
            // Sessions never come back, so finding the same one in `fill_place` proves that the lease belongs to it.
            let Some(session) = entry.session() else {
                avoided.push(donor);
                continue;
            };
            match entry.lease(shared.volume.geometry.slab_size_bytes()) {
                Ok(handle) => {
                    let _assignment = shared.volume.assignment();
                    let location = Location { donor, handle };
                    if shared.copies(slab) < copies_max {
                        return fill_place(shared, slab, entry, &session, location);
                    }
                    // Another thread was faster, or put a copy back that was nearly given up.
                    return_unused(entry, &session, location);
                    return None;
                }
                Err(error) => {
                    tracing::debug!("no slab from {}: {error}", entry.address);
                    avoided.push(donor);
                }
            }
        }
    }

    fn choose(&self, shared: &ManagerState, slab: SlabIndex, avoided: &[DonorSlot]) -> Option<DonorSlot> {
        let now = Instant::now();
        let locations = shared.volume.slab(slab).locations();
        let identity = |donor: DonorSlot| shared.donors[usize::from(donor.0)].session().map(|session| session.donor);
        // Two addresses may lead to one donor, which would then hold both copies.
        let taken: Vec<_> =
            locations.iter().flatten().map(|location| location.donor).chain(avoided.iter().copied()).collect();
        let taken_identities: Vec<_> = taken.iter().filter_map(|donor| identity(*donor)).collect();
        let is_taken = |donor: DonorSlot| {
            taken.contains(&donor) || identity(donor).is_some_and(|identity| taken_identities.contains(&identity))
        };
        let candidates: Vec<Candidate> = shared
            .donors
            .iter()
            .filter(|entry| !is_taken(entry.slot))
            .filter_map(|entry| {
                let (free_bytes, refused) = entry.room(now)?;
                Some(Candidate { donor: entry.slot, free_bytes, slabs_held: entry.slabs_held(), refused })
            })
            .collect();
        let mut refresh = |donor: DonorSlot| shared.donors[usize::from(donor.0)].query().ok();
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        placement::choose(&candidates, shared.volume.geometry.slab_size_bytes(), &mut *random, &mut refresh)
    }
}

/// Gives back a slab that was leased in `session`, if that is still the donor's.
fn return_unused(donor: &DonorEntry, session: &Arc<Session>, location: Location) {
    if donor.session().is_some_and(|now| Arc::ptr_eq(&now, session)) {
        donor.give_back(location.handle);
    }
}

/// Puts a leased slab into an empty copy index, unless the donor was lost since. The caller holds the assignment lock.
fn fill_place(
    shared: &ManagerState,
    slab: SlabIndex,
    donor: &DonorEntry,
    session: &Arc<Session>,
    location: Location,
) -> Option<(usize, Location)> {
    let entry = shared.volume.slab(slab);
    let copy_index = entry.locations().iter().position(Option::is_none);
    // The link thread empties all copy indexes of a lost donor under this lock, after it took the session away.
    match (copy_index, donor.session().filter(|now| Arc::ptr_eq(now, session))) {
        (Some(copy_index), Some(_)) => {
            entry.fill(copy_index, location);
            Some((copy_index, location))
        }
        _ => {
            return_unused(donor, session, location);
            None
        }
    }
}

/// Takes the copy in `copy_index` of `slab` away and gives its memory back, if every page of it has another copy.
pub fn drop_covered_copy(shared: &ManagerState, slab: SlabIndex, copy_index: usize) -> bool {
    // Held until the slab is given back: a lost donor is not reached again before its copy indexes were emptied under
    // this lock, so the handle still means what it meant.
    let _assignment = shared.volume.assignment();
    let alive = |donor: DonorSlot| shared.is_within_reach(donor);
    let pause = || std::thread::sleep(Duration::from_micros(50));
    let removed = shared.volume.remove_covered_copy(slab, copy_index, &alive, pause);
    let Some(removed) = removed else { return false };
    shared.donors[usize::from(removed.location.donor.0)].give_back(removed.location.handle);
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
