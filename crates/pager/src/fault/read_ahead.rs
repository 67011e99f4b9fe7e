//! What comes along with a page that a program waits for: the prefetcher's candidates, sorted into what can be done
//! for them.
//!
//! The page that is waited for always goes first; nothing comes along while the budget is nearly used up. A window's
//! marker ([`spillway_policy::prefetch`]) stays where it is, so that the fault on it tells how far the program came.
//! It is a page that is away, since no thread faults on another. Victims leave by groups, so a stream comes to
//! stretches of local pages that are longer than a window: it looks beyond them.
//!
//! A stream waits once a window for its marker, as long as a read takes. So windows are as large as the donors are
//! far (`Distance`): over shared memory and a near network 256 KiB, and up to 2 MiB, each in reads of 128 KiB behind
//! the page that is waited for. A policy of blocks that grow by their use may have the largest from near donors, too.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::Duration;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_policy::prefetch::selection::{PrefetchPolicy, SelectedPrefetcher};
use spillway_policy::prefetch::streams::{Faulter, Streams};
use spillway_policy::prefetch::{Candidates, PageNumber, WINDOW_FAR_MAX, WINDOW_MAX};
use spillway_policy::replacement::Evidence;

use crate::limits::{DISTANCE_READS, GROUP_PAGES, MARKERS_MAX, WINDOW_PAGE, WINDOWS_MAX};
use crate::page_table::group::PageState;
use crate::page_table::page_indexes::Coming;
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::VolumePage;
use crate::page_table::{PageIndexes, PageTable};

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// Neighbouring slots that are read at once, whose content they are, and why they come.
#[derive(Clone, Debug)]
pub struct ReadAheadRun {
    pages: [(VirtualPage, VolumePage); GROUP_PAGES],
    count: usize,
    coming: Coming,
}

impl ReadAheadRun {
    /// One page.
    pub fn one(page: VirtualPage, slot: VolumePage, coming: Coming) -> Self {
        Self { pages: [(page, slot); GROUP_PAGES], count: 1, coming }
    }

    /// Why they come.
    pub fn coming(&self) -> Coming {
        self.coming
    }

    /// The pages and their slots, in order of slots.
    pub fn pages(&self) -> &[(VirtualPage, VolumePage)] {
        &self.pages[..self.count]
    }

    /// Without its first `count` pages, if there are others.
    pub fn behind(&self, count: usize) -> Option<Self> {
        let (first, rest) = self.pages().get(count..)?.split_first()?;
        let mut run = Self::one(first.0, first.1, self.coming);
        rest.iter().for_each(|(page, slot)| assert!(run.add(*page, *slot), "its slots are neighbours"));
        Some(run)
    }

    /// Adds a page whose slot is the next one, if there is room.
    fn add(&mut self, page: VirtualPage, slot: VolumePage) -> bool {
        let last = self.pages[self.count - 1].1;
        let fits = self.count < GROUP_PAGES && slot.0 == last.0 + 1;
        if fits {
            self.pages[self.count] = (page, slot);
            self.count += 1;
        }
        fits
    }
}

/// How long a read of one page takes at least: the donors' distance, without what queues and busy CPUs add. The least
/// of the last 16 to 32 reads that were under way alone.
#[derive(Clone, Copy, Debug, Default)]
struct Distance {
    /// Of the last 16 reads that were counted whole.
    least: Option<Duration>,
    /// Of those since.
    least_since: Option<Duration>,
    count: u32,
}

impl Distance {
    fn read_took(&mut self, time: Duration) {
        self.least_since = Some(self.least_since.map_or(time, |least| least.min(time)));
        self.count += 1;
        if self.count == DISTANCE_READS {
            (self.least, self.count) = (self.least_since.take(), 0);
        }
    }

    /// Pages of a window from there; few as long as nothing is known.
    fn window_max(&self) -> usize {
        let least = self.least.map(|least| self.least_since.unwrap_or(least).min(least));
        let pages = least.unwrap_or_default().as_nanos() / WINDOW_PAGE.as_nanos();
        usize::try_from(pages).unwrap_or(usize::MAX).clamp(WINDOW_MAX, WINDOW_FAR_MAX)
    }
}

/// In place of a marker: no address space has this number.
const NO_MARKER: (u32, VirtualPage) = (u32::MAX, VirtualPage::at(0));

