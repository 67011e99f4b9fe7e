//! What a page costs when the pager brings it: against the bare floor of userfaultfd, all memory local, and our own
//! swap device.
//!
//! Programs go through their memory twice, and the second time counts: the first time donors make slabs for pages
//! that had none yet, on the same CPUs, which costs nothing where donors are other machines. A fault's cost is the
//! program's time over its faults while there is room, so that nothing leaves meanwhile, less its time for the same
//! touches when no page is missing; the floor, a thread of one process that fills pages and does nothing else, is
//! taken in the same way. At the budget a page leaves for each one that comes, and on one CPU both take their time
//! from the program. The pager starts on one CPU and the program runs on the same or on another one; or the scheduler
//! puts all threads where it likes, as in a run without this benchmark.
//!
//! Pages that leave are measured in two ways: of a program at rest far beyond its budget (eviction alone; the floor
//! is one thread that moves, copies and drops them), and of one that fills fresh memory, which waits for a fault at
//! each page.
//!
//! `within_budget` asks what the pager costs a program that needs no page of it.

mod within_budget;

use spillway_pager::statistics::PagerStatistics;
use spillway_sys::userfaultfd::served::Idle;
use spillway_workloads::phase::PhaseReport;
use spillway_workloads::size::{MIB, PAGE_SIZE_BYTES, Size};
use spillway_workloads::{WorkloadReport, touch};

use super::pinning::{Pinning, Placement};
use super::places::run_storage;
use super::program_run::{own_program, run_workload, workload_command};
use super::{Context, Study, loopback};
use crate::harness::spillway::{Transport, Via, pinned, read_run};
use crate::harness::{HarnessError, eviction_floor, fault_floor};
use crate::result::{Better, MICROSECONDS, PAGES_PER_SECOND, StudyResult};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// A minimal handler, and a raw exchange.
    Floor,
    /// The program alone.
    AllLocal,
    /// `spillway run`.
    Run(Via, Transport),
}

const SIDES: [Side; 5] = [
    Side::Floor,
    Side::AllLocal,
    Side::Run(Via::Pager, Transport::SharedMemory),
    Side::Run(Via::Pager, Transport::Tcp),
    Side::Run(Via::Swap, Transport::SharedMemory),
];

const LOCAL_NAME: &str = "all local";
const PAGER_NAME: &str = "pager shm";
const FLOOR: &str = "userfaultfd floor";

/// The same where the thread that fills pages never sleeps: ours does not while faults come one soon after the other.
/// It needs a CPU of its own, which the scheduler gives it in most of an unpinned run.
const FLOOR_AWAKE: &str = "userfaultfd floor, awake";
/// See [`loopback`]: the exchange to the floor that never sleeps.
const EXCHANGE_AWAKE: &str = "raw exchange, awake";
const EXCHANGE: &str = "raw loopback exchange";
/// See [`loopback`]: what a donor's would be, if it did nothing else.
const EXCHANGE_APART: &str = "raw exchange between processes";
const FAULT: &str = "fault";
const FAULT_AT_BUDGET: &str = "fault, and a page that leaves";
const EVICTION: &str = "eviction";
const FILL: &str = "filling beyond the budget";
const SEQUENTIAL: &str = "sequential scan at L(50)";
const RANDOM: &str = "random access at L(50)";

/// The workloads whose phase `read` is compared at half: the second time that they go through their memory.
const SCANS: [(&str, &str); 2] = [("fill-sequential-twice", SEQUENTIAL), ("fill-random-twice", RANDOM)];

/// Of a program whose memory is evicted, so much stays.
const EVICTION_LOCAL_DIVISOR: u64 = 8;

/// A program's memory for that: a tenth of a second of eviction, whatever else is small in a quick run.
const EVICTION_SIZE: Size = Size(256 * MIB);

/// Faults of a phase at least.
const FAULTS_MIN: u64 = 100;

