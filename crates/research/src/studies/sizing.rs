//! What `spillway size` says that less local memory costs a program, beside what it costs.
//!
//! Each program is looked at while all of its memory is local (page-table scans), and its page faults are recorded
//! under a quarter of it (SHARDS over the pager's faults). Then it runs by the pager with three shares of the memory
//! that `size` found: as a run is by default, and without prefetching, which `size` leaves out of its numbers. At last
//! `size --measure` runs it, which is to say again what the runs by default took.
//!
//! A slowdown is the time beyond that of a run with all memory local, in per cent of that time. `size` takes 8 us for
//! a page-in unless told otherwise; the study also gives it the cost on this machine, which is that of the workload
//! `visit`: time lost by page that came back. Page-ins are compared too: a busy machine changes their cost, and their
//! number little.
//!
//! Invariant: every run of a program gives the checksum of its first one.

use std::process::Command;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use spillway_bench::harness::process::{Collected, Running};
use spillway_bench::harness::spillway::{Donor, Via, pages_in};
use spillway_bench::harness::{HarnessError, tool};
use spillway_bench::limits::PROGRAM_DEADLINE;
use spillway_bench::plot::lines::{Line, LineChart};
use spillway_bench::result::{Better, MICROSECONDS, PAGES, SECONDS, SLOWER, StudyResult};
use spillway_bench::studies::job::Job;
use spillway_bench::studies::kind::case;
use spillway_bench::studies::places::{Place, run_storage};
use spillway_bench::studies::program_run::ProgramRunner;
use spillway_bench::studies::{Context, Study};
use spillway_workloads::size::{MIB, Size};

/// The programs, and memory of their data: each works for more than a second, as scans need.
const PROGRAMS: [(&str, Size); 3] =
    [("quicksort", Size(128 * MIB)), ("page-rank", Size(128 * MIB)), ("key-value", Size(512 * MIB))];

/// Whose page-ins are what a page-in is said to cost here.
const COST: (&str, Size) = ("visit", Size(64 * MIB));

/// Shares of the memory that are local.
const SHARES_PERCENT: [u64; 3] = [75, 50, 25];

/// Where faults are recorded: the more memory is away, the more references are seen.
const RECORDED_PERCENT: u64 = 25;

const RUN: &str = "run, without prefetching";
const RUN_BY_DEFAULT: &str = "run, by default";
const SCANS: &str = "scans, 8 us";
const SCANS_COST: &str = "scans, cost of here";
const FAULTS: &str = "faults, cost of here";
const MEASURED: &str = "measured";

/// In the order of the plots' lines.
const SUBJECTS: [&str; 6] = [RUN, RUN_BY_DEFAULT, SCANS, SCANS_COST, FAULTS, MEASURED];

/// What is compared with what: a prediction, and the run that it is of.
const PAIRS: [(&str, &str); 4] =
    [(SCANS, RUN_BY_DEFAULT), (SCANS_COST, RUN), (FAULTS, RUN), (MEASURED, RUN_BY_DEFAULT)];

const GOAL: &str = "`size` says what less memory costs, within 10 points";

/// See [`GOAL`].
const GOAL_POINTS: f64 = 10.0;

const PAGE_IN: &str = "a page-in";

/// Page-ins, as said and as counted, without the cost.
const PAGE_INS: [&str; 2] = ["scans", "faults"];

/// The study of predictions.
#[derive(Clone, Copy, Debug)]
pub struct SizingStudy;

/// What `size --json` says, as far as it is needed.
#[derive(Clone, Debug, Deserialize)]
struct Told {
    page_in_us: f64,
    work_seconds: f64,
    shares: Vec<Share>,
}

/// A share of a program's memory.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Share {
    percent: u64,
    bytes: u64,
    page_ins_per_second: f64,
    slowdown_percent: f64,
}