/// See the module text.
pub struct ReadAheadState {
    streams: Streams<SelectedPrefetcher>,
    /// What is away of the windows that the last question was answered with.
    candidates: Candidates,
    /// Room for one window.
    window: Candidates,
    /// Markers that were not reached yet, the oldest overwritten first.
    markers: [(u32, VirtualPage); MARKERS_MAX],
    next_marker: usize,
    distance: Distance,
}

impl Default for ReadAheadState {
    fn default() -> Self {
        Self::new(PrefetchPolicy::default())
    }
}

impl ReadAheadState {
    /// Pages come along by `policy`.
    pub fn new(policy: PrefetchPolicy) -> Self {
        let streams = Streams::new(policy.prefetcher());
        let (candidates, window) = (Candidates::default(), Candidates::default());
        let markers = [NO_MARKER; MARKERS_MAX];
        Self { streams, candidates, window, markers, next_marker: 0, distance: Distance::default() }
    }

    /// A page was read in this time, while this thread had no other read under way; in none, if it was filled from
    /// where it lies.
    pub fn read_took(&mut self, time: Duration) {
        self.distance.read_took(time);
    }

    /// Thread `thread` waits for `page`: asks the prefetcher what of that which is away comes along. There is `room`
    /// for so many pages, a window at least.
    pub fn ask(
        &mut self,
        page_table: &mut PageTable,
        thread: u32,
        page: VirtualPage,
        room: usize,
        page_indexes: &mut PageIndexes,
    ) {
        let faulter = Faulter { space: page_table.id().0, thread };
        page_table.take_unused(|unused| self.streams.on_unused(faulter.space, number_of(unused)));
        let window_max = if self.streams.brings_blocks() { WINDOW_FAR_MAX } else { self.distance.window_max() };
        self.window.set_window_max(window_max.min(room / 2).max(WINDOW_MAX));
        let number = number_of(page);
        let marker = self.markers.iter_mut().find(|marker| **marker == (faulter.space, page));
        if let Some(marker) = marker {
            *marker = NO_MARKER;
            self.streams.on_hit(faulter, number, &mut self.window);
            self.streams
                .passed()
                .iter()
                .for_each(|number| page_table.learnt(page_of(*number), Evidence::PrefetchUsed, page_indexes));
            if let Some(number) = self.streams.marker_passed() {
                page_table.learnt(page_of(number), Evidence::Passed, page_indexes);
            }
        } else {
            self.streams.on_fault(faulter, number, &|number| is_away(page_table, number), &mut self.window);
        }
        self.gather(faulter, page_table, room);
        if let Some(marker) = self.candidates.marker() {
            self.markers[self.next_marker] = (faulter.space, page_of(marker));
            self.next_marker = (self.next_marker + 1) % MARKERS_MAX;
        }
    }

    /// Takes what is away of the window; a stream that has come to full windows gets one in pages that are away.
    fn gather(&mut self, faulter: Faulter, page_table: &PageTable, room: usize) {
        self.candidates.clear();
        for _ in 0..WINDOWS_MAX {
            let last = self.window.pages().last().copied();
            let length = self.window.pages().len();
            let is_full = length >= WINDOW_MAX;
            self.window.retain(|number| is_away(page_table, number));
            self.candidates.append(&self.window);
            let count = self.candidates.pages().len();
            match last.filter(|_| is_full && count < WINDOW_MAX && count + length <= room) {
                Some(last) => self.streams.go_on(faulter, last, &mut self.window),
                None => break,
            }
        }
    }

    /// Whether the last question had an answer.
    pub fn has_found(&self) -> bool {
        !self.candidates.pages().is_empty()
    }

    fn wanted(&self) -> impl Iterator<Item = VirtualPage> + '_ {
        let marker = self.candidates.marker();
        self.candidates.pages().iter().copied().filter(move |number| Some(*number) != marker).map(page_of)
    }

    /// The candidates of the last question, as runs of neighbouring slots. What is staged is read like the rest,
    /// which costs a run no more; only what is still being written cannot be.
    pub fn reads(&self, page_table: &PageTable, page_indexes: &PageIndexes, mut read: impl FnMut(&ReadAheadRun)) {
        // No marker will tell whether neighbours are used: they are taken for needed, as the kernel takes what it
        // reads around a fault.
        let coming = if self.candidates.comes_around() { Coming::Around } else { Coming::ReadAhead };
        let mut run: Option<ReadAheadRun> = None;
        for page in self.wanted() {
            let PageState::Away(slot) = page_table.state(page) else { continue };
            if page_indexes.volume_pages.is_busy(slot) || run.as_mut().is_some_and(|run| run.add(page, slot)) {
                continue;
            }
            if let Some(run) = run.replace(ReadAheadRun::one(page, slot, coming)) {
                read(&run);
            }
        }
        if let Some(run) = run {
            read(&run);
        }
    }

    /// An address space has ended.
    pub fn forget(&mut self, page_table: u32) {
        self.streams.forget(page_table);
    }
}

