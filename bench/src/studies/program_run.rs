//! Runs a program somewhere: with all memory local, over a swap device under a limit, or under `spillway run`.
//!
//! Programs that report their own time are believed, so that setting things up never counts; of others `spillway run`
//! tells it, or it is that from start to end.
//!
//! Invariant: the checksum or the output of every run of one program is compared with that of the first; a difference
//! is a failure.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use spillway_pager::statistics::PagerStatistics;
use spillway_report::run::EndedRunReport;
use spillway_workloads::WorkloadReport;
use spillway_workloads::size::Size;

use super::Context;
use super::job::{Job, Prints};
use super::places::{Place, Places};
use crate::demo::compare::Output;
use crate::harness::HarnessError;
use crate::harness::interrupt::Interrupt;
use crate::harness::memory_group::MemoryGroup;
use crate::harness::process::{Collected, Running};
use crate::limits::{PROGRAM_DEADLINE, with_slack};

/// The seed of all studies' workloads: any will do, as long as all runs have the same.
pub const SEED: u64 = 20_261_121;

/// This program's own workload as a command.
pub fn workload_command(name: &str, size: Size) -> Result<Command, HarnessError> {
    let own = own_program()?;
    let mut command = Command::new(own);
    command.args(["workload", name, "--size", &size.to_string(), "--seed", &SEED.to_string(), "--json"]);
    Ok(command)
}

/// The benchmark's program: the one beside this program, or, from a test, beside the directory of the tests.
pub fn own_program() -> Result<PathBuf, HarnessError> {
    let own = std::env::current_exe().map_err(HarnessError::system("looking for this program's own file"))?;
    let places = own.ancestors().skip(1).take(2).map(|directory| directory.join("spillway-bench"));
    places.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        HarnessError::Missing(
            "spillway-bench is not beside this program; run: cargo build -p spillway-bench".to_owned(),
        )
    })
}

fn failure(name: &str, messages: &Collected, status: ExitStatus) -> HarnessError {
    HarnessError::failed(name, format!("{} ({status})", messages.last_line()))
}

/// Runs `command`, which is workload `name`, and reads its report.
pub fn run_workload(name: &str, command: &mut Command, interrupt: &Interrupt) -> Result<WorkloadReport, HarnessError> {
    let output = run_within(PROGRAM_DEADLINE, name, command, interrupt)?;
    serde_json::from_str(&output).map_err(HarnessError::system(format!("reading the report of {name}")))
}

/// Runs `command`, called `name`, for `limit` at most, and gives what it printed.
pub fn run_within(
    limit: Duration,
    name: &str,
    command: &mut Command,
    interrupt: &Interrupt,
) -> Result<String, HarnessError> {
    let output = Collected::default();
    let running = Running::start(name, command, output.clone())?;
    let messages = running.messages.clone();
    let finished = running.wait(limit, interrupt, || {})?;
    if finished.status.success() { Ok(output.text()) } else { Err(failure(name, &messages, finished.status)) }
}

/// Runs programs in places, and watches over their checksums and outputs.
#[derive(Debug)]
pub struct ProgramRunner<'context> {
    context: &'context Context,
    /// Where they run.
    pub places: Places<'context>,
    checksums: HashMap<(String, u64), String>,
    outputs: HashMap<&'static str, PathBuf>,
    /// What `spillway run` told of the last run, if it was one.
    told: Option<EndedRunReport>,
}

impl<'context> ProgramRunner<'context> {
    /// A runner that has seen no checksum yet; what it lends is kept with `redundancy`.
    pub fn new(context: &'context Context, redundancy: &'static str) -> Self {
        let places = Places::new(context, redundancy);
        Self { context, places, checksums: HashMap::new(), outputs: HashMap::new(), told: None }
    }

    /// The most memory that `job` really uses, from a run with all memory local.
    pub fn footprint(&mut self, job: &Job) -> Result<Size, HarnessError> {
        let group = MemoryGroup::create(None)?;
        let mut most = 0;
        let running = Running::start(job.name, &mut group.enter(&job.command()), Collected::default())?;
        let messages = running.messages.clone();
        let watch = || most = most.max(group.usage().working_bytes);
        let finished = running.wait(PROGRAM_DEADLINE, &self.context.shop.interrupt, watch)?;
        if !finished.status.success() {
            return Err(failure(job.name, &messages, finished.status));
        }
        // A program that ended before it was seen at its largest counts as what it was asked for.
        Ok(with_slack(if most < job.size.0 / 2 { job.size } else { Size(most) }))
    }

    /// Runs `job` in `place`; gives its own time in seconds.
    pub fn seconds(&mut self, job: &Job, place: Place) -> Result<f64, HarnessError> {
        self.told = None;
        let mut ready = self.places.ready(&job.command(), place, job.room)?;
        let seconds = self.run(job, &mut ready.command)?;
        self.told = ready.told(job.name)?;
        let own_seconds = self.told.as_ref().map(|told| told.wall_seconds);
        Ok(own_seconds.filter(|_| job.prints == Prints::Result).unwrap_or(seconds))
    }

