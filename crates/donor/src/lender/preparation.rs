//! Which slabs to make ahead, and which of those made to give up. Decisions only.
//!
//! Every slab size that a borrower uses has prepared slabs of its own. With those of the newest borrower alone, two
//! devices of different sizes would make each other wait: each new lease of one would throw the other's away. The
//! number of sizes is bounded; the ones of the newest sessions count.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::VecDeque;

use super::lending::Making;
use super::{Lender, Make, Output, SlabId};
use crate::limits::PREPARED_SIZES_MAX;

/// What to do about prepared slabs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make one of this size.
    Prepare(u64),
    /// Give one of this size back to the machine.
    GiveUp(u64),
    /// All is as it should be, or cannot be better.
    Nothing,
}

/// The sizes to prepare: of `used`, newest first, each once and at most [`PREPARED_SIZES_MAX`]; `hint` if none is used.
pub fn sizes(used: impl Iterator<Item = u64>, hint: u64) -> Vec<u64> {
    let mut sizes = Vec::with_capacity(PREPARED_SIZES_MAX);
    for size_bytes in used {
        if sizes.len() < PREPARED_SIZES_MAX && !sizes.contains(&size_bytes) {
            sizes.push(size_bytes);
        }
    }
    if sizes.is_empty() {
        sizes.push(hint);
    }
    sizes
}

/// The next step towards `wanted` slabs of each of `sizes`, when `prepared` are the sizes of those that are there. What
/// no process uses goes first, so that its memory can serve what is used; `preparable_bytes` are there for new ones.
pub fn next(sizes: &[u64], wanted: usize, prepared: &[u64], preparable_bytes: u64) -> Step {
    if let Some(other) = prepared.iter().find(|size| !sizes.contains(size)) {
        return Step::GiveUp(*other);
    }
    let count = |size: &u64| prepared.iter().filter(|other| *other == size).count();
    let lacking = sizes.iter().filter(|size| **size <= preparable_bytes && count(size) < wanted);
    // The size that lacks most: no size waits for another to be complete.
    lacking.min_by_key(|size| count(size)).map_or(Step::Nothing, |size| Step::Prepare(*size))
}

/// Slabs made ahead, oldest first.
#[derive(Debug, Default)]
pub(super) struct PreparedSlabs {
    slabs: VecDeque<(SlabId, u64)>,
    bytes: u64,
}

impl PreparedSlabs {
    /// A slab of this size, if one is prepared.
    pub(super) fn take(&mut self, size_bytes: u64) -> Option<SlabId> {
        let index = self.slabs.iter().position(|(_, size)| *size == size_bytes)?;
        self.remove(index).map(|(slab, _)| slab)
    }

    /// The slab that [`take`](Self::take) would take.
    pub(super) fn peek(&self, size_bytes: u64) -> Option<SlabId> {
        self.slabs.iter().find(|(_, size)| *size == size_bytes).map(|(slab, _)| *slab)
    }

    /// The oldest slab, and its size.
    fn take_any(&mut self) -> Option<(SlabId, u64)> {
        self.remove(0)
    }

    fn remove(&mut self, index: usize) -> Option<(SlabId, u64)> {
        let (slab, size_bytes) = self.slabs.remove(index)?;
        assert!(self.bytes >= size_bytes, "the bytes are those of the slabs");
        self.bytes -= size_bytes;
        Some((slab, size_bytes))
    }

    /// Keeps `slab` for a later lease.
    pub(super) fn put(&mut self, slab: SlabId, size_bytes: u64) {
        self.bytes += size_bytes;
        self.slabs.push_back((slab, size_bytes));
    }

