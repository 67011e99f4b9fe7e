//! What whole programs cost at L(100), L(75), L(50) and L(25): by pager and by swap device, relative to all-local,
//! and to disk swap and zram under the same limit.
//!
//! Six workloads of ours, and four programs as they are: a sort of text, Python with numpy, Redis with its benchmark
//! and a BGSAVE, a job in a JVM. What is lent has a copy on disk, as is the product's default. L(N) is N % of what
//! the program really uses, measured in a first run with all memory local.
//!
//! `faults` counts what the pager brought for each, against the optimal order.

mod faults;

use self::faults::{Bounds, record_faults};
use super::dcm;
use super::job::Job;
use super::program_run::{Place, ProgramRunner, place_name};
use super::{Context, Study};
use crate::demo::programs::prepare;
use crate::demo::text::Lines;
use crate::demo::{Scale, redis_job};
use crate::harness::HarnessError;
use crate::harness::spillway::Via;
use crate::harness::subject::Subject;
use crate::plot::lines::{Line, LineChart};
use crate::result::{SECONDS, StudyResult};
use crate::size::{MIB, Size};

/// The shares of the working set that fit local memory.
const SHARES_PERCENT: [u64; 4] = [100, 75, 50, 25];

/// The only one of disk swap and zram in a quick run.
const SHARE_PERCENT_OF_PEERS: [u64; 1] = [50];

/// Donors of the runs over Spillway.
const DONORS: usize = 3;

const WORKLOADS: [&str; 6] = ["quicksort", "barnes-hut", "page-rank", "key-value", "matrix", "fill-modify"];

/// Programs as they are, with their names in the demo.
const REAL: [(&str, &str); 3] = [("sort", "sort"), ("python", "numpy"), ("redis", "redis")];

/// The JVM's program, and its job: the one of DCM's that makes garbage.
const JAVA: (&str, &str) = ("java", "group-by");

/// Data of each program in a full run.
const SIZE: Size = Size(64 * MIB);

/// And in a quick one: a quarter of it has to exceed the least local memory that `spillway run` gives a program, 8 MiB.
const SIZE_QUICK: Size = Size(34 * MIB);

/// Data of the JVM's job, whose heap is three times that.
const JAVA_SIZE: Size = Size(48 * MIB);
/// See [`JAVA_SIZE`].
const JAVA_SIZE_QUICK: Size = Size(16 * MIB);

/// The study of whole programs.
#[derive(Clone, Copy, Debug)]
pub struct ProgramsStudy;

/// Which kind of place, before the limit is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllLocal,
    Disk,
    Zram,
    Spillway(Via),
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::AllLocal, Self::Spillway(Via::Pager), Self::Spillway(Via::Swap), Self::Zram, Self::Disk];

    fn place(self, local: Size) -> Place {
        match self {
            Self::AllLocal => Place::AllLocal,
            Self::Disk => Place::Swap(Subject::DiskFile, local),
            Self::Zram => Place::Swap(Subject::Zram, local),
            Self::Spillway(via) => Place::Spillway(via, local, DONORS),
        }
    }

    fn name(self) -> String {
        place_name(self.place(Size(0)))
    }
}

/// Names of all programs, in the order of their runs.
fn names() -> Vec<&'static str> {
    REAL.map(|(name, _)| name).into_iter().chain([JAVA.0]).chain(WORKLOADS).collect()
}

/// The shares that `kind` is measured at. A quick run spends half of its time on what is not ours, unless it looks at
/// that once only.
fn shares(kind: Kind, quick: bool) -> &'static [u64] {
    match kind {
        Kind::Disk | Kind::Zram if quick => &SHARE_PERCENT_OF_PEERS,
        _ => &SHARES_PERCENT,
    }
}

/// Program `name` with its input.
fn job(context: &Context, name: &'static str) -> Result<Job, HarnessError> {
    let size = context.choose(SIZE, SIZE_QUICK);
    if name == JAVA.0 {
        let data = context.choose(JAVA_SIZE, JAVA_SIZE_QUICK);
        let command = dcm::java_command(&dcm::compile(context)?, JAVA.1, data)?;
        return Ok(Job::reporting(name, dcm::heap(data), &command));
    }
    let Some((_, in_demo)) = REAL.into_iter().find(|(real, _)| *real == name) else {
        return Job::workload(name, size);
    };
    let (lines, redis_value) = (Lines::Paragraphs, redis_job::SMALL_VALUE);
    let scale = Scale { text: size, lines, numpy: size, redis: size, redis_value, ..Scale::FULL };
    Ok(Job::real(name, size, &prepare(in_demo, &context.shop, scale)?))
}

