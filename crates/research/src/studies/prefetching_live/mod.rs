//! The pager with each prefetcher, beside none: over shared memory, TCP and a fabric with the latency of RDMA.
//!
//! Each row is a program with a part of its memory local, over one fabric. In a round the row's turns follow one
//! another: all local, no prefetching, ours, ours without eager eviction, Leap's by thread and by process, and blocks
//! that grow and shrink. Ratios are of the same turn of a row. A program's time is that of its phases without the
//! first, which fills its memory.
//!
//! - [`paged`]: a program under a pager of this study's making; [`modelled_rdma`]: the third fabric.
//! - [`figures`]: coverage, accuracy, pollution and waits, from a pager's statistics.
//! - [`judgement`]: the goals, and the plots.
//!
//! Beside the rows: what each part brings (our swap device without read-ahead, the pager alone, with prefetching, with
//! eager eviction), and where the time of one fault goes.
//!
//! Invariant: every run of a program gives the checksum of its first one.

pub mod figures;
pub mod judgement;
pub mod modelled_rdma;
pub mod paged;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use spillway_pager::statistics::PagerStatistics;

use self::figures::{Figures, SHARES};
use self::paged::{Fabric, PagedRun, Policies};
use spillway_bench::harness::HarnessError;
use spillway_bench::harness::spillway::{Donor, Storage, Transport, Via};
use spillway_bench::result::{FAULTS, MICROSECONDS, PER_CENT, PER_CENT_WASTE, SECONDS, StudyResult};
use spillway_bench::studies::jvm;
use spillway_bench::studies::places::run_storage;
use spillway_bench::studies::program_run::{SEED, own_program, run_within};
use spillway_bench::studies::{Context, Study};
use spillway_workloads::size::{MIB, Size};
use spillway_workloads::{WorkloadReport, touch};

/// The subject with all memory local.
pub const LOCAL: &str = "all local";

/// The subject over our swap device, without any read-ahead: the data path that the pager replaces.
pub const SWAP: &str = "swap device, none";

/// Names rows to measure: those that have one of these words in their names, such as `L(50),random`.
pub const ROWS_VARIABLE: &str = "SPILLWAY_BENCH_PREFETCHING";

/// The parts of the working set that are local, in per cent; a quick run looks at the first only.
const LOCAL_PER_CENT: [u64; 2] = [50, 25];

/// Working sets: L(25) of it is the least budget that a pager takes.
const SIZE: Size = Size(64 * MIB);

/// Multiplying matrices takes so long that there is time for these only, and only at L(50).
const MATRIX_SIZE: Size = Size(32 * MIB);

/// Data of the job in a JVM; its heap is three times as large.
const JAVA_SIZE: Size = Size(16 * MIB);

/// What a JVM has beside its heap.
const JAVA_BESIDE_HEAP: Size = Size(32 * MIB);

/// A run that takes longer hangs: the slowest of a quiet machine takes five seconds.
const RUN_DEADLINE: Duration = Duration::from_secs(120);

/// A program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its name in tables.
    pub name: &'static str,
    /// The workload; `None` for the job in a JVM.
    workload: Option<&'static str>,
    threads: usize,
    size: Size,
    /// Whether the parts of the data path are told apart with it.
    has_parts: bool,
}

impl Load {
    const fn new(name: &'static str, workload: &'static str) -> Self {
        Self { name, workload: Some(workload), threads: 1, size: SIZE, has_parts: false }
    }

    /// In the order of the issue.
    pub const ALL: [Self; 12] = [
        Self { has_parts: true, ..Self::new("sequential", "fill-sequential-twice") },
        Self { has_parts: true, ..Self::new("stride 10", "fill-strided") },
        Self { has_parts: true, ..Self::new("stride 400", "fill-strided-far") },
        Self { threads: 2, ..Self::new("two threads", "fill-sequential-twice") },
        Self { threads: 8, ..Self::new("eight threads", "fill-sequential-twice") },
        Self { size: MATRIX_SIZE, ..Self::new("matrix", "matrix") },
        Self::new("transpose", "transpose"),
        Self::new("quicksort", "quicksort"),
        Self::new("page-rank", "page-rank"),
        Self::new("key-value", "key-value"),
        Self { workload: None, size: JAVA_SIZE, ..Self::new("jvm", "") },
        Self::new("random", "fill-random-twice"),
    ];

