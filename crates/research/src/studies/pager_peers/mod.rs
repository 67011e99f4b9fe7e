//! What a visit of a page costs by our pager and by other pagers in user space, side by side.
//!
//! | side | what it is |
//! |---|---|
//! | spillway pager | `spillway run --via pager --local 33M --lend 128M`, with donors of its own |
//! | fltrace | eden-farmem/fltrace, whose far memory is its own process's: `fltrace record` with the same workload |
//! | umap | LLNL/umap over a file in memory: `umap_visit.c`, which makes the same visits in a region of umap |
//!
//! The workload is `visit`, half of whose memory is local; all of a side runs on one CPU, or nothing is bound to one
//! (both peers serve pages from threads of the program's own process, so program and server are not told apart;
//! umap's are as many as CPUs of the machine, on whichever they have to run). Neither peer is here: what they are is
//! told by environment variables (`bench/README.md`, "Other pagers").
//!
//! Invariant: all runs give the same checksum, and one of ours that had more than its budget for a while is no
//! measurement: a program that is over before the pager's first look, beside much other work, was not paged at all.

use std::path::{Path, PathBuf};
use std::process::Command;

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::process::bound;
use spillway_bench::harness::spillway::{Via, pinned, read_run};
use spillway_bench::limits::{PEER_DEADLINE, PROGRAM_DEADLINE};
use spillway_bench::result::{Better, MICROSECONDS, StudyResult};
use spillway_bench::studies::pinning::{Pinning, Placement};
use spillway_bench::studies::places::run_storage;
use spillway_bench::studies::program_run::{SEED, own_program, run_within, workload_command};
use spillway_bench::studies::{Context, Study};
use spillway_pager::statistics::PagerStatistics;
use spillway_workloads::WorkloadReport;
use spillway_workloads::size::{MIB, Size};

/// Names the program `fltrace`.
pub const FLTRACE_VARIABLE: &str = "SPILLWAY_BENCH_FLTRACE";

/// Names the program that was compiled from `umap_visit.c`.
pub const UMAP_VARIABLE: &str = "SPILLWAY_BENCH_UMAP_VISIT";

/// Where both are explained.
const DOCUMENT: &str = "bench/README.md, \"Other pagers\"";

const WORKLOAD: &str = "visit";

/// Its phases, and how they are called in results.
const PHASES: [(&str, &str); 4] =
    [("fill", "fill"), ("sequential", "sequential"), ("random", RANDOM), ("rewrite", "random, with a change")];

const RANDOM: &str = "random";

/// What a program has besides the pages that it visits, where all of its memory counts: umap counts only those.
const PROGRAM_ITSELF: Size = Size(MIB);

/// What our run may borrow.
const LENT: Size = Size(128 * MIB);

/// What fltrace keeps as far memory, in MiB: several times what is needed, as its allocator does not use all of it.
const FLTRACE_FAR_MIB: u64 = 512;

/// Our run may be seen with so small a part of its budget more, which pages on their way in take.
const BUDGET_SLACK_DIVISOR: u64 = 16;

/// A random visit takes a peer so many times as long at least (issue's goal: half the time of every such peer).
const GOAL_BOUND: f64 = 2.0;

/// The study of the pager's peers.
#[derive(Clone, Copy, Debug)]
pub struct PagerPeersStudy;

/// Who pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Fltrace,
    Umap,
}

const SIDES: [Side; 3] = [Side::Ours, Side::Fltrace, Side::Umap];

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "spillway pager",
            Self::Fltrace => "fltrace",
            Self::Umap => "umap",
        }
    }

    /// Runs the workload of `size`, half of it local.
    fn run(self, context: &Context, placement: Placement, size: Size) -> Result<WorkloadReport, HarnessError> {
        let half = Size(size.0 / 2);
        let local = Size(half.0 + PROGRAM_ITSELF.0);
        match self {
            Self::Ours => ours(context, placement, size, local),
            Self::Fltrace => {
                let mut command = fltrace(&peer(FLTRACE_VARIABLE)?, placement, &bound_workload(size)?, local);
                // It writes what it recorded into its directory, and removes what an earlier run wrote there.
                command.current_dir(context.shop.directory.path());
                self.run_peer(context, &mut command)
            }
            Self::Umap => {
                let mut command = pinned(&peer(UMAP_VARIABLE)?, placement.client_cpu());
                command.args([size.0, half.0, SEED].map(|number| number.to_string()));
                self.run_peer(context, &mut command)
            }
        }
    }

    fn run_peer(self, context: &Context, command: &mut Command) -> Result<WorkloadReport, HarnessError> {
        let output = run_within(PEER_DEADLINE, self.name(), command, &context.shop.interrupt)?;
        report_in(&output).ok_or_else(|| HarnessError::failed(self.name(), "it printed no report of the workload"))
    }
}

