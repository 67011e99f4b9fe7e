//! Slots: pages of the volume, given to pages of programs by counted reference.
//!
//! A fork leaves two address spaces with one slot; so does a page that is clean in one and away in the other. A slot
//! whose last reference goes may be given out again at once. What donors still hold of free slots is discarded in the
//! background, by runs of 64 that no thread took for a while ([`DISCARD_AFTER_LOOKS`]), and by shorter runs
//! ([`DISCARD_SHORT_PAGES_MIN`]) after longer ([`DISCARD_SHORT_AFTER_LOOKS`]): programs that write give slots up one by
//! one, at the rate of their faults, and take them again, and a donor has to allocate anew what it was told to forget.
//!
//! A slot may be *staged*: its content lies in a page of the write-back pool too ([`crate::evict::staging`]). That is
//! a fact about the slot and not about any page of a program, so every address space that refers to it finds it
//! there.
//!
//! Invariants: a slot is given out only when it is free; while it is *busy* (a write of it is under way) or being
//! discarded it is not free, whatever happens to its references.

use crate::limits::{DISCARD_AFTER_LOOKS, DISCARD_SHORT_AFTER_LOOKS, DISCARD_SHORT_PAGES_MIN, GROUP_PAGES};

/// A page of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumePage(pub u32);

/// A page of the write-back pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolPage(pub u32);

/// Neighbouring slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePageRun {
    /// The first.
    pub first: VolumePage,
    /// How many.
    pub count: u32,
}

impl VolumePageRun {
    /// Each of them.
    pub fn slots(self) -> impl Iterator<Item = VolumePage> {
        (self.first.0..self.first.0 + self.count).map(VolumePage)
    }
}

/// Words of the map that are looked at for one run before a shorter one will do: 4096 words are 1 GiB of slots, about
/// 2 us.
const WORDS_LOOKED_AT_MAX: usize = 4096;

const REFERENCES: u64 = 0xff_ffff;
const BUSY: u64 = 1 << 24;
const STAGED_SHIFT: u32 = 32;

/// All slots of a volume, see the module text.
#[derive(Debug)]
pub struct VolumePages {
    /// By slot: references (24 bits), busy, pool page + 1 (32 bits). Zeroes that are never touched take no memory.
    entries: Vec<u64>,
    /// A bit for each slot: taken. Slots behind the last are taken for good.
    taken: Vec<u64>,
    /// No word before this one has a free slot.
    lowest: usize,
    free: u64,
    /// A bit for each slot: free, and a donor may hold its old content.
    stale: Vec<u64>,
    /// By word: at which look for slots to discard, or after it, one of its slots was last given up.
    stale_at: Vec<u32>,
    /// Looks for slots to discard that found none.
    looks: u32,
    /// Where the next one begins.
    discard_from: usize,
    /// Resident pages of which a slot is only a copy.
    copies: u64,
}

/// Words of slots in one discard at most: 16 MiB.
const DISCARD_WORDS_MAX: usize = 64;

impl VolumePages {
    /// `count` free slots.
    pub fn new(count: u32) -> Self {
        let words = count.div_ceil(u64::BITS) as usize;
        let mut taken = vec![0_u64; words];
        if let Some(last) = taken.last_mut()
            && !count.is_multiple_of(u64::BITS)
        {
            *last = u64::MAX << (count % u64::BITS);
        }
        Self {
            entries: vec![0; count as usize],
            taken,
            lowest: 0,
            free: u64::from(count),
            stale: vec![0; words],
            stale_at: vec![0; words],
            looks: 0,
            discard_from: 0,
            copies: 0,
        }
    }

    /// Slots that can be taken.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Slots that cannot be taken.
    pub fn in_use(&self) -> u64 {
        self.entries.len() as u64 - self.free
    }

    /// Slots with content that no program has in its memory. Two programs that share a slot after a fork, one of them
    /// with the page in its memory, count for none.
    pub fn lent(&self) -> u64 {
        self.in_use().saturating_sub(self.copies)
    }

