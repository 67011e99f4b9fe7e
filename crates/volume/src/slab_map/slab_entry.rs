//! Where the copies of one slab are.
//!
//! A slab has [`COPIES_MAX`] copy indexes. A copy index is empty, or names a donor and the handle under which it
//! lends the memory. I/O threads read copy indexes without locks, behind the slab's [`Gate`]; only the holder of the
//! volume's assignment lock changes them.
//!
//! A copy that is taken away leaves its copy index in two steps: it is *leaving* (empty for every thread that looks)
//! while its page bits are cleared, and gone afterwards. A process that dies in between finds the copy's name in the
//! copy index, so that no page is forgotten that only this copy has. Copy indexes outlive the process; gate, flags
//! and counters do not.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::units::SlabHandle;

use crate::limits::{COPIES_MAX, DONORS_MAX};
use crate::slab_map::gate::Gate;
use crate::slab_map::words::Words;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A donor, by its place in the device's donor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DonorSlot(pub u16);

/// One copy: which donor, and its name for the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The donor.
    pub donor: DonorSlot,
    /// Its name for the slab.
    pub handle: SlabHandle,
}

/// An empty copy index; fresh memory holds it.
const EMPTY: u64 = 0;
/// Marks a copy index that is taken, so that it differs from [`EMPTY`].
const TAKEN: u64 = 1 << 62;
/// Marks a copy index whose copy is being taken away.
const LEAVING: u64 = 1 << 63;

impl Location {
    fn pack(self) -> u64 {
        assert!(usize::from(self.donor.0) < DONORS_MAX, "donor slot {} of {DONORS_MAX}", self.donor.0);
        TAKEN | (u64::from(self.donor.0) << 32) | u64::from(self.handle.0)
    }

    fn unpack(packed: u64) -> Option<Self> {
        if packed == EMPTY || packed & LEAVING != 0 {
            return None;
        }
        Some(Self { donor: DonorSlot((packed >> 32) as u16), handle: SlabHandle(packed as u32) })
    }
}

/// The copy indexes of a slab at one moment.
pub type CopyLocations = [Option<Location>; COPIES_MAX];

/// The shared state of one slab.
#[derive(Debug)]
pub struct SlabEntry {
    locations: Words,
    /// Passed by every request that uses a copy index.
    pub gate: Gate,
    accesses: AtomicU64,
    flags: AtomicU32,
    /// Odd while the first copies are being put in place.
    mapping_turns: AtomicU32,
}

/// Set while a request waits for the slab to be mapped.
const WANTED: u32 = 1;
/// Set while the mover brings the slab to another donor.
const MIGRATING: u32 = 2;

impl Default for SlabEntry {
    fn default() -> Self {
        Self::over(Words::new(COPIES_MAX))
    }
}

impl SlabEntry {
    /// An entry whose copy indexes are these [`COPIES_MAX`] words.
    pub fn over(locations: Words) -> Self {
        assert!(locations.count() == COPIES_MAX, "a word holds a place");
        Self {
            locations,
            gate: Gate::default(),
            accesses: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            mapping_turns: AtomicU32::new(0),
        }
    }

    /// All copy indexes. A request reads them after passing the gate, and the page bits after the copy indexes: a
    /// copy index that is filled anew had its bits cleared before.
    pub fn locations(&self) -> CopyLocations {
        std::array::from_fn(|copy_index| Location::unpack(self.locations.load(copy_index)))
    }

    /// Fills an empty copy index. The caller holds the assignment lock and has cleared the copy index's page bits.
    pub fn fill(&self, copy_index: usize, location: Location) {
        let before = self.locations.swap(copy_index, location.pack());
        assert!(before == EMPTY, "a copy was put in the place of another");
    }

    /// Empties a copy index for every thread that looks and says what was there. The caller holds the assignment lock,
    /// drains the gate, and then either [puts the copy back](Self::stay) or clears its bits and lets it
    /// [go](Self::gone).
    pub fn empty(&self, copy_index: usize) -> Option<Location> {
        let location = Location::unpack(self.locations.load(copy_index))?;
        self.locations.set_bits(copy_index, LEAVING);
        Some(location)
    }

