//! Prefetchers by name: the pager's, and those that they were compared with.
//!
//! | file | policy |
//! |---|---|
//! | [`none`] | the demanded page alone |
//! | [`next_n`] | the next pages, always |
//! | [`stride`] | along a stride, once seen twice |
//! | [`read_ahead`](spillway_policy::prefetch::read_ahead) | along a stride, in windows that grow with use and shrink with waste |
//! | [`read_around`](spillway_policy::prefetch::read_around) | the pager's |

pub mod next_n;
pub mod none;
pub mod stride;

use spillway_policy::prefetch::read_ahead::ReadAhead;
use spillway_policy::prefetch::read_around::ReadAround;
use spillway_policy::prefetch::{Candidates, PageNumber, Prefetcher};

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
    /// [`read_ahead`](spillway_policy::prefetch::read_ahead).
    ReadAhead(ReadAhead),
    /// [`read_around`](spillway_policy::prefetch::read_around).
    ReadAround(ReadAround),
}

impl AnyPrefetcher {
    /// All of them, without a past.
    pub fn all() -> [Self; 5] {
        [
            Self::None(NoPrefetch),
            Self::NextN(NextN::default()),
            Self::Stride(Stride::default()),
            Self::ReadAhead(ReadAhead::default()),
            Self::ReadAround(ReadAround::default()),
        ]
    }

    fn policy(&self) -> &dyn Prefetcher {
        match self {
            Self::None(policy) => policy,
            Self::NextN(policy) => policy,
            Self::Stride(policy) => policy,
            Self::ReadAhead(policy) => policy,
            Self::ReadAround(policy) => policy,
        }
    }

    fn policy_mut(&mut self) -> &mut dyn Prefetcher {
        match self {
            Self::None(policy) => policy,
            Self::NextN(policy) => policy,
            Self::Stride(policy) => policy,
            Self::ReadAhead(policy) => policy,
            Self::ReadAround(policy) => policy,
        }
    }
}

impl Prefetcher for AnyPrefetcher {
    fn name(&self) -> &'static str {
        self.policy().name()
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
        assert_eq!(names, ["none", "next-n", "stride", "read-ahead", "read-around"]);
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
        assert_eq!(brought, [(0, 0), (31, 31), (8, 8), (8, 16), (8, 16)]);
    }
}
