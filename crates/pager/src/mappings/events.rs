//! Reported changes of a program's mappings, kept until the order in which they happened is known.
//!
//! The kernel changes mappings under a lock of the address space, and reports the change after the release of that lock
//! (`userfaultfd_unmap_complete`, `mremap_userfaultfd_complete` in fs/userfaultfd.c). A thread that loses its CPU in
//! between reports late. Another thread may have got the released addresses meanwhile. The pager then reads "Z moved to
//! X" before "X is unmapped", where the second message is about the former mapping at X. Applied in the order of
//! reading, the two messages lose the pages of Z, which read as zeroes. A test of six seconds with eight threads on two
//! CPUs saw this once in fifty runs.
//!
//! Two facts make the order known:
//! - While a change is not reported, or its thread has not continued, the kernel fills and moves no page and says so.
//!   Changes are therefore collected here, and applied to the page table when no change is under way: then all changes
//!   were reported.
//! - Pages move only to addresses where nothing is mapped. A move onto memory that is mapped by all reports so far
//!   is *in debt*: the end of the former mapping is late, and belongs before the move. If more than one end of these
//!   addresses is reported, the first one is the late one. The thread that moved the pages waits until its second
//!   message is read, and before that no thread reads for a moment ([`crate::mappings::late_event`]), in which the late
//!   end is queued.
//!
//! The late end of a mapping is the only message that comes too late. All others concern memory that its thread still
//! has.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::ops::Range;

use spillway_sys::moves_under_way::Move;

use crate::limits::DOUBTS_MAX;
use crate::page_table::ranges::Ranges;
use crate::process::memory::ProgramMemory;

/// One reported change.
pub enum Change {
    /// Pages are discarded (MADV_DONTNEED) after this message was read.
    Remove(Range<u64>),
    /// The range is unmapped.
    Unmap(Range<u64>),
    /// Pages moved, and their old addresses are unmapped.
    Remap {
        /// The old address.
        from: u64,
        /// The new one.
        to: u64,
        /// Bytes.
        length: u64,
    },
    /// The process forked: the memory of the child, and the part of it that reads as zeroes (MADV_WIPEONFORK).
    Fork(Box<dyn ProgramMemory>, Ranges),
}

/// What is mapped now at the new address of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A mapping that begins at the new address.
    Mapped,
    /// No registered mapping.
    Hole,
    /// A mapping that begins before the new address: a mapping that grew, or two that were merged.
    None,
}

/// See the module text.
#[derive(Default)]
pub struct MappingEvents {
    /// The changes in the order of reading.
    told: Vec<Change>,
    /// Old addresses of moves: the kernel unmaps these too, and reports that separately.
    ends_expected: Vec<Range<u64>>,
    /// The number of waits for an end.
    doubts: u32,
    /// Moves that were seen under way and are not reported yet, each with the number of the reported move after it.
    late: Vec<(usize, Move)>,
    /// What these moves have proved since.
    proved: Vec<Proved>,
}

