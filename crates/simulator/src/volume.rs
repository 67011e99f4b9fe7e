//! A volume whose slabs have a version instead of pages: the number of the last write. A copy is valid or not.

use std::cell::RefCell;
use std::time::Duration;

use spillway_fabric::units::{PAGE_SIZE_BYTES, SlabIndex};
use spillway_volume::limits::COPIES_MAX;
use spillway_volume::slab_map::slab_entry::{CopyLocations, Location};
use spillway_volume::steward::care::Finding;
use spillway_volume::steward::pages::Pages;

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
    /// Since when it could have the copies that it lacks.
    pub(crate) short_since: Option<Duration>,
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
    slab_size_bytes: u64,
}

impl ModelVolume {
    /// Nothing is stored.
    pub(crate) fn new(slab_count: u32, slab_size_bytes: u64) -> Self {
        Self { slab_size_bytes, slabs: RefCell::new(vec![Slab::default(); slab_count as usize]) }
    }

    /// Copies of all slabs.
    pub(crate) fn copies(&self) -> u64 {
        self.slabs.borrow().iter().map(|slab| slab.locations.iter().flatten().count() as u64).sum()
    }

    /// A look at every slab.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let pages = self.slab_size_bytes / PAGE_SIZE_BYTES as u64;
        self.slabs.borrow().iter().map(|slab| finding(slab, pages)).collect()
    }
}

/// What is found in a slab: all of its pages, or none.
fn finding(slab: &Slab, pages: u64) -> Finding {
    let stored = if slab.is_stored { pages } else { 0 };
    let misses = (0..COPIES_MAX).any(|copy| slab.locations[copy].is_some() && !slab.valid[copy]);
    let copies = slab.locations.iter().flatten().count();
    Finding { copies, stored, missing: if misses { stored } else { 0 }, lost: 0 }
}

impl Pages for ModelVolume {
    fn slab_count(&self) -> u32 {
        self.slabs.borrow().len() as u32
    }

    fn slab_size_bytes(&self) -> u64 {
        self.slab_size_bytes
    }

    fn locations(&self, slab: SlabIndex) -> CopyLocations {
        self.slabs.borrow()[slab.0 as usize].locations
    }

    fn accesses(&self, slab: SlabIndex) -> u64 {
        self.slabs.borrow()[slab.0 as usize].accesses
    }
}
