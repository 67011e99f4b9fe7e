//! Blocks of 2 MiB that are there as a whole, so that they may be one huge page.
//!
//! A block is counted when it is looked at, from the words of its pages: nothing is kept on the way of a fault.

use std::ops::Range;

use spillway_policy::replacement::CachePage;

use crate::limits::{GROUP_PAGES, GROUP_SIZE_BYTES, HUGE_PAGE_BYTES, HUGE_PAGE_PAGES};
use crate::page_table::group::{Group, PageState};
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::{PageIndexes, PageTable, place};

/// What a block of 2 MiB is, by all that is known of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wholeness {
    /// A page is away, was never touched, is being removed or about to leave, or may be a guard.
    Broken,
    /// All pages are there, and so many are write-protected, since their slots are copies of them.
    Protected(usize),
    /// All pages are there and writable.
    Writable,
}

impl PageTable {
    /// What the block from `first` on is.
    pub fn wholeness(&self, first: VirtualPage) -> Wholeness {
        let range = block_range(first);
        let may_be_guard = !self.guarded.within(&range).is_empty() || !self.shunned.within(&range).is_empty();
        if self.is_shared || may_be_guard || !self.registered.contain(&range) {
            return Wholeness::Broken;
        }
        let mut protected = 0;
        for group in self.groups_of(first) {
            let Some(group) = group.filter(|group| group.listed == u32::MAX) else { return Wholeness::Broken };
            for state in &group.pages {
                match state {
                    PageState::Own => {}
                    PageState::Clean(_) => protected += 1,
                    PageState::Discarding | PageState::Away(_) | PageState::Coming(_) => return Wholeness::Broken,
                }
            }
        }
        if protected > 0 { Wholeness::Protected(protected) } else { Wholeness::Writable }
    }

    /// The numbers of the pages of the block from `first` on that the policy lists.
    pub fn listed_in_block(&self, first: VirtualPage) -> impl Iterator<Item = CachePage> + '_ {
        self.groups_of(first)
            .flatten()
            .flat_map(|group| (0..GROUP_PAGES).filter(|index| group.is_listed(*index)).map(|index| group.page(index)))
    }

    /// The runs of pages of the block from `first` on that are write-protected.
    pub fn protected_in_block(&self, first: VirtualPage) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in VirtualPage::all_in(block_range(first)) {
            if !matches!(self.state(page), PageState::Clean(_)) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == page.address() => run.end = page.range().end,
                _ => runs.push(page.range()),
            }
        }
        runs
    }

    /// `page` is not write-protected any more, so its slot is no copy of it; the program has not written it, so nothing
    /// is learnt from that.
    pub fn give_copy_up(&mut self, page: VirtualPage, page_indexes: &mut PageIndexes) {
        let (base, index) = place(page);
        let Some(group) = self.groups.get_mut(&base) else { return };
        if let PageState::Clean(slot) = group.pages[index] {
            group.pages[index] = PageState::Own;
            page_indexes.volume_pages.copy_ended();
            page_indexes.volume_pages.release(slot);
        }
    }

    fn groups_of(&self, first: VirtualPage) -> impl Iterator<Item = Option<&Group>> + '_ {
        let starts = block_range(first).step_by(GROUP_SIZE_BYTES as usize);
        starts.map(|start| self.groups.get(&VirtualPage::at(start)))
    }
}

/// The addresses of the block from `first` on.
pub fn block_range(first: VirtualPage) -> Range<u64> {
    let start = first.address();
    assert!(start.is_multiple_of(HUGE_PAGE_BYTES), "a block begins at a multiple of its size");
    start..(first + HUGE_PAGE_PAGES).address()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_table::page_indexes::{CachePages, Coming, SpaceId};
    use crate::page_table::volume_pages::VolumePages;

    const FIRST: VirtualPage = VirtualPage::at(HUGE_PAGE_BYTES);

    /// A block whose pages are all there.
    fn whole() -> (PageTable, PageIndexes) {
        let volume_pages = VolumePages::new(2048);
        let mut page_indexes = PageIndexes { volume_pages, cache_pages: CachePages::default() };
        let mut table = PageTable::new(SpaceId(1));
        let pages = VirtualPage::all_in(block_range(FIRST));
        pages.for_each(|page| table.filled(page, false, Coming::New, &mut page_indexes));
        (table, page_indexes)
    }

    fn leave(table: &mut PageTable, page: VirtualPage, page_indexes: &mut PageIndexes) {
        let slot = page_indexes.volume_pages.take(1).unwrap().first;
        table.unlisted(page);
        table.left(page, slot, page_indexes);
    }

    #[test]
    fn a_block_is_whole_once_its_last_page_is_there_and_broken_once_one_leaves() {
        let (mut table, mut page_indexes) = whole();
        assert_eq!(table.wholeness(FIRST), Wholeness::Writable);
        assert_eq!(table.wholeness(FIRST + HUGE_PAGE_PAGES), Wholeness::Broken, "nothing was ever there");
        assert_eq!(table.listed_in_block(FIRST).count() as u64, HUGE_PAGE_PAGES);
        let page = FIRST + 77;
        leave(&mut table, page, &mut page_indexes);
        assert_eq!(table.wholeness(FIRST), Wholeness::Broken);
        assert_eq!(table.listed_in_block(FIRST).count() as u64, HUGE_PAGE_PAGES - 1);
        table.filled(page, true, Coming::Back, &mut page_indexes);
        assert_eq!(table.wholeness(FIRST), Wholeness::Protected(1));
        table.written(page, &mut page_indexes);
        assert_eq!(table.wholeness(FIRST), Wholeness::Writable);
    }

    #[test]
    fn pages_that_are_removed_guarded_or_about_to_leave_break_a_block() {
        let page = FIRST + 300;
        let break_by = |act: &dyn Fn(&mut PageTable, &mut PageIndexes)| {
            let (mut table, mut page_indexes) = whole();
            act(&mut table, &mut page_indexes);
            table.wholeness(FIRST)
        };
        assert_eq!(break_by(&|table, indexes| table.remove(&page.range(), indexes)), Wholeness::Broken);
        assert_eq!(break_by(&|table, indexes| table.unmap(&page.range(), indexes)), Wholeness::Broken);
        assert_eq!(break_by(&|table, _| table.unlisted(page)), Wholeness::Broken);
        let guard = |table: &mut PageTable, indexes: &mut PageIndexes| assert!(table.guard(&page.range(), indexes));
        assert_eq!(break_by(&guard), Wholeness::Broken);
        assert_eq!(break_by(&|_, _| {}), Wholeness::Writable);
    }

    #[test]
    fn copies_that_are_given_up_are_free_and_nothing_is_taken_for_written() {
        let (mut table, mut page_indexes) = whole();
        for page in [3, 4, 200].map(|page| FIRST + page) {
            leave(&mut table, page, &mut page_indexes);
            table.filled(page, true, Coming::Back, &mut page_indexes);
        }
        let runs = table.protected_in_block(FIRST);
        assert_eq!(runs, [(FIRST + 3).address()..(FIRST + 5).address(), (FIRST + 200).range()]);
        assert_eq!(page_indexes.volume_pages.in_use(), 3);
        runs.iter().flat_map(|run| VirtualPage::all_in(run.clone())).for_each(|page| {
            table.give_copy_up(page, &mut page_indexes);
        });
        assert_eq!((table.wholeness(FIRST), page_indexes.volume_pages.in_use()), (Wholeness::Writable, 0));
        assert!(!table.expects_write(FIRST + 3));
    }
}