impl MappingEvents {
    /// Whether all changes are applied.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty() && self.ends_expected.is_empty()
    }

    /// Takes all changes in the order in which they happened; no change may be under way. `mapped` gives the parts of a
    /// range that were mapped and registered when the last changes were applied. `is_mapped` gives what is known now of
    /// the new address of a move and a page in it. `None` if the order cannot be known now.
    pub fn apply_events(
        &mut self,
        mapped: impl Fn(&Range<u64>) -> Vec<Range<u64>>,
        is_mapped: impl Fn(u64, u64) -> Option<Evidence>,
    ) -> Option<Vec<Change>> {
        let mut proved = self.proved.clone();
        let steps = loop {
            let order = Order::of(&self.told, &mapped, &proved);
            match order.contradiction(&is_mapped)? {
                Some(pair) => proved.push(pair),
                None => break order.steps,
            }
        };
        // All starts anew. Ends that are still expected never come: with MREMAP_DONTUNMAP the old addresses stay
        // mapped, and no end is reported.
        let mut told: Vec<Option<Change>> = std::mem::take(self).told.into_iter().map(Some).collect();
        let take = |step| match step {
            Step::Whole(index) => told[index].take().expect("each change has one place"),
            Step::End(range) => Change::Unmap(range),
        };
        Some(steps.into_iter().map(take).collect())
    }

    /// `range` is discarded by `madvise`.
    pub fn remove(&mut self, range: Range<u64>) {
        self.told.push(Change::Remove(range));
    }

    /// The process forked.
    pub fn fork(&mut self, child: Box<dyn ProgramMemory>, wiped: Ranges) {
        self.told.push(Change::Fork(child, wiped));
    }

    /// `range` is unmapped.
    pub fn unmap(&mut self, range: Range<u64>) {
        match self.ends_expected.iter().position(|expected| *expected == range) {
            Some(index) => drop(self.ends_expected.swap_remove(index)),
            None => self.told.push(Change::Unmap(range)),
        }
    }

    /// `length` bytes moved from `from` to `to`.
    pub fn remap(&mut self, from: u64, to: u64, length: u64) {
        let this = Move { from, to, length };
        if let Some(index) = self.late.iter().position(|(_, late)| *late == this) {
            let (moving, _) = self.late.swap_remove(index);
            self.proved.push(Proved { moving, end: self.told.len(), is_before: true });
        }
        self.told.push(Change::Remap { from, to, length });
        self.ends_expected.push(from..from + length);
    }

    /// `moves` are under way while the event of the last change may be late. A move that is not reported yet, and takes
    /// memory away from the new addresses of that change, was made before that change. Its place is known when
    /// it is reported, also if the thread that moved those pages has moved them on meanwhile.
    pub fn seen_under_way(&mut self, moves: &[Move]) {
        let Some(moving) = self.told.len().checked_sub(1) else { return };
        let Change::Remap { to, length, .. } = self.told[moving] else { return };
        let is_before = |late: &Move| late.from < to + length && to < late.from + late.length;
        for late in moves.iter().copied().filter(is_before) {
            if !self.is_told(late) && !self.late.contains(&(moving, late)) {
                self.late.push((moving, late));
            }
        }
    }

    /// Whether such a move was reported; its thread may not have left the call yet.
    fn is_told(&self, one: Move) -> bool {
        let is_one =
            |change: &Change| matches!(*change, Change::Remap { from, to, length } if one == Move { from, to, length });
        self.told.iter().any(is_one)
    }

    /// Whether to wait before the next message is read: an end that belongs before a move is not reported yet, and the
    /// thread that moved those pages still waits. `mapped` as for [`MappingEvents::apply_events`].
    pub fn is_in_doubt(&mut self, mapped: impl Fn(&Range<u64>) -> Vec<Range<u64>>) -> bool {
        if self.ends_expected.is_empty() || self.doubts >= DOUBTS_MAX {
            return false;
        }
        let in_debt = Order::of(&self.told, mapped, &[]).in_debt;
        let is_in_doubt = in_debt.iter().any(|source| self.ends_expected.contains(source));
        self.doubts += u32::from(is_in_doubt);
        is_in_doubt
    }
}

/// One step of the order.
enum Step {
    /// The change with this number, as it was reported.
    Whole(usize),
    /// A part of an unmapped range.
    End(Range<u64>),
}

/// The order of an end and a move at the same addresses, as the final mappings prove.
#[derive(Clone, Copy)]
struct Proved {
    /// The numbers of the two changes.
    moving: usize,
    end: usize,
    is_before: bool,
}

/// Changes in the order in which they happened.
struct Order<'a, Mapped> {
    told: &'a [Change],
    mapped: Mapped,
    proved: &'a [Proved],
    /// Whether each change has its place; for an end, the parts without a place.
    is_placed: Vec<bool>,
    rest: Vec<Ranges>,
    steps: Vec<Step>,
    /// Old addresses of moves onto memory whose end was not reported.
    in_debt: Vec<Range<u64>>,
}

impl<'a, Mapped: Fn(&Range<u64>) -> Vec<Range<u64>>> Order<'a, Mapped> {
    /// The order of reading, except that what must precede a move goes before that move.
    fn of(told: &'a [Change], mapped: Mapped, proved: &'a [Proved]) -> Self {
        let rest =
            told.iter().map(|change| if let Change::Unmap(range) = change { one(range) } else { Ranges::default() });
        let mut order = Self {
            told,
            mapped,
            proved,
            is_placed: vec![false; told.len()],
            rest: rest.collect(),
            steps: Vec::with_capacity(told.len()),
            in_debt: Vec::new(),
        };
        for index in 0..told.len() {
            if !order.is_placed[index] {
                order.place(index);
            }
        }
        order
    }

    fn place(&mut self, index: usize) {
        self.is_placed[index] = true;
        match &self.told[index] {
            Change::Unmap(_) => self.steps.extend(std::mem::take(&mut self.rest[index]).iter().map(Step::End)),
            Change::Remap { from, to, length } => {
                if !self.free(index, &(*to..to + length)) {
                    self.in_debt.push(*from..from + length);
                }
                self.steps.push(Step::Whole(index));
            }
            Change::Remove(_) | Change::Fork(..) => self.steps.push(Step::Whole(index)),
        }
    }

