//! How long ago a page left, counted in pages that left since: the kernel's working-set clock (`mm/workingset.c`), in
//! user space.
//!
//! A page that comes back after fewer departures than there are pages in memory would have stayed if the pages that
//! stayed instead had gone: its *refault distance* says by how much local memory was too small for it. Policies use it,
//! and the pager's statistics tell it.
//!
//! Four bytes for each page number. The count wraps after 2^32 departures (16 TiB of eviction); an older page then
//! seems young once, which costs a wrong guess and nothing else.

use super::CachePage;

/// No departure known.
const NEVER: u32 = u32::MAX;

/// When each page left.
#[derive(Clone, Debug, Default)]
pub struct Shadows {
    left_at: Vec<u32>,
    /// Departures so far; never [`NEVER`].
    clock: u32,
}

impl Shadows {
    /// No page has left yet; room for page numbers below `pages`.
    pub fn new(pages: u32) -> Self {
        Self { left_at: vec![NEVER; pages as usize], clock: 0 }
    }

    /// Page numbers below `pages` are in use from now on: the only call that allocates.
    pub fn grow(&mut self, pages: u32) {
        let length = (pages as usize).max(self.left_at.len());
        self.left_at.resize(length, NEVER);
    }

    /// `page` leaves local memory.
    pub fn left(&mut self, page: CachePage) {
        self.left_at[page.0 as usize] = self.clock;
        self.clock = if self.clock + 1 == NEVER { 0 } else { self.clock + 1 };
    }

    /// The program dropped `page`: it has no past any more.
    pub fn forget(&mut self, page: CachePage) {
        self.left_at[page.0 as usize] = NEVER;
    }

    /// How many pages left since `page` did, itself not counted; `None` if it never left.
    pub fn distance(&self, page: CachePage) -> Option<u32> {
        match self.left_at[page.0 as usize] {
            NEVER => None,
            // One value of the clock is left out, so a distance across the wrap is one too large: no matter.
            left_at => Some(self.clock.wrapping_sub(left_at).wrapping_sub(1)),
        }
    }

    /// Bytes for each page number.
    pub const BYTES_PER_PAGE: usize = size_of::<u32>();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_that_never_left_has_no_distance() {
        let mut shadows = Shadows::new(2);
        assert_eq!(shadows.distance(CachePage(0)), None);
        shadows.left(CachePage(0));
        shadows.forget(CachePage(0));
        assert_eq!(shadows.distance(CachePage(0)), None);
    }

    #[test]
    fn room_grows_and_keeps_what_is_known() {
        let mut shadows = Shadows::new(1);
        shadows.left(CachePage(0));
        shadows.grow(3);
        shadows.left(CachePage(2));
        shadows.grow(1);
        assert_eq!([0, 1, 2].map(|page| shadows.distance(CachePage(page))), [Some(1), None, Some(0)]);
    }

    #[test]
    fn the_clock_wraps_without_naming_never() {
        let mut shadows = Shadows::new(2);
        shadows.clock = NEVER - 1;
        shadows.left(CachePage(0));
        assert_eq!(shadows.clock, 0);
        shadows.left(CachePage(1));
        assert!(shadows.distance(CachePage(0)).is_some_and(|distance| distance <= 2));
        assert_eq!(shadows.distance(CachePage(1)), Some(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn distances_are_departures_in_between(departures in proptest::collection::vec(0_u32..8, 0..60)) {
            let mut shadows = Shadows::new(8);
            departures.iter().for_each(|page| shadows.left(CachePage(*page)));
            for page in 0..8 {
                let since = departures.iter().rev().position(|departed| *departed == page);
                prop_assert_eq!(shadows.distance(CachePage(page)), since.map(|since| since as u32));
            }
        }
    }
}
