//! What servers cost at L(100), L(75), L(50) and L(25) when clients outside of their limit ask them: by pager and by
//! swap device, relative to all-local, and to disk swap and zram under the same limit.
//!
//! | file | asks |
//! |---|---|
//! | [`memcached`] | memcached with the mixes `zipf`, `etc` and `sys` |
//! | [`redis`] | Redis with the mix `zipf` |
//! | [`sort`] | no server but a program that is known from other work: GNU sort, in seconds |
//! | [`mix`], [`load`] | what the clients of the first two ask for, and how |
//! | [`server`] | one run of one server |
//!
//! Each server is loaded, warmed up, and asked for a fixed time by [`load::CLIENTS`] connections. What is lent has a
//! copy on disk, as is the product's default. Values are random bytes, of which zram gains nothing. Pages that came
//! in are those of the whole run, its loading included. A faster server answers more in the same time, and so more
//! pages come in.
//!
//! Invariant: every value that a client reads is checked. A wrong one ends its run, and at its end the study fails.

pub mod load;
pub mod memcached;
pub mod mix;
pub mod redis;
pub mod server;
pub mod sort;

use std::time::Duration;

use self::load::Times;
use self::memcached::Memcached;
use self::mix::{ETC, SYS, ZIPF};
use self::redis::Redis;
use self::server::Server;
use self::sort::sort_job;
use super::job::Job;
use super::kind::{self, Kind, SHARES_PERCENT, case};
use super::places::Place;
use super::program_run::ProgramRunner;
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::usage::SwapCount;
use crate::limits::with_slack;
use crate::result::{MICROSECONDS, OPERATIONS_PER_SECOND, PAGES, SECONDS, StudyResult, Unit};
use crate::size::{MIB, Size};

/// Values of a server in a full run: that of study `programs` four times, as much as its programs are small.
const SIZE: Size = Size(256 * MIB);

/// And in a quick one: a quarter of it has to exceed the least local memory that `spillway run` gives a program, 8 MiB.
const SIZE_QUICK: Size = Size(40 * MIB);

/// A full run's times: long enough that each page of the values has its chance to come and go several times.
const TIMES: Times = Times { warm_up: Duration::from_secs(4), measured: Duration::from_secs(20) };
/// See [`TIMES`].
const TIMES_QUICK: Times = Times { warm_up: Duration::from_secs(1), measured: Duration::from_secs(4) };

/// The study of servers.
#[derive(Clone, Copy, Debug)]
pub struct ServersStudy;

/// What is measured.
enum Candidate {
    Server(Box<dyn Server>),
    Program(Job),
}

/// A candidate, and the most memory that it used with all of it local.
struct Trial {
    candidate: Candidate,
    peak: Size,
}

/// What one run showed.
#[derive(Clone, Copy, Debug)]
struct Figures {
    score: f64,
    p99_us: Option<f64>,
    pages_in: u64,
}

/// All of them, in the order of their runs, and why one cannot be had.
fn candidates(context: &Context) -> Vec<(&'static str, Result<Candidate, HarnessError>)> {
    let size = context.choose(SIZE, SIZE_QUICK);
    let memcached = |name, mix| (name, Ok(Candidate::Server(Box::new(Memcached::new(mix, size)))));
    vec![
        memcached("memcached zipf", ZIPF),
        memcached("memcached etc", ETC),
        memcached("memcached sys", SYS),
        ("redis zipf", Ok(Candidate::Server(Box::new(Redis::new(ZIPF, size))))),
        (sort::NAME, sort_job(context).map(Candidate::Program)),
    ]
}

impl Candidate {
    fn name(&self) -> &str {
        match self {
            Self::Server(server) => server.name(),
            Self::Program(job) => job.name,
        }
    }

    /// The unit of what it is measured by.
    fn unit(&self) -> Unit {
        match self {
            Self::Server(_) => OPERATIONS_PER_SECOND,
            Self::Program(_) => SECONDS,
        }
    }

    fn impossible(&self, kind: Kind) -> Option<&'static str> {
        match (self, kind) {
            (Self::Server(server), Kind::Spillway(via)) => server.impossible(via),
            _ => None,
        }
    }

    fn peak(&self, context: &Context, runner: &mut ProgramRunner<'_>) -> Result<Size, HarnessError> {
        match self {
            Self::Program(job) => runner.footprint(job),
            Self::Server(server) => {
                let at = (Place::AllLocal, TIMES_QUICK);
                let turn = server::run(context, &mut runner.places, server.as_ref(), at)?;
                Ok(with_slack(turn.peak.unwrap_or(server.room())))
            }
        }
    }

    fn measure(
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
                let swapped = SwapCount::now().since(before).pages_in;
                let pages_in = runner.told().map_or(swapped, |told| told.pages_in());
                Ok(Figures { score, p99_us: None, pages_in })
            }
        }
    }
}

/// All candidates that this machine has.
fn trials(
    context: &Context,
    runner: &mut ProgramRunner<'_>,
    result: &mut StudyResult,
) -> Result<Vec<Trial>, HarnessError> {
    let mut trials = Vec::new();
    for (name, candidate) in candidates(context) {
        eprintln!("servers: the peak memory of {name}");
        match candidate.and_then(|candidate| Ok((candidate.peak(context, runner)?, candidate))) {
            Ok((peak, candidate)) => trials.push(Trial { candidate, peak }),
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error @ HarnessError::Wrong { .. }) => return Err(error),
            Err(error) => result.skip(name, &error.to_string()),
        }
    }
    Ok(trials)
}

