//! Adds up what stays local, of one program after the other: by program, and once for each object that several map.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::limits::{STAYING_PROGRAMS_TOLD_MAX, STAYING_RANGES_MAX};
use crate::mappings::staying_kinds::{ObjectId, StayingBytes, StayingKind, StayingMapping};
use crate::page_table::ranges::Ranges;

/// A program, and what of it stays local.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StayingProgram {
    /// Its process.
    pub process: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: String,
    /// What it has in its page tables.
    #[serde(flatten)]
    pub bytes: StayingBytes,
}

/// One round over all programs.
#[derive(Debug, Default)]
pub struct StayingTally {
    /// But for `objects`.
    total: StayingBytes,
    /// Which parts of objects are in memory.
    objects: BTreeMap<(ObjectId, StayingKind), Ranges>,
    /// How many ranges were added to them.
    ranges: usize,
}

impl StayingTally {
    /// The pages at `present` of `mapping` are in memory: pages of its object, or anonymous ones.
    pub fn add(
        &mut self,
        program: &mut StayingProgram,
        mapping: &StayingMapping,
        present: &Range<u64>,
        is_of_object: bool,
    ) {
        let Some(kind) = (if is_of_object { mapping.of_object } else { mapping.anonymous }) else { return };
        let bytes = present.end - present.start;
        program.bytes.add(kind, bytes);
        match mapping.object.filter(|_| is_of_object && self.ranges < STAYING_RANGES_MAX) {
            Some((object, first)) => {
                let offset = |address: u64| first + (address - mapping.range.start);
                let part = offset(present.start)..offset(present.end);
                self.objects.entry((object, kind)).or_default().insert(part);
                self.ranges += 1;
            }
            None => self.total.add(kind, bytes),
        }
    }

    /// As many bytes of `kind` are in memory somewhere in `program`.
    pub fn add_bytes(&mut self, program: &mut StayingProgram, kind: StayingKind, bytes: u64) {
        program.bytes.add(kind, bytes);
        self.total.add(kind, bytes);
    }

    /// What stays of all programs together: objects count once.
    pub fn total(&self) -> StayingBytes {
        let mut total = self.total;
        for ((_, kind), parts) in &self.objects {
            total.add(*kind, parts.iter().map(|part| part.end - part.start).sum());
        }
        total
    }
}

/// What stayed local, at the last round and at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StayingReport {
    /// At the last round.
    pub now: StayingBytes,
    /// The most of each kind.
    pub peak: StayingBytes,
    /// The programs with the most, the largest first; each when it had the most.
    pub programs: Vec<StayingProgram>,
}

impl StayingReport {
    /// A program was looked at.
    pub fn saw(&mut self, program: StayingProgram) {
        let bytes = program.bytes.total_bytes();
        let is_same = |one: &StayingProgram| one.process == program.process && one.name == program.name;
        match self.programs.iter_mut().find(|one| is_same(one)) {
            Some(known) if known.bytes.total_bytes() >= bytes => return,
            Some(known) => *known = program,
            None => self.programs.push(program),
        }
        self.programs.sort_by_key(|one| std::cmp::Reverse(one.bytes.total_bytes()));
        self.programs.truncate(STAYING_PROGRAMS_TOLD_MAX);
    }

    /// A round is over.
    pub fn ended(&mut self, total: StayingBytes) {
        self.now = total;
        self.peak.raise(&total);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;

    fn mapping(start: u64, object: Option<(u64, u64)>) -> StayingMapping {
        StayingMapping {
            is_private: false,
            range: start..start + 64 * PAGE,
            object: object.map(|(inode, offset)| (((0, 1), inode), offset)),
            anonymous: Some(StayingKind::ReadOnly),
            of_object: object.map(|_| StayingKind::Memfd),
        }
    }

    #[test]
    fn an_object_of_two_programs_counts_once_and_for_each() {
        let (mut tally, mut one, mut other) =
            (StayingTally::default(), StayingProgram::default(), StayingProgram::default());
        let base = 1 << 30;
        let pages = |range: Range<u64>| base + range.start * PAGE..base + range.end * PAGE;
        tally.add(&mut one, &mapping(base, Some((7, 0))), &pages(0..10), true);
        tally.add(&mut other, &mapping(base, Some((7, 4 * PAGE))), &pages(0..10), true);
        tally.add(&mut other, &mapping(base, None), &pages(10..12), false);
        tally.add_bytes(&mut other, StayingKind::Locked, 5);
        assert_eq!((one.bytes.memfd_bytes, other.bytes.memfd_bytes), (10 * PAGE, 10 * PAGE));
        let total = tally.total();
        assert_eq!((total.memfd_bytes, total.read_only_bytes, total.locked_bytes), (14 * PAGE, 2 * PAGE, 5));
    }

    #[test]
    fn the_report_has_the_largest_programs_at_their_most() {
        let mut report = StayingReport::default();
        let program = |process: u32, mebibytes: u64| StayingProgram {
            process,
            name: "p".to_owned(),
            bytes: StayingBytes { memfd_bytes: mebibytes << 20, ..StayingBytes::default() },
        };
        for process in 0..100 {
            report.saw(program(process, u64::from(process)));
        }
        report.saw(program(99, 5));
        report.saw(program(98, 200));
        assert_eq!(report.programs.len(), STAYING_PROGRAMS_TOLD_MAX);
        assert_eq!(report.programs[..2], [program(98, 200), program(99, 99)]);
        report.ended(program(0, 9).bytes);
        report.ended(program(0, 3).bytes);
        assert_eq!((report.now.memfd_bytes, report.peak.memfd_bytes), (3 << 20, 9 << 20));
    }

    proptest! {
        #[test]
        fn objects_are_added_up_as_sets_of_pages(
            seen in proptest::collection::vec((0_u64..3, 0_u64..8, 0_u64..50, 0_u64..14, any::<bool>()), 0..60)
        ) {
            let (mut tally, mut program) = (StayingTally::default(), StayingProgram::default());
            let (mut pages, mut anonymous, mut all) = (HashSet::new(), 0, 0);
            for (inode, offset, first, count, is_of_object) in seen {
                let mapping = mapping(1 << 30, Some((inode, offset * PAGE)));
                let present = mapping.range.start + first * PAGE..mapping.range.start + (first + count) * PAGE;
                tally.add(&mut program, &mapping, &present, is_of_object);
                all += count;
                if is_of_object {
                    pages.extend((offset + first..offset + first + count).map(|page| (inode, page)));
                } else {
                    anonymous += count;
                }
            }
            let total = tally.total();
            prop_assert_eq!(total.memfd_bytes, pages.len() as u64 * PAGE);
            prop_assert_eq!(total.read_only_bytes, anonymous * PAGE);
            prop_assert_eq!(program.bytes.total_bytes(), all * PAGE);
        }
    }
}