    /// What a quick run looks at.
    const QUICK: [usize; 2] = [0, 11];

    fn working_set(self) -> Size {
        let is_java = self.workload.is_none();
        if is_java { Size(jvm::heap(self.size).0 + JAVA_BESIDE_HEAP.0) } else { self.size }
    }

    fn command(self, classes: Option<&Path>) -> Result<Command, HarnessError> {
        let Some(workload) = self.workload else {
            let lacks_java =
                || HarnessError::Missing("java or javac is missing; install default-jdk-headless".to_owned());
            return jvm::java_command(classes.ok_or_else(lacks_java)?, "group-by", self.size);
        };
        let mut command = Command::new(own_program()?);
        command.args(["workload", workload, "--size", &self.size.to_string(), "--seed", &SEED.to_string()]);
        command.args(["--threads", &self.threads.to_string(), "--json"]);
        Ok(command)
    }

    /// Seconds that count.
    fn seconds(self, report: &WorkloadReport) -> f64 {
        // The phases of the job in a JVM are its collections.
        if self.workload.is_none() {
            return report.elapsed_seconds;
        }
        report.phases.iter().skip(1).map(|phase| phase.seconds).sum()
    }
}

/// A program with a part of its memory local, over a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The program.
    pub load: Load,
    /// How pages travel.
    pub fabric: Fabric,
    /// The part that is local.
    pub per_cent: u64,
}

impl Row {
    /// The rows that are measured: all, or those that [`ROWS_VARIABLE`] names.
    fn chosen(is_quick: bool) -> Vec<Self> {
        let words = std::env::var(ROWS_VARIABLE).unwrap_or_default();
        Self::all(is_quick).into_iter().filter(|row| row.is_named(&words)).collect()
    }

    fn is_named(self, words: &str) -> bool {
        words.is_empty() || words.split(',').any(|word| self.case("").contains(word))
    }

    /// All rows, those of one program together.
    pub fn all(is_quick: bool) -> Vec<Self> {
        let loads = Load::ALL.into_iter().enumerate().filter(|(index, _)| !is_quick || Load::QUICK.contains(index));
        let shares = if is_quick { &LOCAL_PER_CENT[..1] } else { &LOCAL_PER_CENT };
        let rows = loads.flat_map(|(_, load)| {
            let fabrics = shares.iter().flat_map(|per_cent| Fabric::ALL.map(|fabric| (fabric, *per_cent)));
            fabrics.map(move |(fabric, per_cent)| Self { load, fabric, per_cent })
        });
        rows.filter(|row| row.load.size != MATRIX_SIZE || row.per_cent == LOCAL_PER_CENT[0]).collect()
    }

    /// Its case in results.
    pub fn case(self, what: &str) -> String {
        format!("{} L({}) {}: {what}", self.load.name, self.per_cent, self.fabric.name())
    }

    fn local(self) -> Size {
        self.load.working_set().percent(self.per_cent)
    }
}

/// The study of prefetching in the pager.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchingLiveStudy;

impl Study for PrefetchingLiveStudy {
    fn name(&self) -> &'static str {
        "prefetching-live"
    }

    fn title(&self) -> &'static str {
        "the pager with each prefetcher"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn rounds_quick(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (470, 35)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        if Row::chosen(context.quick).is_empty() {
            return Err(names_no_row(context.quick));
        }
        let outcome = match Bench::new(context) {
            Ok(bench) => bench.measure(result),
            Err(error) if error.is_interrupt() => Err(error),
            Err(error) => {
                result.skip("pager", &error.to_string());
                Ok(())
            }
        };
        judgement::judge(result, &Row::chosen(context.quick));
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        judgement::plots(result)
    }
}

