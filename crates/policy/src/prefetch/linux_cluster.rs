//! The kernel's cluster read-ahead for swap (`swap_cluster_readahead` and `__swapin_nr_pages` in `mm/swap_state.c`).
//!
//! An aligned block of swap slots around the demanded one, as many as the hits since the last time say, at most 2 to
//! the power of `page-cluster`. Pages stay in the swap cache, unmapped, so each hit is told.
//!
//! Slots are taken for the addresses of their pages, which is the best that can happen to it: pages that left in the
//! order of their addresses.

use super::{Candidates, Keying, PageNumber, Prefetcher};

/// 2 to the power of `page-cluster`, whose default is 3.
pub const WINDOW_PAGES_MAX: u64 = 8;

/// The kernel's rule for the next window, the demanded page among its pages: two more than the hits, rounded up to a
/// power of two from 4 on; without a hit 2 for a neighbour of the page before and else 1; at least half of the last.
pub(super) fn swap_in_pages(before: PageNumber, page: PageNumber, hits: u64, pages_before: u64) -> u64 {
    let wanted = match hits {
        0 if before.0.abs_diff(page.0) == 1 => 2,
        0 => 1,
        _ => (hits + 2).next_power_of_two(),
    };
    wanted.min(WINDOW_PAGES_MAX).max(pages_before / 2)
}

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct LinuxCluster {
    before: PageNumber,
    hits: u64,
    pages_before: u64,
}

impl Default for LinuxCluster {
    fn default() -> Self {
        // The kernel's `swapin_readahead_hits` begins so.
        Self { before: PageNumber(0), hits: 4, pages_before: 0 }
    }
}

impl Prefetcher for LinuxCluster {
    fn name(&self) -> &'static str {
        "linux-cluster"
    }

    fn keying(&self) -> Keying {
        Keying::Process
    }

    fn keeps_unmapped(&self) -> bool {
        true
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        let hits = std::mem::take(&mut self.hits);
        self.pages_before = swap_in_pages(self.before, page, hits, self.pages_before);
        if hits == 0 {
            self.before = page;
        }
        let mask = self.pages_before - 1;
        let block = page.0 & !mask..=page.0 | mask;
        block.filter(|other| *other != page.0).for_each(|other| candidates.push(PageNumber(other)));
    }

    fn on_hit(&mut self, _page: PageNumber, _candidates: &mut Candidates) {
        self.hits += 1;
    }

    fn on_unused(&mut self, _page: PageNumber) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(policy: &mut LinuxCluster, page: u64) -> Vec<u64> {
        let mut candidates = Candidates::default();
        policy.on_fault(PageNumber(page), &mut candidates);
        candidates.pages().iter().map(|page| page.0).collect()
    }

    #[test]
    fn windows_follow_the_rule_of_the_kernel() {
        let at =
            |before, page, hits, pages_before| swap_in_pages(PageNumber(before), PageNumber(page), hits, pages_before);
        assert_eq!([at(5, 9, 0, 0), at(5, 6, 0, 0), at(6, 5, 0, 0)], [1, 2, 2]);
        assert_eq!([1, 2, 3, 6, 40].map(|hits| at(5, 9, hits, 0)), [4, 4, 8, 8, 8]);
        assert_eq!([8, 4, 2].map(|before| at(5, 9, 0, before)), [4, 2, 1], "not too fast");
    }

    #[test]
    fn blocks_are_aligned_and_without_the_page() {
        let mut policy = LinuxCluster::default();
        assert_eq!(fault(&mut policy, 13), [8, 9, 10, 11, 12, 14, 15]);
        assert_eq!(fault(&mut policy, 37), [36, 38, 39]);
        assert_eq!(fault(&mut policy, 81), [80]);
        assert!(fault(&mut policy, 7).is_empty());
    }
}
