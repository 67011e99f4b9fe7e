//! A key-value store under Zipf's law: what memcached's and Redis's benchmarks do, without the network.
//!
//! An open-addressing hash table of entry numbers over an array of entries, each a key, a version and a value that
//! follows from both. Nine in ten operations read, one writes the next version (YCSB's workload B has 95:5, A 50:50).
//! Popular keys are scattered over all pages.
//!
//! Invariant: a read finds the key with its latest version and a value that belongs to both.

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::permutation::Permutation;
use crate::random::{Random, mix, word_at};
use crate::zipf::Zipf;

/// Words of a value: 496 bytes, so that an entry has 512; about the mean of Facebook's ETC (Atikoglu 2012).
const VALUE_WORDS: usize = 62;

/// Share of the table that is used at most is its inverse: at 2, a look-up takes about 1.5 probes.
const SLOTS_PER_ENTRY: usize = 2;

/// Operations for each entry: enough that popular ones stay local, and few enough that a run over a disk ends.
const OPERATIONS_PER_ENTRY: usize = 1;

/// One operation in so many writes.
const OPERATIONS_PER_WRITE: u64 = 10;

/// YCSB's default.
const SKEW: f64 = 0.99;

/// An empty slot.
const EMPTY: u32 = u32::MAX;

/// Reads and writes keys by popularity.
#[derive(Clone, Copy, Debug)]
pub struct KeyValue;

#[derive(Clone, Debug)]
struct Entry {
    key: u64,
    version: u64,
    value: [u64; VALUE_WORDS],
}

impl Entry {
    fn new(key: u64, version: u64) -> Self {
        Self { key, version, value: std::array::from_fn(|index| word_at(key ^ version.rotate_left(32), index as u64)) }
    }

    fn is_sound(&self) -> bool {
        self.value == Self::new(self.key, self.version).value
    }
}

/// The store.
#[derive(Debug)]
struct Store {
    slots: Vec<u32>,
    entries: Vec<Entry>,
}

impl Store {
    fn with_capacity(entries: usize) -> Self {
        Self { slots: vec![EMPTY; entries * SLOTS_PER_ENTRY], entries: Vec::with_capacity(entries) }
    }

    /// The slot that holds `key`, or the empty one where it would go.
    fn slot(&self, key: u64) -> usize {
        let mut slot = ((u128::from(mix(key)) * self.slots.len() as u128) >> 64) as usize;
        while self.slots[slot] != EMPTY && self.entry(slot).key != key {
            slot = (slot + 1) % self.slots.len();
        }
        slot
    }

    /// The entry that a used slot names.
    fn entry(&self, slot: usize) -> &Entry {
        &self.entries[self.slots[slot] as usize]
    }

    fn get(&self, key: u64) -> Option<&Entry> {
        self.entries.get(self.slots[self.slot(key)] as usize)
    }

    fn put(&mut self, entry: Entry) {
        let slot = self.slot(entry.key);
        match self.slots[slot] {
            EMPTY => {
                assert!((self.entries.len() + 1) * SLOTS_PER_ENTRY <= self.slots.len(), "the store is full");
                self.slots[slot] = self.entries.len() as u32;
                self.entries.push(entry);
            }
            place => {
                self.entries[place as usize] = entry;
            }
        }
    }
}

/// The key of item `item`.
fn key_of(seed: u64, item: u64) -> u64 {
    word_at(seed, item)
}

impl Workload for KeyValue {
    fn name(&self) -> &'static str {
        "key-value"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let (pages, seed) = (settings.size.pages(), settings.seed);
        let items = settings.size.0 / (size_of::<Entry>() + SLOTS_PER_ENTRY * size_of::<u32>()) as u64;
        let mut store = Store::with_capacity(items as usize);
        clock.measure("load", pages, || (0..items).for_each(|item| store.put(Entry::new(key_of(seed, item), 0))));
        let operations = items * OPERATIONS_PER_ENTRY as u64;
        let writes = clock.measure("operate", operations, || self.operate(&mut store, items, operations, seed))?;
        clock.measure("check", pages, || self.check(&store, items, writes, seed))
    }
}

impl KeyValue {
    /// Gives the number of writes.
    fn operate(&self, store: &mut Store, items: u64, operations: u64, seed: u64) -> Result<u64, WorkloadError> {
        let (zipf, scattered) = (Zipf::new(items, SKEW), Permutation::new(items, seed));
        let (mut random, mut writes) = (Random::new(seed ^ 1), 0);
        for _ in 0..operations {
            let key = key_of(seed, scattered.at(zipf.next(&mut random)));
            let version = self.read(store, key)?;
            if random.below(OPERATIONS_PER_WRITE) == 0 {
                store.put(Entry::new(key, version + 1));
                writes += 1;
            }
        }
        Ok(writes)
    }

    /// Checks the entry of `key` and gives its version.
    fn read(&self, store: &Store, key: u64) -> Result<u64, WorkloadError> {
        let entry = store.get(key).ok_or_else(|| wrong(self, format!("key {key:016x} is gone")))?;
        if entry.is_sound() {
            Ok(entry.version)
        } else {
            Err(wrong(self, format!("the value of key {key:016x} differs")))
        }
    }

    fn check(&self, store: &Store, items: u64, writes: u64, seed: u64) -> Result<Checksum, WorkloadError> {
        let (mut checksum, mut versions) = (Ordered::default(), 0);
        for item in 0..items {
            let key = key_of(seed, item);
            let version = self.read(store, key)?;
            versions += version;
            checksum.add(key);
            checksum.add(version);
        }
        if versions == writes {
            Ok(checksum.finish())
        } else {
            Err(wrong(self, format!("{writes} writes were made, the entries say {versions}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_fills_an_eighth_of_a_page() {
        assert_eq!(size_of::<Entry>(), 512);
    }

    #[test]
    fn a_changed_value_a_lost_key_and_a_lost_write_are_found() {
        let mut store = Store::with_capacity(10);
        (0..10).for_each(|item| store.put(Entry::new(key_of(1, item), 0)));
        assert!(KeyValue.check(&store, 10, 0, 1).is_ok());
        assert!(KeyValue.check(&store, 11, 0, 1).unwrap_err().to_string().contains("is gone"));
        assert!(KeyValue.check(&store, 10, 1, 1).unwrap_err().to_string().contains("1 writes"));
        store.entries[3].value[60] ^= 4;
        assert!(KeyValue.check(&store, 10, 0, 1).unwrap_err().to_string().contains("differs"));
    }

    #[test]
    #[should_panic(expected = "full")]
    fn a_full_store_refuses_another_key() {
        let mut store = Store::with_capacity(2);
        (0..3).for_each(|key| store.put(Entry::new(key, 0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_store_is_a_map(operations in proptest::collection::vec((0_u64..40, any::<u64>()), 0..200)) {
            let (mut store, mut model) = (Store::with_capacity(40), HashMap::new());
            for (key, version) in operations {
                prop_assert_eq!(store.get(key).map(|entry| entry.version), model.get(&key).copied());
                store.put(Entry::new(key, version));
                model.insert(key, version);
            }
            for key in 0..40 {
                prop_assert_eq!(store.get(key).map(|entry| entry.version), model.get(&key).copied());
            }
        }
    }
}