    /// Resident pages of which a slot is only a copy.
    #[cfg(test)]
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// A slot became a mere copy of a resident page.
    pub fn copy_made(&mut self) {
        self.copies += 1;
    }

    /// The page of such a slot left, was written, or is gone.
    pub fn copy_ended(&mut self) {
        assert!(self.copies > 0, "a copy ends once");
        self.copies -= 1;
    }

    /// Takes up to `wanted` neighbouring slots, each with one reference: the whole number if there is such a run
    /// near, a shorter run otherwise, none if the volume is full.
    pub fn take(&mut self, wanted: usize) -> Option<VolumePageRun> {
        assert!((1..=GROUP_PAGES).contains(&wanted), "a run is at most a group");
        let mut length = wanted as u32;
        loop {
            if let Some(first) = self.find(length) {
                return Some(self.occupy(first, length));
            }
            if length == 1 {
                return None;
            }
            length /= 2;
        }
    }

    fn find(&mut self, length: u32) -> Option<VolumePage> {
        while self.taken.get(self.lowest) == Some(&u64::MAX) {
            self.lowest += 1;
        }
        // One slot is looked for everywhere, so that a volume is full only when it is.
        let looked_at = if length == 1 { usize::MAX } else { WORDS_LOOKED_AT_MAX };
        self.taken.iter().enumerate().skip(self.lowest).take(looked_at).find_map(|(index, taken)| {
            let fits = starts_of_runs(!taken, length);
            (fits != 0).then(|| VolumePage(index as u32 * u64::BITS + fits.trailing_zeros()))
        })
    }

    fn occupy(&mut self, first: VolumePage, count: u32) -> VolumePageRun {
        let run = VolumePageRun { first, count };
        for slot in run.slots() {
            let (word, bit) = place(slot);
            assert!(self.taken[word] & bit == 0 && self.entries[slot.0 as usize] == 0, "a slot taken was free");
            self.taken[word] |= bit;
            self.stale[word] &= !bit;
            self.entries[slot.0 as usize] = 1;
        }
        self.free -= u64::from(count);
        run
    }

    fn entry(&mut self, slot: VolumePage) -> &mut u64 {
        &mut self.entries[slot.0 as usize]
    }

    /// References of `slot`.
    pub fn references(&self, slot: VolumePage) -> u64 {
        self.entries[slot.0 as usize] & REFERENCES
    }

    /// One more page refers to `slot`.
    pub fn retain(&mut self, slot: VolumePage) {
        let entry = self.entry(slot);
        assert!(*entry & REFERENCES != 0, "only a slot that is referred to can be shared");
        assert!(*entry & REFERENCES != REFERENCES, "fewer address spaces than references");
        *entry += 1;
    }

    /// One page fewer refers to `slot`; without any left its content is gone.
    pub fn release(&mut self, slot: VolumePage) {
        let entry = self.entry(slot);
        assert!(*entry & REFERENCES != 0, "a reference that is given up existed");
        *entry -= 1;
        if *entry & REFERENCES == 0 {
            *entry &= BUSY;
            if *entry == 0 {
                self.set_stale(slot);
            }
        }
    }

    /// Gives back a slot that was taken and never written. A donor may hold what was in it before.
    pub fn give_back(&mut self, slot: VolumePage) {
        assert!(*self.entry(slot) == 1, "a slot given back is as it was taken");
        *self.entry(slot) = 0;
        self.set_stale(slot);
    }

    fn set_stale(&mut self, slot: VolumePage) {
        let (word, bit) = place(slot);
        self.stale[word] |= bit;
        self.stale_at[word] = self.looks;
        self.set_free(slot);
    }

