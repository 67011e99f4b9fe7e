//! Sustained writes: they run at fabric speed and stay there. With replicas, or without copies, always; with a copy
//! on disk until the backlog reaches its bound, and not below the disk's speed afterwards. (In Infiniswap's code a
//! write's context was freed only by the disk write, so that sustained writes ran at disk speed from the start.)
//!
//! The device is written in steps; after each, the backlog tells whether the step ran below the bound or at it.

use std::time::Duration;

use spillway_volume::status::DiskStatus;
use spillway_workloads::size::{MIB, PAGE_SIZE_BYTES, Size};

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::fio::{Job, Length};
use crate::harness::spillway::{Storage, Transport};
use crate::harness::subject::{Attached, Subject};
use crate::plot::lines::{Line, LineChart};
use crate::result::{Better, MEBIBYTES, MIB_PER_SECOND, StudyResult};

const BELOW: &str = "128 KiB writes, backlog below its bound";
const AT: &str = "128 KiB writes, backlog at its bound";
const BOUND: &str = "the backlog's bound";

/// A backlog this full counts as being at its bound.
const FULL_SHARE: f64 = 0.9;

/// "At fabric speed" allows so much below the device without a disk copy, and "sustained" so much below the start.
const SPEED_GOAL: f64 = 0.8;

/// Two replicas put each page on the fabric twice.
const REPLICAS_GOAL: f64 = SPEED_GOAL / 2.0;

/// The steps' job: large writes, as swap-out makes them.
const JOB: Job = Job { pattern: "randwrite", block_bytes: 131_072, depth: 8 };

/// The study of sustained writes.
#[derive(Clone, Copy, Debug)]
pub struct WritesStudy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    None(Transport),
    Replicas(Transport),
    Disk(Transport),
    DiskOnly,
}

impl Copies {
    const ALL: [Self; 7] = [
        Self::None(Transport::SharedMemory),
        Self::Replicas(Transport::SharedMemory),
        Self::Disk(Transport::SharedMemory),
        Self::None(Transport::Tcp),
        Self::Replicas(Transport::Tcp),
        Self::Disk(Transport::Tcp),
        Self::DiskOnly,
    ];

    fn name(self) -> String {
        let fabric = |transport| if transport == Transport::Tcp { "tcp" } else { "shm" };
        match self {
            Self::None(transport) => format!("one copy, {}", fabric(transport)),
            Self::Replicas(transport) => format!("replicas=2, {}", fabric(transport)),
            Self::Disk(transport) => format!("disk copy, {}", fabric(transport)),
            Self::DiskOnly => "disk loop".to_owned(),
        }
    }

    /// The product's setting and how many donors it takes; `None` for what is not the product.
    fn setting(self) -> Option<(&'static str, usize, Transport)> {
        match self {
            Self::None(transport) => Some(("none", 1, transport)),
            Self::Replicas(transport) => Some(("replicas=2", 2, transport)),
            Self::Disk(transport) => Some(("disk", 1, transport)),
            Self::DiskOnly => None,
        }
    }

    fn has_backlog(self) -> bool {
        matches!(self, Self::Disk(_))
    }
}

fn step_case(step: usize) -> String {
    format!("step {}", step + 1)
}

impl Study for WritesStudy {
    fn name(&self) -> &'static str {
        "writes"
    }

    fn title(&self) -> &'static str {
        "sustained writes and the copies they leave"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (56, 23)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(512, 64) * MIB);
        let steps = context.choose(6, 3);
        let outcome = context.interleave(result, &Copies::ALL, Copies::name, |round, copies, result| {
            let attached = attach(context, copies, size)?;
            let mut rates: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
            for step in 0..steps {
                let time = Length::Time(Duration::from_millis(context.choose(600, 300)));
                let rate = JOB.run(&attached.path, size, time, None, &context.shop.interrupt)?.mib_per_second;
                result.record(round, &step_case(step), &copies.name(), MIB_PER_SECOND, rate);
                rates[usize::from(backlog(context, &attached)?.as_ref().is_some_and(is_full))].push(rate);
            }
            if let Some(report) = backlog(context, &attached)?.filter(|_| copies.has_backlog()) {
                let bound = (report.backlog_pages_max * PAGE_SIZE_BYTES) as f64 / MIB as f64;
                result.record(round, BOUND, &copies.name(), MEBIBYTES, bound);
            }
            record(result, round, copies, &rates);
            Ok(())
        });
        judge(result, steps);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        let steps = (0..).take_while(|step| result.cases().contains(&step_case(*step))).count();
        let line = |copies: Copies| {
            let value = |step| result.measure(&step_case(step), &copies.name())?.summary;
            Line { name: copies.name(), values: (0..steps).map(value).collect() }
        };
        let chart = LineChart {
            title: "128 KiB writes (MiB/s) one after another".to_owned(),
            steps_title: "step".to_owned(),
            steps: (1..=steps).map(|step| step.to_string()).collect(),
            lines: Copies::ALL.map(line).to_vec(),
        };
        vec![("writes-steps".to_owned(), chart.svg())]
    }
}