/// A word that is in the name of no row would measure nothing, and say nothing.
fn names_no_row(is_quick: bool) -> HarnessError {
    let words = std::env::var(ROWS_VARIABLE).unwrap_or_default();
    let rows: Vec<String> = Row::all(is_quick).into_iter().map(|row| row.case("").replace(": ", "")).collect();
    HarnessError::Missing(format!("{ROWS_VARIABLE} names '{words}', which no row has; rows: {}", rows.join(", ")))
}

/// The donors, and what the runs need.
struct Bench<'context> {
    context: &'context Context,
    own: PathBuf,
    stats: PathBuf,
    key: PathBuf,
    over_memory: Donor,
    over_tcp: Donor,
    /// The compiled job in a JVM, if there is one.
    classes: Option<PathBuf>,
}

impl<'context> Bench<'context> {
    fn new(context: &'context Context) -> Result<Self, HarnessError> {
        let (shop, product) = (&context.shop, context.shop.product()?);
        let room = Size(SIZE.0 * 6);
        let donor = |transport| product.donor(room, transport, None, &shop.interrupt);
        let directory = shop.directory.path();
        Ok(Self {
            context,
            own: std::env::current_exe().map_err(HarnessError::system("looking for this program's own file"))?,
            stats: directory.join("paged-stats.json"),
            key: product.key(),
            over_memory: donor(Transport::SharedMemory)?,
            over_tcp: donor(Transport::Tcp)?,
            classes: if context.quick { None } else { jvm::compile(context).ok() },
        })
    }

    fn donor(&self, fabric: Fabric) -> &Donor {
        match fabric.transport() {
            Transport::SharedMemory => &self.over_memory,
            Transport::Tcp => &self.over_tcp,
        }
    }

    fn measure(&self, result: &mut StudyResult) -> Result<(), HarnessError> {
        let rows = Row::chosen(self.context.quick);
        let mut checksums = HashMap::new();
        let name = |row: Row| row.case("all policies");
        self.context.interleave(result, &rows, name, |round, row, result| {
            self.measure_row(result, round, row, &mut checksums)
        })?;
        let fabrics = Fabric::ALL;
        let name = |fabric: Fabric| format!("one fault, {}", fabric.name());
        self.context
            .interleave(result, &fabrics, name, |round, fabric, result| self.measure_fault(result, round, fabric))
    }

    fn measure_row(
        &self,
        result: &mut StudyResult,
        round: usize,
        row: Row,
        checksums: &mut HashMap<&'static str, String>,
    ) -> Result<(), HarnessError> {
        let mut record_time = |result: &mut StudyResult, subject: &str, report: &WorkloadReport| {
            let first = checksums.entry(row.load.name).or_insert_with(|| report.checksum.clone());
            if *first != report.checksum {
                let detail = format!("checksum {} where the first run had {first}", report.checksum);
                return Err(HarnessError::wrong(row.load.name, detail));
            }
            result.record(round, &row.case("time"), subject, SECONDS, row.load.seconds(report));
            Ok(())
        };
        let mut alone = row.load.command(self.classes.as_deref())?;
        record_time(result, LOCAL, &self.report_of(row.load.name, &mut alone)?)?;
        let mut without = Figures::default();
        for policies in Policies::ALL {
            let (report, statistics) = self.run_paged(row, policies)?;
            record_time(result, policies.name, &report)?;
            let figures = Figures::of(&statistics);
            if policies == Policies::NONE {
                without = figures.clone();
            }
            record_figures(result, (round, row, policies), &figures, &without);
        }
        if row.load.has_parts && row.per_cent == LOCAL_PER_CENT[0] && row.fabric != Fabric::Rdma {
            match self.run_swapped(row) {
                Ok(report) => record_time(result, SWAP, &report)?,
                Err(error) if error.is_interrupt() => return Err(error),
                Err(error) => result.skip(SWAP, &error.to_string()),
            }
        }
        Ok(())
    }

    fn run_paged(&self, row: Row, policies: Policies) -> Result<(WorkloadReport, PagerStatistics), HarnessError> {
        let plain = row.load.command(self.classes.as_deref())?;
        self.run_program(row.load.name, &plain, (row.fabric, policies), row.local(), Size(SIZE.0 * 2))
    }

