//! A volume whose slabs have a version instead of pages: the number of the last write. A copy is valid or not.

use std::cell::RefCell;

use spillway_fabric::units::SlabIndex;
use spillway_volume::limits::COPIES_MAX;
use spillway_volume::slab_map::slab_entry::{CopyLocations, Location};
use spillway_volume::steward::care::Finding;
use spillway_volume::steward::pages::Pages;

use crate::settings::SLAB_SIZE_BYTES;

/// Pages of a slab that holds any.
const PAGES: u64 = SLAB_SIZE_BYTES / 4096;

/// One slab.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slab {
    /// Where its copies are.
    pub(crate) locations: CopyLocations,
    /// Which of them have the last version.
    pub(crate) valid: [bool; COPIES_MAX],
    /// Whether a program has written it, and not discarded it since.
    pub(crate) is_stored: bool,
    /// Whether the disk has the last version, or will.
    pub(crate) is_on_disk: bool,
    /// Number of the last write.
    pub(crate) version: u64,
    /// Page I/Os.
    pub(crate) accesses: u64,
    /// Valid copies that were lost since all of them were there.
    pub(crate) lost_since_whole: usize,
}

impl Slab {
    /// Copies that have the last version.
    pub(crate) fn valid_copies(&self) -> usize {
        self.valid.iter().filter(|valid| **valid).count()
    }

    /// Where `location` is.
    pub(crate) fn copy_index(&self, location: Location) -> Option<usize> {
        self.locations.iter().position(|other| *other == Some(location))
    }

    /// Forgets a copy; whether it was a valid one.
    pub(crate) fn remove(&mut self, copy_index: usize) -> bool {
        self.locations[copy_index] = None;
        std::mem::take(&mut self.valid[copy_index])
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct ModelVolume {
    /// The slabs, by number.
    pub(crate) slabs: RefCell<Vec<Slab>>,
}

impl ModelVolume {
    /// Nothing is stored.
    pub(crate) fn new(slab_count: u32) -> Self {
        Self { slabs: RefCell::new(vec![Slab::default(); slab_count as usize]) }
    }

    /// A look at every slab.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.slabs.borrow().iter().map(finding).collect()
    }
}

fn finding(slab: &Slab) -> Finding {
    let stored = if slab.is_stored { PAGES } else { 0 };
    let misses = (0..COPIES_MAX).any(|copy| slab.locations[copy].is_some() && !slab.valid[copy]);
    let copies = slab.locations.iter().flatten().count();
    Finding { copies, stored, missing: if misses { stored } else { 0 }, lost: 0 }
}

impl Pages for ModelVolume {
    fn slab_count(&self) -> u32 {
        self.slabs.borrow().len() as u32
    }

    fn slab_size_bytes(&self) -> u64 {
        SLAB_SIZE_BYTES
    }

    fn locations(&self, slab: SlabIndex) -> CopyLocations {
        self.slabs.borrow()[slab.0 as usize].locations
    }

    fn accesses(&self, slab: SlabIndex) -> u64 {
        self.slabs.borrow()[slab.0 as usize].accesses
    }
}
