//! Taking over the slabs that a donor kept for a process that died.
//!
//! What the donor holds and what the volume's copy indexes say may differ by the last steps of the dead process: a
//! slab that was leased and not yet put into a copy index goes back; a copy index whose slab the donor does not have
//! is emptied, as when a donor is lost. This happens before I/O threads get queue pairs to the donor, so none of them
//! uses a copy index that is not right.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use spillway_fabric::units::SlabHandle;

use super::ManagerState;
use super::reach::{Reach, UnusableSlab};
use crate::slab_map::slab_entry::{DonorSlot, Location};

/// A slab that the donor kept.
#[derive(Debug)]
pub struct HeldSlab {
    /// What it is called.
    pub slab: SlabHandle,
    /// Its memory, if it is on this host.
    pub memory: Option<OwnedFd>,
    /// Its key, if it is reached by RDMA.
    pub key: Option<u32>,
}

/// What became of the slabs that a donor kept.
#[derive(Debug, Default)]
pub struct Reunion {
    /// Slabs in use again.
    pub kept: u64,
    /// Slabs that no copy index names, to be given back.
    pub unused: Vec<SlabHandle>,
}

/// Makes the copy indexes at `donor` and the slabs that it kept agree; `reach` is how their memory is reached.
pub(super) fn take_held(shared: &ManagerState, donor: DonorSlot, held: &[HeldSlab], reach: &Reach) -> Reunion {
    let _assignment = shared.volume.assignment();
    let named = named_slabs(shared, donor);
    let (wanted, unused): (Vec<_>, Vec<_>) = held.iter().partition(|held| named.contains(&held.slab));
    let usable: BTreeSet<SlabHandle> =
        wanted.iter().filter(|held| is_usable(held, reach)).map(|held| held.slab).collect();
    let pages_lost = empty_places(shared, donor, &usable);
    if !named.is_empty() {
        tracing::warn!(
            "of {} slabs at donor {} it kept {}; {pages_lost} pages are lost",
            named.len(),
            shared.donors.get(donor).map_or_else(String::new, |donor| donor.address.to_string()),
            usable.len()
        );
    }
    let spoilt = wanted.iter().filter(|held| !usable.contains(&held.slab));
    Reunion { kept: usable.len() as u64, unused: unused.iter().chain(spoilt).map(|held| held.slab).collect() }
}

fn named_slabs(shared: &ManagerState, donor: DonorSlot) -> BTreeSet<SlabHandle> {
    let locations = shared.volume.geometry.slabs().flat_map(|slab| shared.volume.slab(slab).locations());
    locations.flatten().filter(|location| location.donor == donor).map(|location| location.handle).collect()
}

fn is_usable(held: &HeldSlab, reach: &Reach) -> bool {
    let copied = held.memory.as_ref().map(OwnedFd::try_clone).transpose();
    let attached = copied.map_err(UnusableSlab::from).and_then(|memory| reach.attach(held.slab, memory, held.key));
    attached.inspect_err(|error| tracing::warn!("slab {} cannot be used again: {error}", held.slab)).is_ok()
}

/// Empties every copy index at `donor` whose slab is not `usable`. Returns pages that were lost by it.
fn empty_places(shared: &ManagerState, donor: DonorSlot, usable: &BTreeSet<SlabHandle>) -> u64 {
    let volume = &shared.volume;
    let mut pages_lost = 0;
    for slab in volume.geometry.slabs() {
        let locations = volume.slab(slab).locations();
        let gone = |location: &Location| location.donor == donor && !usable.contains(&location.handle);
        for (copy_index, _) in locations.iter().enumerate().filter(|(_, location)| location.as_ref().is_some_and(gone))
        {
            let pause = || std::thread::sleep(Duration::from_micros(50));
            pages_lost += volume.remove_copy(slab, copy_index, pause).map_or(0, |removed| removed.pages_lost);
        }
    }
    pages_lost
}
