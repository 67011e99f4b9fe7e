//! What is reported of prefetching from swap, by a run and by a swap device.

use serde::{Deserialize, Serialize};
use spillway_device::prefetch::PrefetchCounts;
use spillway_policy::prefetch::selection::PrefetchPolicy;

/// See the module text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchReport {
    /// As the user wrote it.
    pub policy: String,
    /// Whether pages are prefetched by us.
    pub is_active: bool,
    /// What the user should know: what is lacking, or which setting is changed.
    pub note: Option<String>,
    /// Page faults that were seen.
    pub samples: Samples,
    /// Times that the kernel was asked for pages.
    pub advices: u64,
    /// Pages that the kernel was asked for.
    pub pages_asked: u64,
    /// Of these, pages that were used.
    pub pages_used: u64,
    /// Of these, pages that were waited for all the same.
    pub pages_late: u64,
    /// Pages that left again before they were used.
    pub pages_left: u64,
    /// Pages that were not asked for, because there was no room.
    pub pages_held_back: u64,
    /// Times that the kernel refused.
    pub failures: u64,
}

/// Page faults that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// Faults that waited for a page.
    pub major: u64,
    /// Faults that did not.
    pub minor: u64,
    /// Faults that were not told, because there were too many.
    pub lost: u64,
}

impl PrefetchReport {
    /// What `policy` came to; `None` is the kernel's.
    pub fn new(policy: Option<PrefetchPolicy>, is_active: bool, note: Option<String>, counts: PrefetchCounts) -> Self {
        Self {
            policy: policy.map_or("kernel", PrefetchPolicy::name).to_owned(),
            is_active,
            note,
            samples: Samples { major: counts.major_samples, minor: counts.minor_samples, lost: counts.lost_samples },
            advices: counts.advices,
            pages_asked: counts.pages_asked,
            pages_used: counts.pages_used,
            pages_late: counts.pages_late,
            pages_left: counts.pages_left,
            pages_held_back: counts.pages_held_back,
            failures: counts.failures,
        }
    }
}
