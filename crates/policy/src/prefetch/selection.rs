//! The policies that a user may choose by name (`run --prefetch`), and one type for all of them.
//!
//! An enum and not a box, as streams begin on the fault path, where nothing allocates.

use super::elastic::Elastic;
use super::leap::Leap;
use super::read_around::ReadAround;
use super::{Candidates, Keying, PageNumber, Prefetcher};

/// Which pages come along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchPolicy {
    /// No page.
    None,
    /// Along streams and strides, and neighbours where they are needed ([`ReadAround`]).
    #[default]
    Streams,
    /// Leap's majority trend and windows ([`Leap`]), a history for each thread.
    Leap,
    /// The same with one history for all threads of a process, as Leap was published: to compare with.
    LeapByProcess,
    /// The rest of a block that grows and shrinks with use ([`Elastic`]).
    Elastic,
}

impl PrefetchPolicy {
    /// Its name on command lines and in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Streams => "streams",
            Self::Leap => "leap",
            Self::LeapByProcess => "leap-process",
            Self::Elastic => "elastic",
        }
    }

    /// A prefetcher without a past.
    pub fn prefetcher(self) -> SelectedPrefetcher {
        match self {
            Self::None => SelectedPrefetcher::None,
            Self::Streams => SelectedPrefetcher::Streams(ReadAround::default()),
            // Pages are mapped: the pager keeps none local and unmapped.
            Self::Leap => SelectedPrefetcher::Leap(Leap::mapped()),
            Self::LeapByProcess => SelectedPrefetcher::Leap(Leap::mapped_by_process()),
            Self::Elastic => SelectedPrefetcher::Elastic(Elastic::default()),
        }
    }
}

/// The prefetcher of a [`PrefetchPolicy`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "a pager has one table of them, which is made once")]
pub enum SelectedPrefetcher {
    /// See [`PrefetchPolicy::None`].
    None,
    /// See [`PrefetchPolicy::Streams`].
    Streams(ReadAround),
    /// See [`PrefetchPolicy::Leap`].
    Leap(Leap),
    /// See [`PrefetchPolicy::Elastic`].
    Elastic(Elastic),
}

impl SelectedPrefetcher {
    fn policy(&self) -> Option<&dyn Prefetcher> {
        match self {
            Self::None => None,
            Self::Streams(policy) => Some(policy),
            Self::Leap(policy) => Some(policy),
            Self::Elastic(policy) => Some(policy),
        }
    }

    fn policy_mut(&mut self) -> Option<&mut dyn Prefetcher> {
        match self {
            Self::None => None,
            Self::Streams(policy) => Some(policy),
            Self::Leap(policy) => Some(policy),
            Self::Elastic(policy) => Some(policy),
        }
    }
}

impl Prefetcher for SelectedPrefetcher {
    fn name(&self) -> &'static str {
        self.policy().map_or("none", Prefetcher::name)
    }

    fn keying(&self) -> Keying {
        self.policy().map_or(Keying::Process, Prefetcher::keying)
    }

    fn keeps_unmapped(&self) -> bool {
        self.policy().is_some_and(Prefetcher::keeps_unmapped)
    }

    fn brings_blocks(&self) -> bool {
        self.policy().is_some_and(Prefetcher::brings_blocks)
    }

    fn has_ahead(&self, page: PageNumber) -> bool {
        self.policy().is_some_and(|policy| policy.has_ahead(page))
    }

    fn on_fault(&mut self, page: PageNumber, candidates: &mut Candidates) {
        if let Some(policy) = self.policy_mut() {
            policy.on_fault(page, candidates);
        }
    }

    fn around(&mut self, page: PageNumber, is_away: &dyn Fn(PageNumber) -> bool, candidates: &mut Candidates) {
        if let Some(policy) = self.policy_mut() {
            policy.around(page, is_away, candidates);
        }
    }

    fn on_hit(&mut self, page: PageNumber, candidates: &mut Candidates) {
        if let Some(policy) = self.policy_mut() {
            policy.on_hit(page, candidates);
        }
    }

    fn go_on(&mut self, page: PageNumber, candidates: &mut Candidates) {
        if let Some(policy) = self.policy_mut() {
            policy.go_on(page, candidates);
        }
    }

    fn on_unused(&mut self, page: PageNumber) {
        if let Some(policy) = self.policy_mut() {
            policy.on_unused(page);
        }
    }

    fn learn_from(&mut self, other: &Self) {
        match (self, other) {
            (Self::Streams(policy), Self::Streams(other)) => policy.learn_from(other),
            (Self::Leap(policy), Self::Leap(other)) => policy.learn_from(other),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_does_what_it_is_called_after() {
        let policies = [PrefetchPolicy::None, PrefetchPolicy::Streams, PrefetchPolicy::Leap, PrefetchPolicy::Elastic];
        let brought = policies.map(|policy| {
            let (mut prefetcher, mut candidates) = (policy.prefetcher(), Candidates::default());
            for page in [10, 11, 12] {
                candidates.clear();
                prefetcher.on_fault(PageNumber(page), &mut candidates);
                if candidates.pages().is_empty() {
                    prefetcher.around(PageNumber(page), &|page| page.0 % 16 > 12, &mut candidates);
                }
            }
            (policy.name(), prefetcher.name(), candidates.pages().len())
        });
        let expected =
            [("none", "none", 0), ("streams", "read-around", 8), ("leap", "leap-mapped", 1), ("elastic", "elastic", 1)];
        assert_eq!(brought, expected);
    }

    #[test]
    fn leaps_history_is_of_a_thread_or_of_a_process() {
        let keying = [PrefetchPolicy::Leap, PrefetchPolicy::LeapByProcess].map(|policy| policy.prefetcher().keying());
        assert_eq!(keying, [Keying::Thread, Keying::Process]);
    }
}
