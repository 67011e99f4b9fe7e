//! Prefetching for swap, on a stock kernel: page faults are sampled, a prefetcher names the pages that come next, and
//! the kernel is told to bring them into its swap cache.
//!
//! - [`decide`]: samples in, advice out, without I/O; [`asked`]: what was asked for and not used yet.
//! - [`headroom`]: how many such pages the program's cgroup can take.
//! - [`processes`]: which pages of a program are in swap, and handing the advice to the kernel.
//! - [`driver`]: the thread that waits for samples.
//!
//! It helps and is never needed: a page that is not brought ahead comes when the program faults on it. The thread
//! takes no lock that the path of a page takes, and a sample that is lost costs one read at most.

pub mod asked;
pub mod decide;
pub mod driver;
pub mod headroom;
pub mod processes;

/// What prefetching did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchCounts {
    /// Samples of faults that waited for a page.
    pub major_samples: u64,
    /// Samples of faults that did not.
    pub minor_samples: u64,
    /// Samples that the kernel had no room for.
    pub lost_samples: u64,
    /// Calls that asked for pages.
    pub advices: u64,
    /// Pages that were asked for.
    pub pages_asked: u64,
    /// Of them, pages that the program came to.
    pub pages_used: u64,
    /// Of those, pages that were still on their way, as far as the kernel tells (it counts some such waits as minor).
    pub pages_late: u64,
    /// Pages that came and left again before the program came to them.
    pub pages_left: u64,
    /// Pages that were not asked for because the cgroup had no room.
    pub pages_held_back: u64,
    /// Ranges that the kernel refused: unmapped meanwhile, or their process had ended.
    pub failures: u64,
}
