//! DCM's experiments again: Grep and GroupBy in a JVM with part of its memory away, and the collector's time split out.
//!
//! DCM reports Grep at L(60) 6 % slower than at L(100), and its choice of victims better than swap on a ramdisk from
//! L(70) on. Spark itself is not run: the jobs are one program of ours (`bench/src/studies/Dcm.java`), with the data
//! set as objects on the heap. The ramdisk is zram, which compresses; the data are random, so that it gains little
//! (lines of 64 letters a quarter, values nothing).

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::memory_group::MemoryGroup;
use spillway_bench::harness::process::{Collected, Running};
use spillway_bench::harness::spillway::{Via, read_run};
use spillway_bench::harness::subject::Subject;
use spillway_bench::harness::swap_area::SwapArea;
use spillway_bench::limits::{PROGRAM_DEADLINE, with_slack};
use spillway_bench::result::{Better, SECONDS, StudyResult};
use spillway_bench::studies::jvm::{compile, heap, java_command};
use spillway_bench::studies::places::{run_storage, start_donors};
use spillway_bench::studies::program_run::run_workload;
use spillway_bench::studies::{Context, Study};
use spillway_workloads::WorkloadReport;
use spillway_workloads::size::{MIB, Size};

const JOBS: [&str; 2] = ["grep", "group-by"];

/// DCM's shares of the working set that fit local memory.
const SHARES_PERCENT: [u64; 4] = [100, 80, 70, 60];

/// The share that DCM gives a figure for, and the one from which its policy won over a ramdisk.
const SHARE_OF_GOAL: u64 = 60;
const SHARE_OF_RAMDISK: u64 = 70;

/// Grep at L(60) over L(100), as DCM has it.
const GREP_GOAL: f64 = 1.06;

const DONORS: usize = 3;

/// Where the rest of the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    AllLocal,
    Pager,
    Device,
    Ramdisk,
}

impl Side {
    const ALL: [Self; 4] = [Self::AllLocal, Self::Pager, Self::Device, Self::Ramdisk];

    fn name(self) -> &'static str {
        match self {
            Self::AllLocal => "all local",
            Self::Pager => "pager shm",
            Self::Device => "swap shm",
            Self::Ramdisk => "zram swap",
        }
    }
}

/// The study of DCM's jobs.
#[derive(Clone, Copy, Debug)]
pub struct DcmStudy;

fn case(job: &str, percent: u64) -> String {
    format!("{job} L({percent})")
}

fn collector_case(job: &str, percent: u64) -> String {
    format!("{job} L({percent}), collector")
}

impl Study for DcmStudy {
    fn name(&self) -> &'static str {
        "dcm"
    }

    fn title(&self) -> &'static str {
        "DCM's Grep and GroupBy in a JVM"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (150, 70)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let bench = match Bench::new(context) {
            Ok(bench) => bench,
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => {
                result.skip("java", &error.to_string());
                return Ok(());
            }
        };
        let mut checksums = HashMap::new();
        let outcome = context.interleave(
            result,
            &JOBS.map(|job| Side::ALL.map(|side| (job, side))).concat(),
            |(job, side)| format!("{job}, {}", side.name()),
            |round, (job, side), result| bench.measure(result, (round, job, side), &mut checksums),
        );
        compare(result);
        outcome
    }
}

fn compare(result: &mut StudyResult) {
    result.compare_with(Side::AllLocal.name());
    for job in JOBS {
        for percent in SHARES_PERCENT {
            for side in [Side::Pager, Side::Device] {
                result.compare(&case(job, percent), side.name(), Side::Ramdisk.name());
            }
        }
    }
    let (grep, pager) = (case(JOBS[0], SHARE_OF_GOAL), Side::Pager.name());
    result.goal(
        "Grep at L(60) at most 6 % slower (DCM)",
        &grep,
        pager,
        Side::AllLocal.name(),
        GREP_GOAL,
        Better::Lower,
    );
    let grep = case(JOBS[0], SHARE_OF_RAMDISK);
    result.goal(
        "Grep at L(70) not slower than ramdisk swap (DCM)",
        &grep,
        pager,
        Side::Ramdisk.name(),
        1.0,
        Better::Lower,
    );
}

/// The compiled jobs, and what each of them really uses.
struct Bench<'context> {
    context: &'context Context,
    classes: PathBuf,
    size: Size,
    footprints: HashMap<&'static str, Size>,
}

impl<'context> Bench<'context> {
    fn new(context: &'context Context) -> Result<Self, HarnessError> {
        let classes = compile(context)?;
        let size = Size(context.choose(96, 48) * MIB);
        let mut bench = Self { context, classes, size, footprints: HashMap::new() };
        for job in JOBS {
            let footprint = bench.footprint(job)?;
            bench.footprints.insert(job, footprint);
        }
        Ok(bench)
    }

    fn command(&self, job: &str) -> Result<Command, HarnessError> {
        java_command(&self.classes, job, self.size)
    }

