//! Whether pages would be lost with a donor: what decides how long a silent one is waited for.
//!
//! Looked at without owning the pages, because the thread that owns one may be waiting for this very donor. A page
//! that is on its way from one place to another may therefore seem to have no other copy for a moment; it is looked
//! at twice.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use super::Volume;
use super::page_bits::PageWord;
use super::slab_entry::{CopyLocations, DonorSlot};

impl Volume {
    /// Whether some page has its only copy at `donor`: no other donor that is `within_reach` has it, nor the disk,
    /// nor the backlog, which brings it there.
    pub fn depends_on(&self, donor: DonorSlot, within_reach: &dyn Fn(DonorSlot) -> bool) -> bool {
        self.geometry.slabs().any(|slab| {
            let locations = self.slab(slab).locations();
            let is_there = locations.iter().flatten().any(|location| location.donor == donor);
            is_there
                && self.geometry.words(slab).any(|first| {
                    let is_sole = || sole_pages(&self.bits.word(first), &locations, donor, within_reach) != 0;
                    is_sole() && is_sole()
                })
        })
    }

    /// Whether a page that is stored has another copy in the ordinary course of things.
    pub fn keeps_several_copies(&self) -> bool {
        self.redundancy.disk || self.redundancy.replicas > 1
    }
}

/// The pages of a word that only `donor` has.
fn sole_pages(
    word: &PageWord,
    locations: &CopyLocations,
    donor: DonorSlot,
    within_reach: &dyn Fn(DonorSlot) -> bool,
) -> u64 {
    let (mut there, mut elsewhere) = (0, word.disk | word.pending);
    for (copy_index, copies) in locations.iter().zip(&word.copies) {
        match copy_index {
            Some(location) if location.donor == donor => there |= copies,
            Some(location) if within_reach(location.donor) => elsewhere |= copies,
            _ => {}
        }
    }
    there & !elsewhere
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spillway_fabric::units::{SlabHandle, SlabIndex};

    use super::*;
    use crate::settings::redundancy::Redundancy;
    use crate::slab_map::Geometry;
    use crate::slab_map::page_bits::Bit;
    use crate::slab_map::page_index::PageIndex;
    use crate::slab_map::slab_entry::Location;

    const GEOMETRY: Geometry = Geometry { slab_pages: 128, slab_count: 2 };

    fn volume(copies: &[(u32, usize, u16)]) -> Volume {
        let volume = Volume::new(GEOMETRY, Redundancy::NONE, None).unwrap();
        for (slab, copy_index, donor) in copies {
            let location = Location { donor: DonorSlot(*donor), handle: SlabHandle(*slab) };
            volume.slab(SlabIndex(*slab)).fill(*copy_index, location);
        }
        volume
    }

    #[test]
    fn a_donor_without_a_page_can_be_spared() {
        let volume = volume(&[(0, 0, 1)]);
        assert!(!volume.depends_on(DonorSlot(1), &|_| true));
        volume.bits.set(Bit::Copy(0), PageIndex(5), 1);
        assert!(volume.depends_on(DonorSlot(1), &|_| true));
        assert!(!volume.depends_on(DonorSlot(2), &|_| true));
    }

    #[test]
    fn a_second_copy_counts_where_it_can_be_reached() {
        let volume = volume(&[(1, 0, 1), (1, 1, 2)]);
        let page = PageIndex(GEOMETRY.slab_pages + 70);
        volume.bits.set(Bit::Copy(0), page, 1);
        volume.bits.set(Bit::Copy(1), page, 1);
        assert!(!volume.depends_on(DonorSlot(1), &|_| true));
        assert!(volume.depends_on(DonorSlot(1), &|donor| donor != DonorSlot(2)), "the other one is silent too");
        volume.bits.clear(Bit::Copy(1), page, 1);
        assert!(volume.depends_on(DonorSlot(1), &|_| true), "the other one misses the page");
        assert!(!volume.depends_on(DonorSlot(2), &|_| true));
    }

    #[test]
    fn the_disk_and_what_is_on_its_way_there_count() {
        for other in [Bit::Disk, Bit::Pending] {
            let volume = volume(&[(0, 2, 3)]);
            volume.bits.set(Bit::Copy(2), PageIndex(0), 2);
            volume.bits.set(other, PageIndex(0), 1);
            assert!(volume.depends_on(DonorSlot(3), &|_| true), "the second page");
            volume.bits.set(other, PageIndex(1), 1);
            assert!(!volume.depends_on(DonorSlot(3), &|_| true));
        }
    }

    proptest! {
        #[test]
        fn it_says_what_a_look_at_every_single_page_says(
            pages in prop::collection::vec((0_u64..256, 0_usize..5), 0..20),
            reachable in prop::collection::vec(any::<bool>(), 3),
        ) {
            // Donor n has place n of both slabs.
            let volume = volume(&[(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 0), (1, 1, 1), (1, 2, 2)]);
            for (page, what) in pages {
                let bit = [Bit::Copy(0), Bit::Copy(1), Bit::Copy(2), Bit::Disk, Bit::Pending][what];
                volume.bits.set(bit, PageIndex(page), 1);
            }
            let has = |page, copy_index| volume.bits.any(Bit::Copy(copy_index), page, 1);
            let safe = |page| volume.bits.any(Bit::Disk, page, 1) || volume.bits.any(Bit::Pending, page, 1);
            for donor in 0..3 {
                let others = |page| (0..3).any(|other| other != donor && reachable[other] && has(page, other));
                let expected = (0..256).map(PageIndex).any(|page| has(page, donor) && !others(page) && !safe(page));
                let found = volume.depends_on(DonorSlot(donor as u16), &|other| reachable[usize::from(other.0)]);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
