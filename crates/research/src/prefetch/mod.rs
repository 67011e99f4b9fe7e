//! Prefetchers by name: those that a run can have, and those that they were compared with.
//!
//! | file | policy |
//! |---|---|
//! | [`next_n`] | the next pages, always |
//! | [`stride`] | along a stride, once seen twice |
//! | [`blocks`] | the rest of a block of 32 pages, always |
//! | [`linux_cluster`](spillway_policy::prefetch::linux_cluster), [`linux_vma`](spillway_policy::prefetch::linux_vma) | the kernel's, for swap |
//! | [`leap`](spillway_policy::prefetch::leap) | Leap's as published, by process and by thread |
//! | [`read_ahead`](spillway_policy::prefetch::read_ahead) | along a stride, in windows that grow with use and shrink with waste |
//! | [`selection`](spillway_policy::prefetch::selection) | those of the product |

pub mod blocks;
pub mod next_n;
pub mod stride;

use spillway_policy::prefetch::leap::Leap;
use spillway_policy::prefetch::linux_cluster::LinuxCluster;
use spillway_policy::prefetch::linux_vma::LinuxVma;
use spillway_policy::prefetch::read_ahead::ReadAhead;
use spillway_policy::prefetch::selection::{PrefetchPolicy, SelectedPrefetcher};
use spillway_policy::prefetch::{Candidates, Keying, PageNumber, Prefetcher};

use self::blocks::Blocks;
use self::next_n::NextN;
use self::stride::Stride;

/// Makes a policy without a past.
pub type Make = fn() -> AnyPrefetcher;

/// No page comes along.
pub const NONE: Make = || AnyPrefetcher::Product(PrefetchPolicy::None.prefetcher());
/// The product's default.
pub const STREAMS: Make = || AnyPrefetcher::Product(PrefetchPolicy::Streams.prefetcher());
/// Leap's with pages mapped.
pub const LEAP_MAPPED: Make = || AnyPrefetcher::Product(PrefetchPolicy::Leap.prefetcher());
/// Blocks that grow and shrink.
pub const ELASTIC: Make = || AnyPrefetcher::Product(PrefetchPolicy::Elastic.prefetcher());
/// [`blocks`].
pub const BLOCKS: Make = || AnyPrefetcher::Blocks(Blocks);
/// [`read_ahead`](spillway_policy::prefetch::read_ahead).
pub const READ_AHEAD: Make = || AnyPrefetcher::ReadAhead(ReadAhead::default());

/// Any of the policies, chosen at run time.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "a replay has few of them")]
pub enum AnyPrefetcher {
    /// One of the product's.
    Product(SelectedPrefetcher),
    /// [`next_n`].
    NextN(NextN),
    /// [`stride`].
    Stride(Stride),
    /// [`blocks`].
    Blocks(Blocks),
    /// [`linux_cluster`](spillway_policy::prefetch::linux_cluster).
    LinuxCluster(LinuxCluster),
    /// [`linux_vma`](spillway_policy::prefetch::linux_vma).
    LinuxVma(LinuxVma),
    /// [`leap`](spillway_policy::prefetch::leap).
    Leap(Leap),
    /// [`read_ahead`](spillway_policy::prefetch::read_ahead).
    ReadAhead(ReadAhead),
}

impl AnyPrefetcher {
    /// What makes each of them, without a past. They are large, so lists have these.
    pub const ALL: [Make; 12] = [
        NONE,
        || Self::NextN(NextN::default()),
        || Self::Stride(Stride::default()),
        BLOCKS,
        || Self::LinuxCluster(LinuxCluster::default()),
        || Self::LinuxVma(LinuxVma::default()),
        || Self::Leap(Leap::by_process()),
        || Self::Leap(Leap::by_thread()),
        LEAP_MAPPED,
        READ_AHEAD,
        ELASTIC,
        STREAMS,
    ];

    fn policy(&self) -> &dyn Prefetcher {
        match self {
            Self::Product(policy) => policy,
            Self::NextN(policy) => policy,
            Self::Stride(policy) => policy,
            Self::Blocks(policy) => policy,
            Self::LinuxCluster(policy) => policy,
            Self::LinuxVma(policy) => policy,
            Self::Leap(policy) => policy,
            Self::ReadAhead(policy) => policy,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Prefetcher {
        match self {
            Self::Product(policy) => policy,
            Self::NextN(policy) => policy,
            Self::Stride(policy) => policy,
            Self::Blocks(policy) => policy,
            Self::LinuxCluster(policy) => policy,
            Self::LinuxVma(policy) => policy,
            Self::Leap(policy) => policy,
            Self::ReadAhead(policy) => policy,
        }
    }
}

impl Prefetcher for AnyPrefetcher {
    fn name(&self) -> &'static str {
        self.policy().name()
    }

    fn keying(&self) -> Keying {
        self.policy().keying()
    }

    fn keeps_unmapped(&self) -> bool {
        self.policy().keeps_unmapped()
    }

    fn brings_blocks(&self) -> bool {
        self.policy().brings_blocks()
    }

    fn has_ahead(&self, page: PageNumber) -> bool {
        self.policy().has_ahead(page)
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.policy_mut().on_fault(page, candidates);
    }

    fn around(&mut self, page: PageNumber, is_away: &dyn Fn(PageNumber) -> bool, candidates: &mut Candidates) {
        self.policy_mut().around(page, is_away, candidates);
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.policy_mut().on_hit(page, candidates);
    }

    fn go_on(&mut self, page: PageNumber, candidates: &mut Candidates) {
        self.policy_mut().go_on(page, candidates);
    }

    fn on_unused(&mut self, page: PageNumber) {
        self.policy_mut().on_unused(page);
    }

    fn learn_from(&mut self, other: &Self) {
        if let (Self::Product(policy), Self::Product(other)) = (self, other) {
            policy.learn_from(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_distinct_names_and_do_what_they_are_called_after() {
        let brought = AnyPrefetcher::ALL.map(|make| {
            let (mut policy, mut candidates) = (make(), Candidates::default());
            for page in [10, 11, 12] {
                candidates.clear();
                policy.on_fault(PageNumber(page), &mut candidates);
                policy.on_unused(PageNumber(10_000));
            }
            let first = candidates.pages().len();
            let marker = candidates.marker();
            candidates.clear();
            marker.into_iter().for_each(|marker| policy.on_hit(marker, &mut candidates));
            (policy.name(), first, candidates.pages().len())
        });
        let expected = [
            ("none", 0, 0),
            ("next-n", 31, 31),
            ("stride", 8, 8),
            ("blocks-32", 0, 0),
            ("linux-cluster", 1, 0),
            ("linux-vma", 1, 0),
            ("leap", 1, 0),
            ("leap-thread", 1, 0),
            ("leap-mapped", 1, 2),
            ("read-ahead", 8, 16),
            ("elastic", 1, 0),
            ("read-around", 8, 16),
        ];
        assert_eq!(brought, expected);
    }
}