    /// The size of each, oldest first.
    fn sizes(&self) -> Vec<u64> {
        self.slabs.iter().map(|(_, size_bytes)| *size_bytes).collect()
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Lender {
    /// Gives up what is too much, and has the next slab made ahead: one at a time, so that a shortage that comes
    /// meanwhile finds little under way.
    pub(super) fn tend_prepared(&mut self) {
        while let Some((slab, size_bytes)) = self.excess_slab() {
            self.free(slab, size_bytes);
        }
        if self.is_draining || self.making.values().any(Making::is_ahead) {
            return;
        }
        let preparable_bytes = if self.is_exhausted { 0 } else { self.capacity.preparable_bytes(self.holdings()) };
        let step = next(&self.sizes_in_use(), self.prepared_count, &self.prepared.sizes(), preparable_bytes);
        if let Step::Prepare(size_bytes) = step {
            let slab = self.start_making(Making::ahead(size_bytes));
            self.outputs.push(Output::Make(Make { slab, size_bytes, wanted_by: None }));
        }
    }

    /// A prepared slab that has to go.
    fn excess_slab(&mut self) -> Option<(SlabId, u64)> {
        if self.is_draining || self.capacity.prepared_excess_bytes(self.holdings()) > 0 {
            return self.prepared.take_any();
        }
        let Step::GiveUp(size_bytes) = next(&self.sizes_in_use(), 0, &self.prepared.sizes(), 0) else { return None };
        self.prepared.take(size_bytes).map(|slab| (slab, size_bytes))
    }

    fn sizes_in_use(&self) -> Vec<u64> {
        let used = self.sessions.open.values().rev().map(|session| session.slab_size_bytes);
        sizes(used, self.slab_size_hint_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_those_of_the_newest_sessions_once_each() {
        assert_eq!(sizes([].into_iter(), 4), [4]);
        assert_eq!(sizes([2, 1, 2, 2].into_iter(), 4), [2, 1]);
        let many: Vec<u64> = (0..20).collect();
        assert_eq!(sizes(many.iter().copied(), 4), many[..PREPARED_SIZES_MAX]);
    }

    #[test]
    fn prepared_slabs_are_found_by_size() {
        let mut prepared = PreparedSlabs::default();
        (0..3).zip([1, 2, 1]).for_each(|(slab, size_bytes)| prepared.put(SlabId(slab), size_bytes));
        assert_eq!((prepared.sizes(), prepared.bytes()), (vec![1, 2, 1], 4));
        assert_eq!((prepared.take(4), prepared.take(2), prepared.take(2)), (None, Some(SlabId(1)), None));
        assert_eq!((prepared.take_any(), prepared.take(1)), (Some((SlabId(0), 1)), Some(SlabId(2))));
        assert_eq!((prepared.take_any(), prepared.bytes()), (None, 0));
    }

    #[test]
    fn two_sizes_do_not_push_each_other_out() {
        assert_eq!(next(&[1, 2], 2, &[1, 1, 2, 2], 100), Step::Nothing);
        assert_eq!(next(&[1, 2], 2, &[1, 1, 2], 100), Step::Prepare(2));
        assert_eq!(next(&[1, 2], 2, &[2, 2], 100), Step::Prepare(1));
    }

    #[test]
    fn what_is_unused_goes_before_anything_is_made() {
        assert_eq!(next(&[1], 2, &[1, 8, 1], 100), Step::GiveUp(8));
        assert_eq!(next(&[1], 2, &[8], 0), Step::GiveUp(8));
    }

    #[test]
    fn what_does_not_fit_is_not_made_and_does_not_keep_a_smaller_one_from_it() {
        assert_eq!(next(&[64, 1], 2, &[], 10), Step::Prepare(1));
        assert_eq!(next(&[64], 2, &[], 10), Step::Nothing);
    }

    proptest! {
        #[test]
        fn preparing_comes_to_an_end_with_all_that_fits(
            used in prop::collection::vec(0_u32..6, 0..8),
            mut prepared in prop::collection::vec((0_u32..6).prop_map(|power| 1_u64 << power), 0..8),
            wanted in 0_usize..4,
            memory in 0_u64..200,
        ) {
            let sizes = sizes(used.iter().map(|power| 1_u64 << power), 1);
            for _ in 0..100 {
                let held: u64 = prepared.iter().sum();
                match next(&sizes, wanted, &prepared, memory.saturating_sub(held)) {
                    Step::Nothing => break,
                    Step::Prepare(size) => prepared.push(size),
                    Step::GiveUp(size) => {
                        prop_assert!(!sizes.contains(&size));
                        let index = prepared.iter().position(|other| *other == size).unwrap();
                        prepared.remove(index);
                    }
                }
            }
            let held: u64 = prepared.iter().sum();
            prop_assert_eq!(next(&sizes, wanted, &prepared, memory.saturating_sub(held)), Step::Nothing);
            for size in sizes {
                let count = prepared.iter().filter(|other| **other == size).count();
                prop_assert!(count >= wanted || held + size > memory);
            }
        }
    }
}
