//! HPBD's own experiments: quicksort and Barnes-Hut with a quarter of their memory local, two quicksorts at once, and
//! from 1 to 16 donors (HPBD saw no degradation up to 12).
//!
//! As in HPBD no copy goes to a disk; with one, as the product keeps by default, programs run in the study `programs`.

use std::process::Command;

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::memory_group::MemoryGroup;
use spillway_bench::harness::process::{Collected, Running};
use spillway_bench::harness::spillway::{Via, read_run};
use spillway_bench::harness::subject::Subject;
use spillway_bench::harness::swap_area::SwapArea;
use spillway_bench::limits::PROGRAM_DEADLINE;
use spillway_bench::plot::lines::{Line, LineChart};
use spillway_bench::result::{Better, SECONDS, StudyResult};
use spillway_bench::studies::job::Job;
use spillway_bench::studies::places::{Place, place_name, run_storage, start_donors};
use spillway_bench::studies::program_run::{ProgramRunner, own_program};
use spillway_bench::studies::{Context, Study};
use spillway_workloads::size::{MIB, Size};

/// Share of the working set in local memory.
const SHARE_PERCENT: u64 = 25;

/// HPBD reported up to 12; the next power of two is the end of the sweep.
const DONORS: [usize; 5] = [1, 2, 4, 8, 16];

/// What counts as flat: no more than this over one donor.
const FLAT_GOAL: f64 = 1.1;

/// HPBD kept one copy, at a donor.
const REDUNDANCY: &str = "none";

const TWO_AT_ONCE: &str = "two quicksorts at once";

/// The study of HPBD's experiments.
#[derive(Clone, Copy, Debug)]
pub struct HpbdStudy;

fn sweep_case() -> String {
    format!("quicksort L({SHARE_PERCENT}) by donors")
}

fn donors_name(count: usize) -> String {
    format!("{count} donor{}", if count == 1 { "" } else { "s" })
}

impl Study for HpbdStudy {
    fn name(&self) -> &'static str {
        "hpbd"
    }

    fn title(&self) -> &'static str {
        "HPBD's experiments with a quarter of the memory local"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (75, 50)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(64, 40) * MIB);
        let mut runner = ProgramRunner::new(context, REDUNDANCY);
        for program in ["quicksort", "barnes-hut"] {
            let job = Job::workload(program, size)?;
            let local = runner.footprint(&job)?.percent(SHARE_PERCENT);
            let places = [Place::AllLocal, Place::Swap(Subject::DiskFile, local), Place::Spillway(Via::Swap, local, 1)];
            let case = format!("{program} L({SHARE_PERCENT})");
            context.interleave(result, &places, place_name, |round, place, result| {
                let seconds = runner.seconds(&job, place)?;
                result.record(round, &case, &place_name(place), SECONDS, seconds);
                Ok(())
            })?;
        }
        self.two_at_once(context, result, size)?;
        let job = Job::workload("quicksort", size)?;
        let local = runner.footprint(&job)?.percent(SHARE_PERCENT);
        context.interleave(result, &DONORS, donors_name, |round, count, result| {
            let seconds = runner.seconds(&job, Place::Spillway(Via::Swap, local, count))?;
            result.record(round, &sweep_case(), &donors_name(count), SECONDS, seconds);
            Ok(())
        })?;
        compare(result);
        Ok(())
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        let value = |count| result.measure(&sweep_case(), &donors_name(count))?.summary;
        let line = Line { name: "quicksort".to_owned(), values: DONORS.map(value).to_vec() };
        let chart = LineChart {
            title: format!("quicksort L({SHARE_PERCENT}): seconds by donors"),
            steps_title: "donors".to_owned(),
            steps: DONORS.map(|count| count.to_string()).to_vec(),
            lines: vec![line],
        };
        vec![("hpbd-donors".to_owned(), chart.svg())]
    }
}

fn compare(result: &mut StudyResult) {
    let local = Size(0);
    let [all_local, disk, spillway] =
        [Place::AllLocal, Place::Swap(Subject::DiskFile, local), Place::Spillway(Via::Swap, local, 1)].map(place_name);
    result.compare_with(&all_local);
    for program in ["quicksort", "barnes-hut"] {
        let case = format!("{program} L({SHARE_PERCENT})");
        result.goal("faster than disk swap (HPBD: 4.7x and 1.4x)", &case, &disk, &spillway, 1.0, Better::Higher);
    }
    result.goal("faster than disk swap (HPBD: 21x)", TWO_AT_ONCE, &disk, &spillway, 1.0, Better::Higher);
    for count in &DONORS[1..] {
        let goal = format!("flat: {count} donors as fast as one");
        result.goal(&goal, &sweep_case(), &donors_name(*count), &donors_name(1), FLAT_GOAL, Better::Lower);
    }
}

impl HpbdStudy {
    /// Two of them share one limit, so each evicts the other's pages.
    fn two_at_once(&self, context: &Context, result: &mut StudyResult, size: Size) -> Result<(), HarnessError> {
        let local = Size(size.0 * 2).percent(SHARE_PERCENT);
        let places = [Place::AllLocal, Place::Swap(Subject::DiskFile, local), Place::Spillway(Via::Swap, local, 1)];
        context.interleave(result, &places, place_name, |round, place, result| {
            let seconds = run_two(context, size, place)?;
            result.record(round, TWO_AT_ONCE, &place_name(place), SECONDS, seconds);
            Ok(())
        })
    }
}