    fn run_program(
        &self,
        name: &str,
        plain: &Command,
        (fabric, policies): (Fabric, Policies),
        local: Size,
        lend: Size,
    ) -> Result<(WorkloadReport, PagerStatistics), HarnessError> {
        let run = PagedRun {
            fabric,
            policies,
            donor: self.donor(fabric).address.clone(),
            key: self.key.clone(),
            local,
            lend,
            stats: self.stats.clone(),
            program: std::iter::once(plain.get_program()).chain(plain.get_args()).map(Into::into).collect(),
        };
        let mut command = run.command(&self.own);
        let report = self.report_of(name, &mut command)?;
        let reading = || format!("reading the statistics of {name}");
        let text = std::fs::read(&self.stats).map_err(HarnessError::system(reading()))?;
        let statistics = serde_json::from_slice(&text).map_err(HarnessError::system(reading()))?;
        Ok((report, statistics))
    }

    fn run_swapped(&self, row: Row) -> Result<WorkloadReport, HarnessError> {
        let (shop, room) = (&self.context.shop, Size(SIZE.0 * 2));
        let donor = self.donor(row.fabric);
        let storage = Storage { prefetch: Some("none"), ..run_storage(self.context, &[], "none", room) };
        let storage = Storage { donors: vec![donor.address.clone()], ..storage };
        let plain = row.load.command(None)?;
        let local = row.local().to_string();
        let mut command = shop.product()?.run_via(Via::Swap, None, &local, &storage, &self.stats, &plain);
        self.report_of(row.load.name, &mut command)
    }

    /// Runs `command`, which prints a workload's report, and reads that.
    fn report_of(&self, name: &str, command: &mut Command) -> Result<WorkloadReport, HarnessError> {
        let output = run_within(RUN_DEADLINE, name, command, &self.context.shop.interrupt)?;
        serde_json::from_str(&output).map_err(HarnessError::system(format!("reading the report of {name}")))
    }

    /// Where the time of a fault goes: what the program loses by it, of that what passes in the pager, and of that what
    /// the modelled fabric takes.
    fn measure_fault(&self, result: &mut StudyResult, round: usize, fabric: Fabric) -> Result<(), HarnessError> {
        let mut plain = Command::new(own_program()?);
        plain.args(["workload", "touch", "--size", &SIZE.to_string(), "--seed", &SEED.to_string(), "--json"]);
        let (policies, local) = (Policies::NONE, SIZE.percent(LOCAL_PER_CENT[0]));
        let (report, told) = self.run_program("touch", &plain, (fabric, policies), local, Size(SIZE.0 * 2))?;
        let phase = |name: &str| report.phases.iter().find(|phase| phase.phase == name);
        let (Some(room), Some(again)) = (phase(touch::WITH_ROOM), phase(touch::AGAIN)) else {
            return Err(HarnessError::failed("touch", "its report lacks a phase"));
        };
        if room.pages == 0 {
            return Err(HarnessError::failed("touch", "no page was missing"));
        }
        let total_us = (room.seconds - again.seconds) * 1e6 / room.pages as f64;
        let in_pager_us = told.fill.latency.p50_us;
        let wire = modelled_rdma::LATENCY + modelled_rdma::wire_time(spillway_workloads::size::PAGE_SIZE_BYTES);
        let modelled_us = if fabric == Fabric::Rdma { wire.as_secs_f64() * 1e6 } else { 0.0 };
        let parts = [(total_us - in_pager_us).max(0.0), in_pager_us - modelled_us, modelled_us];
        for (stage, time_us) in judgement::STAGES.into_iter().zip(parts) {
            result.record(round, &judgement::fault_case(fabric), stage, MICROSECONDS, time_us);
        }
        Ok(())
    }
}

