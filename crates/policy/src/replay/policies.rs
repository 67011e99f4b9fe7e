//! The policies of prefetching that a trace is replayed against, by name: those that a run can have, and those that
//! they are compared with.

use super::accesses::Accesses;
use super::counts::Counts;
use super::memory::{Settings, replay};
use crate::prefetch::leap::Leap;
use crate::prefetch::linux_cluster::LinuxCluster;
use crate::prefetch::linux_vma::LinuxVma;
use crate::prefetch::read_ahead::ReadAhead;
use crate::prefetch::selection::PrefetchPolicy;

/// A policy of prefetching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// No page comes along.
    None,
    /// The default of `run`: streams, and neighbours where they are needed ([`crate::prefetch::read_around`]).
    Streams,
    /// The same without neighbours ([`crate::prefetch::read_ahead`]).
    ReadAhead,
    /// Leap's trend as a run has it: for each thread, and pages are mapped ([`crate::prefetch::leap`]).
    Leap,
    /// Leap as it is published: for each process, and pages stay unmapped.
    LeapPublished,
    /// The kernel's, by swap slots ([`crate::prefetch::linux_cluster`]).
    LinuxCluster,
    /// The kernel's, by addresses ([`crate::prefetch::linux_vma`]).
    LinuxVma,
    /// Blocks that grow and shrink with use ([`crate::prefetch::elastic`]).
    Elastic,
}

impl ReplayPolicy {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Streams,
        Self::ReadAhead,
        Self::Leap,
        Self::LeapPublished,
        Self::LinuxCluster,
        Self::LinuxVma,
        Self::Elastic,
    ];

    /// Its name on command lines and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Streams => "streams",
            Self::ReadAhead => "read-ahead",
            Self::Leap => "leap",
            Self::LeapPublished => "leap-published",
            Self::LinuxCluster => "linux-cluster",
            Self::LinuxVma => "linux-vma",
            Self::Elastic => "elastic",
        }
    }

    /// Replays all of `accesses` with this policy.
    pub fn replay(self, accesses: &Accesses, settings: &Settings<()>) -> Counts {
        match self {
            Self::None => replay(accesses, &settings.with(PrefetchPolicy::None.prefetcher())),
            Self::Streams => replay(accesses, &settings.with(PrefetchPolicy::Streams.prefetcher())),
            Self::ReadAhead => replay(accesses, &settings.with(ReadAhead::default())),
            Self::Leap => replay(accesses, &settings.with(PrefetchPolicy::Leap.prefetcher())),
            Self::LeapPublished => replay(accesses, &settings.with(Leap::by_process())),
            Self::LinuxCluster => replay(accesses, &settings.with(LinuxCluster::default())),
            Self::LinuxVma => replay(accesses, &settings.with(LinuxVma::default())),
            Self::Elastic => replay(accesses, &settings.with(PrefetchPolicy::Elastic.prefetcher())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::accesses::tests::accesses;

    #[test]
    fn each_policy_but_none_follows_a_sequence() {
        let pages: Vec<(u64, bool)> = (0..4000).chain(0..4000).map(|page| (page, false)).collect();
        let trace = accesses(&pages);
        let settings = Settings::usual(2000);
        for policy in ReplayPolicy::ALL {
            let counts = policy.replay(&trace, &settings);
            assert_eq!(counts.prefetched == 0, policy == ReplayPolicy::None, "{}", policy.name());
            let covered = counts.coverage();
            assert!(covered > 0.7 || policy == ReplayPolicy::None, "{}: {covered}", policy.name());
        }
    }
}