fn judge(result: &mut StudyResult, steps: usize) {
    let disk_only = Copies::DiskOnly.name();
    for transport in [Transport::SharedMemory, Transport::Tcp] {
        let [none, replicas, disk] =
            [Copies::None(transport), Copies::Replicas(transport), Copies::Disk(transport)].map(Copies::name);
        for copies in [&none, &replicas] {
            let (first, last) = (step_case(0), step_case(steps - 1));
            let ratio = result.median_of([(&last, copies), (&first, copies)], |[last, first]| last / first);
            result.goal_of("sustained: the last step as fast as the first", copies, ratio, SPEED_GOAL, Better::Higher);
        }
        let goal = "replicas=2 at fabric speed (each page twice)";
        result.goal(goal, BELOW, &replicas, &none, REPLICAS_GOAL, Better::Higher);
        let goal = "disk copy at fabric speed until the backlog's bound";
        result.goal(goal, BELOW, &disk, &none, SPEED_GOAL, Better::Higher);
        let goal = "disk copy not below disk speed at the bound";
        result.goal(goal, AT, &disk, &disk_only, SPEED_GOAL, Better::Higher);
        for copies in [&none, &replicas, &disk] {
            result.compare(BELOW, copies, &disk_only);
        }
    }
}

fn attach(context: &Context, copies: Copies, size: Size) -> Result<Attached, HarnessError> {
    let shop = &context.shop;
    let Some((redundancy, count, transport)) = copies.setting() else {
        return Subject::DiskLoop.attach(shop, size, None);
    };
    let memory = Size(size.0 + size.0 / 4);
    let donors: Result<Vec<_>, _> =
        (0..count).map(|_| shop.product()?.donor(memory, transport, None, &shop.interrupt)).collect();
    let donors = donors?;
    let storage = Storage {
        donors: donors.iter().map(|donor| donor.address.clone()).collect(),
        redundancy: redundancy.to_owned(),
        backing: copies.has_backlog().then(|| shop.directory.path().join("writes-backing")),
        slab_size: None,
        ..Storage::default()
    };
    shop.spillway_device(size, Some(&storage), None, donors)
}

/// What waits for the disk; `None` for what is not the product.
fn backlog(context: &Context, attached: &Attached) -> Result<Option<DiskStatus>, HarnessError> {
    let Some(name) = &attached.device else { return Ok(None) };
    Ok(context.shop.product()?.device_status(name, &context.shop.interrupt)?.disk)
}

/// Whether a backlog is at its bound; a device without one never is.
fn is_full(disk: &DiskStatus) -> bool {
    disk.backlog_pages_max > 0 && disk.backlog_pages as f64 >= FULL_SHARE * disk.backlog_pages_max as f64
}