    /// What `spillway run` told of the last run of [`ProgramRunner::seconds`]; nothing if it was elsewhere.
    pub fn told(&self) -> Option<&EndedRunReport> {
        self.told.as_ref()
    }

    /// What the pager did in the last run of [`ProgramRunner::seconds`]; nothing if that was not by the pager.
    pub fn pager(&self) -> Option<&PagerStatistics> {
        self.told()?.pager.as_ref()
    }

    /// Runs `command`, which is `job` somewhere; gives the time that it tells, or that it took as a whole.
    fn run(&mut self, job: &Job, command: &mut Command) -> Result<f64, HarnessError> {
        if job.prints == Prints::Result {
            return self.run_printing(job.name, command);
        }
        let report = run_workload(job.name, command, &self.context.shop.interrupt)?;
        self.compare(&report)?;
        Ok(report.elapsed_seconds)
    }

    /// Runs program `name`, and compares what it prints with what its first run printed.
    fn run_printing(&mut self, name: &'static str, command: &mut Command) -> Result<f64, HarnessError> {
        let known = self.outputs.get(name);
        let file = self.context.shop.directory.path().join(format!("{name}.out"));
        let output = known.map_or_else(|| Output::record(&file), |file| Output::compare(file))?;
        let running = Running::start(name, command, output.clone())?;
        let messages = running.messages.clone();
        let finished = running.wait(PROGRAM_DEADLINE, &self.context.shop.interrupt, || {})?;
        if !finished.status.success() {
            return Err(failure(name, &messages, finished.status));
        }
        let wrong_bytes = output.finish()?;
        self.outputs.entry(name).or_insert(file);
        match wrong_bytes {
            0 => Ok(finished.elapsed.as_secs_f64()),
            _ => {
                Err(HarnessError::wrong(name, format!("WRONG OUTPUT: {wrong_bytes} bytes differ from the first run's")))
            }
        }
    }

    fn compare(&mut self, report: &WorkloadReport) -> Result<(), HarnessError> {
        let key = (report.workload.clone(), report.size_bytes);
        let first = self.checksums.entry(key).or_insert_with(|| report.checksum.clone());
        if *first == report.checksum {
            return Ok(());
        }
        let detail = format!("WRONG OUTPUT: checksum {} where the first run had {first}", report.checksum);
        Err(HarnessError::wrong(report.workload.clone(), detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::spillway::Via;
    use crate::studies::tests::context;

    fn report(checksum: &str) -> WorkloadReport {
        WorkloadReport {
            workload: "quicksort".to_owned(),
            size_bytes: 1,
            seed: 1,
            threads: 1,
            checksum: checksum.to_owned(),
            elapsed_seconds: 1.0,
            phases: Vec::new(),
        }
    }

    #[test]
    fn another_checksum_is_a_failure() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut runner = ProgramRunner::new(&context, "disk");
        assert!(runner.compare(&report("a")).is_ok() && runner.compare(&report("a")).is_ok());
        assert!(runner.compare(&report("b")).unwrap_err().to_string().contains("WRONG OUTPUT"));
    }

    #[test]
    fn a_failing_workload_is_told() {
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo wrong result >&2; exit 1"]);
        let error = run_workload("quicksort", &mut failing, &Interrupt::never()).unwrap_err().to_string();
        assert!(error.contains("quicksort") && error.contains("wrong result"), "{error}");
        let error = run_workload("quicksort", &mut Command::new("true"), &Interrupt::never()).unwrap_err();
        assert!(error.to_string().contains("reading the report"), "{error}");
    }

    #[test]
    fn without_the_product_its_place_is_missing() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let job = Job::workload("quicksort", Size(1 << 20)).unwrap();
        let place = Place::Spillway(Via::Pager, Size(1 << 20), 1);
        let error = ProgramRunner::new(&context, "disk").seconds(&job, place);
        assert!(matches!(error, Err(HarnessError::Missing(_))));
    }

    #[test]
    fn outputs_are_compared_with_the_first_runs() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut runner = ProgramRunner::new(&context, "disk");
        let mut print = |name, text: &str| runner.run_printing(name, Command::new("echo").arg(text));
        assert!(print("sort", "a b").is_ok_and(|seconds| seconds > 0.0));
        assert!(print("sort", "a b").is_ok() && print("python", "a c").is_ok());
        let error = print("sort", "a c").unwrap_err().to_string();
        assert!(error.contains("WRONG OUTPUT: 1 bytes"), "{error}");
    }

    #[test]
    fn a_run_that_failed_is_no_reference() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut runner = ProgramRunner::new(&context, "disk");
        let mut shell = |script: &str| runner.run_printing("sort", Command::new("sh").args(["-c", script]));
        let error = shell("echo half; echo no room >&2; exit 2").unwrap_err().to_string();
        assert!(error.contains("no room"), "{error}");
        assert!(shell("echo all of it").is_ok() && shell("echo all of it").is_ok());
    }
}
