//! The address of a page as a type, so that any other address, a length or the number of a page is not passed for one.

use std::fmt;
use std::ops::{Add, Range, Sub};

use spillway_fabric::units::PAGE_SIZE_BYTES;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// A page of a program, by the address of its first byte, which is a multiple of the page size.
///
/// Ranges of addresses stay `Range<u64>`, and so does any address that need not be that of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct VirtualPage(u64);

impl VirtualPage {
    /// The page whose first byte is at `address`.
    #[inline]
    pub const fn at(address: u64) -> Self {
        debug_assert!(address.is_multiple_of(PAGE), "a page begins at a multiple of its size");
        Self(address)
    }

    /// The page that holds the byte at `address`.
    #[inline]
    pub const fn containing(address: u64) -> Self {
        Self(address & !(PAGE - 1))
    }

    /// The pages of `range`, which begins at a page.
    #[inline]
    pub fn all_in(range: Range<u64>) -> impl Iterator<Item = Self> {
        range.step_by(PAGE_SIZE_BYTES).map(Self::at)
    }

    /// The address of its first byte.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0
    }

    /// The addresses of its bytes.
    #[inline]
    pub const fn range(self) -> Range<u64> {
        self.0..self.0 + PAGE
    }

    /// The page so many pages before this one, if there is one.
    #[inline]
    pub const fn checked_sub(self, pages: u64) -> Option<Self> {
        match self.0.checked_sub(pages * PAGE) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }
}

impl Add<u64> for VirtualPage {
    type Output = Self;

    /// The page so many pages further on.
    #[inline]
    fn add(self, pages: u64) -> Self {
        Self(self.0 + pages * PAGE)
    }
}

impl Sub for VirtualPage {
    type Output = u64;

    /// Pages from `first` to this one.
    #[inline]
    fn sub(self, first: Self) -> u64 {
        (self.0 - first.0) / PAGE
    }
}

impl fmt::LowerHex for VirtualPage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_page_is_in_it() {
        let page = VirtualPage::at(7 * PAGE);
        let Range { start, end } = page.range();
        assert_eq!([start, end - 1, end].map(VirtualPage::containing), [page, page, page + 1]);
        assert_eq!(VirtualPage::containing(u64::MAX).address(), u64::MAX - (PAGE - 1));
    }

    #[test]
    fn steps_are_pages() {
        let page = VirtualPage::at(7 * PAGE);
        assert_eq!(((page + 3).address(), page + 3 - page), (10 * PAGE, 3));
        assert_eq!([7, 8].map(|pages| page.checked_sub(pages)), [Some(VirtualPage::at(0)), None]);
        assert!(VirtualPage::all_in(page.address()..page.address() + 2 * PAGE).eq([page, page + 1]));
    }

    #[test]
    fn a_page_is_as_large_and_reads_as_its_address() {
        assert_eq!(size_of::<VirtualPage>(), size_of::<u64>());
        assert_eq!(format!("{:#x}", VirtualPage::at(0x7000_3000)), "0x70003000");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a multiple of its size")]
    fn no_page_begins_at_another_address() {
        VirtualPage::at(PAGE + 1);
    }
}