/// A page as the prefetcher names it: its address over the page size.
fn number_of(page: VirtualPage) -> PageNumber {
    PageNumber(page.address() / PAGE)
}

/// The page that the prefetcher names so; the last one for a number behind it.
fn page_of(number: PageNumber) -> VirtualPage {
    VirtualPage::containing(number.0.saturating_mul(PAGE))
}

fn is_away(page_table: &PageTable, number: PageNumber) -> bool {
    matches!(page_table.state(page_of(number)), PageState::Away(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::page_indexes::{CachePages, News, SpaceId};
    use crate::page_table::volume_pages::{PoolPage, VolumePages};
    use spillway_policy::prefetch::CANDIDATES_MAX;

    fn page_at(number: u64) -> VirtualPage {
        page_of(PageNumber(number))
    }

    /// A space whose first `pages` pages are away, in neighbouring slots, and a mapping of twice as many.
    fn away(pages: u64) -> (PageTable, PageIndexes) {
        let mut page_indexes = PageIndexes { volume_pages: VolumePages::new(4096), cache_pages: CachePages::default() };
        let mut page_table = PageTable::new(SpaceId(1));
        page_table.surveyed.insert(PAGE..PAGE * (2 * pages + 1));
        let run: Vec<VolumePage> =
            (0..pages).flat_map(|_| page_indexes.volume_pages.take(1).unwrap().slots()).collect();
        for (index, slot) in run.into_iter().enumerate() {
            let page = page_at(index as u64 + 1);
            page_table.filled(page, false, Coming::New, &mut page_indexes);
            page_table.unlisted(page);
            page_table.left(page, slot, &mut page_indexes);
        }
        (page_table, page_indexes)
    }

    fn faults(
        read_ahead: &mut ReadAheadState,
        page_table: &mut PageTable,
        page_indexes: &mut PageIndexes,
        pages: &[u64],
    ) {
        pages.iter().for_each(|page| read_ahead.ask(page_table, 7, page_at(*page), CANDIDATES_MAX, page_indexes));
    }

    #[test]
    fn a_stream_brings_neighbouring_slots_in_one_read_without_its_marker() {
        let (mut page_table, mut page_indexes) = away(64);
        let mut read_ahead = ReadAheadState::default();
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[1, 2, 3]);
        let mut found = Vec::new();
        read_ahead.reads(&page_table, &page_indexes, |run| found.push(run.pages().to_vec()));
        let pages: Vec<u64> = found.iter().flatten().map(|(page, _)| number_of(*page).0).collect();
        let marker = read_ahead.candidates.marker().unwrap().0;
        assert!(!pages.is_empty() && !pages.contains(&marker) && pages.iter().all(|page| *page > 3), "{pages:?}");
        for run in &found {
            assert!(run.windows(2).all(|pair| pair[1].1.0 == pair[0].1.0 + 1), "{run:?}");
        }
    }

    #[test]
    fn neighbours_of_pages_without_a_trend_come_once_probes_were_needed() {
        let (mut page_table, mut page_indexes) = away(2048);
        let mut read_ahead = ReadAheadState::default();
        let mut found = Vec::new();
        let orders = [[4, 1, 6, 2, 7, 0, 5, 3], [2, 7, 1, 4, 0, 6, 3, 5], [6, 0, 3, 7, 4, 1, 5, 2]];
        for (block, order) in [90, 30, 150, 10, 200, 70, 120, 40, 180, 60_u64].into_iter().zip(orders.iter().cycle()) {
            // In no trend: three pages of a block, and then all others.
            for place in order {
                faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[8 * block + place]);
                read_ahead.reads(&page_table, &page_indexes, |run| found.push(run.clone()));
            }
        }
        let pages =
            |coming| -> usize { found.iter().filter(|run| run.coming() == coming).map(|run| run.pages().len()).sum() };
        // A few of them lie in a line by accident.
        let (around, in_line) = (pages(Coming::Around), pages(Coming::ReadAhead));
        assert!(around > 5 * in_line, "{around} pages around, {in_line} in a line");
    }

    #[test]
    fn pages_that_left_unused_make_windows_smaller() {
        let (mut page_table, mut page_indexes) = away(10 * WINDOW_MAX as u64);
        let mut read_ahead = ReadAheadState::default();
        let last = full_stream(&mut read_ahead, &mut page_table, &mut page_indexes);
        let marker = read_ahead.candidates.marker().unwrap().0;
        let first = last - WINDOW_MAX as u64 + 1;
        for page in (first..=last).filter(|page| *page != marker).take(WINDOW_MAX * 3 / 4) {
            let slot = slot_of(&page_table, page);
            page_table.filled(page_at(page), true, Coming::ReadAhead, &mut page_indexes);
            page_table.left(page_at(page), slot, &mut page_indexes);
        }
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[marker]);
        let half = WINDOW_MAX / 4;
        assert_eq!(read_ahead.candidates.pages().len(), half + half / 8, "a quarter was used; it grows by an eighth");
    }

    #[test]
    fn what_is_staged_is_read_unless_it_is_being_written() {
        let (mut page_table, mut page_indexes) = away(8);
        let mut read_ahead = ReadAheadState::default();
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[1, 2, 3]);
        let slots: Vec<VolumePage> = (1..9).map(|page| slot_of(&page_table, page)).collect();
        for slot in &slots {
            page_indexes.volume_pages.stage(*slot, PoolPage(slot.0));
        }
        let mut count = 0;
        read_ahead.reads(&page_table, &page_indexes, |run| count += run.pages().len());
        assert_eq!(count, read_ahead.candidates.pages().len() - 1, "all but the marker");
        slots.iter().for_each(|slot| page_indexes.volume_pages.begin_write(*slot));
        read_ahead.reads(&page_table, &page_indexes, |run| panic!("{run:?}"));
    }

    fn slot_of(page_table: &PageTable, page: u64) -> VolumePage {
        let PageState::Away(slot) = page_table.state(page_at(page)) else { panic!("page {page} is there") };
        slot
    }

    /// A stream that has come to full windows, and its last page.
    fn full_stream(read_ahead: &mut ReadAheadState, page_table: &mut PageTable, page_indexes: &mut PageIndexes) -> u64 {
        faults(read_ahead, page_table, page_indexes, &[1, 2]);
        while read_ahead.candidates.pages().len() < WINDOW_MAX {
            let marker = read_ahead.candidates.marker().unwrap().0;
            faults(read_ahead, page_table, page_indexes, &[marker]);
        }
        read_ahead.candidates.pages().last().unwrap().0
    }

    #[test]
    fn a_stream_looks_beyond_pages_that_are_there() {
        let window = WINDOW_MAX as u64;
        let (mut page_table, mut page_indexes) = away(10 * window);
        let mut read_ahead = ReadAheadState::default();
        let last = full_stream(&mut read_ahead, &mut page_table, &mut page_indexes);
        let marker = read_ahead.candidates.marker().unwrap().0;
        // The next window is there, and so are two pages of the one behind it.
        for page in last + 1..=last + window + 2 {
            page_table.filled(page_at(page), true, Coming::ReadAhead, &mut page_indexes);
        }
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[marker]);
        let expected: Vec<_> = (last + window + 3..=last + 3 * window).map(PageNumber).collect();
        assert_eq!(read_ahead.candidates.pages(), expected);
        assert_eq!(read_ahead.candidates.marker(), Some(expected[0]), "nobody faults on what is there");
        let (found, end) = (read_ahead.candidates.pages().len(), last + 3 * window);
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[last + window + 3]);
        assert_eq!(read_ahead.candidates.pages()[0], PageNumber(end + 1), "behind the {found} pages");
    }

    #[test]
    fn a_window_without_room_for_the_next_comes_alone() {
        let (mut page_table, mut page_indexes) = away(10 * WINDOW_MAX as u64);
        let mut read_ahead = ReadAheadState::default();
        let last = full_stream(&mut read_ahead, &mut page_table, &mut page_indexes);
        let marker = read_ahead.candidates.marker().unwrap().0;
        (last + 1..last + 3)
            .for_each(|page| page_table.filled(page_at(page), true, Coming::ReadAhead, &mut page_indexes));
        read_ahead.ask(&mut page_table, 7, page_at(marker), 2 * WINDOW_MAX - 3, &mut page_indexes);
        assert_eq!(read_ahead.candidates.pages().len(), WINDOW_MAX - 2);
    }

    #[test]
    fn a_stream_does_not_look_for_ever() {
        let (mut page_table, mut page_indexes) = away(20 * WINDOW_MAX as u64);
        let mut read_ahead = ReadAheadState::default();
        let last = full_stream(&mut read_ahead, &mut page_table, &mut page_indexes);
        let marker = read_ahead.candidates.marker().unwrap().0;
        for page in last + 1..=last + (WINDOWS_MAX * WINDOW_MAX) as u64 {
            page_table.filled(page_at(page), true, Coming::ReadAhead, &mut page_indexes);
        }
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[marker]);
        assert!(!read_ahead.has_found() && read_ahead.candidates.marker().is_none());
    }

    /// The windows of a stream that comes to its markers one after the other.
    fn windows(read_took: Duration, room: usize) -> Vec<usize> {
        let (mut page_table, mut page_indexes) = away(4000);
        let mut read_ahead = ReadAheadState::default();
        (0..DISTANCE_READS).for_each(|_| read_ahead.read_took(read_took + Duration::from_millis(7)));
        (0..DISTANCE_READS)
            .for_each(|read| read_ahead.read_took(read_took + Duration::from_millis(u64::from(read % 7))));
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[1, 2]);
        let mut lengths = Vec::new();
        for _ in 0..9 {
            let marker = read_ahead.candidates.marker().unwrap().0;
            read_ahead.ask(&mut page_table, 7, page_at(marker), room, &mut page_indexes);
            lengths.push(read_ahead.candidates.pages().len());
        }
        lengths
    }

    #[test]
    fn windows_are_as_large_as_donors_are_far_and_there_is_room() {
        let plenty = 10 * WINDOW_FAR_MAX;
        assert_eq!(windows(Duration::from_micros(20), plenty)[3..6], [WINDOW_MAX; 3], "near donors");
        assert_eq!(windows(Duration::from_millis(1), plenty)[3..], [64, 128, 256, 512, 512, 512]);
        assert_eq!(windows(Duration::from_micros(100), plenty)[3..7], [64, 100, 100, 100]);
        assert_eq!(windows(Duration::from_millis(1), 2 * WINDOW_MAX)[3..6], [WINDOW_MAX; 3], "no room for more");
    }

    /// The most pages that came along at once with a program that goes through all pages.
    fn largest_block(room: usize) -> usize {
        let (mut page_table, mut page_indexes) = away(4000);
        let mut read_ahead = ReadAheadState::new(PrefetchPolicy::Elastic);
        let (mut here, mut largest) = (std::collections::HashSet::new(), 0);
        for page in 1..4000 {
            if !here.contains(&page) {
                read_ahead.ask(&mut page_table, 7, page_at(page), room, &mut page_indexes);
                here.extend(read_ahead.wanted().map(|page| number_of(page).0));
                largest = largest.max(read_ahead.candidates.pages().len());
            }
        }
        largest
    }

    #[test]
    fn blocks_may_be_large_from_near_donors_where_there_is_room() {
        assert_eq!(largest_block(10 * WINDOW_FAR_MAX), WINDOW_FAR_MAX - 1, "a block but for the page itself");
        assert_eq!(largest_block(4 * WINDOW_MAX), 2 * WINDOW_MAX - 1, "half of the room");
    }

    #[test]
    fn a_marker_that_is_reached_is_told_as_a_hit_once() {
        let (mut page_table, mut page_indexes) = away(64);
        let mut read_ahead = ReadAheadState::default();
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[1, 2, 3]);
        let marker = read_ahead.candidates.marker().unwrap().0;
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[marker]);
        assert!(read_ahead.candidates.pages().iter().all(|page| page.0 > marker), "the next window");
        assert!(!read_ahead.markers.contains(&(1, page_at(marker))));
    }

    #[test]
    fn a_marker_that_was_waited_for_is_told_as_passed_when_the_next_is_reached() {
        let (mut page_table, mut page_indexes) = away(64);
        let mut read_ahead = ReadAheadState::default();
        faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[1, 2, 3]);
        let mut news = Vec::new();
        let markers = [(); 3].map(|()| {
            let marker = read_ahead.candidates.marker().unwrap().0;
            page_table.filled(page_at(marker), true, Coming::Back, &mut page_indexes);
            faults(&mut read_ahead, &mut page_table, &mut page_indexes, &[marker]);
            marker
        });
        page_indexes.cache_pages.take_news(&mut news);
        let number = |marker| page_table.number(page_at(marker)).unwrap();
        let passed = news.iter().filter(|news| matches!(news, News::Learnt(_, Evidence::Passed)));
        let expected = [markers[0], markers[1]].map(|marker| News::Learnt(number(marker), Evidence::Passed));
        assert!(passed.eq(&expected), "{news:?}");
    }
}
