//! Disjoint ranges of addresses: what of a program is registered with its userfaultfd and was probed (rule 1 of
//! docs/pager.md).

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of addresses, as ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// End by start.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Whether all of `range` is in the set.
    pub fn contain(&self, range: &Range<u64>) -> bool {
        self.ends.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }

    /// Adds `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&other_start, &other_end)) =
            self.ends.range(..=end).next_back().filter(|(_, last)| **last >= start)
        {
            start = start.min(other_start);
            end = end.max(other_end);
            self.ends.remove(&other_start);
        }
        self.ends.insert(start, end);
    }

    /// Takes `range` out, as far as it is in.
    pub fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.ends.range(..range.end).next_back().filter(|(_, end)| **end > range.start)
        {
            self.ends.remove(&start);
            if end > range.end {
                self.ends.insert(range.end, end);
            }
            if start < range.start {
                self.ends.insert(start, range.start);
            }
        }
    }

    /// The parts of `range` that are in.
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.ends.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let parts =
            self.ends.range(first..range.end).map(|(start, end)| *start.max(&range.start)..*end.min(&range.end));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    /// Whether nothing is in.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_is_a_set(steps in proptest::collection::vec((any::<bool>(), 0_u64..64, 0_u64..16), 0..40)) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (insert, start, length) in steps {
                let range = start..start + length;
                if insert {
                    ranges.insert(range.clone());
                    model.extend(range);
                } else {
                    ranges.remove(&range);
                    model.retain(|address| !range.contains(address));
                }
                let listed: BTreeSet<u64> = ranges.iter().flatten().collect();
                prop_assert_eq!(&listed, &model);
                let ends: Vec<_> = ranges.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].end < pair[1].start), "{ends:?}");
                for start in 0..80 {
                    let asked = start..start + 3;
                    prop_assert_eq!(ranges.contain(&asked), asked.clone().all(|address| model.contains(&address)));
                    let within: Vec<u64> = ranges.within(&asked).into_iter().flatten().collect();
                    let expected: Vec<u64> = asked.filter(|address| model.contains(address)).collect();
                    prop_assert_eq!(within, expected);
                }
            }
        }
    }
}
