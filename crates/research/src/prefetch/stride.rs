//! A fixed number of pages along a stride, once two distances in a row are equal: the rival that Leap calls Stride.
//!
//! One fault out of line ends a stride, which is what Leap's majority is for.

use spillway_policy::prefetch::{Candidates, PageNumber, Prefetcher};

/// Pages along the stride: Leap's largest window.
pub const STRIDE_WINDOW: usize = 8;

/// See the module text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stride {
    last: Option<PageNumber>,
    delta: i64,
    /// The last page that was brought along.
    end: Option<PageNumber>,
}

impl Stride {
    /// Adds the pages along the stride after `last`; the one at `marker` is the marker.
    fn bring(&mut self, last: PageNumber, marker: usize, candidates: &mut Candidates) {
        let along = (1..=STRIDE_WINDOW as i64).map_while(|step| last.offset(step.checked_mul(self.delta)?));
        along.for_each(|page| candidates.push(page));
        self.end = candidates.pages().last().copied();
        if self.end.is_some() {
            candidates.mark(marker.min(candidates.pages().len() - 1));
        }
    }
}

impl Prefetcher for Stride {
    fn name(&self) -> &'static str {
        "stride"
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        let delta = self.last.map_or(0, |last| page.distance_from(last));
        let is_stride = delta != 0 && delta == self.delta;
        (self.last, self.delta) = (Some(page), delta);
        if is_stride {
            self.bring(page, STRIDE_WINDOW / 2, candidates);
        }
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        if let Some(end) = self.end {
            self.last = Some(page);
            self.bring(end, 0, candidates);
        }
    }

    fn on_unused(&mut self, _page: PageNumber) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(policy: &mut Stride, page: u64) -> Vec<u64> {
        let mut candidates = Candidates::default();
        policy.on_fault(PageNumber(page), &mut candidates);
        candidates.pages().iter().map(|page| page.0).collect()
    }

    #[test]
    fn two_equal_distances_make_a_stride() {
        let mut policy = Stride::default();
        assert!(fault(&mut policy, 100).is_empty() && fault(&mut policy, 90).is_empty());
        assert_eq!(fault(&mut policy, 80), [70, 60, 50, 40, 30, 20, 10, 0]);
        assert!(fault(&mut policy, 81).is_empty(), "out of line");
    }

    #[test]
    fn one_page_again_and_again_is_no_stride() {
        let mut policy = Stride::default();
        assert!((0..5).all(|_| fault(&mut policy, 7).is_empty()));
    }

    #[test]
    fn a_hit_goes_on_where_the_window_ended() {
        let mut policy = Stride::default();
        assert!([0, 3].iter().all(|page| fault(&mut policy, *page).is_empty()));
        assert_eq!(fault(&mut policy, 6).last(), Some(&30));
        let mut candidates = Candidates::default();
        policy.on_hit(PageNumber(18), &mut candidates);
        assert_eq!(candidates.pages()[..2], [PageNumber(33), PageNumber(36)]);
        assert_eq!(candidates.marker(), Some(PageNumber(33)));
    }

    #[test]
    fn strides_of_any_length_end_at_the_ends_of_addresses() {
        let mut policy = Stride::default();
        assert!([u64::MAX - 8, u64::MAX - 4].iter().all(|page| fault(&mut policy, *page).is_empty()));
        assert!(fault(&mut policy, u64::MAX).is_empty());
        let far = u64::MAX / 4;
        assert!([0, far].iter().all(|page| fault(&mut policy, *page).is_empty()));
        assert_eq!(fault(&mut policy, 2 * far), [3 * far, 4 * far]);
    }
}