/// What `size --measure --json` says, as far as it is needed.
#[derive(Clone, Debug, Deserialize)]
struct ToldTrials {
    trials: Vec<ToldTrial>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct ToldTrial {
    percent: u64,
    slowdown_percent: f64,
}

impl ToldTrials {
    /// With `percent` of the memory local.
    fn slowdown_percent(&self, percent: u64) -> Result<f64, HarnessError> {
        let found = self.trials.iter().find(|trial| trial.percent == percent);
        let found = found.ok_or_else(|| HarnessError::failed("spillway size", format!("it left {percent} % out")))?;
        Ok(found.slowdown_percent)
    }
}

/// What `size` says in JSON.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, HarnessError> {
    serde_json::from_str(text).map_err(HarnessError::system("reading what `spillway size` says"))
}

impl Told {
    /// With `percent` of the memory local.
    fn share(&self, percent: u64) -> Result<Share, HarnessError> {
        let found = self.shares.iter().find(|share| share.percent == percent).copied();
        found.ok_or_else(|| HarnessError::failed("spillway size", format!("it tells nothing of {percent} %")))
    }

    /// Page-ins in all that it was looked at for.
    fn page_ins(&self, percent: u64) -> Result<f64, HarnessError> {
        Ok(self.share(percent)?.page_ins_per_second * self.work_seconds)
    }

    /// The slowdown where a page-in costs so much: `size` multiplies by it.
    fn slowdown_percent(&self, percent: u64, page_in_us: f64) -> Result<f64, HarnessError> {
        Ok(self.share(percent)?.slowdown_percent * page_in_us / self.page_in_us)
    }
}

impl Study for SizingStudy {
    fn name(&self) -> &'static str {
        "size"
    }

    fn title(&self) -> &'static str {
        "what `spillway size` predicts, beside what less memory costs"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn rounds_quick(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (300, 150)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut runner = ProgramRunner::new(context, "none");
        // The longest is left out of a quick run.
        let programs = &PROGRAMS[..context.choose(PROGRAMS.len(), PROGRAMS.len() - 1)];
        let name = |(name, _): (&str, Size)| name.to_owned();
        let mut costs: Vec<f64> = Vec::new();
        let outcome = context.interleave(result, programs, name, |round, (name, size), result| {
            // Once a round.
            if costs.len() <= round {
                costs.push(page_in_us(&mut runner)?);
                result.record(round, PAGE_IN, COST.0, MICROSECONDS, costs[round]);
            }
            let cost = costs.get(round).copied().ok_or_else(|| HarnessError::failed(COST.0, "no cost is known"))?;
            measure(context, &mut runner, result, round, &Job::workload(name, size)?, cost)
        });
        judge(result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        PROGRAMS.map(|(program, _)| (format!("size-{program}"), plot(result, program))).to_vec()
    }
}

/// The place of a run by the pager with one donor on this machine.
fn place(local: Size) -> Place {
    Place::Spillway(Via::Pager, local, 1)
}

/// What a page that comes back costs a program, its leaving included.
fn page_in_us(runner: &mut ProgramRunner<'_>) -> Result<f64, HarnessError> {
    let job = Job::workload(COST.0, COST.1)?;
    let all_local = runner.seconds(&job, Place::AllLocal)?;
    runner.places.prefetch = Some("none");
    let seconds = runner.seconds(&job, place(job.size.percent(50)))?;
    let pages = runner.told().map_or(0, pages_in);
    cost_us(seconds - all_local, pages).ok_or_else(|| HarnessError::failed(COST.0, "no page came back".to_owned()))
}

fn cost_us(seconds_lost: f64, pages: u64) -> Option<f64> {
    (pages > 0 && seconds_lost > 0.0).then(|| 1e6 * seconds_lost / pages as f64)
}

