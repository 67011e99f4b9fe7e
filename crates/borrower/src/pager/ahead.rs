//! What comes along with a page that a program waits for: the prefetcher's candidates, sorted into what can be done for them.
//!
//! The page that is waited for always goes first; nothing comes along while the budget is nearly used up. A window's marker
//! ([`crate::prefetch`]) stays where it is, so that the fault on it tells how far the program came.

use spillway_fabric::units::PAGE_SIZE_BYTES;

use super::directory::News;
use super::limits::{GROUP_PAGES, MARKERS_MAX};
use super::slots::Slot;
use super::space::group::PageState;
use super::space::{Books, Space};
use crate::page_cache::Evidence;
use crate::prefetch::read_ahead::ReadAhead;
use crate::prefetch::streams::{Faulter, Streams};
use crate::prefetch::{Candidates, VirtualPage};

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// Neighbouring slots that are read at once, and whose content they are.
#[derive(Clone, Debug)]
pub struct Along {
    pages: [(u64, Slot); GROUP_PAGES],
    count: usize,
}

impl Along {
    /// One page.
    pub fn one(address: u64, slot: Slot) -> Self {
        Self { pages: [(address, slot); GROUP_PAGES], count: 1 }
    }

    /// The pages' addresses and slots, in order of slots.
    pub fn pages(&self) -> &[(u64, Slot)] {
        &self.pages[..self.count]
    }

    /// Adds a page whose slot is the next one, if there is room.
    fn add(&mut self, address: u64, slot: Slot) -> bool {
        let last = self.pages[self.count - 1].1;
        let fits = self.count < GROUP_PAGES && slot.0 == last.0 + 1;
        if fits {
            self.pages[self.count] = (address, slot);
            self.count += 1;
        }
        fits
    }
}

/// See the module text.
pub struct Ahead {
    streams: Streams<ReadAhead>,
    candidates: Candidates,
    /// Markers that were not reached yet, the oldest overwritten first.
    markers: [(u32, u64); MARKERS_MAX],
    next_marker: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        let streams = Streams::new(ReadAhead::default());
        Self { streams, candidates: Candidates::default(), markers: [(u32::MAX, 0); MARKERS_MAX], next_marker: 0 }
    }
}

impl Ahead {
    /// Thread `thread` waits for the page at `address`: asks the prefetcher, at most for `room` pages.
    pub fn ask(&mut self, space: &Space, thread: u32, address: u64, books: &mut Books) {
        let faulter = Faulter { space: space.id().0, thread };
        let page = VirtualPage(address / PAGE);
        let marker = self.markers.iter_mut().find(|marker| **marker == (faulter.space, address));
        if let Some(marker) = marker {
            *marker = (u32::MAX, 0);
            self.streams.on_hit(faulter, page, &mut self.candidates);
            let used = self.streams.passed().iter().filter_map(|page| space.number(page.0 * PAGE));
            used.for_each(|page| books.directory.tell(News::Learnt(page, Evidence::PrefetchUsed)));
        } else {
            self.streams.on_fault(faulter, page, &mut self.candidates);
        }
        if let Some(marker) = self.candidates.marker() {
            self.markers[self.next_marker] = (faulter.space, marker.0 * PAGE);
            self.next_marker = (self.next_marker + 1) % MARKERS_MAX;
        }
    }

    /// Whether the last question had an answer.
    pub fn has_found(&self) -> bool {
        !self.candidates.pages().is_empty()
    }

    fn wanted(&self) -> impl Iterator<Item = u64> + '_ {
        let marker = self.candidates.marker();
        self.candidates
            .pages()
            .iter()
            .filter(move |page| Some(**page) != marker)
            .map(|page| page.0.saturating_mul(PAGE))
    }

    /// The candidates of the last question that are away and not staged, as runs of neighbouring slots.
    pub fn reads(&self, space: &Space, books: &Books, mut read: impl FnMut(&Along)) {
        let mut run: Option<Along> = None;
        for address in self.wanted() {
            let PageState::Away(slot) = space.state(address) else { continue };
            if books.slots.staged(slot).is_some() || run.as_mut().is_some_and(|run| run.add(address, slot)) {
                continue;
            }
            if let Some(run) = run.replace(Along::one(address, slot)) {
                read(&run);
            }
        }
        if let Some(run) = run {
            read(&run);
        }
    }

    /// An address space has ended.
    pub fn forget(&mut self, space: u32) {
        self.streams.forget(space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::directory::{Coming, Directory, SpaceId};
    use crate::pager::slots::{PoolPage, Slots};

    /// A space whose first `pages` pages are away, in neighbouring slots, and a mapping of twice as many.
    fn away(pages: u64) -> (Space, Books) {
        let mut books = Books { slots: Slots::new(1024), directory: Directory::default() };
        let mut space = Space::new(SpaceId(1));
        space.surveyed.insert(PAGE..PAGE * (2 * pages + 1));
        let run: Vec<Slot> = (0..pages).flat_map(|_| books.slots.take(1).unwrap().slots()).collect();
        for (index, slot) in run.into_iter().enumerate() {
            let address = PAGE * (index as u64 + 1);
            space.filled(address, false, Coming::New, &mut books);
            space.unlisted(address);
            space.left(address, slot, &mut books);
        }
        (space, books)
    }

    fn faults(ahead: &mut Ahead, space: &Space, books: &mut Books, pages: &[u64]) {
        pages.iter().for_each(|page| ahead.ask(space, 7, PAGE * page, books));
    }

    #[test]
    fn a_stream_brings_neighbouring_slots_in_one_read_without_its_marker() {
        let (space, mut books) = away(64);
        let mut ahead = Ahead::default();
        faults(&mut ahead, &space, &mut books, &[1, 2, 3]);
        let mut found = Vec::new();
        ahead.reads(&space, &books, |run| found.push(run.pages().to_vec()));
        let pages: Vec<u64> = found.iter().flatten().map(|(address, _)| address / PAGE).collect();
        let marker = ahead.candidates.marker().unwrap().0;
        assert!(!pages.is_empty() && !pages.contains(&marker) && pages.iter().all(|page| *page > 3), "{pages:?}");
        for run in &found {
            assert!(run.windows(2).all(|pair| pair[1].1.0 == pair[0].1.0 + 1), "{run:?}");
        }
    }

    #[test]
    fn what_is_staged_or_was_never_away_is_not_read() {
        let (space, mut books) = away(8);
        let mut ahead = Ahead::default();
        faults(&mut ahead, &space, &mut books, &[1, 2, 3]);
        for page in 1..9 {
            if let PageState::Away(slot) = space.state(PAGE * page) {
                books.slots.stage(slot, PoolPage(page as u32));
            }
        }
        ahead.reads(&space, &books, |run| panic!("{run:?}"));
    }

    #[test]
    fn a_marker_that_is_reached_is_told_as_a_hit_once() {
        let (space, mut books) = away(64);
        let mut ahead = Ahead::default();
        faults(&mut ahead, &space, &mut books, &[1, 2, 3]);
        let marker = ahead.candidates.marker().unwrap().0;
        faults(&mut ahead, &space, &mut books, &[marker]);
        assert!(ahead.candidates.pages().iter().all(|page| page.0 > marker), "the next window");
        assert!(!ahead.markers.contains(&(1, marker * PAGE)));
    }
}
