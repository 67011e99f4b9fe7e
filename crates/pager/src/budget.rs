//! How much local memory programs may have, and how much of it they have.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::limits::{
    EXCESS_BYTES_MIN, EXCESS_SHARE, GROUP_SIZE_BYTES, HOLD_SHARE, LAST_PAGES, PAGED_SHARE, WATERMARK_PAGES_MAX,
    WATERMARK_PAGES_MIN, WATERMARK_SHARE, WATERMARK_SHARE_MAX,
};

/// How much memory programs may have.
/// ```
/// use spillway_pager::budget::Budget;
///
/// let budget = Budget::new(64 << 20, 4 << 20);
/// budget.set_resident(budget.limit_pages());
/// assert!(budget.is_exceeded() && budget.holds_back());
/// budget.count(-budget.limit_pages());
/// assert!(!budget.holds_back());
/// ```
#[derive(Debug)]
pub struct Budget {
    bytes: AtomicU64,
    pool_bytes_max: u64,
    /// Pages of the write-back pool that were used: the others take no memory.
    pool_pages: AtomicI64,
    /// Something had to leave since the budget was last changed.
    is_short: AtomicBool,
    /// Pages of programs that are resident: the kernel's count at the last look, and what came and left since.
    resident: AtomicI64,
    /// Pages of programs that cannot be paged, of those that count in the budget.
    staying: AtomicI64,
    /// Nothing can leave now, so no thread waits for that.
    is_stuck: AtomicBool,
}

impl Budget {
    /// `bytes` for programs and a pool of `pool_bytes_max` at most.
    pub fn new(bytes: u64, pool_bytes_max: u64) -> Self {
        Self {
            bytes: bytes.into(),
            pool_bytes_max,
            pool_pages: AtomicI64::new(0),
            is_short: AtomicBool::new(false),
            resident: AtomicI64::new(0),
            staying: AtomicI64::new(0),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// The whole budget.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub fn set_bytes(&self, bytes: u64) {
        if self.bytes.swap(bytes, Ordering::Relaxed) < bytes {
            self.is_short.store(false, Ordering::Relaxed);
        }
    }

    /// Bytes of the write-back pool, if all of it is used.
    pub fn pool_bytes_max(&self) -> u64 {
        self.pool_bytes_max
    }

    /// Bytes of the write-back pool that were used.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_pages.load(Ordering::Relaxed).unsigned_abs() * PAGE_SIZE_BYTES as u64
    }

    /// `pages` of the write-back pool were used.
    pub fn set_pool_pages(&self, pages: u32) {
        let bytes = u64::from(pages) * PAGE_SIZE_BYTES as u64;
        assert!(bytes <= self.pool_bytes_max, "no more of the pool is used than there is");
        self.pool_pages.store(pages.into(), Ordering::Relaxed);
    }

    /// `bytes` of programs were counted that cannot be paged and count in the budget.
    pub fn set_staying(&self, bytes: u64) {
        self.staying.store((bytes / PAGE_SIZE_BYTES as u64).cast_signed(), Ordering::Relaxed);
    }

    /// Pages of the budget that the pool leaves.
    fn pages(&self) -> i64 {
        let page = PAGE_SIZE_BYTES as u64;
        (self.bytes().saturating_sub(self.pool_bytes()).max(GROUP_SIZE_BYTES) / page).cast_signed()
    }

    /// Pages that programs may have: the pool takes the rest of the budget. What can be paged keeps a part of it
    /// ([`PAGED_SHARE`]) however much stays, or programs would do nothing but wait for their pages
    /// (docs/decisions/pager-survey.md).
    pub fn limit_pages(&self) -> i64 {
        let pages = self.pages();
        pages.max(self.staying.load(Ordering::Relaxed) + pages / PAGED_SHARE)
    }

    /// Pages that programs have beyond the budget, whatever of them stays; negative while it is kept.
    pub fn excess_pages(&self) -> i64 {
        self.resident_pages() - self.pages()
    }

    /// Eviction begins above this.
    pub fn high_pages(&self) -> i64 {
        self.limit_pages() - self.watermark_pages()
    }

    /// And ends here.
    pub fn low_pages(&self) -> i64 {
        let low = self.high_pages() - self.watermark_pages();
        assert!(low > 0, "programs keep a part of the budget whatever leaves");
        low
    }

    fn watermark_pages(&self) -> i64 {
        let pages = (self.limit_pages() / WATERMARK_SHARE).clamp(WATERMARK_PAGES_MIN, WATERMARK_PAGES_MAX);
        pages.min(self.limit_pages() / WATERMARK_SHARE_MAX)
    }

    /// What programs may have beyond the budget without a word.
    pub fn slack_bytes(&self) -> u64 {
        (self.bytes() / EXCESS_SHARE).max(EXCESS_BYTES_MIN)
    }

