//! 32 neighbouring pages of an address space: a word for each.

use spillway_policy::replacement::{CachePage, Evidence};

use crate::limits::{GROUP_PAGES, WRITE_PROBE_INTERVAL, WRITE_PROBE_INTERVAL_IN_DOUBT, WRITE_SCORE_MAX, WRITE_WEIGHT};
use crate::page_table::PageIndexes;
use crate::page_table::page_indexes::{CachePages, Coming, News};
use crate::page_table::volume_pages::VolumePage;

/// Where the content of a page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageState {
    /// Resident, or never touched: nothing of it is elsewhere. A fault that misses it wants zeroes.
    #[default]
    Own,
    /// As `Own`, but the program is taking it away, and the kernel does not tell when it is gone (rule 10).
    Discarding,
    /// Resident and write-protected; the slot is a copy.
    Clean(VolumePage),
    /// Not resident; in the slot, or staged in the write-back pool.
    Away(VolumePage),
    /// As `Away`, and a read is under way.
    Coming(VolumePage),
}

/// Whether pages that come for reading are written before they leave.
///
/// A page that comes write-protected and is written costs a second fault; one that comes writable and is only read is
/// written back for nothing. Neighbours are mostly treated alike, so each group learns for all of its pages. Until
/// it has learnt anything, the trend of the whole address space holds. Pages that come writable teach nothing: now
/// and then some come write-protected all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteTrend {
    score: u8,
    /// Something was learnt.
    pub(super) is_taught: bool,
    /// Runs of pages that came writable since some did not.
    unproven: u8,
}

impl WriteTrend {
    /// A page that had come write-protected was written.
    pub(super) fn written(&mut self) {
        self.is_taught = true;
        self.score = (self.score + WRITE_WEIGHT).min(WRITE_SCORE_MAX);
    }

    /// A page left as it had come.
    pub(super) fn left_clean(&mut self) {
        self.is_taught = true;
        self.score = self.score.saturating_sub(1);
    }

    /// Whether what comes now is likely to be written.
    pub(super) fn is_up(self) -> bool {
        self.score > WRITE_WEIGHT
    }