    /// The most memory that a job really uses with all of it local.
    fn footprint(&self, job: &str) -> Result<Size, HarnessError> {
        let group = MemoryGroup::create(None)?;
        let mut most = 0;
        let running = Running::start(job, &mut group.enter(&self.command(job)?), Collected::default())?;
        let watch = || most = most.max(group.usage().working_bytes);
        running.wait(PROGRAM_DEADLINE, &self.context.shop.interrupt, watch)?;
        Ok(with_slack(Size(most.max(self.size.0))))
    }

    fn measure(
        &self,
        result: &mut StudyResult,
        (round, job, side): (usize, &'static str, Side),
        checksums: &mut HashMap<&'static str, String>,
    ) -> Result<(), HarnessError> {
        // All-local does not depend on the share: it is measured once and stands in each case.
        let mut all_local: Option<WorkloadReport> = None;
        for percent in SHARES_PERCENT {
            let report = match all_local.take() {
                Some(report) => report,
                None => self.run(job, side, self.footprints[job].percent(percent))?,
            };
            let first = checksums.entry(job).or_insert_with(|| report.checksum.clone());
            if *first != report.checksum {
                let detail = format!("WRONG OUTPUT: checksum {} where the first run had {first}", report.checksum);
                return Err(HarnessError::failed(job, detail));
            }
            let collector: f64 = report.phases.iter().map(|phase| phase.seconds).sum();
            result.record(round, &case(job, percent), side.name(), SECONDS, report.elapsed_seconds);
            result.record(round, &collector_case(job, percent), side.name(), SECONDS, collector);
            all_local = (side == Side::AllLocal).then_some(report);
        }
        Ok(())
    }

    fn run(&self, job: &str, side: Side, local: Size) -> Result<WorkloadReport, HarnessError> {
        let (shop, room) = (&self.context.shop, Size(heap(self.size).0 * 2));
        match side {
            Side::AllLocal => self.in_group(job, None),
            Side::Ramdisk => {
                let device = Subject::Zram.attach(shop, room, None)?;
                let _swap = SwapArea::on(&device.path, &shop.interrupt)?;
                self.in_group(job, Some(local))
            }
            Side::Pager => self.over_donors(job, Via::Pager, local, room),
            Side::Device => self.over_donors(job, Via::Swap, local, room),
        }
    }

    fn in_group(&self, job: &str, local: Option<Size>) -> Result<WorkloadReport, HarnessError> {
        let group = MemoryGroup::create(local.map(|local| local.0))?;
        run_workload(job, &mut group.enter(&self.command(job)?), &self.context.shop.interrupt)
    }

    fn over_donors(&self, job: &str, via: Via, local: Size, room: Size) -> Result<WorkloadReport, HarnessError> {
        let shop = &self.context.shop;
        // Held until the program has ended.
        let donors = start_donors(self.context, DONORS, room)?;
        let storage = run_storage(self.context, &donors, "none", room);
        let stats = shop.directory.path().join("dcm-stats.json");
        let program = self.command(job)?;
        let mut command = shop.product()?.run_via(via, None, &local.to_string(), &storage, &stats, &program);
        let report = run_workload(job, &mut command, &shop.interrupt)?;
        let lost = read_run(&stats)?.1.pages_lost;
        if lost > 0 { Err(HarnessError::failed(job, format!("{lost} pages were lost"))) } else { Ok(report) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;
    use spillway_bench::machine::Machine;

    #[test]
    fn goals_are_those_of_the_paper() {
        let mut result = StudyResult::new("dcm", "", true, Machine::default());
        for (side, seconds) in Side::ALL.into_iter().zip([1.0, 1.05, 1.5, 1.2]) {
            for job in JOBS {
                for percent in SHARES_PERCENT {
                    result.record(0, &case(job, percent), side.name(), SECONDS, seconds);
                    result.record(0, &collector_case(job, percent), side.name(), SECONDS, 0.1);
                }
            }
        }
        compare(&mut result);
        assert_eq!(result.goals.len(), 2);
        let over_ramdisk = result.comparisons.iter().filter(|found| found.baseline == Side::Ramdisk.name()).count();
        assert_eq!(over_ramdisk, 2 * JOBS.len() * SHARES_PERCENT.len());
    }

    #[test]
    fn jobs_say_what_the_harness_reads() {
        if spillway_bench::harness::tool::find("javac").is_none()
            || spillway_bench::harness::memory_group::MemoryGroup::create(None).is_err()
        {
            return spillway_sys::skipping::skip_because("this machine lacks javac or memory groups");
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut bench = Bench::new(&context).unwrap();
        bench.size = Size(8 * MIB);
        for job in JOBS {
            let reports = [0; 2].map(|_| bench.run(job, Side::AllLocal, Size(0)).unwrap());
            assert_eq!(reports[0].checksum, reports[1].checksum);
            assert_eq!((reports[0].workload.as_str(), reports[0].size_bytes), (job, 8 * MIB));
            assert!(reports[0].elapsed_seconds > 0.0 && reports[0].phases.len() == 1);
        }
    }
}
