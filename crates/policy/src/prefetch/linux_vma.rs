//! The kernel's read-ahead for swap by addresses (`swap_vma_readahead` in `mm/swap_state.c`): its default on
//! solid-state disks and memory.
//!
//! As many pages as the cluster read-ahead has ([`super::linux_cluster`]), but of addresses: behind the page if the
//! one before it was touched last, before it if the one behind it was, else on both sides. A window does not leave the
//! 2 MiB that one page table describes. Pages stay in the swap cache, unmapped.
//!
//! The kernel keeps its numbers for each mapping; a trace has no mappings, so here it is one for each process.

use super::linux_cluster::swap_in_pages;
use super::{Candidates, Keying, PageNumber, Prefetcher};

/// Pages that one page table describes.
const TABLE_PAGES: u64 = 512;

/// `SWAP_RA_HITS_MAX`: what fits beside the window in one word.
const HITS_MAX: u64 = 63;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct LinuxVma {
    /// The page of the last fault or hit.
    before: PageNumber,
    hits: u64,
    pages_before: u64,
}

impl Default for LinuxVma {
    fn default() -> Self {
        // The kernel takes 4 for a mapping without numbers (`GET_SWAP_RA_VAL`).
        Self { before: PageNumber(0), hits: 4, pages_before: 0 }
    }
}

impl Prefetcher for LinuxVma {
    fn name(&self) -> &'static str {
        "linux-vma"
    }

    fn keying(&self) -> Keying {
        Keying::Process
    }

    fn keeps_unmapped(&self) -> bool {
        true
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        let pages = swap_in_pages(self.before, page, std::mem::take(&mut self.hits), self.pages_before);
        let before = match page.distance_from(self.before) {
            1 => 0,
            -1 => pages - 1,
            _ => (pages - 1) / 2,
        };
        (self.before, self.pages_before) = (page, pages);
        let table = page.0 / TABLE_PAGES * TABLE_PAGES;
        let first = page.0.saturating_sub(before).max(table);
        let last = (page.0 - before.min(page.0)).saturating_add(pages - 1).min(table + (TABLE_PAGES - 1));
        (first..=last).filter(|other| *other != page.0).for_each(|other| candidates.push(PageNumber(other)));
    }

    fn on_hit(&mut self, page: PageNumber, _candidates: &mut Candidates) {
        self.hits = HITS_MAX.min(self.hits + 1);
        self.before = page;
    }

    fn on_unused(&mut self, _page: PageNumber) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(policy: &mut LinuxVma, page: u64) -> Vec<u64> {
        let mut candidates = Candidates::default();
        policy.on_fault(PageNumber(page), &mut candidates);
        candidates.pages().iter().map(|page| page.0).collect()
    }

    #[test]
    fn windows_lie_where_the_program_goes() {
        let mut policy = LinuxVma::default();
        assert_eq!(fault(&mut policy, 100), [97, 98, 99, 101, 102, 103, 104], "on both sides");
        for page in 101..=104 {
            policy.on_hit(PageNumber(page), &mut Candidates::default());
        }
        assert_eq!(fault(&mut policy, 105), (106..=112).collect::<Vec<_>>(), "upwards");
        assert_eq!(fault(&mut policy, 104), [101, 102, 103], "downwards, and half as many without a hit");
    }

    #[test]
    fn windows_end_with_the_page_table() {
        let mut policy = LinuxVma::default();
        assert_eq!(fault(&mut policy, 511), [508, 509, 510]);
        policy = LinuxVma::default();
        assert_eq!(fault(&mut policy, u64::MAX - 1).len(), 4);
    }
}
