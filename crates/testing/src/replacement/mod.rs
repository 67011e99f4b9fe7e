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

use spillway_policy::replacement::{Replacement, clock, sampled};

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
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Fifo, Self::Clock, Self::Sieve, Self::S3Fifo, Self::SeveralChances, Self::Sampled];

    /// The pager's, unless told otherwise: docs/decisions/replacement.md has the figures.
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
        }
    }

    /// The policy, with room for page numbers below `pages` and a budget of `capacity` listed pages. What is left to
    /// chance has always the same seed: equal events, equal victims.
    pub fn build(self, pages: u32, capacity: u32) -> Box<dyn Replacement> {
        match self {
            Self::Fifo => Box::new(fifo::Fifo::new(pages, capacity)),
            Self::Clock => Box::new(clock::Clock::new(pages, capacity)),
            Self::Sieve => Box::new(sieve::Sieve::new(pages, capacity)),
            Self::S3Fifo => Box::new(s3_fifo::S3Fifo::new(pages, capacity)),
            Self::SeveralChances => Box::new(several_chances::SeveralChances::new(pages, capacity)),
            Self::Sampled => Box::new(sampled::Sampled::new(pages, capacity, 1)),
        }
    }
}