/// A fault over TCP takes the floor and so many raw exchanges at most (issue's goal).
const EXCHANGES_ALLOWED: f64 = 1.3;

/// Pages a second that leave at least, end to end on shm (issue's goal).
const EVICTION_GOAL: f64 = 800_000.0;

/// The study of the pager.
#[derive(Clone, Copy, Debug)]
pub struct PagerStudy;

fn name(side: Side) -> &'static str {
    match side {
        Side::Floor => FLOOR,
        Side::AllLocal => LOCAL_NAME,
        Side::Run(Via::Pager, Transport::SharedMemory) => PAGER_NAME,
        Side::Run(Via::Pager, Transport::Tcp) => "pager tcp",
        Side::Run(Via::Swap, Transport::SharedMemory) => "swap shm",
        Side::Run(Via::Swap, Transport::Tcp) => "swap tcp",
    }
}

impl Study for PagerStudy {
    fn name(&self) -> &'static str {
        "pager"
    }

    fn title(&self) -> &'static str {
        "a page that the pager brings"
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (135, 60)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(256, 64) * MIB);
        let placements = Placement::possible(result.machine.cpus);
        context.interleave(
            result,
            &SIDES,
            |side| name(side).to_owned(),
            |round, side, result| {
                first_error(
                    placements.iter().map(|placement| measure(context, result, (round, side), size, *placement)),
                )
            },
        )?;
        goals(result, &placements);
        within_budget::measure(context, result)
    }
}

/// Does all of it: an eviction that no process saw in one placement must not cost the figures of the next.
fn first_error(outcomes: impl Iterator<Item = Result<(), HarnessError>>) -> Result<(), HarnessError> {
    outcomes.fold(Ok(()), Result::and)
}

fn case(what: &str, placement: Placement) -> String {
    format!("{what}, {}", placement.name())
}

fn measure(
    context: &Context,
    result: &mut StudyResult,
    (round, side): (usize, Side),
    size: Size,
    placement: Placement,
) -> Result<(), HarnessError> {
    if side == Side::Floor {
        return measure_floor(context, result, round, placement);
    }
    let half = Size(size.0 / 2);
    for (workload, what) in SCANS {
        let (report, _) = run(context, side, workload, size, half, placement)?;
        result.record(round, &case(what, placement), name(side), MICROSECONDS, us_per_page(&report, "read")?);
    }
    if !matches!(side, Side::Run(Via::Pager, _)) {
        return Ok(());
    }
    let (report, told) = run(context, side, "touch", size, half, placement)?;
    let at_budget = us_per_fault(&report, &told, "touch")?;
    result.record(round, &case(FAULT_AT_BUDGET, placement), name(side), MICROSECONDS, at_budget);
    result.record(round, &case(FAULT, placement), name(side), MICROSECONDS, us_for_fault(&report, &told)?);
    let local = Size(size.0 / EVICTION_LOCAL_DIVISOR);
    let (report, told) = run(context, side, "fill-sequential", size, local, placement)?;
    result.record(round, &case(FILL, placement), name(side), PAGES_PER_SECOND, filled(&report, &told, local)?);
    let (size, local) = (EVICTION_SIZE, Size(EVICTION_SIZE.0 / EVICTION_LOCAL_DIVISOR));
    let (report, told) = run(context, side, "overflow", size, local, placement)?;
    filled(&report, &told, local)?;
    result.record(round, &case(EVICTION, placement), name(side), PAGES_PER_SECOND, evicted(&report)?);
    Ok(())
}

