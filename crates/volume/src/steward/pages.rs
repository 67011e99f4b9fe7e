//! What the Steward asks of the volume. Answers are those of one moment: I/O threads go on meanwhile.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::units::SlabIndex;

use crate::slab_map::Volume;
use crate::slab_map::slab_entry::{CopyLocations, Location};

/// A volume, as its Steward sees it; a simulated one keeps counts of pages instead of pages.
pub trait Pages {
    /// Slabs of the volume.
    fn slab_count(&self) -> u32;

    /// Bytes of each.
    fn slab_size_bytes(&self) -> u64;

    /// Where the copies of `slab` are.
    fn locations(&self, slab: SlabIndex) -> CopyLocations;

    /// Page I/Os of `slab` since the start.
    fn accesses(&self, slab: SlabIndex) -> u64;

    /// The slab that has a copy there.
    fn find(&self, location: Location) -> Option<SlabIndex> {
        (0..self.slab_count()).map(SlabIndex).find(|slab| self.locations(*slab).contains(&Some(location)))
    }
}

impl Pages for Volume {
    fn slab_count(&self) -> u32 {
        self.geometry.slab_count
    }

    fn slab_size_bytes(&self) -> u64 {
        self.geometry.slab_size_bytes()
    }

    fn locations(&self, slab: SlabIndex) -> CopyLocations {
        self.slab(slab).locations()
    }

    fn accesses(&self, slab: SlabIndex) -> u64 {
        self.slab(slab).accesses()
    }
}