/// One program: what is predicted, and what its runs take.
fn measure(
    context: &Context,
    runner: &mut ProgramRunner<'_>,
    result: &mut StudyResult,
    round: usize,
    job: &Job,
    page_in_us: f64,
) -> Result<(), HarnessError> {
    let scans = by_scans(context, job)?;
    let all_local = runner.seconds(job, Place::AllLocal)?;
    result.record(round, &format!("{}: seconds", job.name), "all local", SECONDS, all_local);
    let mut slowdowns = Vec::new();
    for percent in SHARES_PERCENT {
        let local = Size(scans.share(percent)?.bytes);
        for (subject, prefetch) in [(RUN, Some("none")), (RUN_BY_DEFAULT, None)] {
            runner.places.prefetch = prefetch;
            let seconds = runner.seconds(job, place(local))?;
            slowdowns.push((percent, subject, 100.0 * (seconds / all_local - 1.0)));
            if subject == RUN {
                let page_ins = runner.told().map_or(0, pages_in);
                result.record(round, &page_ins_case(job.name, percent), RUN, PAGES, page_ins as f64);
            }
        }
    }
    let recorded_at = Size(scans.share(RECORDED_PERCENT)?.bytes);
    let faults = by_faults(context, runner.places.donors(), job, recorded_at, all_local)?;
    let measured = by_trials(context, runner.places.donors(), job)?;
    for percent in SHARES_PERCENT {
        slowdowns.push((percent, MEASURED, measured.slowdown_percent(percent)?));
        slowdowns.push((percent, SCANS, scans.slowdown_percent(percent, scans.page_in_us)?));
        slowdowns.push((percent, SCANS_COST, scans.slowdown_percent(percent, page_in_us)?));
        slowdowns.push((percent, FAULTS, faults.slowdown_percent(percent, page_in_us)?));
        for (subject, told) in PAGE_INS.into_iter().zip([&scans, &faults]) {
            result.record(round, &page_ins_case(job.name, percent), subject, PAGES, told.page_ins(percent)?);
        }
    }
    for (percent, subject, slowdown) in slowdowns {
        result.record(round, &case(job.name, percent), subject, SLOWER, slowdown);
    }
    Ok(())
}

fn page_ins_case(program: &str, percent: u64) -> String {
    format!("{}: page-ins", case(program, percent))
}

/// `spillway size -- PROGRAM`.
fn by_scans(context: &Context, job: &Job) -> Result<Told, HarnessError> {
    let mut command = context.shop.product()?.size_of(&job.command());
    read(&told_beside(context, &mut command)?)
}

/// `spillway size --measure -- PROGRAM`.
fn by_trials(context: &Context, donors: &[Donor], job: &Job) -> Result<ToldTrials, HarnessError> {
    let storage = run_storage(context, donors, "none", job.room);
    let mut command = context.shop.product()?.measured(&storage, &job.command());
    read(&told_beside(context, &mut command)?)
}

/// What `size` says of a program, on standard error: standard output is the program's.
fn told_beside(context: &Context, command: &mut Command) -> Result<String, HarnessError> {
    let running = Running::start("spillway size", command, Collected::default())?;
    let told = running.messages.clone();
    let finished = running.wait(PROGRAM_DEADLINE, &context.shop.interrupt, || {})?;
    if !finished.status.success() {
        return Err(HarnessError::failed("spillway size", told.last_line()));
    }
    Ok(told.text())
}

/// `spillway trace record -- PROGRAM`, then `spillway size --trace`, told how long the program works by itself.
fn by_faults(
    context: &Context,
    donors: &[Donor],
    job: &Job,
    local: Size,
    work_seconds: f64,
) -> Result<Told, HarnessError> {
    let (shop, trace) = (&context.shop, context.shop.directory.path().join("size.trace"));
    // A trace is a new file.
    let _ = std::fs::remove_file(&trace);
    let mut storage = run_storage(context, donors, "none", job.room);
    storage.prefetch = Some("none");
    let mut recording = shop.product()?.recorded(&local.to_string(), &storage, &trace, &job.command());
    tool::run_command(&mut recording, PROGRAM_DEADLINE, &shop.interrupt)?;
    let mut sizing = shop.product()?.size_of_trace(&trace, work_seconds);
    read(&tool::run_command(&mut sizing, PROGRAM_DEADLINE, &shop.interrupt)?)
}