impl Study for PagerPeersStudy {
    fn name(&self) -> &'static str {
        "pager-peers"
    }

    fn title(&self) -> &'static str {
        "a visit of a page by our pager and by other pagers in user space"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (24, 8)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(64, 16) * MIB);
        let mut checksum = None;
        let placements = placements(result.machine.cpus);
        let subjects: Vec<(Placement, Side)> =
            placements.iter().flat_map(|placement| SIDES.map(|side| (*placement, side))).collect();
        let outcome = context.interleave(
            result,
            &subjects,
            |(placement, side)| format!("{}, {}", side.name(), placement.name()),
            |round, (placement, side), result| {
                let report = side.run(context, placement, size)?;
                check(&report, side, &mut checksum)?;
                record(result, (round, placement), side, &report)
            },
        );
        compare(result, &placements);
        outcome
    }
}

/// The file that a variable names, with its whole path.
fn peer(variable: &str) -> Result<PathBuf, HarnessError> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let found = named.as_ref().and_then(|file| file.canonicalize().ok()).filter(|file| file.is_file());
    found.ok_or_else(|| {
        let fault = named.map_or("is not set".to_owned(), |file| format!("names no file ({})", file.display()));
        HarnessError::Missing(format!("{variable} {fault}; what it is to name: {DOCUMENT}"))
    })
}

/// The workload in such a way that it ends when the process that started it does.
fn bound_workload(size: Size) -> Result<Command, HarnessError> {
    let plain = workload_command(WORKLOAD, size)?;
    let mut command = bound(own_program()?);
    command.args(plain.get_args());
    Ok(command)
}

fn ours(context: &Context, placement: Placement, size: Size, local: Size) -> Result<WorkloadReport, HarnessError> {
    let shop = &context.shop;
    let storage = run_storage(context, &[], "none", LENT);
    let stats = shop.directory.path().join("pager-peers-stats.json");
    let program = bound_workload(size)?;
    let mut command =
        shop.product()?.run_via(Via::Pager, placement.server_cpu(), &local.to_string(), &storage, &stats, &program);
    let output = run_within(PROGRAM_DEADLINE, Side::Ours.name(), &mut command, &shop.interrupt)?;
    held_to_budget(read_run(&stats)?.0.pager.as_ref(), local)?;
    report_in(&output).ok_or_else(|| HarnessError::failed(Side::Ours.name(), "it printed no report of the workload"))
}

/// Fails for a run of ours that was seen with more than its budget, or not at all.
fn held_to_budget(told: Option<&PagerStatistics>, local: Size) -> Result<(), HarnessError> {
    let seen = told.map_or(0, |pager| pager.local_bytes_peak);
    if seen > 0 && seen <= local.0 + local.0 / BUDGET_SLACK_DIVISOR {
        return Ok(());
    }
    let detail = format!("it was to have {local}, and the pager saw it with {} KiB at most", seen >> 10);
    Err(HarnessError::failed(Side::Ours.name(), detail))
}

/// One handler thread, as by default, and the fewest samples of faults that it can be told to take.
fn fltrace(program: &Path, placement: Placement, workload: &Command, local: Size) -> Command {
    let mut command = pinned(program, placement.client_cpu());
    command.arg("record").arg(format!("-L={}", local.0.div_ceil(MIB))).arg(format!("-M={FLTRACE_FAR_MIB}"));
    command.args(["-S=1", "--"]).arg(workload.get_program()).args(workload.get_args());
    command
}

/// The workload's report, wherever it stands: fltrace writes lines of its own around it.
fn report_in(output: &str) -> Option<WorkloadReport> {
    let parse = |text: &str| serde_json::Deserializer::from_str(text).into_iter().next()?.ok();
    output.match_indices('{').find_map(|(start, _)| parse(&output[start..]))
}

/// Whether it did what the first run did.
fn check(report: &WorkloadReport, side: Side, first: &mut Option<String>) -> Result<(), HarnessError> {
    let first = first.get_or_insert_with(|| report.checksum.clone());
    if *first == report.checksum {
        return Ok(());
    }
    let detail = format!("WRONG OUTPUT: checksum {} where the first run had {first}", report.checksum);
    Err(HarnessError::failed(side.name(), detail))
}

