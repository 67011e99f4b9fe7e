//! What servers cost at L(100), L(75), L(50) and L(25) when clients outside of their limit ask them: by pager and by
//! swap device, relative to all-local, and to disk swap and zram under the same limit.
//!
//! | file | asks |
//! |---|---|
//! | [`memcached`], [`redis`] | stores of keys and values |
//! | [`postgres`] | PostgreSQL by the queries of `pgbench -S`; its buffers stay local by the pager |
//! | [`mariadb`] | MariaDB by `go-tpc`, in new orders a minute |
//! | [`sort`] | no server but a program that is known from other work: GNU sort, in seconds |
//! | [`mod@candidate`] | all of them by their names, and how each is measured |
//! | [`mix`], [`load`] | what the clients of the first two ask for, and how |
//! | [`server`] | one run of one server |
//!
//! Each server is loaded, warmed up, and asked for a fixed time by [`load::CLIENTS`] connections. What is lent has a
//! copy on disk, as is the product's default. Values are random bytes, of which zram gains nothing. Pages in and out
//! are those of the whole run, its loading included; those out were written. From zram and disk they are the kernel's
//! count, which is of the whole machine. A faster server answers more in the same time, and so more pages come in.
//!
//! CPU seconds by thread (`crate::harness::cpu_use`) and the share of idle are those of the time in which it counts; of
//! the sort those of its whole run. All-local's stand once, at L(100).
//!
//! Invariant: every value that a client reads is checked. A wrong one ends its run, and at its end the study fails.

pub mod candidate;
pub mod load;
pub mod mariadb;
pub mod memcached;
pub mod mix;
pub mod postgres;
pub mod redis;
pub mod server;
pub mod sort;

use self::candidate::{Candidate, Figures, candidate, chosen};
use super::kind::{self, Kind, SHARES_PERCENT, case};
use super::program_run::ProgramRunner;
use super::{Context, Study};
use crate::cpu_table;
use crate::harness::HarnessError;
use crate::result::{MICROSECONDS, Measure, PAGES, StudyResult, Unit};
use spillway_workloads::size::Size;

/// The study of servers.
#[derive(Clone, Copy, Debug)]
pub struct ServersStudy;

/// A candidate, and the most memory that it used with all of it local.
struct Trial {
    candidate: Candidate,
    peak: Size,
}

/// All pairs of a trial and a kind; what stays local in some is told.
fn subjects(trials: &[Trial], result: &mut StudyResult) -> Vec<(usize, Kind)> {
    let pairs = (0..trials.len()).flat_map(|trial| Kind::ALL.map(|kind| (trial, kind)));
    for (trial, kind) in pairs.clone() {
        if let Some(what) = trials[trial].candidate.stays_local(kind) {
            result.skip(&format!("part of {}", subject_name(&trials[trial], kind)), &format!("stays local: {what}"));
        }
    }
    pairs.collect()
}

fn subject_name(trial: &Trial, kind: Kind) -> String {
    format!("{}, {}", trial.candidate.name(), kind.name())
}

fn latency_case(case: &str) -> String {
    format!("{case}, p99")
}

fn pages_cases(case: &str) -> [String; 2] {
    ["in", "out"].map(|way| format!("{case}, pages {way}"))
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

    fn rounds_quick(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (2100, 330)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut runner = ProgramRunner::new(context, "disk");
        let trials = context.prepare(result, &chosen()?, "the peak memory of", |name| {
            let candidate = candidate(context, name)?;
            Ok(Trial { peak: candidate.peak(context, &mut runner)?, candidate })
        })?;
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

/// Relative to all-local whatever was measured, and the kinds under the same limit; of CPU time only numbers are shown.
fn compare(result: &mut StudyResult) {
    let is_compared = |measure: &&Measure| !cpu_table::shows(&measure.unit);
    let cases: Vec<String> = result.measures.iter().filter(is_compared).map(|measure| measure.case.clone()).collect();
    for case in cases {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::AllLocal) {
            result.compare(&case, &kind.name(), &Kind::AllLocal.name());
        }
        kind::compare(result, &case);
    }
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
        let figures = match all_local.take() {
            Some(figures) => figures,
            None => candidate.measure(context, runner, kind.place(peak.percent(percent)))?,
        };
        let case = case(candidate.name(), percent);
        record(result, (round, &case, &kind.name()), candidate.unit(), &figures);
        all_local = (kind == Kind::AllLocal).then_some(Figures { cpu: None, ..figures });
    }
    Ok(())
}

fn record(result: &mut StudyResult, (round, case, subject): (usize, &str, &str), unit: Unit, figures: &Figures) {
    result.record(round, case, subject, unit, figures.score);
    if let Some(p99_us) = figures.p99_us {
        result.record(round, &latency_case(case), subject, MICROSECONDS, p99_us);
    }
    if let Some(pages) = figures.pages {
        for (case, count) in pages_cases(case).iter().zip([pages.pages_in, pages.pages_out]) {
            result.record(round, case, subject, PAGES, count as f64);
        }
    }
    if let Some(cpu) = &figures.cpu {
        cpu_table::record(result, round, (case, subject), cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::cpu_use::CpuUse;
    use crate::harness::spillway::Via;
    use crate::harness::usage::SwapCount;
    use crate::machine::Machine;
    use crate::result::OPERATIONS_PER_SECOND;

    fn with_figures() -> StudyResult {
        let mut result = StudyResult::new("servers", "", true, Machine::default());
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            let count = 100 * index as u64;
            let pages = (kind != Kind::AllLocal).then_some(SwapCount { pages_in: count, pages_out: 2 * count });
            let seconds = [("server".to_owned(), 3.0)].into_iter().collect();
            let cpu = Some(CpuUse { seconds, idle_percent: 10.0 });
            let figures = Figures { score: 1000.0 / (index + 1) as f64, p99_us: Some(50.0), pages, cpu };
            for percent in SHARES_PERCENT {
                let case = case("memcached zipf", percent);
                record(&mut result, (0, &case, &kind.name()), OPERATIONS_PER_SECOND, &figures);
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
        assert!(ratio("memcached zipf L(50), pages out").is_some());
        assert!(ratio("memcached zipf L(50), CPU of server").is_none());
        assert_eq!(result.median("memcached zipf L(50), CPU of server", &pager), Some(3.0));
    }

    #[test]
    fn each_program_has_a_plot() {
        let plots = ServersStudy.plots(&with_figures());
        assert_eq!(plots.len(), 1);
        assert!(plots[0].0 == "servers-memcached-zipf" && plots[0].1.contains("memcached zipf: op/s"));
    }
}
