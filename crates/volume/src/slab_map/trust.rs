//! Which donors sent bytes that are not what was written, how often, and which are not trusted any more.
//!
//! I/O threads and the mover count; the manager's thread says it and tells the [`Steward`](crate::steward), which
//! moves the slabs of a donor away that did so [`DISTRUSTED_AFTER_PAGES`] times. A donor is not trusted again before
//! the volume is started anew: broken memory does not mend.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::page_index::PageIndex;
use super::slab_entry::DonorSlot;
use crate::limits::{DISTRUSTED_AFTER_PAGES, DONORS_MAX};

/// Pages of one source that failed their check.
#[derive(Debug, Default)]
struct Failures {
    pages: AtomicU64,
    /// Those that were told.
    told: AtomicU64,
    /// The last one.
    page: AtomicU64,
}

/// See the module text.
#[derive(Debug)]
pub struct Trust {
    /// By donor; the last is the disk.
    failures: [Failures; DONORS_MAX + 1],
    has_news: AtomicBool,
    distrusted: AtomicU64,
}

impl Default for Trust {
    fn default() -> Self {
        let failures = std::array::from_fn(|_| Failures::default());
        Self { failures, has_news: AtomicBool::new(false), distrusted: AtomicU64::new(0) }
    }
}

/// Pages that failed since they were last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureNews {
    /// Whose; `None`: the disk.
    pub donor: Option<DonorSlot>,
    /// How many.
    pub pages: u64,
    /// The last of them.
    pub page: PageIndex,
    /// The donor is not trusted from now on.
    pub is_distrusted: bool,
}

impl Trust {
    /// A page from `donor`, or from the disk, failed its check.
    pub fn failed(&self, donor: Option<DonorSlot>, page: PageIndex) {
        let failures = &self.failures[place(donor)];
        failures.page.store(page.0, Ordering::SeqCst);
        failures.pages.fetch_add(1, Ordering::SeqCst);
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Pages from `donor`, or from the disk, that failed their check.
    pub fn failures(&self, donor: Option<DonorSlot>) -> u64 {
        self.failures[place(donor)].pages.load(Ordering::SeqCst)
    }

    /// Whether `donor` is not trusted: what others have is read from them, and its slabs are moved away.
    pub fn is_distrusted(&self, donor: DonorSlot) -> bool {
        self.distrusted.load(Ordering::SeqCst) & (1 << donor.0) != 0
    }

    /// The slot of `donor` is free: what its next donor sends counts anew.
    pub fn forget(&self, donor: DonorSlot) {
        let failures = &self.failures[place(Some(donor))];
        failures.pages.store(0, Ordering::SeqCst);
        failures.told.store(0, Ordering::SeqCst);
        self.distrusted.fetch_and(!(1 << donor.0), Ordering::SeqCst);
    }

    /// What is to be told, once.
    pub fn take_news(&self) -> Vec<FailureNews> {
        if !self.has_news.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        (0..=DONORS_MAX).filter_map(|place| self.news_of(place)).collect()
    }

    fn news_of(&self, place: usize) -> Option<FailureNews> {
        let failures = &self.failures[place];
        let all = failures.pages.load(Ordering::SeqCst);
        // Fewer than were told: the slot was freed meanwhile.
        let pages = all.saturating_sub(failures.told.swap(all, Ordering::SeqCst));
        if pages == 0 {
            return None;
        }
        let donor = (place < DONORS_MAX).then_some(DonorSlot(place as u16));
        let mask = donor.filter(|_| all >= DISTRUSTED_AFTER_PAGES).map_or(0, |donor| 1 << donor.0);
        let before = self.distrusted.fetch_or(mask, Ordering::SeqCst);
        let page = PageIndex(failures.page.load(Ordering::SeqCst));
        Some(FailureNews { donor, pages, page, is_distrusted: mask & !before != 0 })
    }
}

fn place(donor: Option<DonorSlot>) -> usize {
    donor.map_or(DONORS_MAX, |donor| usize::from(donor.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_once_and_a_donor_is_distrusted_once() {
        let trust = Trust::default();
        assert!(trust.take_news().is_empty());
        let donor = DonorSlot(63);
        (1..DISTRUSTED_AFTER_PAGES).for_each(|page| trust.failed(Some(donor), PageIndex(page)));
        let news = trust.take_news();
        let (pages, page) = (DISTRUSTED_AFTER_PAGES - 1, PageIndex(DISTRUSTED_AFTER_PAGES - 1));
        assert_eq!(news, [FailureNews { donor: Some(donor), pages, page, is_distrusted: false }]);
        assert!(trust.take_news().is_empty() && !trust.is_distrusted(donor));
        trust.failed(Some(donor), PageIndex(9));
        assert!(trust.take_news()[0].is_distrusted && trust.is_distrusted(donor));
        trust.failed(Some(donor), PageIndex(9));
        assert!(!trust.take_news()[0].is_distrusted, "it was said");
        assert_eq!(trust.failures(Some(donor)), DISTRUSTED_AFTER_PAGES + 1);
        assert!(!trust.is_distrusted(DonorSlot(0)));
    }

    #[test]
    fn the_disk_is_counted_and_stays() {
        let trust = Trust::default();
        (0..DISTRUSTED_AFTER_PAGES).for_each(|page| trust.failed(None, PageIndex(page)));
        let news = trust.take_news();
        assert_eq!((news[0].donor, news[0].is_distrusted, news[0].pages), (None, false, DISTRUSTED_AFTER_PAGES));
    }
}
