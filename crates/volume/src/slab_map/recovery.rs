//! Going on with the volume of a process that died: what it left between two of its stores becomes whole again.
//!
//! Page bits, copy indexes, the backlog's contents and journal are as the last store of the dead process left them;
//! which thread owned which page, what was in flight and where the queue stood are gone. Two steps bring the rest back:
//! - [`Volume::recover`], before anything runs: copies that were being taken away stay; bits of copy indexes without
//!   a copy go; the backlog is queued again.
//! - [`Volume::settle_writes`], once it is known which donors still have their slabs and before the first request:
//!   pages that were being written keep one of their contents.
//!
//! Either may die halfway and be started again by the next process. docs/decisions/crash-recovery.md walks one page
//! through it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::Instant;

use spillway_fabric::units::SlabIndex;

use super::Volume;
use super::page_bits::Bit;
use super::page_index::PageIndex;
use super::proofs::PageProofs;
use super::slab_entry::{CopyLocations, DonorSlot};
use crate::limits::COPIES_MAX;
use crate::protection::PageProof;

/// What a dead process left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Pages that wait for the disk again.
    pub pages_queued: u64,
    /// Pages of which no content is left.
    pub pages_lost: u64,
    /// Copies at donors, which may or may not still have them.
    pub copies: u64,
}

impl Volume {
    /// The first step, see the module text. No other thread uses the volume yet.
    pub fn recover(&self, now: Instant) -> Recovered {
        let mut recovered = Recovered::default();
        for slab in self.geometry.slabs() {
            (0..COPIES_MAX).for_each(|copy_index| self.slab(slab).stay(copy_index));
        }
        if let Some(proofs) = &self.proofs {
            proofs.undo();
        }
        if let Some(disk) = &self.disk {
            for page in disk.backlog.recover(&self.bits, self.proofs.as_ref(), now) {
                self.own(page, 1);
                disk.backlog.settle_failure(&self.bits, page);
                self.bits.release(page, 1);
            }
            recovered.pages_queued = disk.backlog.length() as u64;
        }
        for slab in self.geometry.slabs() {
            let locations = self.slab(slab).locations();
            recovered.copies += locations.iter().flatten().count() as u64;
            recovered.pages_lost += self.forget_empty_places(slab, &locations);
        }
        recovered
    }

    /// Clears bits that vouch for an empty copy index.
    fn forget_empty_places(&self, slab: SlabIndex, locations: &CopyLocations) -> u64 {
        let mut pages_lost = 0;
        for copy_index in (0..COPIES_MAX).filter(|copy_index| locations[*copy_index].is_none()) {
            for first in self.geometry.words(slab) {
                if self.bits.any(Bit::Copy(copy_index), first, 64) {
                    self.own(first, 64);
                    pages_lost += self.forget_copy(first, copy_index);
                    self.bits.release(first, 64);
                }
            }
        }
        pages_lost
    }

    /// The second step, see the module text: how many pages there were. Copies at donors that are not `alive` are
    /// taken only when there is no other. Other threads may take copies away meanwhile.
    pub fn settle_writes(&self, alive: &dyn Fn(DonorSlot) -> bool, mut pause: impl FnMut()) -> u64 {
        let mut settled = 0;
        for slab in self.geometry.slabs() {
            for first in self.geometry.words(slab) {
                if !self.bits.any(Bit::Writing, first, 64) {
                    continue;
                }
                while !self.bits.try_acquire(first, 64) {
                    crate::sync::yield_now();
                    pause();
                }
                let locations = self.slab(slab).locations();
                for page in first.up_to(first + 64) {
                    if self.bits.any(Bit::Writing, page, 1) {
                        self.settle_write(page, &locations, alive);
                        settled += 1;
                    }
                }
                self.bits.release(first, 64);
            }
        }
        if let Some(proofs) = &self.proofs {
            proofs.forget_settled_intents(|page| self.bits.any(Bit::Writing, page, 1));
        }
        settled
    }

    /// Keeps one content of an owned page. The backlog's is the newest, and the disk's came from the backlog; donors
    /// were written to after the page was in the backlog.
    fn settle_write(&self, page: PageIndex, locations: &CopyLocations, alive: &dyn Fn(DonorSlot) -> bool) {
        let valid = |bit| self.bits.any(bit, page, 1);
        if let Some(proofs) = &self.proofs
            && self.settle_proven(page, proofs)
        {
            return;
        }
        let local = valid(Bit::Pending) || valid(Bit::Disk);
        let copies =
            || (0..COPIES_MAX).filter(|copy_index| locations[*copy_index].is_some() && valid(Bit::Copy(*copy_index)));
        let reachable = |copy_index: &usize| locations[*copy_index].is_some_and(|location| alive(location.donor));
        let kept = if local { None } else { copies().find(reachable).or_else(|| copies().next()) };
        if local || kept.is_some() {
            for copy_index in (0..COPIES_MAX).filter(|copy_index| Some(*copy_index) != kept) {
                self.bits.clear(Bit::Copy(copy_index), page, 1);
            }
        }
        self.bits.clear(Bit::Writing, page, 1);
    }

    /// The same where it is known by its proof which content is right. True when nothing is left to choose.
    fn settle_proven(&self, page: PageIndex, proofs: &PageProofs) -> bool {
        let valid = |bit| self.bits.any(bit, page, 1);
        let is_local = valid(Bit::Pending) || valid(Bit::Disk);
        if proofs.fill_of(page).is_some() {
            // The proof holds the content; what copies and disk have is older, or was never acknowledged.
            if let Some(disk) = &self.disk {
                disk.backlog.discard(&self.bits, page, 1);
            }
            self.bits.clear(Bit::Lost, page, 1);
        } else if is_local {
            return false;
        } else if proofs.load(page) != PageProof::NONE {
            if self.disk.is_some() {
                // Nothing was sent: the backlog comes first.
                self.bits.clear(Bit::Writing, page, 1);
            }
            // Without a disk some donors may have the new content. The mark stays until the mover has looked.
            return true;
        }
        (0..COPIES_MAX).for_each(|copy_index| self.bits.clear(Bit::Copy(copy_index), page, 1));
        self.bits.clear(Bit::Writing, page, 1);
        true
    }

    /// Owns pages that no other thread can own now.
    fn own(&self, first: PageIndex, count: u64) {
        assert!(self.bits.try_acquire(first, count), "nobody uses a volume that is being recovered");
    }
}

#[cfg(test)]
#[cfg(not(feature = "schedules"))]
#[path = "recovery_tests.rs"]
mod tests;