/// Points between what was said and what it cost, in every case that has both.
fn judge(result: &mut StudyResult) {
    for (program, _) in PROGRAMS {
        for percent in SHARES_PERCENT {
            let case = case(program, percent);
            for (prediction, run) in PAIRS {
                let points = result.median_of([(&case, prediction), (&case, run)], |[said, cost]| (said - cost).abs());
                if points.is_some() {
                    let goal = format!("{GOAL} ({prediction})");
                    result.goal_of(&goal, &case, points, GOAL_POINTS, Better::Lower);
                }
            }
            PAGE_INS.into_iter().for_each(|source| {
                result.compare(&page_ins_case(program, percent), source, RUN);
            });
        }
    }
}

fn plot(result: &StudyResult, program: &str) -> String {
    let line = |subject: &str| {
        let value = |percent| result.measure(&case(program, percent), subject)?.summary;
        Line { name: subject.to_owned(), values: SHARES_PERCENT.map(value).to_vec() }
    };
    LineChart {
        title: format!("{program}: slowdown in % by local memory"),
        steps_title: "local memory, % of what the program uses".to_owned(),
        steps: SHARES_PERCENT.map(|percent| percent.to_string()).to_vec(),
        lines: SUBJECTS.map(line).to_vec(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;
    use spillway_bench::machine::Machine;

    const TOLD: &str = r#"{"footprint_bytes": 1000, "page_in_us": 8.0, "work_seconds": 2.0, "shares":
        [{"percent": 50, "bytes": 500, "page_ins_per_second": 1.0, "slowdown_percent": 20.0}]}"#;

    #[test]
    fn what_is_told_is_scaled_by_the_cost() {
        let told = read::<Told>(TOLD).unwrap();
        assert_eq!((told.share(50).unwrap().bytes, told.slowdown_percent(50, 8.0).unwrap()), (500, 20.0));
        assert_eq!((told.slowdown_percent(50, 12.0).unwrap(), told.page_ins(50).unwrap()), (30.0, 2.0));
        assert!(told.share(75).unwrap_err().to_string().contains("75 %"));
        assert!(read::<Told>("{}").is_err());
        let measured = r#"{"trials": [{"percent": 75, "seconds": 3.0, "slowdown_percent": 12.5}]}"#;
        let measured: ToldTrials = read(measured).unwrap();
        assert_eq!(measured.slowdown_percent(75).unwrap(), 12.5);
        assert!(measured.slowdown_percent(25).unwrap_err().to_string().contains("25 %"));
        assert_eq!((cost_us(0.5, 100_000), cost_us(0.5, 0), cost_us(-0.1, 5)), (Some(5.0), None, None));
    }

    #[test]
    fn a_prediction_is_compared_with_the_run_that_it_is_of() {
        let mut result = StudyResult::new("size", "", true, Machine::default());
        let slowdowns =
            [(RUN, 50.0), (RUN_BY_DEFAULT, 12.0), (SCANS, 20.0), (SCANS_COST, 41.0), (FAULTS, 10.0), (MEASURED, 13.0)];
        for (subject, slowdown) in slowdowns {
            result.record(0, "quicksort L(50)", subject, SLOWER, slowdown);
        }
        judge(&mut result);
        let met: Vec<_> = result.goals.iter().map(|goal| goal.met).collect();
        assert_eq!(met, [Some(true), Some(true), Some(false), Some(true)]);
        let plots = SizingStudy.plots(&result);
        assert_eq!(plots.len(), PROGRAMS.len());
        assert_eq!(plots[0].1.matches("<circle").count(), SUBJECTS.len());
    }

    #[test]
    fn programs_and_shares_are_those_that_are_known() {
        let workloads = spillway_workloads::names();
        assert!(PROGRAMS.iter().chain([&COST]).all(|(name, _)| workloads.contains(name)));
        assert!(SHARES_PERCENT.contains(&RECORDED_PERCENT));
    }

    #[test]
    fn without_the_product_it_says_so() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut result = StudyResult::new("size", "", true, Machine::default());
        SizingStudy.run(&context(directory.path(), 1), &mut result).unwrap();
        assert!(result.goals.is_empty() && !result.skipped.is_empty(), "{:?}", result.skipped);
    }
}
