//! The rest of an aligned block of 32 pages comes along with each fault, used or not: what [`elastic`](spillway_policy::prefetch::elastic)
//! is compared with.

use spillway_policy::prefetch::{Candidates, Keying, PageNumber, Prefetcher};

/// Pages of a block: 128 KiB, the pager's groups of neighbours, and HPBD's largest request.
pub const BLOCK_PAGES: u64 = 32;

/// See the module text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blocks;

impl Prefetcher for Blocks {
    fn name(&self) -> &'static str {
        "blocks-32"
    }

    fn keying(&self) -> Keying {
        Keying::Process
    }

    fn on_fault(&mut self, _page: PageNumber, _candidates: &mut Candidates) {}

    fn around(&mut self, page: PageNumber, is_away: &dyn Fn(PageNumber) -> bool, candidates: &mut Candidates) {
        let first = page.0 / BLOCK_PAGES * BLOCK_PAGES;
        let others = (page.0 + 1..first + BLOCK_PAGES).chain(first..page.0).map(PageNumber);
        others.filter(|other| is_away(*other)).for_each(|other| candidates.push(other));
        candidates.are_around();
    }

    fn on_hit(&mut self, _page: PageNumber, _candidates: &mut Candidates) {}

    fn on_unused(&mut self, _page: PageNumber) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_away_of_the_block_comes_and_the_page_does_not() {
        let (mut policy, mut candidates) = (Blocks, Candidates::default());
        policy.around(PageNumber(69), &|page| page.0 != 80, &mut candidates);
        let expected = (70..96).filter(|page| *page != 80).chain(64..69).map(PageNumber);
        assert!(candidates.pages().iter().copied().eq(expected));
        assert!(candidates.comes_around() && candidates.marker().is_none(), "taken for needed");
    }
}
