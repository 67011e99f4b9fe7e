//! A small map from page to backlog slot that never allocates after it was made.
//!
//! Linear probing with backward-shift deletion (Knuth, TAOCP 3, 6.4, algorithm R), at most half full.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use crate::slab_map::page_index::PageIndex;

/// A fixed-capacity map from page number to slot number.
#[derive(Debug)]
pub struct PageTable {
    entries: Box<[Option<(PageIndex, u32)>]>,
    length: usize,
}

impl PageTable {
    /// Room for `capacity` pages.
    pub fn new(capacity: usize) -> Self {
        let size = (capacity.max(1) * 2).next_power_of_two();
        Self { entries: vec![None; size].into_boxed_slice(), length: 0 }
    }

    /// The slot of `page`.
    pub fn get(&self, page: PageIndex) -> Option<u32> {
        self.entries[self.find(page)].map(|(_, slot)| slot)
    }

    /// Sets the slot of `page`, and returns the one before.
    pub fn insert(&mut self, page: PageIndex, slot: u32) -> Option<u32> {
        let position = self.find(page);
        let before = self.entries[position].replace((page, slot)).map(|(_, slot)| slot);
        if before.is_none() {
            self.length += 1;
            assert!(self.length * 2 <= self.entries.len(), "a page table is at most half full");
        }
        before
    }

    /// Forgets `page`, and returns its slot.
    pub fn remove(&mut self, page: PageIndex) -> Option<u32> {
        let mut hole = self.find(page);
        let (_, slot) = self.entries[hole].take()?;
        self.length -= 1;
        let mut position = hole;
        loop {
            position = self.next(position);
            let Some((page, _)) = self.entries[position] else { break };
            // An entry may move into the hole unless its home lies between the hole and itself.
            let mask = self.entries.len() - 1;
            let from_home = position.wrapping_sub(self.home(page)) & mask;
            let from_hole = position.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.entries[hole] = self.entries[position].take();
                hole = position;
            }
        }
        Some(slot)
    }

    /// Where `page` is, or the empty place where it would go.
    fn find(&self, page: PageIndex) -> usize {
        let mut position = self.home(page);
        while self.entries[position].is_some_and(|(other, _)| other != page) {
            position = self.next(position);
        }
        position
    }

    fn home(&self, page: PageIndex) -> usize {
        // Fibonacci hashing (Knuth, 6.4): neighbouring pages spread over the whole table.
        let bits = self.entries.len().trailing_zeros();
        (page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits)) as usize
    }

    fn next(&self, position: usize) -> usize {
        (position + 1) & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn agrees_with_a_hash_map(steps in prop::collection::vec((0u8..3, 0u64..24, 0u32..100), 1..200)) {
            let mut table = PageTable::new(16);
            let mut model = HashMap::new();
            for (kind, page, slot) in steps {
                let page = PageIndex(page);
                match kind {
                    0 if model.len() < 16 || model.contains_key(&page) => {
                        prop_assert_eq!(table.insert(page, slot), model.insert(page, slot));
                    }
                    1 => prop_assert_eq!(table.remove(page), model.remove(&page)),
                    _ => {}
                }
                for page in (0..24).map(PageIndex) {
                    prop_assert_eq!(table.get(page), model.get(&page).copied());
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "half full")]
    fn overfilling_is_a_bug() {
        let mut table = PageTable::new(2);
        (0..3).for_each(|page| assert!(table.insert(PageIndex(page), 0).is_none()));
    }
}