    /// A copy that was leaving stays, if one was.
    pub fn stay(&self, copy_index: usize) {
        if self.locations.load(copy_index) & LEAVING != 0 {
            self.locations.clear_bits(copy_index, LEAVING);
        }
    }

    /// A copy that was leaving is gone; its memory may be used for something else once the caller knows the gate
    /// drained.
    pub fn gone(&self, copy_index: usize) {
        let before = self.locations.swap(copy_index, EMPTY);
        assert!(before & LEAVING != 0, "only a leaving copy goes");
    }

    /// Whether no copy index is taken.
    pub fn is_unmapped(&self) -> bool {
        self.locations().iter().all(Option::is_none)
    }

    /// The places, and whether they were all there at one moment: not while the first copies of the slab are put in
    /// place one after another. A write that saw only some of them would be acknowledged with too few copies.
    pub fn settled_places(&self) -> (CopyLocations, bool) {
        let before = self.mapping_turns.load(Ordering::SeqCst);
        let locations = self.locations();
        let after = self.mapping_turns.load(Ordering::SeqCst);
        (locations, before == after && before.is_multiple_of(2))
    }

    /// The first copies are about to be put in place, or are.
    pub fn turn_mapping(&self) {
        self.mapping_turns.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts page I/Os, for activity.
    pub fn count_accesses(&self, pages: u64) {
        self.accesses.fetch_add(pages, Ordering::Relaxed);
    }

    /// Page I/Os since the start.
    pub fn accesses(&self) -> u64 {
        self.accesses.load(Ordering::Relaxed)
    }

    /// Asks for a donor; true when no thread had asked yet.
    pub fn want(&self) -> bool {
        self.flags.fetch_or(WANTED, Ordering::SeqCst) & WANTED == 0
    }

    /// Takes the request for a donor away; true when there was one.
    pub fn take_want(&self) -> bool {
        self.flags.fetch_and(!WANTED, Ordering::SeqCst) & WANTED != 0
    }

    /// Marks the slab as moving, or not.
    pub fn set_migrating(&self, migrating: bool) {
        if migrating {
            self.flags.fetch_or(MIGRATING, Ordering::SeqCst);
        } else {
            self.flags.fetch_and(!MIGRATING, Ordering::SeqCst);
        }
    }

    /// Whether the slab is being moved.
    pub fn is_migrating(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & MIGRATING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_hold_what_was_put_there() {
        let entry = SlabEntry::default();
        let location = Location { donor: DonorSlot(63), handle: SlabHandle(u32::MAX) };
        assert_eq!(entry.locations(), [None; COPIES_MAX]);
        entry.fill(2, location);
        assert_eq!(entry.locations()[2], Some(location));
        assert_eq!(entry.empty(2), Some(location));
        assert_eq!(entry.empty(2), None);
        entry.stay(2);
        assert_eq!(entry.locations()[2], Some(location), "a copy that is leaving may stay");
        entry.empty(2);
        entry.gone(2);
        entry.stay(2);
        assert!(entry.is_unmapped());
        entry.fill(2, location);
    }

    #[test]
    #[should_panic(expected = "only a leaving copy goes")]
    fn a_copy_that_was_not_taken_away_is_not_gone() {
        SlabEntry::default().gone(0);
    }

    #[test]
    #[should_panic(expected = "in the place of another")]
    fn a_taken_place_is_not_filled_twice() {
        let entry = SlabEntry::default();
        let location = Location { donor: DonorSlot(0), handle: SlabHandle(0) };
        entry.fill(0, location);
        entry.fill(0, location);
    }

    #[test]
    fn only_the_first_wish_is_news() {
        let entry = SlabEntry::default();
        assert!(entry.want());
        assert!(!entry.want());
        entry.set_migrating(true);
        assert!(entry.take_want());
        assert!(!entry.take_want());
        assert!(entry.is_migrating(), "flags do not disturb each other");
    }
}