fn case(phase: &str, placement: Placement) -> String {
    format!("{phase}, {}", placement.name())
}

fn record(
    result: &mut StudyResult,
    (round, placement): (usize, Placement),
    side: Side,
    report: &WorkloadReport,
) -> Result<(), HarnessError> {
    for (phase, called) in PHASES {
        let found = report.phases.iter().find(|found| found.phase == phase);
        let found = found.ok_or_else(|| HarnessError::failed(side.name(), format!("it has no phase '{phase}'")))?;
        result.record(round, &case(called, placement), side.name(), MICROSECONDS, found.us_per_page);
    }
    Ok(())
}

/// All on one CPU, and, where there are others, free to run anywhere.
fn placements(cpus: usize) -> Vec<Placement> {
    let all = Placement::possible(cpus).into_iter();
    all.filter(|placement| *placement != Placement::Pinned(Pinning::Different)).collect()
}

fn compare(result: &mut StudyResult, placements: &[Placement]) {
    let ours = Side::Ours.name();
    result.compare_with(ours);
    for peer in [Side::Fltrace, Side::Umap].map(Side::name) {
        let goal = format!("random at L(50) twice as fast as {peer}");
        for placement in placements {
            result.goal(&goal, &case(RANDOM, *placement), peer, ours, GOAL_BOUND, Better::Higher);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_bench::machine::Machine;
    use spillway_workloads::WorkloadSettings;

    fn visited() -> WorkloadReport {
        spillway_workloads::run(WORKLOAD, &WorkloadSettings { size: Size(MIB), seed: SEED, threads: 1 }).unwrap()
    }

    #[test]
    fn each_peer_has_its_goal_for_random_visits() {
        let mut result = StudyResult::new("pager-peers", "", true, Machine::default());
        for (round, slower) in [1.0, 1.1, 1.2].into_iter().enumerate() {
            for (side, time) in SIDES.into_iter().zip([8.0, 17.0, 15.0]) {
                for (_, called) in PHASES {
                    result.record(round, &case(called, Placement::Free), side.name(), MICROSECONDS, time * slower);
                }
            }
        }
        compare(&mut result, &placements(2));
        let met: Vec<_> = result.goals.iter().map(|goal| (goal.case.as_str(), goal.met)).collect();
        let (pinned, free) = ("random, same CPU", "random, unpinned");
        assert_eq!(met, [(pinned, None), (free, Some(true)), (pinned, None), (free, Some(false))]);
        assert_eq!(result.comparisons.len(), 2 * PHASES.len());
        assert!(result.comparisons.iter().all(|found| found.baseline == "spillway pager" && found.ratio.count == 3));
    }

    #[test]
    fn a_report_is_found_among_other_lines() {
        let report = visited();
        let json = serde_json::to_string_pretty(&report).unwrap();
        for output in [json.clone(), format!("CPU 01| {{ready\nCPU 0{json}\nCPU 01| {{}}: over\n")] {
            assert_eq!(report_in(&output).map(|found| found.checksum).as_ref(), Some(&report.checksum), "{output}");
        }
        assert!(report_in("CPU 01| {}: nothing").is_none() && report_in("").is_none());
    }

    #[test]
    fn every_phase_is_recorded_and_none_may_be_missing() {
        let (mut report, mut result) = (visited(), StudyResult::new("pager-peers", "", true, Machine::default()));
        assert_eq!(placements(1), [Placement::Pinned(Pinning::Same)]);
        let at = |round| (round, Placement::Free);
        record(&mut result, at(0), Side::Umap, &report).unwrap();
        assert_eq!(result.cases(), PHASES.map(|(_, called)| case(called, Placement::Free)));
        report.phases.remove(2);
        assert!(record(&mut result, at(1), Side::Umap, &report).unwrap_err().to_string().contains("'random'"));
    }

    #[test]
    fn a_run_beyond_its_budget_is_no_measurement() {
        let told = |local_bytes_peak| {
            let pager = PagerStatistics { local_bytes_peak, ..PagerStatistics::default() };
            held_to_budget(Some(&pager), Size(32 * MIB))
        };
        assert!(told(32 * MIB).is_ok() && told(33 * MIB).is_ok());
        assert!(told(64 * MIB).unwrap_err().to_string().contains("65536 KiB"));
        assert!(told(0).is_err(), "the pager never saw it");
        assert!(held_to_budget(None, Size(MIB)).is_err(), "it ran without the pager");
    }
}
