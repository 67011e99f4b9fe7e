//! The number of a page as a type, so that a byte offset, a count of pages or a place in a slab is not passed for one.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

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
        (self.0..end.0).map(PageIndex)
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
    use spillway_fabric::units::SlabIndex;

    use super::*;
    use crate::slab_map::Geometry;

    #[test]
    fn every_byte_of_a_page_is_in_it() {
        let page = PageIndex(7);
        let end = page.offset_bytes() + PAGE_SIZE_BYTES as u64;
        assert_eq!([page.offset_bytes(), end - 1, end].map(PageIndex::at_offset), [page, page, page + 1]);
    }

    #[test]
    fn steps_leave_no_page_out() {
        let geometry = Geometry { slab_pages: 192, slab_count: 2 };
        assert!(geometry.words(SlabIndex(1)).eq([192, 256, 320].map(PageIndex)));
        assert!(PageIndex(64).up_to(PageIndex(200)).rev().eq((64..200).rev().map(PageIndex)));
    }
}