    /// A run of pages comes: whether writable.
    pub(super) fn comes_writable(&mut self) -> bool {
        if !self.is_up() {
            return false;
        }
        let is_sure = self.score == WRITE_SCORE_MAX;
        self.unproven += 1;
        let is_probe = self.unproven >= if is_sure { WRITE_PROBE_INTERVAL } else { WRITE_PROBE_INTERVAL_IN_DOUBT };
        if is_probe {
            self.unproven = 0;
        }
        !is_probe
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Group {
    /// Of all groups of the pager.
    pub(super) number: u32,
    pub(super) pages: [PageState; GROUP_PAGES],
    /// A bit for each page: the policy lists it.
    pub(super) listed: u32,
    /// A bit for each page: a stream brought it along, and nothing has told since that it was used.
    pub(super) unproven: u32,
    pub(super) writes: WriteTrend,
}

impl Group {
    pub(super) fn new(number: u32) -> Self {
        Self { number, pages: [PageState::Own; GROUP_PAGES], listed: 0, unproven: 0, writes: WriteTrend::default() }
    }

    pub(super) fn page(&self, index: usize) -> CachePage {
        CachePage(self.number * GROUP_PAGES as u32 + index as u32)
    }

    pub(super) fn is_listed(&self, index: usize) -> bool {
        self.listed >> index & 1 == 1
    }

    /// Nothing is known of any page.
    pub(super) fn is_blank(&self) -> bool {
        self.listed == 0 && self.pages == [PageState::Own; GROUP_PAGES]
    }

    pub(super) fn list(&mut self, index: usize, coming: Coming, directory: &mut CachePages) {
        self.listed |= 1 << index;
        self.unproven &= !(1 << index);
        self.unproven |= u32::from(coming == Coming::ReadAhead) << index;
        directory.tell(News::Came(self.page(index), coming));
    }

    /// Something was learnt of a page that is there.
    pub(super) fn learnt(&mut self, index: usize, evidence: Evidence, directory: &mut CachePages) {
        if self.is_listed(index) {
            self.unproven &= !(1 << index);
            directory.tell(News::Learnt(self.page(index), evidence));
        }
    }

    /// The page leaves: whether it had come along for nothing, as far as the pager knows.
    pub(super) fn leaves_unproven(&mut self, index: usize) -> bool {
        let was_unproven = self.unproven >> index & 1 == 1;
        self.unproven &= !(1 << index);
        was_unproven
    }

    pub(super) fn unlist(&mut self, index: usize, directory: &mut CachePages) {
        if self.is_listed(index) {
            self.listed &= !(1 << index);
            directory.tell(News::Gone(self.page(index)));
        }
    }

    /// The program takes the page away, at some time from now on.
    pub(super) fn remove(&mut self, index: usize, page_indexes: &mut PageIndexes) {
        let state = self.pages[index];
        self.forget(index, page_indexes);
        if matches!(state, PageState::Own | PageState::Discarding | PageState::Clean(_)) {
            self.pages[index] = PageState::Discarding;
        }
    }

    fn end_copy(&self, index: usize, page_indexes: &mut PageIndexes) {
        if let PageState::Clean(_) = self.pages[index] {
            page_indexes.volume_pages.copy_ended();
        }
    }

    /// The page is not there any more.
    pub(super) fn forget(&mut self, index: usize, page_indexes: &mut PageIndexes) {
        if let PageState::Clean(slot) | PageState::Away(slot) | PageState::Coming(slot) = self.pages[index] {
            page_indexes.volume_pages.release(slot);
        }
        self.end_copy(index, page_indexes);
        self.pages[index] = PageState::Own;
        self.unlist(index, &mut page_indexes.cache_pages);
    }

    /// Takes the page's state out, with its reference, and whether it was listed. A read does not follow it.
    pub(super) fn take(&mut self, index: usize, page_indexes: &mut PageIndexes) -> (PageState, bool) {
        let was_listed = self.is_listed(index);
        self.end_copy(index, page_indexes);
        let state = std::mem::take(&mut self.pages[index]);
        self.unlist(index, &mut page_indexes.cache_pages);
        (if let PageState::Coming(slot) = state { PageState::Away(slot) } else { state }, was_listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `runs` come write-protected, of which each is learnt from by `learn`.
    fn protected(trend: &mut WriteTrend, runs: u32, learn: fn(&mut WriteTrend)) -> u32 {
        let mut count = 0;
        for _ in 0..runs {
            if !trend.comes_writable() {
                count += 1;
                learn(trend);
            }
        }
        count
    }

    #[test]
    fn pages_that_are_written_come_writable_after_two() {
        let mut trend = WriteTrend::default();
        trend.written();
        assert!(!trend.comes_writable(), "one may be an accident");
        trend.written();
        assert!(trend.comes_writable());
        let count = protected(&mut trend, 800, WriteTrend::written);
        assert!((100..=102).contains(&count), "one in eight to see whether it still is so: {count}");
    }

    #[test]
    fn pages_that_are_not_written_any_more_come_protected_soon() {
        let mut trend = WriteTrend::default();
        (0..100).for_each(|_| trend.written());
        let until = (1..100).find(|_| {
            if !trend.comes_writable() {
                trend.left_clean();
            }
            !trend.is_up()
        });
        assert!(until.is_some_and(|runs| runs <= 8 + 2 * u32::from(WRITE_SCORE_MAX)), "{until:?}");
        assert_eq!(protected(&mut trend, 100, WriteTrend::left_clean), 100);
    }

    #[test]
    fn a_page_that_is_written_now_and_then_does_not_count() {
        let mut trend = WriteTrend::default();
        for _ in 0..50 {
            trend.written();
            (0..4).for_each(|_| trend.left_clean());
            assert!(!trend.is_up());
        }
    }
}
