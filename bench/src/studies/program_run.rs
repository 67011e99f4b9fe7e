//! Runs a workload somewhere: with all memory local, over a swap device under a limit, or under `spillway run`.
//!
//! The workload is this very program, and reports its own time, so that setting things up never counts.
//!
//! Invariant: the checksum of every run of one workload is compared with that of the first; a difference is a failure.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use super::Context;
use crate::harness::HarnessError;
use crate::harness::interrupt::Interrupt;
use crate::harness::memory_group::MemoryGroup;
use crate::harness::process::{Collected, Running};
use crate::harness::spillway::{Donor, RunReport, Storage, Transport};
use crate::harness::subject::Subject;
use crate::harness::swap_area::SwapArea;
use crate::limits::{PROGRAM_DEADLINE, with_slack};
use crate::size::Size;
use crate::workloads::WorkloadReport;

/// The seed of all studies' workloads: any will do, as long as all runs have the same.
const SEED: u64 = 20_261_121;

/// Where a program's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of it in local memory.
    AllLocal,
    /// So much in local memory, the rest on a swap device.
    Swap(Subject, Size),
    /// So much in local memory, the rest with so many donors.
    Spillway(Size, usize),
}

/// How a place is called in results.
pub fn place_name(place: Place) -> String {
    match place {
        Place::AllLocal => "all local".to_owned(),
        Place::Swap(subject, _) => format!("{} swap", subject.name()),
        Place::Spillway(..) => "spillway".to_owned(),
    }
}

/// This program's own workload as a command.
pub fn workload_command(name: &str, size: Size) -> Result<Command, HarnessError> {
    let own = own_program()?;
    let mut command = Command::new(own);
    command.args(["workload", name, "--size", &size.to_string(), "--seed", &SEED.to_string(), "--json"]);
    Ok(command)
}

/// The benchmark's program: this one, or, from a test, the one that was built beside it.
pub fn own_program() -> Result<PathBuf, HarnessError> {
    let own = std::env::current_exe().map_err(HarnessError::system("looking for this program's own file"))?;
    let beside_tests =
        own.parent().and_then(|directory| directory.parent()).map(|parent| parent.join("spillway-bench"));
    let is_test = own.parent().is_some_and(|directory| directory.ends_with("deps"));
    Ok(beside_tests.filter(|file| is_test && file.is_file()).unwrap_or(own))
}

/// Runs `command`, which is workload `name`, and reads its report.
pub fn run_workload(name: &str, command: &mut Command, interrupt: &Interrupt) -> Result<WorkloadReport, HarnessError> {
    let output = Collected::default();
    let running = Running::start(name, command, output.clone())?;
    let messages = running.messages.clone();
    let finished = running.wait(PROGRAM_DEADLINE, interrupt, || {})?;
    if !finished.status.success() {
        return Err(HarnessError::failed(name, format!("{} ({})", messages.last_line(), finished.status)));
    }
    serde_json::from_str(&output.text()).map_err(HarnessError::system(format!("reading the report of {name}")))
}

/// Runs workloads in places, and watches over their checksums.
#[derive(Debug)]
pub struct ProgramRunner<'context> {
    context: &'context Context,
    redundancy: &'static str,
    checksums: HashMap<(String, u64), String>,
}

impl<'context> ProgramRunner<'context> {
    /// A runner that has seen no checksum yet; what it lends is kept with `redundancy`.
    pub fn new(context: &'context Context, redundancy: &'static str) -> Self {
        Self { context, redundancy, checksums: HashMap::new() }
    }

    /// The most memory that workload `name` of `size` really uses, from a run with all memory local.
    pub fn footprint(&mut self, name: &str, size: Size) -> Result<Size, HarnessError> {
        let group = MemoryGroup::create(None)?;
        let mut most = 0;
        let mut command = group.enter(&workload_command(name, size)?);
        let running = Running::start(name, &mut command, Collected::default())?;
        let watch = || most = most.max(group.usage().working_bytes);
        running.wait(PROGRAM_DEADLINE, &self.context.shop.interrupt, watch)?;
        // A program that ended before it was seen at its largest counts as what it was asked for.
        Ok(with_slack(if most < size.0 / 2 { size } else { Size(most) }))
    }

