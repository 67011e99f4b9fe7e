//! 32 neighbouring pages of an address space: a word for each.

use crate::page_cache::CachePage;
use crate::pager::directory::{Coming, Directory, News};
use crate::pager::limits::GROUP_PAGES;
use crate::pager::slots::Slot;
use crate::pager::space::Books;

/// Where the content of a page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageState {
    /// Resident, or never touched: nothing of it is elsewhere. A fault that misses it wants zeroes.
    #[default]
    Own,
    /// As `Own`, but the program is taking it away, and the kernel does not tell when it is gone (rule 10).
    Leaving,
    /// Resident and write-protected; the slot is a copy.
    Clean(Slot),
    /// Not resident; in the slot, or staged in the write-back pool.
    Away(Slot),
    /// As `Away`, and a read is under way.
    Coming(Slot),
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Group {
    /// Of all groups of the pager.
    pub(super) number: u32,
    pub(super) pages: [PageState; GROUP_PAGES],
    /// A bit for each page: the policy lists it.
    pub(super) listed: u32,
}

impl Group {
    pub(super) fn new(number: u32) -> Self {
        Self { number, pages: [PageState::Own; GROUP_PAGES], listed: 0 }
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

    pub(super) fn list(&mut self, index: usize, coming: Coming, directory: &mut Directory) {
        self.listed |= 1 << index;
        directory.tell(News::Came(self.page(index), coming));
    }

    pub(super) fn unlist(&mut self, index: usize, directory: &mut Directory) {
        if self.is_listed(index) {
            self.listed &= !(1 << index);
            directory.tell(News::Gone(self.page(index)));
        }
    }

    /// The program takes the page away, at some time from now on.
    pub(super) fn remove(&mut self, index: usize, books: &mut Books) {
        let state = self.pages[index];
        self.forget(index, books);
        if matches!(state, PageState::Own | PageState::Leaving | PageState::Clean(_)) {
            self.pages[index] = PageState::Leaving;
        }
    }

    fn end_copy(&self, index: usize, books: &mut Books) {
        if let PageState::Clean(_) = self.pages[index] {
            books.slots.copy_ended();
        }
    }

    /// The page is not there any more.
    pub(super) fn forget(&mut self, index: usize, books: &mut Books) {
        if let PageState::Clean(slot) | PageState::Away(slot) | PageState::Coming(slot) = self.pages[index] {
            books.slots.release(slot);
        }
        self.end_copy(index, books);
        self.pages[index] = PageState::Own;
        self.unlist(index, &mut books.directory);
    }

    /// Takes the page's state out, with its reference, and whether it was listed. A read does not follow it.
    pub(super) fn take(&mut self, index: usize, books: &mut Books) -> (PageState, bool) {
        let was_listed = self.is_listed(index);
        self.end_copy(index, books);
        let state = std::mem::take(&mut self.pages[index]);
        self.unlist(index, &mut books.directory);
        (if let PageState::Coming(slot) = state { PageState::Away(slot) } else { state }, was_listed)
    }
}