/// A command that runs two quicksorts and fails if either does.
fn two_command(size: Size) -> Result<Command, HarnessError> {
    let mut command = Command::new("sh");
    let script = "\"$0\" workload quicksort --size \"$1\" --seed 1 & first=$!
                  \"$0\" workload quicksort --size \"$1\" --seed 2 || exit 1
                  wait $first";
    command.arg("-c").arg(script).arg(own_program()?).arg(size.to_string());
    Ok(command)
}

fn run_two(context: &Context, size: Size, place: Place) -> Result<f64, HarnessError> {
    let (shop, plain) = (&context.shop, two_command(size)?);
    let finish = |command: &mut Command| {
        let running = Running::start(TWO_AT_ONCE, command, Collected::default())?;
        let messages = running.messages.clone();
        let finished = running.wait(PROGRAM_DEADLINE, &shop.interrupt, || {})?;
        if finished.status.success() {
            return Ok(finished.elapsed.as_secs_f64());
        }
        Err(HarnessError::failed(TWO_AT_ONCE, messages.last_line()))
    };
    match place {
        Place::AllLocal => finish(&mut MemoryGroup::create(None)?.enter(&plain)),
        Place::Swap(subject, local) => {
            let device = subject.attach(shop, Size(size.0 * 4), None)?;
            let _swap = SwapArea::on(&device.path, &shop.interrupt)?;
            let group = MemoryGroup::create(Some(local.0))?;
            finish(&mut group.enter(&plain))
        }
        Place::Spillway(via, local, count) => {
            let donors = start_donors(context, count, Size(size.0 * 4))?;
            let storage = run_storage(context, &donors, REDUNDANCY, Size(size.0 * 4));
            let stats = shop.directory.path().join("stats.json");
            finish(&mut shop.product()?.run_via(via, None, &local.to_string(), &storage, &stats, &plain))?;
            // The product's own figure leaves out what it takes to attach the device.
            Ok(read_run(&stats)?.0.wall_seconds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_bench::machine::Machine;

    #[test]
    fn more_donors_are_compared_with_one() {
        let mut result = StudyResult::new("hpbd", "", true, Machine::default());
        for (count, seconds) in DONORS.into_iter().zip([10.0, 10.5, 10.9, 11.0, 12.0]) {
            result.record(0, &sweep_case(), &donors_name(count), SECONDS, seconds);
        }
        compare(&mut result);
        let flat: Vec<_> = result.goals.iter().filter(|goal| goal.goal.contains("as fast")).collect();
        assert_eq!(flat.len(), 4);
        let met: Vec<_> = flat.iter().map(|goal| goal.met).collect();
        assert_eq!(met, [Some(true), Some(true), Some(true), Some(false)]);
        assert_eq!(HpbdStudy.plots(&result)[0].1.matches("<circle").count(), 5);
    }

    #[test]
    fn disk_swap_is_beaten_when_it_takes_longer() {
        let mut result = StudyResult::new("hpbd", "", true, Machine::default());
        for (case, disk, lent) in
            [("quicksort L(25)", 47.0, 10.0), ("barnes-hut L(25)", 9.0, 10.0), (TWO_AT_ONCE, 210.0, 10.0)]
        {
            result.record(0, case, "disk file swap", SECONDS, disk);
            result.record(0, case, "spillway swap", SECONDS, lent);
        }
        compare(&mut result);
        let against_disk: Vec<_> = result
            .goals
            .iter()
            .filter(|goal| goal.goal.contains("disk"))
            .map(|goal| (goal.ratio, goal.verdict()))
            .collect();
        assert_eq!(against_disk, [(Some(4.7), "met"), (Some(0.9), "NOT met"), (Some(21.0), "met")]);
        assert!(result.goals.iter().filter(|goal| goal.goal.contains("flat")).all(|goal| goal.met.is_none()));
    }

    #[test]
    fn either_of_two_that_fails_is_seen() {
        let run = |script_size: &str| {
            let mut command = two_command(Size(64 * 1024)).unwrap();
            let arguments: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
            command = Command::new("sh");
            // The same script over a program that fails when it is asked for seed 1 or 2.
            let fake = format!("#!/bin/sh\ncase \"$*\" in *'--seed {script_size}'*) exit 1;; esac\n");
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("fake");
            std::fs::write(&file, fake).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&file, mode).unwrap();
            command.args(&arguments[..2]).arg(&file).args(&arguments[3..]);
            command.status().unwrap().success()
        };
        assert_eq!((run("1"), run("2"), run("3")), (false, false, true));
    }

    #[test]
    fn two_run_at_once_where_all_is_local() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        match run_two(&context, Size(256 * 1024), Place::AllLocal) {
            Ok(seconds) => assert!(seconds > 0.0),
            Err(error) => assert!(matches!(error, HarnessError::Missing(_) | HarnessError::Failed { .. }), "{error}"),
        }
    }
}