    fn set_free(&mut self, slot: VolumePage) {
        let (word, bit) = place(slot);
        assert!(self.taken[word] & bit != 0, "only a taken slot becomes free");
        self.taken[word] &= !bit;
        self.lowest = self.lowest.min(word);
        self.free += 1;
    }

    /// A write of `slot` begins.
    pub fn begin_write(&mut self, slot: VolumePage) {
        let entry = self.entry(slot);
        assert!(*entry & BUSY == 0, "one request for a slot at a time");
        *entry |= BUSY;
    }

    /// Whether a write of `slot` is under way.
    pub fn is_busy(&self, slot: VolumePage) -> bool {
        self.entries[slot.0 as usize] & BUSY != 0
    }

    /// The write of `slot` ended. If nothing refers to it any more it goes now.
    pub fn end_write(&mut self, slot: VolumePage) {
        let entry = self.entry(slot);
        assert!(*entry & BUSY != 0, "what ends has begun");
        *entry &= !BUSY;
        if *entry == 0 {
            self.set_stale(slot);
        }
    }

    /// Takes free slots whose old content donors may still hold and that were left alone for a while; then
    /// [`VolumePages::end_discard`]. Each look goes on where the one before ended.
    pub fn begin_discard(&mut self) -> Option<VolumePageRun> {
        let mut words = (self.discard_from..self.taken.len()).chain(0..self.discard_from);
        let Some(word) = words.find(|word| self.is_discardable(*word) || self.discardable_starts(*word) != 0) else {
            self.looks = self.looks.wrapping_add(1);
            return None;
        };
        let run = if self.is_discardable(word) { self.take_words(word) } else { self.take_within(word) };
        self.free -= u64::from(run.count);
        Some(run)
    }

    /// Whether no slot of a word was given up for so many looks.
    fn is_old(&self, word: usize, looks: u32) -> bool {
        self.looks.wrapping_sub(self.stale_at[word]) >= looks
    }

    /// Whether a word is free as a whole.
    fn is_discardable(&self, word: usize) -> bool {
        self.taken[word] == 0 && self.stale[word] != 0 && self.is_old(word, DISCARD_AFTER_LOOKS)
    }

    /// Where shorter runs begin in a word whose other slots are in use.
    fn discardable_starts(&self, word: usize) -> u64 {
        let is_old = self.stale[word] != 0 && self.is_old(word, DISCARD_SHORT_AFTER_LOOKS);
        if is_old { starts_of_runs(self.stale[word], DISCARD_SHORT_PAGES_MIN) } else { 0 }
    }

    /// Takes words that are free as a whole, from `first` on: one request frees all of them.
    fn take_words(&mut self, first: usize) -> VolumePageRun {
        let mut last = first;
        while last < self.taken.len() && last - first < DISCARD_WORDS_MAX && self.is_discardable(last) {
            (self.taken[last], self.stale[last]) = (u64::MAX, 0);
            last += 1;
        }
        self.discard_from = last;
        let count = ((last - first) * u64::BITS as usize) as u32;
        VolumePageRun { first: VolumePage(first as u32 * u64::BITS), count }
    }

    /// Takes the first of the shorter runs in `word`.
    fn take_within(&mut self, word: usize) -> VolumePageRun {
        let start = self.discardable_starts(word).trailing_zeros();
        let count = (self.stale[word] >> start).trailing_ones();
        let slots = (u64::MAX >> (u64::BITS - count)) << start;
        self.taken[word] |= slots;
        self.stale[word] &= !slots;
        self.discard_from = word;
        VolumePageRun { first: VolumePage(word as u32 * u64::BITS + start), count }
    }

    /// The slots of `run` are free again.
    pub fn end_discard(&mut self, run: VolumePageRun) {
        for slot in run.slots() {
            assert!(*self.entry(slot) == 0, "nobody refers to a slot that is discarded");
            self.set_free(slot);
        }
    }