fn record_figures(
    result: &mut StudyResult,
    (round, row, policies): (usize, Row, Policies),
    figures: &Figures,
    without: &Figures,
) {
    let mut record = |what: &str, unit, value: f64| result.record(round, &row.case(what), policies.name, unit, value);
    record("faults", FAULTS, figures.faults as f64);
    record("remote faults", FAULTS, figures.remote_faults as f64);
    if policies != Policies::NONE {
        let rates = [
            ("coverage", PER_CENT, figures.coverage()),
            ("accuracy", PER_CENT, figures.accuracy()),
            ("pollution", PER_CENT_WASTE, figures.pollution(without)),
        ];
        for (what, unit, rate) in rates {
            if let Some(rate) = rate {
                record(what, unit, 100.0 * rate);
            }
        }
    }
    for thousandths in SHARES {
        if let Some(wait_us) = figures.wait_us(thousandths) {
            record(&judgement::wait_case(thousandths), MICROSECONDS, wait_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::studies::tests::context;
    use spillway_bench::machine::Machine;

    #[test]
    fn rows_have_at_least_the_memory_that_a_pager_takes() {
        let rows = Row::all(false);
        assert!(rows.iter().all(|row| row.local().0 >= spillway_pager::limits::BUDGET_BYTES_MIN));
        assert_eq!(rows.len(), (Load::ALL.len() * LOCAL_PER_CENT.len() - 1) * Fabric::ALL.len());
        let quick: Vec<_> = Row::all(true).iter().map(|row| row.case("time")).collect();
        assert_eq!(quick[0], "sequential L(50) shm: time");
        let named = |words| rows.iter().filter(|row| row.is_named(words)).count();
        assert_eq!(named("sequentail"), 0);
        let error = names_no_row(true).to_string();
        assert!(error.contains("sequential L(50) shm") && error.contains(ROWS_VARIABLE), "{error}");
        assert_eq!([named(""), named("random"), named("matrix,random L(50) tcp")], [rows.len(), 6, 4]);
        assert_eq!((quick.len(), quick.last().map(String::as_str)), (6, Some("random L(50) rdma model: time")));
    }

    #[test]
    fn the_first_phase_does_not_count_but_in_a_jvm() {
        let settings = spillway_workloads::WorkloadSettings { size: Size(MIB), seed: 1, threads: 1 };
        let report = spillway_workloads::run("fill-sequential-twice", &settings).unwrap();
        let seconds = Load::ALL[0].seconds(&report);
        assert!((seconds - report.phases[1].seconds - report.phases[2].seconds).abs() < 1e-12);
        let java = Load::ALL.into_iter().find(|load| load.workload.is_none()).unwrap();
        assert!((java.seconds(&report) - report.elapsed_seconds).abs() < 1e-12);
        assert!(java.command(None).unwrap_err().to_string().contains("default-jdk-headless"));
    }

    #[test]
    fn without_the_product_it_says_so() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut result = StudyResult::new("prefetching-live", "", true, Machine::default());
        PrefetchingLiveStudy.run(&context(directory.path(), 1), &mut result).unwrap();
        assert!(result.skipped.iter().any(|skip| skip.reason.contains("not built")));
        assert!(result.goals.iter().all(|goal| goal.met.is_none()) && !result.goals.is_empty());
    }

    #[test]
    fn the_figures_of_a_run_stand_under_its_row() {
        let mut result = StudyResult::new("prefetching-live", "", true, Machine::default());
        let row = Row::all(true)[1];
        let without = Figures { remote_faults: 100, ..Figures::default() };
        record_figures(&mut result, (0, row, Policies::NONE), &without, &without);
        let with = Figures { faults: 30, remote_faults: 20, brought: 100, used: 80, ..Figures::default() };
        record_figures(&mut result, (0, row, Policies::OURS), &with, &without);
        let of = |what: &str, policies: Policies| result.median(&row.case(what), policies.name);
        assert_eq!((of("coverage", Policies::OURS), of("accuracy", Policies::OURS)), (Some(80.0), Some(80.0)));
        assert_eq!((of("pollution", Policies::OURS), of("coverage", Policies::NONE)), (Some(20.0), None));
        assert_eq!(of("remote faults", Policies::NONE), Some(100.0));
        assert_eq!(of(&judgement::wait_case(500), Policies::OURS), Some(0.0));
    }
}