/// The mean of the steps below the bound, and of those at it. Devices without a backlog are a baseline for both.
fn record(result: &mut StudyResult, round: usize, copies: Copies, rates: &[Vec<f64>; 2]) {
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let at_the_bound = if copies.has_backlog() { &rates[1] } else { &rates[0] };
    for (case, rates) in [(BELOW, &rates[0]), (AT, at_the_bound)] {
        if !rates.is_empty() {
            result.record(round, case, &copies.name(), MIB_PER_SECOND, mean(rates));
        }
    }
    if at_the_bound.is_empty() {
        result.skip(&format!("{AT}: {}", copies.name()), "the backlog never reached its bound: the disk kept up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    const SHM: Transport = Transport::SharedMemory;

    fn recorded(with: &[Vec<f64>; 2], replicas: f64, steps: [f64; 2]) -> StudyResult {
        let mut result = StudyResult::new("writes", "", true, Machine::default());
        record(&mut result, 0, Copies::Disk(SHM), with);
        record(&mut result, 0, Copies::None(SHM), &[vec![1000.0], vec![]]);
        record(&mut result, 0, Copies::Replicas(SHM), &[vec![replicas], vec![]]);
        record(&mut result, 0, Copies::DiskOnly, &[vec![100.0], vec![]]);
        for (step, rate) in steps.into_iter().enumerate() {
            result.record(0, &step_case(step), &Copies::None(SHM).name(), MIB_PER_SECOND, rate);
        }
        judge(&mut result, steps.len());
        result
    }

    fn verdicts(result: &StudyResult) -> Vec<&'static str> {
        // The first half is shared memory's, the other TCP's, which no process measured here.
        let (shared, tcp) = result.goals.split_at(result.goals.len() / 2);
        assert!(tcp.iter().all(|goal| goal.met.is_none()));
        shared.iter().map(|goal| goal.verdict()).collect()
    }

    #[test]
    fn both_sides_of_the_bound_are_judged() {
        let result = recorded(&[vec![850.0, 950.0], vec![70.0]], 450.0, [100.0, 90.0]);
        assert_eq!(result.median(BELOW, "disk copy, shm"), Some(900.0));
        assert_eq!(verdicts(&result), ["met", "not measured", "met", "met", "NOT met"]);
        assert!(result.skipped.is_empty());
    }

    #[test]
    fn writes_that_slow_down_are_told() {
        let result = recorded(&[vec![400.0], vec![90.0]], 300.0, [100.0, 50.0]);
        assert_eq!(verdicts(&result), ["NOT met", "not measured", "NOT met", "NOT met", "met"]);
    }

    #[test]
    fn a_backlog_that_never_fills_is_told() {
        let result = recorded(&[vec![850.0], vec![]], 900.0, [1.0, 1.0]);
        assert_eq!(verdicts(&result)[4], "not measured");
        assert!(result.skipped[0].reason.contains("kept up"));
    }

    #[test]
    fn fullness_is_a_share_of_the_bound() {
        let disk = |backlog_pages, backlog_pages_max| {
            is_full(&DiskStatus { backlog_pages, backlog_pages_max, ..DiskStatus::default() })
        };
        assert!(disk(90, 100) && !disk(89, 100));
        assert!(!disk(0, 0), "without a backlog there is no bound");
    }

    #[test]
    fn the_plot_has_a_line_for_each_setting() {
        let mut result = StudyResult::new("writes", "", true, Machine::default());
        for (step, copies) in (0..3).flat_map(|step| Copies::ALL.map(|copies| (step, copies))) {
            result.record(0, &step_case(step), &copies.name(), MIB_PER_SECOND, 10.0);
        }
        let plots = WritesStudy.plots(&result);
        assert_eq!(plots[0].1.matches("<circle").count(), 3 * Copies::ALL.len());
    }

    #[test]
    fn names_tell_setting_and_fabric() {
        let names: std::collections::HashSet<_> = Copies::ALL.iter().map(|copies| copies.name()).collect();
        assert_eq!(names.len(), Copies::ALL.len());
        assert_eq!(Copies::Replicas(Transport::Tcp).name(), "replicas=2, tcp");
        assert!(Copies::ALL.iter().filter(|copies| copies.has_backlog()).all(|copies| copies.setting().is_some()));
    }

    #[test]
    fn the_disk_alone_is_measured_without_the_product() {
        if crate::harness::tool::need("fio").is_err() {
            return spillway_sys::skipping::skip_because("fio is not installed");
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        let attached = attach(&context, Copies::DiskOnly, Size(8 * MIB));
        let Ok(attached) = attached else {
            return spillway_sys::skipping::skip_because("no loop device");
        };
        assert_eq!(backlog(&context, &attached).unwrap(), None);
        assert!(attach(&context, Copies::Disk(SHM), Size(8 * MIB)).is_err());
    }
}
