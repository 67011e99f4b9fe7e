//! The next N pages, whatever the faults say: the rival that shows what adapting is worth.

use spillway_policy::prefetch::{Candidates, PageNumber, Prefetcher};

/// Pages after the demanded one: together 128 KiB, HPBD's largest request. A trial of the pager with this fixed
/// read-ahead served sequential scans in 2.2 to 3.2 us a page, but strided ones in 36 and random ones in 50.
pub const NEXT_PAGES: usize = 31;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct NextN {
    /// The last page that was brought along.
    end: PageNumber,
}

impl Default for NextN {
    fn default() -> Self {
        Self { end: PageNumber(0) }
    }
}

impl NextN {
    /// Adds the pages after `last`; the one at `marker` is the marker.
    fn bring(&mut self, last: PageNumber, marker: usize, candidates: &mut Candidates) {
        let after = (1..=NEXT_PAGES as i64).filter_map(|step| last.offset(step));
        after.for_each(|page| candidates.push(page));
        if let Some(end) = candidates.pages().last() {
            self.end = *end;
            candidates.mark(marker.min(candidates.pages().len() - 1));
        }
    }
}

impl Prefetcher for NextN {
    fn name(&self) -> &'static str {
        "next-n"
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.bring(page, NEXT_PAGES / 2, candidates);
    }

    fn on_hit(&mut self, _page: PageNumber, candidates: &mut Candidates) {
        self.bring(self.end, 0, candidates);
    }

    fn on_unused(&mut self, _page: PageNumber) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_one_another() {
        let (mut policy, mut candidates) = (NextN::default(), Candidates::default());
        policy.on_fault(PageNumber(100), &mut candidates);
        assert!(candidates.pages().iter().map(|page| page.0).eq(101..132));
        let marker = candidates.marker().unwrap();
        assert_eq!(marker, PageNumber(116));
        candidates.clear();
        policy.on_hit(marker, &mut candidates);
        assert!(candidates.pages().iter().map(|page| page.0).eq(132..163));
        assert_eq!(candidates.marker(), Some(PageNumber(132)), "the rest of the window before is still to come");
    }

    #[test]
    fn addresses_end() {
        let (mut policy, mut candidates) = (NextN::default(), Candidates::default());
        policy.on_fault(PageNumber(u64::MAX - 2), &mut candidates);
        assert_eq!(candidates.pages(), [PageNumber(u64::MAX - 1), PageNumber(u64::MAX)]);
        candidates.clear();
        policy.on_fault(PageNumber(u64::MAX), &mut candidates);
        assert_eq!((candidates.pages(), candidates.marker()), (&[][..], None));
    }
}
