//! What servers cost at L(100), L(75), L(50) and L(25) when clients outside of their limit ask them: by pager and by
//! swap device, relative to all-local, and to disk swap and zram under the same limit.
//!
//! | file | asks |
//! |---|---|
//! | [`memcached`] | memcached with the mixes `zipf`, `etc` and `sys` |
//! | [`redis`] | Redis with the mix `zipf` |
//! | [`postgres`] | PostgreSQL by the queries of `pgbench -S`; not by the pager |
//! | [`sort`] | no server but a program that is known from other work: GNU sort, in seconds |
//! | [`mod@candidate`] | all of them by their names, and how each is measured |
//! | [`mix`], [`load`] | what the clients of the first two ask for, and how |
//! | [`server`] | one run of one server |
//!
//! Each server is loaded, warmed up, and asked for a fixed time by [`load::CLIENTS`] connections. What is lent has a
//! copy on disk, as is the product's default. Values are random bytes, of which zram gains nothing. Pages that came
//! in are those of the whole run, its loading included. From zram and disk they are the kernel's count, which is of
//! the whole machine. A faster server answers more in the same time, and so more pages come in.
//!
//! Invariant: every value that a client reads is checked. A wrong one ends its run, and at its end the study fails.

pub mod candidate;
pub mod load;
pub mod memcached;
pub mod mix;
pub mod postgres;
pub mod redis;
pub mod server;
pub mod sort;

use self::candidate::{Candidate, Figures, NAMES, candidate};
use super::kind::{self, Kind, SHARES_PERCENT, case};
use super::program_run::ProgramRunner;
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::result::{MICROSECONDS, PAGES, StudyResult, Unit};
use crate::size::Size;

/// The study of servers.
#[derive(Clone, Copy, Debug)]
pub struct ServersStudy;

/// A candidate, and the most memory that it used with all of it local.
struct Trial {
    candidate: Candidate,
    peak: Size,
}

/// All candidates that this machine has.
fn trials(
    context: &Context,
    runner: &mut ProgramRunner<'_>,
    result: &mut StudyResult,
) -> Result<Vec<Trial>, HarnessError> {
    let mut trials = Vec::new();
    for name in NAMES {
        eprintln!("servers: the peak memory of {name}");
        match candidate(context, name).and_then(|candidate| Ok((candidate.peak(context, runner)?, candidate))) {
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
        (2500, 480)
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
    if let Some(pages_in) = figures.pages_in {
        result.record(round, &pages_case(case), subject, PAGES, pages_in as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::spillway::Via;
    use crate::machine::Machine;
    use crate::result::OPERATIONS_PER_SECOND;

    fn with_figures() -> StudyResult {
        let mut result = StudyResult::new("servers", "", true, Machine::default());
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            let pages_in = (kind != Kind::AllLocal).then_some(100 * index as u64);
            let figures = Figures { score: 1000.0 / (index + 1) as f64, p99_us: Some(50.0), pages_in };
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
        // With all memory local no page comes in: that ratio would be one by zero.
        assert!(ratio("memcached zipf L(50), pages in").is_some_and(|one| one.baseline != "all local"));
    }

    #[test]
    fn each_program_has_a_plot() {
        let plots = ServersStudy.plots(&with_figures());
        assert_eq!(plots.len(), 1);
        assert!(plots[0].0 == "servers-memcached-zipf" && plots[0].1.contains("memcached zipf: op/s"));
    }
}
