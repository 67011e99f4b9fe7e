//! Changes of a program's mappings that were told, until it is known in which order they happened.
//!
//! The kernel changes mappings under a lock of the address space and tells of it after that lock was given up
//! (`userfaultfd_unmap_complete`, `mremap_userfaultfd_complete` in fs/userfaultfd.c). A thread that loses its CPU in
//! between tells late. Meanwhile another thread may have got the addresses that it gave up: "Z moved to X" is read,
//! and then "X is unmapped", of what was at X before. Taken in the order in which they are read, the pages of Z are
//! forgotten and read as zeroes. A test of six seconds with eight threads on two CPUs saw it once in fifty runs.
//!
//! Two facts make the order known:
//! - While any change was not told, or its thread did not go on since, the kernel fills and moves no page and says
//!   so. So changes are collected here, and taken over into the page table when nothing is under way: then all were
//!   told.
//! - Pages move only to where nothing is mapped. A move onto memory that is still mapped by all that was told is *in
//!   debt*: the end of what was there is late, and belongs before the move. If more than one is told of these
//!   addresses, it is the first: the thread that moved the pages waits for a second message to be read, and before that
//!   no thread reads for a moment ([`crate::mappings::late_event`]), in which the late one is queued.
//!
//! A late end is the only message that comes too late. All others concern memory that its thread still has.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::ops::Range;

use spillway_sys::moves_under_way::Move;

use crate::limits::DOUBTS_MAX;
use crate::page_table::ranges::Ranges;
use crate::process::memory::ProgramMemory;

/// One change.
pub enum Change {
    /// Pages are taken away (MADV_DONTNEED), after this was read.
    Remove(Range<u64>),
    /// The range is not mapped any more.
    Unmap(Range<u64>),
    /// Pages moved, and what they came from is not mapped any more.
    Remap {
        /// The old address.
        from: u64,
        /// The new one.
        to: u64,
        /// Bytes.
        length: u64,
    },
    /// The process forked: the child's memory, and what of it reads as zeroes (MADV_WIPEONFORK).
    Fork(Box<dyn ProgramMemory>, Ranges),
}

/// What is at the place of a move now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A mapping that begins where the move went to.
    Mapped,
    /// Nothing that is registered.
    Hole,
    /// A mapping that begins before it: one that grew, or two that became one.
    None,
}

/// See the module text.
#[derive(Default)]
pub struct MappingEvents {
    /// In the order in which they were read.
    told: Vec<Change>,
    /// Old places of moves: the kernel unmaps them too, and tells of it separately.
    ends_expected: Vec<Range<u64>>,
    /// How often it was waited for one.
    doubts: u32,
    /// Moves that were seen under way and are not told yet, each with the number of the told move that it precedes.
    late: Vec<(usize, Move)>,
    /// What they proved since.
    proved: Vec<Proved>,
}

impl MappingEvents {
    /// Whether all changes are applied.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty() && self.ends_expected.is_empty()
    }

    /// Takes all changes, in the order in which they happened; nothing may be under way. `mapped` gives the parts of
    /// a range that were known to be mapped and registered when the last changes were applied. `is_mapped` gives what
    /// can be said now of the place of a move and a page in it. `None` if nothing can be said now.
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
        // All starts anew. Ends that are still expected never come: with MREMAP_DONTUNMAP the old place stays mapped,
        // and none is told.
        let mut told: Vec<Option<Change>> = std::mem::take(self).told.into_iter().map(Some).collect();
        let take = |step| match step {
            Step::Whole(index) => told[index].take().expect("each change has one place"),
            Step::End(range) => Change::Unmap(range),
        };
        Some(steps.into_iter().map(take).collect())
    }

    /// `range` is taken away by `madvise`.
    pub fn remove(&mut self, range: Range<u64>) {
        self.told.push(Change::Remove(range));
    }

    /// The process forked.
    pub fn fork(&mut self, child: Box<dyn ProgramMemory>, wiped: Ranges) {
        self.told.push(Change::Fork(child, wiped));
    }

    /// `range` is not mapped any more.
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

    /// `moves` are under way while the event of the last change may be late. One that was not told yet, and takes
    /// something away from where that change moved pages to, was made before it: so it is known when it is told, also
    /// if the thread that moved those pages moved them on meanwhile.
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

    /// Whether such a move was told; its thread may not have left the call yet.
    fn is_told(&self, one: Move) -> bool {
        let is_one =
            |change: &Change| matches!(*change, Change::Remap { from, to, length } if one == Move { from, to, length });
        self.told.iter().any(is_one)
    }

    /// Whether to wait before more is read: an end is still to be told that belongs before a move, and the thread
    /// that moved those pages still waits. `mapped` as for [`MappingEvents::apply_events`].
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

/// One step of what happened.
enum Step {
    /// Change number ... as it was told.
    Whole(usize),
    /// A part of an end.
    End(Range<u64>),
}

/// How an end lies to a move whose place it concerns, as what is mapped in the end proves.
#[derive(Clone, Copy)]
struct Proved {
    /// Numbers of the two changes.
    moving: usize,
    end: usize,
    is_before: bool,
}

/// Changes in the order in which they happened.
struct Order<'a, Mapped> {
    told: &'a [Change],
    mapped: Mapped,
    proved: &'a [Proved],
    /// Of each change whether it has its place; of an end the parts that have none yet.
    is_placed: Vec<bool>,
    rest: Vec<Ranges>,
    steps: Vec<Step>,
    /// Where moves came from that went onto memory whose end was not told.
    in_debt: Vec<Range<u64>>,
}

impl<'a, Mapped: Fn(&Range<u64>) -> Vec<Range<u64>>> Order<'a, Mapped> {
    /// As they were read, but what must precede a move goes before it.
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

    /// Places whatever ends what is mapped at `target`, to which move number `index` takes pages. False: that was not
    /// told.
    fn free(&mut self, index: usize, target: &Range<u64>) -> bool {
        // What was told before the move goes before it also when both are: only its own thread, which waited
        // for that, could take away what it had moved.
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

    /// Places an end as far as it concerns `target`.
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

    /// The first change without a place that ends some of `mapped`, and is none of `others`.
    fn next_end(&self, mapped: &Ranges, others: &[usize]) -> Option<usize> {
        let is_free = |index: &usize| !self.is_placed[*index] && !others.contains(index);
        (0..self.told.len()).filter(is_free).find(|index| match &self.told[*index] {
            Change::Unmap(_) => self.rest[*index].iter().any(|part| !mapped.within(&part).is_empty()),
            other => other.end().is_some_and(|end| !mapped.within(&end).is_empty()),
        })
    }

    /// A move and an end of what lies where it went to, in an order by which that would be mapped now and is not, or
    /// the other way round: what was registered before is not known exactly. `None`: that cannot be said now.
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

    /// What of `target` is mapped after the steps so far.
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
    /// What is not mapped any more after it.
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
