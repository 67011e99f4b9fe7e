//! No prefetching: the baseline.

use spillway_policy::prefetch::{Candidates, PageNumber, Prefetcher};

/// Brings nothing along.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrefetch;

impl Prefetcher for NoPrefetch {
    fn name(&self) -> &'static str {
        "none"
    }

    fn on_fault(&mut self, _page: PageNumber, _candidates: &mut Candidates) {}

    fn on_hit(&mut self, _page: PageNumber, _candidates: &mut Candidates) {}

    fn on_unused(&mut self, _page: PageNumber) {}
}
