//! Addresses without the gaps between them: a program's memory is spread over terabytes, of which it uses little.
//!
//! Invariant: regions are in order of addresses, do not overlap, and hold every page that they were made of.

use spillway_policy::prefetch::PageNumber;

/// Pages between two regions at least: 16 MiB.
const GAP_PAGES: u64 = 4096;

/// Regions at most: each has its label, and a picture has room for so many.
const REGIONS_MAX: usize = 16;

/// The least part of the whole that a region gets, for its label.
const PART_MIN: f64 = 0.03;

/// Neighbouring pages, with gaps that are small.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Region {
    /// The first page.
    pub(crate) first: PageNumber,
    /// The last one.
    pub(crate) last: PageNumber,
    /// Where it begins on a scale from 0 to 1, and where it ends.
    pub(crate) place: (f64, f64),
}

impl Region {
    /// Pages from the first to the last.
    pub(crate) fn pages(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }
}

/// See the module text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Regions(Vec<Region>);

impl Regions {
    /// Those of `pages`, which are in order.
    pub(crate) fn of(pages: &[PageNumber]) -> Self {
        let mut gap_pages = GAP_PAGES;
        loop {
            let regions = split(pages, gap_pages);
            if regions.len() <= REGIONS_MAX {
                return Self(placed(regions));
            }
            gap_pages *= 2;
        }
    }

    /// The regions.
    pub(crate) fn all(&self) -> &[Region] {
        &self.0
    }

    /// Where a page lies on the scale.
    pub(crate) fn place(&self, page: PageNumber) -> f64 {
        let next = self.0.partition_point(|region| region.last < page).min(self.0.len() - 1);
        let region = &self.0[next];
        let within = page.0.saturating_sub(region.first.0) as f64 / region.pages() as f64;
        region.place.0 + (region.place.1 - region.place.0) * within
    }
}

fn split(pages: &[PageNumber], gap_pages: u64) -> Vec<(PageNumber, PageNumber)> {
    let mut regions: Vec<(PageNumber, PageNumber)> = Vec::new();
    for page in pages {
        match regions.last_mut() {
            Some((_, last)) if page.0 - last.0 <= gap_pages => *last = *page,
            _ => regions.push((*page, *page)),
        }
    }
    regions
}

/// Gives each region the least part and a share of the rest by its pages.
fn placed(regions: Vec<(PageNumber, PageNumber)>) -> Vec<Region> {
    let all: u64 = regions.iter().map(|(first, last)| last.0 - first.0 + 1).sum();
    let rest = 1.0 - PART_MIN * regions.len() as f64;
    let mut begin = 0.0;
    let place = |(first, last): (PageNumber, PageNumber)| {
        let end = begin + PART_MIN + rest * (last.0 - first.0 + 1) as f64 / all as f64;
        let region = Region { first, last, place: (begin, end) };
        begin = end;
        region
    };
    regions.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(pages: &[u64]) -> Regions {
        let mut pages: Vec<PageNumber> = pages.iter().copied().map(PageNumber).collect();
        pages.sort();
        Regions::of(&pages)
    }

    #[test]
    fn gaps_are_left_out_and_small_regions_are_seen() {
        let regions = of(&[10, 11, 900, 1 << 30, (1 << 30) + 9]);
        let ends: Vec<_> = regions.all().iter().map(|region| (region.first.0, region.last.0)).collect();
        assert_eq!(ends, [(10, 900), (1 << 30, (1 << 30) + 9)]);
        assert_eq!((regions.all()[0].place.0, regions.all()[1].pages()), (0.0, 10));
        assert!(regions.all()[1].place.1 - regions.all()[1].place.0 > 0.03);
        assert!((regions.all()[1].place.1 - 1.0).abs() < 1e-9);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn places_keep_the_order_of_pages(pages in proptest::collection::btree_set(0_u64..1 << 52, 1..60)) {
            let pages: Vec<u64> = pages.into_iter().collect();
            let regions = of(&pages);
            prop_assert!((1..=REGIONS_MAX).contains(&regions.all().len()));
            let places: Vec<f64> = pages.iter().map(|page| regions.place(PageNumber(*page))).collect();
            prop_assert!(places.iter().all(|place| (0.0..=1.0).contains(place)));
            prop_assert!(places.windows(2).all(|pair| pair[0] <= pair[1]));
        }
    }
}