/// A program, and what it really uses.
struct Trial {
    job: Job,
    footprint: Size,
}

/// All programs that this machine has.
fn trials(
    context: &Context,
    runner: &mut ProgramRunner<'_>,
    result: &mut StudyResult,
) -> Result<Vec<Trial>, HarnessError> {
    let mut trials = Vec::new();
    for name in names() {
        eprintln!("programs: the working set of {name}");
        match job(context, name).and_then(|job| Ok((runner.footprint(&job)?, job))) {
            Ok((footprint, job)) => trials.push(Trial { job, footprint }),
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => result.skip(name, &error.to_string()),
        }
    }
    Ok(trials)
}

fn case(program: &str, percent: u64) -> String {
    format!("{program} L({percent})")
}

impl Study for ProgramsStudy {
    fn name(&self) -> &'static str {
        "programs"
    }

    fn title(&self) -> &'static str {
        "whole programs with part of their memory lent"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (400, 220)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut runner = ProgramRunner::new(context, "disk");
        let trials = trials(context, &mut runner, result)?;
        let bounds = Bounds::of(context, &trials, result)?;
        let subjects: Vec<(usize, Kind)> =
            (0..trials.len()).flat_map(|trial| Kind::ALL.map(|kind| (trial, kind))).collect();
        let name = |(trial, kind): (usize, Kind)| format!("{}, {}", trials[trial].job.name, kind.name());
        let outcome = context.interleave(result, &subjects, name, |round, (trial, kind), result| {
            measure(&mut runner, result, (round, kind), &trials[trial], &bounds)
        });
        compare(result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        names().into_iter().map(|program| (format!("programs-{program}"), plot(result, program))).collect()
    }
}

/// Relative to all-local whatever was measured; the pager relative to the swap device, and both to the others under
/// the same limit.
fn compare(result: &mut StudyResult) {
    result.compare_with(&Kind::AllLocal.name());
    let [pager, device] = [Via::Pager, Via::Swap].map(Kind::Spillway);
    for program in names() {
        for case in SHARES_PERCENT.map(|percent| case(program, percent)) {
            let others = [Kind::Disk, Kind::Zram];
            let pairs = [(pager, device)].into_iter().chain(others.map(|other| (pager, other)));
            for (one, other) in pairs.chain(others.map(|other| (device, other))) {
                result.compare(&case, &one.name(), &other.name());
            }
            faults::compare(result, &case);
        }
    }
}

fn measure(
    runner: &mut ProgramRunner<'_>,
    result: &mut StudyResult,
    (round, kind): (usize, Kind),
    Trial { job, footprint }: &Trial,
    bounds: &Bounds,
) -> Result<(), HarnessError> {
    // All-local does not depend on the share: it is measured once and stands in each case.
    let mut all_local = None;
    for percent in shares(kind, result.quick).iter().copied() {
        let seconds = match all_local {
            Some(seconds) => seconds,
            None => runner.seconds(job, kind.place(footprint.percent(percent)))?,
        };
        all_local = (kind == Kind::AllLocal).then_some(seconds);
        result.record(round, &case(job.name, percent), &kind.name(), SECONDS, seconds);
        if let Some(told) = runner.pager() {
            record_faults(result, round, (job.name, percent), told);
            bounds.record(result, round, (job.name, percent));
        }
    }
    Ok(())
}

