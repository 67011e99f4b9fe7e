//! What the study measures: servers that clients ask, and programs that end by themselves.

use std::time::Duration;

use spillway_pager::limits::BUDGET_BYTES_MIN;

use super::load::Times;
use super::memcached::Memcached;
use super::mix::{ETC, SYS, ZIPF};
use super::postgres::{self, Postgres};
use super::redis::Redis;
use super::server::{self, Server, pages_in};
use super::sort::{self, sort_job};
use crate::harness::HarnessError;
use crate::harness::usage::SwapCount;
use crate::limits::with_slack;
use crate::result::{OPERATIONS_PER_SECOND, SECONDS, Unit};
use crate::size::{MIB, Size};
use crate::studies::Context;
use crate::studies::job::Job;
use crate::studies::kind::Kind;
use crate::studies::places::Place;
use crate::studies::program_run::ProgramRunner;

/// Values of a server in a full run: four times the data of study `programs`.
const SIZE: Size = Size(256 * MIB);

/// Values in a quick run, and text to sort: the pager must accept a quarter of it as a budget.
const SIZE_QUICK: Size = Size(72 * MIB);

const _: () = assert!(SIZE_QUICK.0 / 4 >= BUDGET_BYTES_MIN);

/// A full run's times: long enough that each page of the values has its chance to come and go several times.
const TIMES: Times = Times { warm_up: Duration::from_secs(4), measured: Duration::from_secs(20) };
/// See [`TIMES`].
const TIMES_QUICK: Times = Times { warm_up: Duration::from_secs(1), measured: Duration::from_secs(4) };

/// What is measured.
pub enum Candidate {
    /// A server that clients ask for a fixed time.
    Server(Box<dyn Server>),
    /// A program that ends by itself.
    Program(Job),
}

/// What one run showed.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// What it is measured by, in [`Candidate::unit`].
    pub score: f64,
    /// Time that 99 of 100 requests took at most, in microseconds; `None` of a program.
    pub p99_us: Option<f64>,
    /// See [`pages_in`].
    pub pages_in: Option<u64>,
}

/// Names of all, in the order of their runs.
pub const NAMES: [&str; 6] =
    ["memcached zipf", "memcached etc", "memcached sys", "redis zipf", sort::NAME, postgres::NAME];

/// The candidate with one of [`NAMES`], its input made.
pub fn candidate(context: &Context, name: &str) -> Result<Candidate, HarnessError> {
    let size = context.choose(SIZE, SIZE_QUICK);
    let server: Box<dyn Server> = match name {
        "memcached zipf" => Box::new(Memcached::new(ZIPF, size)),
        "memcached etc" => Box::new(Memcached::new(ETC, size)),
        "memcached sys" => Box::new(Memcached::new(SYS, size)),
        "redis zipf" => Box::new(Redis::new(ZIPF, size)),
        postgres::NAME => Box::new(Postgres::prepare(context, size)?),
        _ => return sort_job(context, context.choose(sort::TEXT, SIZE_QUICK)).map(Candidate::Program),
    };
    Ok(Candidate::Server(server))
}

impl Candidate {
    /// Its name in results.
    pub fn name(&self) -> &str {
        match self {
            Self::Server(server) => server.name(),
            Self::Program(job) => job.name,
        }
    }

    /// The unit of what it is measured by.
    pub fn unit(&self) -> Unit {
        match self {
            Self::Server(_) => OPERATIONS_PER_SECOND,
            Self::Program(_) => SECONDS,
        }
    }

    /// Why it cannot be measured in places of this kind; `None` where it can.
    pub fn impossible(&self, kind: Kind) -> Option<&'static str> {
        match (self, kind) {
            (Self::Server(server), Kind::Spillway(via)) => server.impossible(via),
            _ => None,
        }
    }

    /// The most memory that it uses with all of it local.
    pub fn peak(&self, context: &Context, runner: &mut ProgramRunner<'_>) -> Result<Size, HarnessError> {
        match self {
            Self::Program(job) => runner.footprint(job),
            Self::Server(server) => {
                let at = (Place::AllLocal, TIMES_QUICK);
                let turn = server::run(context, &mut runner.places, server.as_ref(), at)?;
                Ok(with_slack(turn.peak.unwrap_or(server.room())))
            }
        }
    }

    /// Runs it once in `place`.
    pub fn measure(
        &self,
        context: &Context,
        runner: &mut ProgramRunner<'_>,
        place: Place,
    ) -> Result<Figures, HarnessError> {
        match self {
            Self::Server(server) => {
                let at = (place, context.choose(TIMES, TIMES_QUICK));
                let turn = server::run(context, &mut runner.places, server.as_ref(), at)?;
                let (score, p99_us) = (turn.served.operations_per_second, Some(turn.served.p99_us));
                Ok(Figures { score, p99_us, pages_in: turn.pages_in })
            }
            Self::Program(job) => {
                let before = SwapCount::now();
                let score = runner.seconds(job, place)?;
                Ok(Figures { score, p99_us: None, pages_in: pages_in(place, before, runner.told()) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;

    #[test]
    fn candidates_have_the_names_they_are_skipped_by() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        // PostgreSQL's data take seconds to make; its own test makes them.
        for name in NAMES.into_iter().filter(|name| *name != postgres::NAME) {
            match candidate(&context(directory.path(), 1), name) {
                Ok(candidate) => assert_eq!(candidate.name(), name),
                Err(error) => assert!(matches!(error, HarnessError::Missing(_)), "{name}: {error}"),
            }
        }
    }
}