    /// Where in the write-back pool the content of `slot` lies too.
    pub fn staged(&self, slot: VolumePage) -> Option<PoolPage> {
        ((self.entries[slot.0 as usize] >> STAGED_SHIFT) as u32).checked_sub(1).map(PoolPage)
    }

    /// The content of `slot`, which is referred to, lies in `page` too.
    pub fn stage(&mut self, slot: VolumePage, page: PoolPage) {
        let entry = self.entry(slot);
        assert!(*entry >> STAGED_SHIFT == 0 && *entry & REFERENCES != 0, "staged once, and for somebody");
        *entry |= u64::from(page.0 + 1) << STAGED_SHIFT;
    }

    /// `page` of the pool is used for something else now.
    pub fn unstage(&mut self, slot: VolumePage, page: PoolPage) {
        // The slot may have changed its owner since.
        if self.staged(slot) == Some(page) {
            *self.entry(slot) &= (1 << STAGED_SHIFT) - 1;
        }
    }
}

fn place(slot: VolumePage) -> (usize, u64) {
    ((slot.0 / u64::BITS) as usize, 1 << (slot.0 % u64::BITS))
}

/// The bits of `free` from which on `length` bits are set.
fn starts_of_runs(free: u64, length: u32) -> u64 {
    let (mut starts, mut have) = (free, 1);
    while have < length && starts != 0 {
        let step = have.min(length - have);
        starts &= starts >> step;
        have += step;
    }
    starts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Discards what waits for it.
    fn discard_all(slots: &mut VolumePages) {
        for _ in 0..=DISCARD_SHORT_AFTER_LOOKS {
            while let Some(run) = slots.begin_discard() {
                slots.end_discard(run);
            }
        }
    }

    /// Looks for slots to discard until the next look may take what is stale now.
    fn wait(slots: &mut VolumePages) {
        (0..DISCARD_AFTER_LOOKS).for_each(|_| assert_eq!(slots.begin_discard(), None, "so early"));
    }

    #[test]
    fn runs_are_neighbours_and_become_shorter_when_there_is_no_room() {
        let mut slots = VolumePages::new(100);
        let first = slots.take(32).unwrap();
        assert_eq!((first.first, first.count), (VolumePage(0), 32));
        assert_eq!(slots.take(32).unwrap().first, VolumePage(32));
        let rest: u32 = std::iter::from_fn(|| slots.take(32)).map(|run| run.count).sum();
        assert_eq!((rest, slots.free()), (36, 0));
        slots.release(VolumePage(7));
        assert_eq!(slots.take(5).unwrap(), VolumePageRun { first: VolumePage(7), count: 1 });
    }

    #[test]
    fn a_slot_that_is_being_written_is_not_given_out_again() {
        let mut slots = VolumePages::new(1);
        let slot = slots.take(1).unwrap().first;
        slots.begin_write(slot);
        slots.release(slot);
        assert!(slots.take(1).is_none());
        slots.end_write(slot);
        assert_eq!(slots.take(1).unwrap().first, slot);
    }

    #[test]
    fn staging_ends_with_the_last_reference_and_only_for_its_own_page() {
        let mut slots = VolumePages::new(2);
        let slot = slots.take(1).unwrap().first;
        slots.stage(slot, PoolPage(9));
        slots.retain(slot);
        slots.release(slot);
        slots.unstage(slot, PoolPage(8));
        assert_eq!(slots.staged(slot), Some(PoolPage(9)));
        slots.release(slot);
        assert_eq!(slots.staged(slot), None);
    }

    #[test]
    fn whole_words_that_are_free_are_discarded_and_not_given_out_meanwhile() {
        let mut slots = VolumePages::new(192);
        let taken: Vec<VolumePage> =
            std::iter::from_fn(|| slots.take(32)).take(4).flat_map(VolumePageRun::slots).collect();
        taken.iter().skip(1).for_each(|slot| slots.release(*slot));
        wait(&mut slots);
        assert_eq!(slots.begin_discard(), Some(VolumePageRun { first: VolumePage(64), count: 64 }), "slot 0 is in use");
        assert_eq!(slots.begin_discard(), None, "the third word was never used");
        assert_eq!(slots.free(), 127);
        slots.end_discard(VolumePageRun { first: VolumePage(64), count: 64 });
        assert_eq!((slots.free(), slots.begin_discard()), (191, None));
    }

    #[test]
    fn slots_that_were_used_again_are_not_discarded_soon() {
        let mut slots = VolumePages::new(64);
        let run = slots.take(32).unwrap();
        run.slots().for_each(|slot| slots.release(slot));
        wait(&mut slots);
        let again = slots.take(1).unwrap();
        slots.release(again.first);
        wait(&mut slots);
        assert_eq!(slots.begin_discard(), Some(VolumePageRun { first: VolumePage(0), count: 64 }));
    }

    #[test]
    fn short_runs_are_discarded_later_and_single_slots_are_kept() {
        let mut slots = VolumePages::new(64);
        let taken: Vec<VolumePage> = std::iter::from_fn(|| slots.take(32)).flat_map(VolumePageRun::slots).collect();
        let (short, long) = (3..3 + DISCARD_SHORT_PAGES_MIN - 1, 20..20 + DISCARD_SHORT_PAGES_MIN);
        let is_free = |slot: &&VolumePage| short.contains(&slot.0) || long.contains(&slot.0);
        taken.iter().filter(is_free).for_each(|slot| slots.release(*slot));
        let free = slots.free();
        (0..DISCARD_SHORT_AFTER_LOOKS).for_each(|_| assert_eq!(slots.begin_discard(), None, "so early"));
        let run = VolumePageRun { first: VolumePage(20), count: DISCARD_SHORT_PAGES_MIN };
        assert_eq!(slots.begin_discard(), Some(run));
        assert_eq!(slots.free(), free - u64::from(run.count));
        slots.end_discard(run);
        assert_eq!((slots.begin_discard(), slots.free()), (None, free), "the shorter run stays");
        assert_eq!(slots.take(1).unwrap().first, VolumePage(3), "and is taken again");
    }

    proptest! {
        #[test]
        fn runs_begin_where_enough_bits_are_set(free in any::<u64>(), length in 1_u32..=32) {
            for start in 0..64 {
                let fits = start + length <= 64 && (start..start + length).all(|bit| free >> bit & 1 == 1);
                prop_assert_eq!(starts_of_runs(free, length) >> start & 1 == 1, fits);
            }
        }

        /// Against plain counts: no slot is given out while a page refers to it, and none is ever forgotten.
        #[test]
        fn counts_are_exact(steps in proptest::collection::vec((0_u8..4, any::<u16>()), 1..200)) {
            let mut slots = VolumePages::new(130);
            let mut model = std::collections::BTreeMap::<u32, u64>::new();
            for (step, choice) in steps {
                let held = model.keys().copied().nth(usize::from(choice) % model.len().max(1));
                match (step, held) {
                    (0, _) => for slot in slots.take(usize::from(choice) % 32 + 1).into_iter().flat_map(VolumePageRun::slots) {
                        prop_assert_eq!(model.insert(slot.0, 1), None);
                    },
                    (1, Some(slot)) => {
                        slots.retain(VolumePage(slot));
                        *model.get_mut(&slot).unwrap() += 1;
                    }
                    (2, Some(slot)) => {
                        slots.release(VolumePage(slot));
                        let count = model.get_mut(&slot).unwrap();
                        *count -= 1;
                        if *count == 0 {
                            model.remove(&slot);
                        }
                    }
                    _ => discard_all(&mut slots),
                }
                for (slot, count) in &model {
                    prop_assert_eq!(slots.references(VolumePage(*slot)), *count);
                }
            }
            discard_all(&mut slots);
            prop_assert_eq!(slots.free(), 130 - model.len() as u64);
        }
    }
}
