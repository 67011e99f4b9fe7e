//! What whole programs cost at L(100), L(75), L(50) and L(25): by pager and by swap device, relative to all-local,
//! and to disk swap and zram under the same limit.
//!
//! Six workloads of ours, and four programs as they are: a sort of text, Python with numpy, Redis with its benchmark
//! and a BGSAVE, a job in a JVM. What is lent has a copy on disk, as is the product's default. L(N) is N % of what
//! the program really uses, measured in a first run with all memory local.

use spillway_pager::limits::BUDGET_BYTES_MIN;
use spillway_pager::statistics::PagerStatistics;
use spillway_workloads::size::{MIB, Size};

use super::job::Job;
use super::kind::{self, Kind, SHARES_PERCENT, case};
use super::program_run::ProgramRunner;
use super::{Context, Study, jvm};
use crate::demo::programs::prepare;
use crate::demo::text::Lines;
use crate::demo::{Scale, redis_job};
use crate::harness::HarnessError;
use crate::harness::spillway::Via;
use crate::result::{FAULTS, PAGES, SECONDS, StudyResult};

const WORKLOADS: [&str; 6] = ["quicksort", "barnes-hut", "page-rank", "key-value", "matrix", "fill-modify"];

/// Programs as they are, with their names in the demo.
const REAL: [(&str, &str); 3] = [("sort", "sort"), ("python", "numpy"), ("redis", "redis")];

/// The JVM's program, and its job: the one of DCM's that makes garbage.
const JAVA: (&str, &str) = ("java", "group-by");

/// Data of each program, also in a quick run: the pager must accept a quarter of it as a budget.
const SIZE: Size = Size(64 * MIB);

/// Data of the JVM's job, whose heap is three times that.
const JAVA_SIZE: Size = Size(48 * MIB);
/// See [`JAVA_SIZE`].
const JAVA_SIZE_QUICK: Size = Size(24 * MIB);

const _: () = assert!(SIZE.0 / 4 >= BUDGET_BYTES_MIN && JAVA_SIZE_QUICK.0 * 3 / 4 >= BUDGET_BYTES_MIN);

/// The study of whole programs.
#[derive(Clone, Copy, Debug)]
pub struct ProgramsStudy;

/// Names of all programs, in the order of their runs.
fn names() -> Vec<&'static str> {
    REAL.map(|(name, _)| name).into_iter().chain([JAVA.0]).chain(WORKLOADS).collect()
}

/// Program `name` with its input.
fn job(context: &Context, name: &'static str) -> Result<Job, HarnessError> {
    let size = SIZE;
    if name == JAVA.0 {
        let data = context.choose(JAVA_SIZE, JAVA_SIZE_QUICK);
        let command = jvm::java_command(&jvm::compile(context)?, JAVA.1, data)?;
        return Ok(Job::reporting(name, jvm::heap(data), &command));
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
        (400, 300)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut runner = ProgramRunner::new(context, "disk");
        let trials = context.prepare(result, &names(), "the working set of", |name| {
            let job = job(context, name)?;
            Ok(Trial { footprint: runner.footprint(&job)?, job })
        })?;
        let subjects: Vec<(usize, Kind)> =
            (0..trials.len()).flat_map(|trial| Kind::ALL.map(|kind| (trial, kind))).collect();
        let name = |(trial, kind): (usize, Kind)| format!("{}, {}", trials[trial].job.name, kind.name());
        let outcome = context.interleave(result, &subjects, name, |round, (trial, kind), result| {
            measure(&mut runner, result, (round, kind), &trials[trial])
        });
        compare(result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        let plot = |program: &str| {
            kind::plot(result, format!("{program}: seconds by local memory"), |percent| case(program, percent))
        };
        names().into_iter().map(|program| (format!("programs-{program}"), plot(program))).collect()
    }
}

/// Relative to all-local whatever was measured, and the kinds under the same limit.
fn compare(result: &mut StudyResult) {
    result.compare_with(&Kind::AllLocal.name());
    for program in names() {
        for case in SHARES_PERCENT.map(|percent| case(program, percent)) {
            kind::compare(result, &case);
        }
    }
}

fn measure(
    runner: &mut ProgramRunner<'_>,
    result: &mut StudyResult,
    (round, kind): (usize, Kind),
    Trial { job, footprint }: &Trial,
) -> Result<(), HarnessError> {
    // All-local does not depend on the share: it is measured once and stands in each case.
    let mut all_local = None;
    for percent in kind.shares(result.quick).iter().copied() {
        let seconds = match all_local {
            Some(seconds) => seconds,
            None => runner.seconds(job, kind.place(footprint.percent(percent)))?,
        };
        all_local = (kind == Kind::AllLocal).then_some(seconds);
        result.record(round, &case(job.name, percent), &kind.name(), SECONDS, seconds);
        if let Some(told) = runner.pager() {
            record_faults(result, round, &case(job.name, percent), told);
        }
    }
    Ok(())
}

/// Records what the pager did in a program's run: a page that came along and was never used counts as one that came
/// back, and so does one that had not gone yet. Faults are those on pages that had left, not those on fresh memory or
/// on write-protected pages.
fn record_faults(result: &mut StudyResult, round: usize, case: &str, told: &PagerStatistics) {
    let (faults, pager) = (told.fill.count + told.staged.count, Kind::Spillway(Via::Pager).name());
    let pages = faults + told.pages_prefetched;
    result.record(round, &format!("{case}: pages that came back"), &pager, PAGES, pages as f64);
    result.record(round, &format!("{case}: faults on pages that had left"), &pager, FAULTS, faults as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::programs::NAMES;
    use crate::machine::Machine;
    use crate::studies::tests::context;

    #[test]
    fn programs_are_workloads_or_of_the_demo() {
        let workloads = spillway_workloads::names();
        assert!(WORKLOADS.iter().all(|program| workloads.contains(program)));
        assert!(REAL.iter().all(|(_, in_demo)| NAMES.contains(in_demo)));
        let distinct: std::collections::HashSet<_> = names().into_iter().collect();
        assert_eq!(distinct.len(), names().len());
    }

    #[test]
    fn ratios_are_to_all_local_and_of_kinds() {
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        for (kind, seconds) in Kind::ALL.into_iter().zip([1.0, 1.5, 3.0, 2.0, 6.0]) {
            result.record(0, &case("matrix", 50), &kind.name(), SECONDS, seconds);
        }
        compare(&mut result);
        // Each of four to all-local, and five pairs under the same limit.
        assert_eq!(result.comparisons.len(), 9, "{:?}", result.comparisons);
        assert_eq!(ProgramsStudy.plots(&result).len(), names().len());
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
}