/// The pairs that can be measured; the others are told.
fn subjects(trials: &[Trial], result: &mut StudyResult) -> Vec<(usize, Kind)> {
    let mut subjects = Vec::new();
    for (index, trial) in trials.iter().enumerate() {
        for kind in Kind::ALL {
            match trial.candidate.impossible(kind) {
                None => subjects.push((index, kind)),
                Some(reason) => result.skip(&subject_name(trial, kind), reason),
            }
        }
    }
    subjects
}

fn subject_name(trial: &Trial, kind: Kind) -> String {
    format!("{}, {}", trial.candidate.name(), kind.name())
}

fn latency_case(case: &str) -> String {
    format!("{case}, p99")
}

fn pages_case(case: &str) -> String {
    format!("{case}, pages in")
}

impl Study for ServersStudy {
    fn name(&self) -> &'static str {
        "servers"
    }

    fn title(&self) -> &'static str {
        "servers with part of their memory lent, asked by clients"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (2500, 600)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut runner = ProgramRunner::new(context, "disk");
        let trials = trials(context, &mut runner, result)?;
        let subjects = subjects(&trials, result);
        let name = |(trial, kind): (usize, Kind)| subject_name(&trials[trial], kind);
        let mut first_wrong = Ok(());
        let outcome = context.interleave(result, &subjects, name, |round, (trial, kind), result| {
            let outcome = measure(context, &mut runner, result, (round, kind), &trials[trial]);
            if let Err(HarnessError::Wrong { what, detail }) = &outcome
                && first_wrong.is_ok()
            {
                first_wrong = Err(HarnessError::wrong(format!("{what}, {}", kind.name()), detail.as_str()));
            }
            outcome
        });
        compare(result);
        outcome.and(first_wrong)
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        programs(result).iter().map(|program| (file_name(program), plot(result, program))).collect()
    }
}

/// Names of the programs that were measured.
fn programs(result: &StudyResult) -> Vec<String> {
    result.cases().iter().filter_map(|case| case.strip_suffix(" L(100)").map(str::to_owned)).collect()
}

fn file_name(program: &str) -> String {
    format!("servers-{}", program.replace(' ', "-"))
}

fn plot(result: &StudyResult, program: &str) -> String {
    let case = |percent| case(program, percent);
    let unit = result.measures.iter().find(|measure| measure.case == case(SHARES_PERCENT[0]));
    let unit = unit.map_or("", |measure| measure.unit.as_str());
    kind::plot(result, format!("{program}: {unit} by local memory"), case)
}

/// Relative to all-local whatever was measured, and the kinds under the same limit.
fn compare(result: &mut StudyResult) {
    result.compare_with(&Kind::AllLocal.name());
    result.cases().iter().for_each(|case| kind::compare(result, case));
}

fn measure(
    context: &Context,
    runner: &mut ProgramRunner<'_>,
    result: &mut StudyResult,
    (round, kind): (usize, Kind),
    Trial { candidate, peak }: &Trial,
) -> Result<(), HarnessError> {
    // All-local does not depend on the share: it is measured once and stands in each case.
    let mut all_local = None;
    for percent in kind.shares(result.quick).iter().copied() {
        let figures = match all_local {
            Some(figures) => figures,
            None => candidate.measure(context, runner, kind.place(peak.percent(percent)))?,
        };
        all_local = (kind == Kind::AllLocal).then_some(figures);
        let case = case(candidate.name(), percent);
        record(result, (round, &case, &kind.name()), candidate.unit(), figures);
    }
    Ok(())
}

fn record(result: &mut StudyResult, (round, case, subject): (usize, &str, &str), unit: Unit, figures: Figures) {
    result.record(round, case, subject, unit, figures.score);
    if let Some(p99_us) = figures.p99_us {
        result.record(round, &latency_case(case), subject, MICROSECONDS, p99_us);
    }
    result.record(round, &pages_case(case), subject, PAGES, figures.pages_in as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::spillway::Via;
    use crate::machine::Machine;
    use crate::studies::tests::context;

    fn with_figures() -> StudyResult {
        let mut result = StudyResult::new("servers", "", true, Machine::default());
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            let figures = Figures { score: 1000.0 / (index + 1) as f64, p99_us: Some(50.0), pages_in: index as u64 };
            for percent in SHARES_PERCENT {
                let case = case("memcached zipf", percent);
                record(&mut result, (0, &case, &kind.name()), OPERATIONS_PER_SECOND, figures);
            }
        }
        result
    }

    #[test]
    fn each_figure_is_a_case_and_compared() {
        let mut result = with_figures();
        compare(&mut result);
        let pager = Kind::Spillway(Via::Pager).name();
        let ratio = |case: &str| result.comparisons.iter().find(|one| one.case == case && one.subject == pager);
        assert_eq!(ratio("memcached zipf L(50)").map(|one| one.ratio.median), Some(0.5), "half of all local");
        assert!(ratio("memcached zipf L(50), p99").is_some());
        // No page came in with all memory local: that ratio would be one by zero.
        assert!(ratio("memcached zipf L(50), pages in").is_some_and(|one| one.baseline != "all local"));
    }

    #[test]
    fn each_program_has_a_plot() {
        let plots = ServersStudy.plots(&with_figures());
        assert_eq!(plots.len(), 1);
        assert!(plots[0].0 == "servers-memcached-zipf" && plots[0].1.contains("memcached zipf: op/s"));
    }

    #[test]
    fn candidates_have_the_names_they_are_skipped_by() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        for (name, candidate) in candidates(&context(directory.path(), 1)) {
            match candidate {
                Ok(candidate) => assert_eq!(candidate.name(), name),
                Err(error) => assert!(matches!(error, HarnessError::Missing(_)), "{name}: {error}"),
            }
        }
    }
}