fn plot(result: &StudyResult, program: &str) -> String {
    let line = |kind: Kind| {
        let value = |percent| result.measure(&case(program, percent), &kind.name())?.summary;
        Line { name: kind.name(), values: SHARES_PERCENT.map(value).to_vec() }
    };
    LineChart {
        title: format!("{program}: seconds by local memory"),
        steps_title: "local memory, % of the working set".to_owned(),
        steps: SHARES_PERCENT.map(|percent| percent.to_string()).to_vec(),
        lines: Kind::ALL.map(line).to_vec(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::programs::NAMES;
    use crate::machine::Machine;
    use crate::studies::tests::context;

    const PAGER: Kind = Kind::Spillway(Via::Pager);
    const DEVICE: Kind = Kind::Spillway(Via::Swap);

    #[test]
    fn programs_are_workloads_or_of_the_demo() {
        let workloads = crate::workloads::names();
        assert!(WORKLOADS.iter().all(|program| workloads.contains(program)));
        assert!(REAL.iter().all(|(_, in_demo)| NAMES.contains(in_demo)));
        let distinct: std::collections::HashSet<_> = names().into_iter().collect();
        assert_eq!(distinct.len(), names().len());
    }

    #[test]
    fn ratios_are_to_all_local_and_under_the_same_limit() {
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        for (percent, factor) in [(50, 1.0), (25, 2.0)] {
            for (kind, seconds) in Kind::ALL.into_iter().zip([1.0, 1.5, 3.0, 2.0, 6.0]) {
                result.record(0, &case("matrix", percent), &kind.name(), SECONDS, seconds * factor);
            }
        }
        compare(&mut result);
        let ratio = |percent, one: Kind, other: Kind| {
            let matches = |found: &&crate::result::Comparison| {
                found.case == case("matrix", percent) && found.subject == one.name() && found.baseline == other.name()
            };
            result.comparisons.iter().find(matches).map(|found| found.ratio.median)
        };
        assert_eq!((ratio(50, DEVICE, Kind::AllLocal), ratio(50, PAGER, Kind::AllLocal)), (Some(3.0), Some(1.5)));
        assert_eq!((ratio(25, DEVICE, Kind::Disk), ratio(25, DEVICE, Kind::Zram)), (Some(0.5), Some(1.5)));
        assert_eq!((ratio(25, PAGER, Kind::Disk), ratio(25, PAGER, Kind::Zram)), (Some(0.25), Some(0.75)));
        assert_eq!((ratio(25, PAGER, DEVICE), ratio(25, DEVICE, PAGER)), (Some(0.5), None), "one direction is enough");
        assert_eq!(ratio(75, DEVICE, Kind::Disk), None, "what was not measured has no ratio");
    }

    #[test]
    fn each_kind_takes_the_share_that_is_asked_for() {
        let local = Size(5 * MIB);
        assert_eq!(Kind::Zram.place(local), Place::Swap(Subject::Zram, local));
        assert_eq!(Kind::Disk.place(local), Place::Swap(Subject::DiskFile, local));
        assert_eq!(PAGER.place(local), Place::Spillway(Via::Pager, local, DONORS));
        assert_eq!(Kind::AllLocal.place(local), Place::AllLocal);
        let names: std::collections::HashSet<_> = Kind::ALL.map(Kind::name).into_iter().collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }

    #[test]
    fn every_program_has_a_command_or_says_what_it_lacks() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        for name in names() {
            match job(&context, name) {
                Ok(job) => assert!(job.name == name && job.room.0 > job.size.0, "{job:?}"),
                Err(error) => assert!(matches!(error, HarnessError::Missing(_)), "{name}: {error}"),
            }
        }
    }

    #[test]
    fn only_a_quick_run_leaves_shares_out_and_none_of_ours() {
        assert!(Kind::ALL.iter().all(|kind| shares(*kind, false) == SHARES_PERCENT));
        let short: Vec<_> = Kind::ALL.into_iter().filter(|kind| shares(*kind, true) != SHARES_PERCENT).collect();
        assert_eq!(short, [Kind::Zram, Kind::Disk]);
        assert!(SHARE_PERCENT_OF_PEERS.iter().all(|share| SHARES_PERCENT.contains(share)));
    }

    #[test]
    fn a_plot_has_a_line_for_each_kind() {
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        for kind in Kind::ALL {
            result.record(0, &case("quicksort", 50), &kind.name(), SECONDS, 2.0);
        }
        let svg = plot(&result, "quicksort");
        assert_eq!(svg.matches("<circle").count(), Kind::ALL.len());
        assert!(svg.contains(">disk file swap<") && svg.contains(">spillway pager<"));
        assert_eq!(ProgramsStudy.plots(&result).len(), names().len());
    }
}
