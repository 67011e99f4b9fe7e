//! Prefetchers by name: the pager's, and those that they were compared with.
//!
//! | file | policy |
//! |---|---|
//! | [`none`] | the demanded page alone |
//! | [`next_n`] | the next pages, always |
//! | [`stride`] | along a stride, once seen twice |
//! | [`linux_cluster`](spillway_policy::prefetch::linux_cluster), [`linux_vma`](spillway_policy::prefetch::linux_vma) | the kernel's, for swap |
//! | [`leap`](spillway_policy::prefetch::leap) | Leap's, by process, by thread, and with pages mapped |
//! | [`read_ahead`](spillway_policy::prefetch::read_ahead) | along a stride, in windows that grow with use and shrink with waste |
//! | [`read_around`](spillway_policy::prefetch::read_around) | the pager's |

pub mod next_n;
pub mod none;
pub mod stride;

use spillway_policy::prefetch::leap::Leap;
use spillway_policy::prefetch::linux_cluster::LinuxCluster;
use spillway_policy::prefetch::linux_vma::LinuxVma;
use spillway_policy::prefetch::read_ahead::ReadAhead;
use spillway_policy::prefetch::read_around::ReadAround;
use spillway_policy::prefetch::{Candidates, Keying, PageNumber, Prefetcher};

use self::next_n::NextN;
use self::none::NoPrefetch;
use self::stride::Stride;

/// Any of the policies, chosen at run time. An enum and not a box, as streams begin on the fault path.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "whoever chooses has few of them, and the largest is the one in use")]
pub enum AnyPrefetcher {
    /// [`none`].
    None(NoPrefetch),
    /// [`next_n`].
    NextN(NextN),
    /// [`stride`].
    Stride(Stride),
    /// [`linux_cluster`](spillway_policy::prefetch::linux_cluster).
    LinuxCluster(LinuxCluster),
    /// [`linux_vma`](spillway_policy::prefetch::linux_vma).
    LinuxVma(LinuxVma),
    /// [`leap`](spillway_policy::prefetch::leap).
    Leap(Leap),
    /// [`read_ahead`](spillway_policy::prefetch::read_ahead).
    ReadAhead(ReadAhead),
    /// [`read_around`](spillway_policy::prefetch::read_around).
    ReadAround(ReadAround),
}

impl AnyPrefetcher {
    /// All of them, without a past.
    pub fn all() -> [Self; 10] {
        [
            Self::None(NoPrefetch),
            Self::NextN(NextN::default()),
            Self::Stride(Stride::default()),
            Self::LinuxCluster(LinuxCluster::default()),
            Self::LinuxVma(LinuxVma::default()),
            Self::Leap(Leap::by_process()),
            Self::Leap(Leap::by_thread()),
            Self::Leap(Leap::mapped()),
            Self::ReadAhead(ReadAhead::default()),
            Self::ReadAround(ReadAround::default()),
        ]
    }

    fn policy(&self) -> &dyn Prefetcher {
        match self {
            Self::None(policy) => policy,
            Self::NextN(policy) => policy,
            Self::Stride(policy) => policy,
            Self::LinuxCluster(policy) => policy,
            Self::LinuxVma(policy) => policy,
            Self::Leap(policy) => policy,
            Self::ReadAhead(policy) => policy,
            Self::ReadAround(policy) => policy,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Prefetcher {
        match self {
            Self::None(policy) => policy,
            Self::NextN(policy) => policy,
            Self::Stride(policy) => policy,
            Self::LinuxCluster(policy) => policy,
            Self::LinuxVma(policy) => policy,
            Self::Leap(policy) => policy,
            Self::ReadAhead(policy) => policy,
            Self::ReadAround(policy) => policy,
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
        if let (Self::ReadAround(policy), Self::ReadAround(other)) = (self, other) {
            policy.learn_from(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_distinct_names_and_do_what_they_are_called_after() {
        let names = AnyPrefetcher::all().map(|policy| policy.name());
        let expected = [
            "none",
            "next-n",
            "stride",
            "linux-cluster",
            "linux-vma",
            "leap",
            "leap-thread",
            "leap-mapped",
            "read-ahead",
            "read-around",
        ];
        assert_eq!(names, expected);
        let brought = AnyPrefetcher::all().map(|mut policy| {
            let mut candidates = Candidates::default();
            for page in [10, 11, 12] {
                candidates.clear();
                policy.on_fault(PageNumber(page), &mut candidates);
                policy.on_unused(PageNumber(10_000));
            }
            let first = candidates.pages().len();
            let marker = candidates.marker();
            candidates.clear();
            marker.into_iter().for_each(|marker| policy.on_hit(marker, &mut candidates));
            (first, candidates.pages().len())
        });
        let leap = (1, 0);
        let linux = [(1, 0), (1, 0)];
        let ours = (8, 16);
        assert_eq!(brought[..3], [(0, 0), (31, 31), (8, 8)]);
        assert_eq!(brought[3..5], linux);
        assert_eq!(brought[5..7], [leap, leap]);
        assert_eq!(brought[7..], [(1, 2), ours, ours]);
    }
}