    /// Whether so much memory came past all waits that the programs are to be held: what is not registered yet is
    /// filled without a fault that could wait.
    pub fn wants_hold(&self) -> bool {
        let slack_pages = (self.slack_bytes() / PAGE_SIZE_BYTES as u64).cast_signed();
        self.resident_pages() > self.limit_pages() + slack_pages / HOLD_SHARE
    }

    /// Whether nothing can leave now.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// Resident pages now.
    pub fn resident_pages(&self) -> i64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// The kernel counted `pages`.
    pub fn set_resident(&self, pages: i64) {
        self.resident.store(pages, Ordering::Relaxed);
    }

    /// `pages` came (or left, if negative).
    pub fn count(&self, pages: i64) {
        self.resident.fetch_add(pages, Ordering::Relaxed);
    }

    /// Whether a page that comes now has to wait for another to leave (rule 15).
    pub fn holds_back(&self) -> bool {
        self.resident_pages() >= self.limit_pages() && !self.is_stuck()
    }

    /// Whether `pages` more could come without a wait.
    pub fn has_room(&self, pages: i64) -> bool {
        self.resident_pages() + pages < self.limit_pages()
    }

    /// Whether pages are to leave: above the watermark, once the budget was nearly used up. Until then programs may
    /// need no more than they have, and what lies above the watermark is theirs.
    pub fn is_exceeded(&self) -> bool {
        let resident = self.resident_pages();
        if resident > self.high_pages() && resident > self.limit_pages() - LAST_PAGES {
            self.is_short.store(true, Ordering::Relaxed);
        }
        resident > self.high_pages() && self.is_short.load(Ordering::Relaxed)
    }

    /// Says whether anything can leave.
    pub fn set_stuck(&self, is_stuck: bool) {
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_lie_below_the_budget_and_the_pool_counts() {
        let budget = Budget::new(64 << 20, 4 << 20);
        assert_eq!(budget.limit_pages(), (64 << 20) / 4096, "a pool that was not used takes nothing");
        budget.set_pool_pages(1024);
        assert_eq!((budget.limit_pages(), budget.pool_bytes()), ((60 << 20) / 4096, 4 << 20));
        assert!(budget.low_pages() < budget.high_pages() && budget.high_pages() < budget.limit_pages());
        budget.set_resident(budget.limit_pages() - LAST_PAGES);
        assert!(!budget.is_exceeded(), "a program may need no more than this");
        budget.count(1);
        assert!(budget.is_exceeded() && !budget.holds_back());
        budget.set_resident(budget.high_pages() + 1);
        assert!(budget.is_exceeded(), "it needed more, so room is made ahead of it");
        budget.count(-1);
        assert!(!budget.is_exceeded());
        budget.set_resident(budget.limit_pages());
        assert!(budget.holds_back());
        budget.set_stuck(true);
        assert!(!budget.holds_back(), "nobody waits for what cannot happen");
        budget.set_bytes(1 << 30);
        assert!(!budget.is_exceeded());
        budget.set_resident(budget.high_pages() + 1);
        assert!(!budget.is_exceeded(), "it may not need more than that");
    }

    #[test]
    fn what_can_be_paged_keeps_its_part_of_the_budget() {
        let budget = Budget::new(96 << 20, 0);
        let pages = budget.limit_pages();
        budget.set_staying((96 << 20) / 4 * 3);
        assert_eq!(budget.limit_pages(), pages, "there is room");
        budget.set_staying(139 << 20);
        assert_eq!(budget.limit_pages(), ((139 + 24) << 20) / 4096);
        budget.set_resident(budget.limit_pages());
        assert!(budget.holds_back() && !budget.wants_hold(), "no program is held for what cannot leave");
        assert_eq!(budget.excess_pages(), budget.limit_pages() - pages);
    }

    #[test]
    fn programs_are_held_before_the_budget_is_exceeded_by_what_needs_no_word() {
        for (mib, slack_bytes) in [(32, 16 << 20), (80, 16 << 20), (1024, (1024 << 20) / 10)] {
            let budget = Budget::new(mib << 20, 0);
            assert_eq!(budget.slack_bytes(), slack_bytes);
            budget.set_resident(budget.limit_pages());
            assert!(!budget.wants_hold(), "faults wait");
            budget.count((budget.slack_bytes() / 4096).cast_signed());
            assert!(budget.wants_hold());
        }
    }

    #[test]
    fn programs_have_nearly_all_of_a_small_budget_and_room_to_grow_in_a_large_one() {
        let never_had = |mib: u64| {
            let budget = Budget::new(mib << 20, 0);
            budget.limit_pages() - budget.low_pages()
        };
        assert_eq!(never_had(32), 2 * WATERMARK_PAGES_MIN, "3 %");
        assert_eq!(never_had(128), 1024, "3 %");
        assert_eq!(never_had(64 << 10), 2 * WATERMARK_PAGES_MAX);
        assert_eq!(never_had(1), 16, "never more than a part of it");
    }
}