fn measure_floor(
    context: &Context,
    result: &mut StudyResult,
    round: usize,
    placement: Placement,
) -> Result<(), HarnessError> {
    let count = context.choose(20_000, 4_000);
    let (server, client) = (placement.server_cpu(), placement.client_cpu());
    let idles = [(FLOOR, Idle::Sleeps), (FLOOR_AWAKE, Idle::Polls)];
    // On one CPU a thread that never sleeps only keeps the other one waiting.
    let has_two_cpus = placement != Placement::Pinned(Pinning::Same);
    for (name, idle) in idles.into_iter().take(if has_two_cpus { 2 } else { 1 }) {
        let floor = fault_floor::fault_us(context.choose(20_000, 16_000), idle, server, client);
        let floor = floor.map_err(HarnessError::system("measuring the floor of userfaultfd"))?;
        result.record(round, &case(FAULT, placement), name, MICROSECONDS, floor);
    }
    let exchange = loopback::exchange_us(count as u32, server, client);
    let exchange = exchange.map_err(HarnessError::system("measuring a raw loopback exchange"))?;
    result.record(round, &case(FAULT, placement), EXCHANGE, MICROSECONDS, exchange);
    if has_two_cpus {
        let awake = loopback::exchange_awake_us(count as u32, server, client);
        let awake = awake.map_err(HarnessError::system("measuring an exchange of threads that never sleep"))?;
        result.record(round, &case(FAULT, placement), EXCHANGE_AWAKE, MICROSECONDS, awake);
    }
    let exchange = loopback::exchange_between_processes_us(&own_program()?, count as u32, server, client);
    let exchange = exchange.map_err(HarnessError::system("measuring a raw exchange between processes"))?;
    result.record(round, &case(FAULT, placement), EXCHANGE_APART, MICROSECONDS, exchange);
    let rate = eviction_floor::pages_per_second(context.choose(65_536, 16_384), client);
    let rate = rate.map_err(HarnessError::system("measuring the floor of eviction"))?;
    result.record(round, &case(EVICTION, placement), FLOOR, PAGES_PER_SECOND, rate);
    Ok(())
}

/// Runs a workload on the client's CPU with `local` of local memory, and what serves it from the server's CPU on,
/// where they have one.
fn run(
    context: &Context,
    side: Side,
    workload: &str,
    size: Size,
    local: Size,
    placement: Placement,
) -> Result<(WorkloadReport, Option<PagerStatistics>), HarnessError> {
    let interrupt = &context.shop.interrupt;
    let plain = workload_command(workload, size)?;
    let mut program = pinned(plain.get_program().as_ref(), placement.client_cpu());
    program.args(plain.get_args());
    let Side::Run(via, transport) = side else {
        return Ok((run_workload(workload, &mut program, interrupt)?, None));
    };
    let product = context.shop.product()?;
    let room = Size(size.0 * 2);
    // Held until the program has ended.
    let donors = [product.donor(Size(room.0.max(256 * MIB)), transport, placement.server_cpu(), interrupt)?];
    let storage = run_storage(context, &donors, "none", room);
    let stats = context.shop.directory.path().join("pager-stats.json");
    let mut command = product.run_via(via, placement.server_cpu(), &local.to_string(), &storage, &stats, &program);
    let report = run_workload(workload, &mut command, interrupt)?;
    Ok((report, read_run(&stats)?.0.pager))
}

fn phase<'a>(report: &'a WorkloadReport, name: &str) -> Result<&'a PhaseReport, HarnessError> {
    let found = report.phases.iter().find(|found| found.phase == name);
    found.ok_or_else(|| HarnessError::failed(&report.workload, format!("it has no phase '{name}'")))
}

fn us_per_page(report: &WorkloadReport, name: &str) -> Result<f64, HarnessError> {
    Ok(phase(report, name)?.us_per_page)
}

fn pages(report: &WorkloadReport) -> f64 {
    (report.size_bytes / PAGE_SIZE_BYTES) as f64
}

/// The time of a phase over its faults, what the program did besides included.
fn us_per_fault(report: &WorkloadReport, pager: &Option<PagerStatistics>, name: &str) -> Result<f64, HarnessError> {
    if pager.as_ref().is_none_or(|pager| pager.fill.count + pager.staged.count == 0) {
        return Err(HarnessError::failed(&report.workload, "no page was brought by the pager"));
    }
    let found = phase(report, name)?;
    if found.pages < FAULTS_MIN {
        return Err(HarnessError::failed(&report.workload, format!("the phase '{name}' has too few faults")));
    }
    Ok(found.us_per_page)
}

