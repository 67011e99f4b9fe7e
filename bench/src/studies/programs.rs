//! What whole programs cost at L(100), L(75), L(50) and L(25): relative to all-local, and to disk swap and zram under the
//! same limit.
//!
//! What is lent has a copy on disk, as is the product's default. L(N) is N % of what the program really uses, measured in a first run with all memory local.

use std::collections::HashMap;

use super::program_run::{Place, ProgramRunner, place_name};
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::subject::Subject;
use crate::plot::lines::{Line, LineChart};
use crate::result::{SECONDS, StudyResult};
use crate::size::{MIB, Size};

/// The shares of the working set that fit local memory.
const SHARES_PERCENT: [u64; 4] = [100, 75, 50, 25];

/// Donors of the runs over Spillway.
const DONORS: usize = 3;

const PROGRAMS: [&str; 6] = ["quicksort", "barnes-hut", "page-rank", "key-value", "matrix", "fill-modify"];

/// The study of whole programs.
#[derive(Clone, Copy, Debug)]
pub struct ProgramsStudy;

/// Which kind of place, before the limit is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllLocal,
    Disk,
    Zram,
    Spillway,
}

impl Kind {
    const ALL: [Self; 4] = [Self::AllLocal, Self::Spillway, Self::Zram, Self::Disk];

    fn place(self, local: Size) -> Place {
        match self {
            Self::AllLocal => Place::AllLocal,
            Self::Disk => Place::Swap(Subject::DiskFile, local),
            Self::Zram => Place::Swap(Subject::Zram, local),
            Self::Spillway => Place::Spillway(local, DONORS),
        }
    }

    fn name(self) -> String {
        place_name(self.place(Size(0)))
    }
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
        (190, 120)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(64, 40) * MIB);
        let mut runner = ProgramRunner::new(context, "disk");
        let mut footprints = HashMap::new();
        for program in PROGRAMS {
            footprints.insert(program, runner.footprint(program, size)?);
        }
        let trials: Vec<(&str, Kind)> =
            PROGRAMS.iter().flat_map(|program| Kind::ALL.map(|kind| (*program, kind))).collect();
        let name = |(program, kind): (&str, Kind)| format!("{program}, {}", kind.name());
        let outcome = context.interleave(result, &trials, name, |round, (program, kind), result| {
            self.measure(&mut runner, result, (round, kind, program), size, footprints[program])
        });
        compare(result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        PROGRAMS.iter().map(|program| (format!("programs-{program}"), plot(result, program))).collect()
    }
}

/// Relative to all-local whatever was measured, and the product relative to the others under the same limit.
fn compare(result: &mut StudyResult) {
    result.compare_with(&Kind::AllLocal.name());
    for program in PROGRAMS {
        for percent in SHARES_PERCENT {
            for baseline in [Kind::Disk, Kind::Zram] {
                result.compare(&case(program, percent), &Kind::Spillway.name(), &baseline.name());
            }
        }
    }
}

impl ProgramsStudy {
    fn measure(
        &self,
        runner: &mut ProgramRunner<'_>,
        result: &mut StudyResult,
        (round, kind, program): (usize, Kind, &str),
        size: Size,
        footprint: Size,
    ) -> Result<(), HarnessError> {
        // All-local does not depend on the share: it is measured once and stands in each case.
        let mut all_local = None;
        for percent in SHARES_PERCENT {
            let seconds = match all_local {
                Some(seconds) => seconds,
                None => runner.seconds(program, size, kind.place(footprint.percent(percent)))?,
            };
            all_local = (kind == Kind::AllLocal).then_some(seconds);
            result.record(round, &case(program, percent), &kind.name(), SECONDS, seconds);
        }
        Ok(())
    }
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
    use crate::machine::Machine;

    #[test]
    fn programs_are_workloads() {
        let names = crate::workloads::names();
        assert!(PROGRAMS.iter().all(|program| names.contains(program)));
    }

    #[test]
    fn ratios_are_to_all_local_and_under_the_same_limit() {
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        for (percent, factor) in [(50, 1.0), (25, 2.0)] {
            for (kind, seconds) in [(Kind::AllLocal, 1.0), (Kind::Spillway, 3.0), (Kind::Zram, 2.0), (Kind::Disk, 6.0)]
            {
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
        assert_eq!(ratio(50, Kind::Spillway, Kind::AllLocal), Some(3.0));
        assert_eq!(
            (ratio(25, Kind::Spillway, Kind::Disk), ratio(25, Kind::Spillway, Kind::Zram)),
            (Some(0.5), Some(1.5))
        );
        assert_eq!(ratio(25, Kind::Disk, Kind::Spillway), None, "one direction is enough");
        assert_eq!(ratio(75, Kind::Spillway, Kind::Disk), None, "what was not measured has no ratio");
    }

    #[test]
    fn each_kind_takes_the_share_that_is_asked_for() {
        let local = Size(5 * MIB);
        assert_eq!(Kind::Zram.place(local), Place::Swap(Subject::Zram, local));
        assert_eq!(Kind::Disk.place(local), Place::Swap(Subject::DiskFile, local));
        assert_eq!(Kind::Spillway.place(local), Place::Spillway(local, DONORS));
        assert_eq!(Kind::AllLocal.place(local), Place::AllLocal);
        let names: std::collections::HashSet<_> = Kind::ALL.map(Kind::name).into_iter().collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }

    #[test]
    fn a_plot_has_a_line_for_each_kind() {
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        for kind in Kind::ALL {
            result.record(0, &case("quicksort", 50), &kind.name(), SECONDS, 2.0);
        }
        let svg = plot(&result, "quicksort");
        assert_eq!(svg.matches("<circle").count(), Kind::ALL.len());
        assert!(svg.contains(">disk file swap<"));
        assert_eq!(ProgramsStudy.plots(&result).len(), PROGRAMS.len());
    }
}