    /// Runs workload `name` of `size` in `place`; gives its own time in seconds.
    pub fn seconds(&mut self, name: &str, size: Size, place: Place) -> Result<f64, HarnessError> {
        let report = match place {
            Place::AllLocal => self.run_in_group(name, size, None)?,
            Place::Swap(subject, local) => {
                let device = subject.attach(&self.context.shop, Size(size.0 * 2), None)?;
                let _swap = SwapArea::on(&device.path, &self.context.shop.interrupt)?;
                self.run_in_group(name, size, Some(local))?
            }
            Place::Spillway(local, donors) => self.run_over_donors(name, size, local, donors)?,
        };
        self.compare(&report)?;
        Ok(report.elapsed_seconds)
    }

    fn run_in_group(&self, name: &str, size: Size, local: Option<Size>) -> Result<WorkloadReport, HarnessError> {
        let group = MemoryGroup::create(local.map(|local| local.0))?;
        run_workload(name, &mut group.enter(&workload_command(name, size)?), &self.context.shop.interrupt)
    }

    fn run_over_donors(
        &self,
        name: &str,
        size: Size,
        local: Size,
        count: usize,
    ) -> Result<WorkloadReport, HarnessError> {
        let (shop, interrupt) = (&self.context.shop, &self.context.shop.interrupt);
        let donors = start_donors(self.context, count, Size(size.0 * 2))?;
        let storage = run_storage(self.context, &donors, self.redundancy, Size(size.0 * 2));
        let stats = shop.directory.path().join("stats.json");
        let mut command = shop.product()?.run(&local.to_string(), &storage, &stats, &workload_command(name, size)?);
        let report = run_workload(name, &mut command, interrupt)?;
        let lost = RunReport::read(&stats)?.device.pages_lost;
        if lost > 0 { Err(HarnessError::failed(name, format!("{lost} pages were lost"))) } else { Ok(report) }
    }

    fn compare(&mut self, report: &WorkloadReport) -> Result<(), HarnessError> {
        let key = (report.workload.clone(), report.size_bytes);
        let first = self.checksums.entry(key).or_insert_with(|| report.checksum.clone());
        if *first == report.checksum {
            return Ok(());
        }
        let detail = format!("WRONG OUTPUT: checksum {} where the first run had {first}", report.checksum);
        Err(HarnessError::failed(report.workload.clone(), detail))
    }
}

/// What a run over `donors` is made of.
pub fn run_storage(context: &Context, donors: &[Donor], redundancy: &str, lend: Size) -> Storage {
    Storage {
        donors: donors.iter().map(|donor| donor.address.clone()).collect(),
        redundancy: redundancy.to_owned(),
        backing: (redundancy == "disk").then(|| context.shop.directory.path().join("backing")),
        slab_size: None,
        mapping: None,
        front_end: None,
        keep_awake: None,
        lend: Some(lend),
    }
}

/// `count` donors over shared memory that lend `memory` together, with some room for uneven placement.
pub fn start_donors(context: &Context, count: usize, memory: Size) -> Result<Vec<Donor>, HarnessError> {
    let each = Size((memory.0 / count as u64).max(256 << 20));
    let shop = &context.shop;
    (0..count).map(|_| shop.product()?.donor(each, Transport::SharedMemory, None, &shop.interrupt)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn places_have_names() {
        let local = Size(1);
        let names = [Place::AllLocal, Place::Swap(Subject::Zram, local), Place::Spillway(local, 1)].map(place_name);
        assert_eq!(names, ["all local", "zram swap", "spillway"]);
    }

    #[test]
    fn only_a_copy_on_disk_needs_a_file() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let file = |redundancy| run_storage(&context, &[], redundancy, Size(1 << 30)).backing;
        assert!(file("disk").is_some_and(|file| file.starts_with(directory.path())));
        assert_eq!((file("none"), file("replicas=2")), (None, None));
    }

    #[test]
    fn without_the_product_its_place_is_missing() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let error =
            ProgramRunner::new(&context, "disk").seconds("quicksort", Size(1 << 20), Place::Spillway(Size(1 << 20), 1));
        assert!(matches!(error, Err(HarnessError::Missing(_))));
    }
}