/// The time that a fault adds to what the program does.
fn us_for_fault(report: &WorkloadReport, pager: &Option<PagerStatistics>) -> Result<f64, HarnessError> {
    let (room, again) = (phase(report, touch::WITH_ROOM)?, phase(report, touch::AGAIN)?);
    if again.pages > room.pages / FAULTS_MIN {
        return Err(HarnessError::failed(&report.workload, format!("{} pages were missing again", again.pages)));
    }
    Ok(us_per_fault(report, pager, touch::WITH_ROOM)? - again.seconds * 1e6 / room.pages as f64)
}

/// Pages a second that left while memory was filled, by what cannot have stayed; and that they did.
fn filled(report: &WorkloadReport, pager: &Option<PagerStatistics>, local: Size) -> Result<f64, HarnessError> {
    let left = pages(report) - (local.0 / PAGE_SIZE_BYTES) as f64;
    let said = pager.as_ref().map_or(0, |pager| pager.pages_out_dirty + pager.pages_out_clean) as f64;
    if said < left {
        return Err(HarnessError::failed(&report.workload, format!("{said} pages left, and {left} must have")));
    }
    Ok(left * 1e6 / (us_per_page(report, "fill")? * pages(report)))
}

/// Pages a second that left of a program at rest.
fn evicted(report: &WorkloadReport) -> Result<f64, HarnessError> {
    let us_per_page = us_per_page(report, "leave")?;
    if us_per_page <= 0.0 {
        return Err(HarnessError::failed(&report.workload, "nothing was seen to leave"));
    }
    Ok(1e6 / us_per_page)
}

