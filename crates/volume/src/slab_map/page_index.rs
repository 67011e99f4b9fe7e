//! The number of a page as a type, so that a byte offset, a count of pages or a place in a slab is not passed for one.

use std::fmt;
use std::ops::{Add, AddAssign, Range, Sub};

use spillway_fabric::units::PAGE_SIZE_BYTES;

/// A page of a volume, counted from the volume's first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds this byte of the volume.
    pub fn at_offset(offset_bytes: u64) -> Self {
        Self(offset_bytes / PAGE_SIZE_BYTES as u64)
    }

    /// Bytes from the volume's start to the page's first byte.
    pub fn offset_bytes(self) -> u64 {
        self.0 * PAGE_SIZE_BYTES as u64
    }

    /// The pages from this one on, without `end`.
    pub fn up_to(self, end: PageIndex) -> impl DoubleEndedIterator<Item = PageIndex> + Clone {
        Pages(self.0..end.0)
    }
}

/// As `(first..end).map(PageIndex)`, but a step over many pages costs no more than one.
#[derive(Clone)]
struct Pages(Range<u64>);

impl Iterator for Pages {
    type Item = PageIndex;

    fn next(&mut self) -> Option<PageIndex> {
        self.0.next().map(PageIndex)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }

    fn nth(&mut self, count: usize) -> Option<PageIndex> {
        self.0.nth(count).map(PageIndex)
    }
}

impl DoubleEndedIterator for Pages {
    fn next_back(&mut self) -> Option<PageIndex> {
        self.0.next_back().map(PageIndex)
    }
}

impl Add<u64> for PageIndex {
    type Output = Self;

    /// The page so many pages further on.
    fn add(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }
}

impl AddAssign<u64> for PageIndex {
    fn add_assign(&mut self, pages: u64) {
        self.0 += pages;
    }
}

impl Sub for PageIndex {
    type Output = u64;

    /// Pages from `first` to this one.
    fn sub(self, first: Self) -> u64 {
        self.0 - first.0
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_page_is_in_it() {
        let page = PageIndex(7);
        let end = page.offset_bytes() + PAGE_SIZE_BYTES as u64;
        assert_eq!([page.offset_bytes(), end - 1, end].map(PageIndex::at_offset), [page, page, page + 1]);
    }

    #[test]
    fn steps_leave_no_page_out() {
        let pages = PageIndex(64).up_to(PageIndex(200));
        assert!(pages.clone().step_by(64).eq([64, 128, 192].map(PageIndex)));
        assert!(pages.rev().eq((64..200).rev().map(PageIndex)));
    }
}
