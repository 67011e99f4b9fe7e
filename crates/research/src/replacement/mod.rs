//! Policies of page replacement by name: the pager's, and those that it was compared with.
//!
//! | file | policy |
//! |---|---|
//! | [`fifo`] | in order of arrival |
//! | [`clock`] | in order of arrival, once more round with evidence |
//! | [`sieve`] | SIEVE: new pages are sieved sooner than proven ones |
//! | [`s3_fifo`] | S3-FIFO: a small queue to pass, a main queue to stay |
//! | [`several_chances`] | DCM's lists: new, active, staging |
//! | [`sampled`] | the pager's |

pub mod fifo;
pub mod s3_fifo;
pub mod several_chances;
pub mod sieve;

use spillway_policy::replacement::sampled::EagerEviction;
use spillway_policy::replacement::{Replacement, clock, sampled};
use spillway_policy::replay::memory::{BuildReplacement, sampled as sampled_by_default};

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// [`fifo`].
    Fifo,
    /// [`clock`].
    Clock,
    /// [`sieve`].
    Sieve,
    /// [`s3_fifo`].
    S3Fifo,
    /// [`several_chances`].
    SeveralChances,
    /// [`sampled`].
    Sampled,
    /// [`sampled`] without eager eviction.
    SampledInTurn,
    /// [`sampled`] with eager eviction of all that streams have passed.
    SampledAtOnce,
}

impl Policy {
    /// All that differ in more than eager eviction.
    pub const ALL: [Self; 6] =
        [Self::Fifo, Self::Clock, Self::Sieve, Self::S3Fifo, Self::SeveralChances, Self::Sampled];

    /// The pager's without eager eviction, as it is, and with eager eviction of all: docs/decisions/replacement.md.
    pub const EAGERNESS: [Self; 3] = [Self::SampledInTurn, Self::Sampled, Self::SampledAtOnce];

    /// The pager's, unless told otherwise: docs/measurements.md has the figures.
    pub const DEFAULT: Self = Self::Sampled;

    /// Its name on command lines and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Clock => "clock",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::SeveralChances => "several-chances",
            Self::Sampled => "sampled",
            Self::SampledInTurn => "sampled, not eager",
            Self::SampledAtOnce => "sampled, all eager",
        }
    }

    /// The policy, with room for page numbers below `pages` and a budget of `capacity` listed pages. What is left to
    /// chance has always the same seed: equal events, equal victims.
    pub fn build(self, pages: u32, capacity: u32) -> Box<dyn Replacement> {
        self.builder()(pages, capacity)
    }

    /// What builds the policy.
    pub fn builder(self) -> BuildReplacement {
        match self {
            Self::Fifo => |pages, capacity| Box::new(fifo::Fifo::new(pages, capacity)),
            Self::Clock => |pages, capacity| Box::new(clock::Clock::new(pages, capacity)),
            Self::Sieve => |pages, capacity| Box::new(sieve::Sieve::new(pages, capacity)),
            Self::S3Fifo => |pages, capacity| Box::new(s3_fifo::S3Fifo::new(pages, capacity)),
            Self::SeveralChances => |pages, capacity| Box::new(several_chances::SeveralChances::new(pages, capacity)),
            Self::Sampled => sampled_by_default,
            Self::SampledInTurn => {
                |pages, capacity| Box::new(sampled::Sampled::with(EagerEviction::No, pages, capacity, 1))
            }
            Self::SampledAtOnce => {
                |pages, capacity| Box::new(sampled::Sampled::with(EagerEviction::All, pages, capacity, 1))
            }
        }
    }
}