fn goals(result: &mut StudyResult, placements: &[Placement]) {
    let sides = SIDES.map(name);
    let [floor, local, shm, tcp, swap] = sides;
    for placement in placements {
        let fault = case(FAULT, *placement);
        result.goal("fault over shm within 1.5x of the userfaultfd floor", &fault, shm, floor, 1.5, Better::Lower);
        let over_tcp = |result: &StudyResult, floor, exchange| {
            result.median_of([tcp, floor, exchange].map(|side| (&*fault, side)), |[tcp, floor, raw]| {
                tcp / (floor + EXCHANGES_ALLOWED * raw)
            })
        };
        let sleeping = over_tcp(result, floor, EXCHANGE);
        result.goal_of("fault over tcp within the floor and 1.3 raw exchanges", &fault, sleeping, 1.0, Better::Lower);
        if *placement != Placement::Pinned(Pinning::Same) {
            result.goal(
                "fault over shm, the same of the floor that never sleeps",
                &fault,
                shm,
                FLOOR_AWAKE,
                1.5,
                Better::Lower,
            );
            let awake = over_tcp(result, FLOOR_AWAKE, EXCHANGE_AWAKE);
            result.goal_of("fault over tcp, the same of what never sleeps", &fault, awake, 1.0, Better::Lower);
        }
        let scan = case(SEQUENTIAL, *placement);
        result.goal("scan at L(50) at 60 % of all-local", &scan, local, shm, 0.6, Better::Higher);
        let random = case(RANDOM, *placement);
        result.goal("random at L(50) twice as fast as our swap device", &random, swap, shm, 2.0, Better::Higher);
        let eviction = case(EVICTION, *placement);
        let rate = result.median(&eviction, shm).map(|rate| rate / EVICTION_GOAL);
        result.goal_of("800,000 pages evicted a second", &eviction, rate, 1.0, Better::Higher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn report(phase: &str, us_per_page: f64) -> WorkloadReport {
        WorkloadReport {
            workload: "touch".to_owned(),
            size_bytes: 1000 * PAGE_SIZE_BYTES,
            seed: 1,
            threads: 1,
            checksum: String::new(),
            elapsed_seconds: 1.0,
            phases: vec![part(phase, 1000, us_per_page)],
        }
    }

    fn part(phase: &str, pages: u64, us_per_page: f64) -> PhaseReport {
        let seconds = us_per_page * pages as f64 / 1e6;
        PhaseReport { phase: phase.to_owned(), seconds, pages, us_per_page, page_ins: None }
    }

    fn told(fill: u64, out: u64) -> Option<PagerStatistics> {
        let mut pager = PagerStatistics { pages_out_dirty: out, ..PagerStatistics::default() };
        pager.fill.count = fill;
        Some(pager)
    }

    #[test]
    fn a_fault_is_one_that_the_pager_answered() {
        assert_eq!(us_per_fault(&report("touch", 5.0), &told(500, 0), "touch").unwrap(), 5.0);
        assert!(us_per_fault(&report("touch", 5.0), &told(0, 0), "touch").is_err());
        assert!(us_per_fault(&report("fill", 5.0), &told(5, 0), "touch").is_err());
    }

    #[test]
    fn what_the_program_does_itself_is_no_fault() {
        let of = |again| {
            let phases = vec![part(touch::WITH_ROOM, 1000, 8.0), part(touch::AGAIN, again, 1000.0 / again as f64)];
            us_for_fault(&WorkloadReport { phases, ..report("touch", 5.0) }, &told(500, 0))
        };
        assert!((of(1).unwrap() - 7.0).abs() < 1e-9);
        assert!(of(11).is_err(), "they were to be there");
        assert!(us_for_fault(&report(touch::WITH_ROOM, 5.0), &told(500, 0)).is_err());
    }

    #[test]
    fn what_left_is_what_cannot_have_stayed() {
        let local = Size(200 * PAGE_SIZE_BYTES);
        assert_eq!(filled(&report("fill", 2.0), &told(0, 900), local).unwrap(), 400_000.0);
        assert!(filled(&report("fill", 2.0), &told(0, 700), local).is_err());
    }

    #[test]
    fn an_eviction_without_a_sample_has_no_rate() {
        assert_eq!(evicted(&report("leave", 2.0)).unwrap(), 500_000.0);
        assert!(evicted(&report("leave", 0.0)).is_err());
    }

    #[test]
    fn a_failure_is_told_and_the_rest_is_done() {
        let mut done = 0;
        let outcomes = [None, Some("first"), Some("second"), None].into_iter().map(|failure| {
            done += 1;
            failure.map_or(Ok(()), |failure| Err(HarnessError::failed("it", failure)))
        });
        assert!(first_error(outcomes).unwrap_err().to_string().contains("first"));
        assert_eq!(done, 4);
        assert!(first_error([Ok(()), Ok(())].into_iter()).is_ok());
    }

    #[test]
    fn goals_cover_every_case() {
        let mut result = StudyResult::new("pager", "", true, Machine::default());
        for (side, time) in [(FLOOR, 4.0), (EXCHANGE, 10.0), ("pager shm", 5.0), ("pager tcp", 18.0)] {
            result.record(0, "fault, same CPU", side, MICROSECONDS, time);
        }
        // The goal of the floor that sleeps is no goal there.
        let different =
            [(FLOOR, 60.0), (FLOOR_AWAKE, 4.0), (EXCHANGE_AWAKE, 10.0), ("pager shm", 7.0), ("pager tcp", 18.0)];
        for (side, time) in different {
            result.record(0, "fault, different CPU", side, MICROSECONDS, time);
        }
        result.record(0, "eviction, same CPU", "pager shm", PAGES_PER_SECOND, 400_000.0);
        goals(&mut result, &Placement::possible(2));
        assert_eq!(result.goals.len(), 19);
        assert_eq!(result.goals.iter().filter(|goal| goal.met == Some(true)).count(), 2);
        assert_eq!(result.goals.iter().filter(|goal| goal.met == Some(false)).count(), 4);
    }
}