    /// Places the ends of what is mapped at `target`, to which move number `index` takes pages. False: such an end was
    /// not reported.
    fn free(&mut self, index: usize, target: &Range<u64>) -> bool {
        // An end that was reported before the move goes before it, also when both kinds were reported: only the thread
        // of the move, which waited for that report, could take away what it had moved.
        (0..index).for_each(|earlier| self.place_end(earlier, target));
        let proved = self.proved;
        let of_this = || proved.iter().filter(|proved| proved.moving == index);
        of_this().filter(|proved| proved.is_before).for_each(|proved| self.place_end(proved.end, target));
        let later: Vec<usize> = of_this().filter(|proved| !proved.is_before).map(|proved| proved.end).collect();
        loop {
            let mapped = self.mapped_now(target);
            if mapped.is_empty() {
                return true;
            }
            let Some(next) = self.next_end(&mapped, &later) else { return false };
            self.place_end(next, target);
        }
    }

    /// Places the part of an end that concerns `target`.
    fn place_end(&mut self, index: usize, target: &Range<u64>) {
        match self.told[index] {
            Change::Unmap(_) => {
                for part in self.rest[index].within(target) {
                    self.rest[index].remove(&part);
                    self.steps.push(Step::End(part));
                }
            }
            Change::Remap { from, length, .. } => {
                if !self.is_placed[index] && from < target.end && target.start < from + length {
                    self.place(index);
                }
            }
            Change::Remove(_) | Change::Fork(..) => {}
        }
    }

    /// The first change without a place that ends a part of `mapped` and is not in `others`.
    fn next_end(&self, mapped: &Ranges, others: &[usize]) -> Option<usize> {
        let is_free = |index: &usize| !self.is_placed[*index] && !others.contains(index);
        (0..self.told.len()).filter(is_free).find(|index| match &self.told[*index] {
            Change::Unmap(_) => self.rest[*index].iter().any(|part| !mapped.within(&part).is_empty()),
            other => other.end().is_some_and(|end| !mapped.within(&end).is_empty()),
        })
    }

    /// A move and an end at its new addresses whose order disagrees with what is mapped now. That happens because the
    /// registered memory before them is not known exactly. `None`: that cannot be known now.
    #[allow(clippy::option_option, reason = "no answer, and the answer that there is none")]
    fn contradiction(&self, is_mapped: impl Fn(u64, u64) -> Option<Evidence>) -> Option<Option<Proved>> {
        let is_proved = |moving, end| self.proved.iter().any(|proved| (proved.moving, proved.end) == (moving, end));
        for (moving, change) in self.told.iter().enumerate() {
            let Change::Remap { to, length, .. } = change else { continue };
            for (end, other) in self.told.iter().enumerate().filter(|(end, _)| *end != moving) {
                let Some(range) = other.end() else { continue };
                let both = range.start.max(*to)..range.end.min(to + length);
                if both.is_empty() || is_proved(moving, end) {
                    continue;
                }
                let is_mapped = match is_mapped(*to, both.start)? {
                    Evidence::Mapped => true,
                    Evidence::Hole => false,
                    Evidence::None => continue,
                };
                if is_mapped == self.mapped_now(&(both.start..both.start + 1)).is_empty() {
                    return Some(Some(Proved { moving, end, is_before: is_mapped }));
                }
            }
        }
        Some(None)
    }

    /// The parts of `target` that are mapped after the steps so far.
    fn mapped_now(&self, target: &Range<u64>) -> Ranges {
        let mut set = Ranges::default();
        (self.mapped)(target).into_iter().for_each(|part| set.insert(part));
        for step in &self.steps {
            match step {
                Step::End(range) => set.remove(range),
                Step::Whole(index) => {
                    if let Change::Remap { from, to, length } = &self.told[*index] {
                        set.remove(&(*from..from + length));
                        set.insert((*to).max(target.start)..(to + length).min(target.end));
                    }
                }
            }
        }
        set
    }
}

fn one(range: &Range<u64>) -> Ranges {
    let mut set = Ranges::default();
    set.insert(range.clone());
    set
}

impl Change {
    /// The range that is unmapped after the step.
    fn end(&self) -> Option<Range<u64>> {
        match self {
            Self::Unmap(range) => Some(range.clone()),
            Self::Remap { from, length, .. } => Some(*from..from + length),
            Self::Remove(_) | Self::Fork(..) => None,
        }
    }
}

impl std::fmt::Debug for MappingEvents {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MappingEvents").field("told", &self.told.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
