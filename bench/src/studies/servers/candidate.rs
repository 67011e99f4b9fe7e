//! What the study measures: servers that clients ask, and programs that end by themselves.

use std::time::Duration;

use spillway_pager::limits::BUDGET_BYTES_MIN;

use super::load::{Served, Times};
use super::mariadb::{self, MariaDb};
use super::memcached::Memcached;
use super::postgres::{self, Postgres};
use super::redis::Redis;
use super::server::{self, Server, pages_moved};
use super::sort::{self, sort_job};
use crate::harness::HarnessError;
use crate::harness::cpu_use::{CpuUse, CpuWatch};
use crate::harness::usage::SwapCount;
use crate::harness::watching::watched;
use crate::limits::with_slack;
use crate::result::{SECONDS, Unit};
use crate::studies::Context;
use crate::studies::job::Job;
use crate::studies::kind::Kind;
use crate::studies::places::Place;
use crate::studies::program_run::ProgramRunner;
use spillway_workloads::size::{MIB, Size};

/// Values of a server in a full run: four times the data of study `programs`.
const SIZE: Size = Size(256 * MIB);

/// Values in a quick run, and text to sort: the pager must accept a quarter of it as a budget.
const SIZE_QUICK: Size = Size(72 * MIB);

const _: () = assert!(SIZE_QUICK.0 / 4 >= BUDGET_BYTES_MIN);

/// A full run's times: long enough that each page of the values has its chance to come and go several times.
const TIMES: Times = Times { warm_up: Duration::from_secs(4), measured: Duration::from_secs(20) };
/// See [`TIMES`].
const TIMES_QUICK: Times = Times { warm_up: Duration::from_secs(1), measured: Duration::from_secs(2) };

/// How often a program that ends by itself is looked at: a look at all processes takes a millisecond or two.
const CPU_INTERVAL: Duration = Duration::from_millis(200);

/// What is measured.
pub enum Candidate {
    /// A server that clients ask for a fixed time.
    Server(Box<dyn Server>),
    /// A program that ends by itself.
    Program(Job),
}

/// What one run showed.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What it is measured by, in [`Candidate::unit`].
    pub score: f64,
    /// Time that 99 of 100 requests took at most, in microseconds; `None` of a program.
    pub p99_us: Option<f64>,
    /// See [`pages_moved`].
    pub pages: Option<SwapCount>,
    /// What the CPUs did while clients asked, or while the program ran; `None` of a program too short to be seen.
    pub cpu: Option<CpuUse>,
}

/// Names of all, in the order of their runs.
pub const NAMES: [&str; 5] = ["memcached zipf", "redis zipf", sort::NAME, postgres::NAME, mariadb::NAME];

/// Names of those to measure only, separated by commas.
const CHOICE: &str = "SPILLWAY_BENCH_SERVERS";

/// The names that the environment asks for; all without any.
pub fn chosen() -> Result<Vec<&'static str>, HarnessError> {
    choose(&std::env::var(CHOICE).unwrap_or_default())
}

fn choose(choice: &str) -> Result<Vec<&'static str>, HarnessError> {
    let wanted: Vec<&str> = choice.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    match wanted.iter().find(|name| !NAMES.contains(name)) {
        None => Ok(NAMES.into_iter().filter(|name| wanted.is_empty() || wanted.contains(name)).collect()),
        Some(name) => {
            let known = NAMES.join(", ");
            Err(HarnessError::Missing(format!("{CHOICE} names '{name}', which is not measured; choose from: {known}")))
        }
    }
}

/// The candidate with one of [`NAMES`], its input made.
pub fn candidate(context: &Context, name: &str) -> Result<Candidate, HarnessError> {
    let size = context.choose(SIZE, SIZE_QUICK);
    let server: Box<dyn Server> = match name {
        "memcached zipf" => Box::new(Memcached::new(size)),
        "redis zipf" => Box::new(Redis::new(size)),
        postgres::NAME => Box::new(Postgres::prepare(context, size)?),
        mariadb::NAME => Box::new(MariaDb::prepare(context, context.choose(mariadb::SCALE, mariadb::SCALE_QUICK))?),
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
            Self::Server(server) => server.unit(),
            Self::Program(_) => SECONDS,
        }
    }

    /// What of it stays local in places of this kind that lend the rest; `None` where all of it can be lent.
    pub fn stays_local(&self, kind: Kind) -> Option<&'static str> {
        match (self, kind) {
            (Self::Server(server), Kind::Spillway(via)) => server.stays_local(via),
            _ => None,
        }
    }

    /// The most memory that it uses with all of it local.
    pub fn peak(&self, context: &Context, runner: &mut ProgramRunner<'_>) -> Result<Size, HarnessError> {
        match self {
            Self::Program(job) => runner.footprint(job),
            Self::Server(server) => {
                let times = if server.grows() { context.choose(TIMES, TIMES_QUICK) } else { TIMES_QUICK };
                let at = (Place::AllLocal, times);
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
                let Served { rate, p99_us, cpu } = turn.served;
                Ok(Figures { score: rate, p99_us: Some(p99_us), pages: turn.pages, cpu: Some(cpu) })
            }
            Self::Program(job) => {
                let before = SwapCount::now();
                let mut watch = CpuWatch::start();
                let score = watched(CPU_INTERVAL, || watch.look(), || runner.seconds(job, place))?;
                let pages = pages_moved(place, before, runner.told());
                Ok(Figures { score, p99_us: None, pages, cpu: watch.finish() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;

    #[test]
    fn some_can_be_chosen_and_unknown_ones_are_told() {
        assert_eq!(choose("").unwrap(), NAMES);
        assert_eq!(choose("mariadb, sort").unwrap(), ["sort", "mariadb"]);
        assert!(choose("oracle").unwrap_err().to_string().contains("memcached zipf"));
    }

    #[test]
    fn candidates_have_the_names_they_are_skipped_by() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        // Data of databases take seconds to make; their own tests make them.
        for name in NAMES.into_iter().filter(|name| ![postgres::NAME, mariadb::NAME].contains(name)) {
            match candidate(&context(directory.path(), 1), name) {
                Ok(candidate) => assert_eq!(candidate.name(), name),
                Err(error) => assert!(matches!(error, HarnessError::Missing(_)), "{name}: {error}"),
            }
        }
    }
}
