//! Sustained writes with a copy on disk: as fast as without one until the backlog reaches its bound, and not below the disk
//! afterwards. (In Infiniswap's code a write's context was freed only by the disk write, so that sustained writes ran at
//! disk speed from the start.)
//!
//! The device is written in steps; after each, the backlog tells whether the step ran below the bound or at it.

use std::time::Duration;

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::fio::{Job, Length};
use crate::harness::spillway::{Storage, Transport};
use crate::harness::subject::{Attached, Subject};
use crate::result::{Better, MIB_PER_SECOND, StudyResult};
use crate::size::{MIB, Size};

const BELOW: &str = "128 KiB writes, backlog below its bound";
const AT: &str = "128 KiB writes, backlog at its bound";

/// A backlog this full counts as being at its bound.
const FULL_SHARE: f64 = 0.9;

/// "At fabric speed" allows so much below the device without a disk copy.
const SPEED_GOAL: f64 = 0.8;

/// The steps' job: large writes, as swap-out makes them.
const JOB: Job = Job { pattern: "randwrite", block_bytes: 131_072, depth: 8 };

/// The study of sustained writes.
#[derive(Clone, Copy, Debug)]
pub struct WritesStudy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    WithDisk,
    WithoutDisk,
    DiskOnly,
}

impl Copies {
    const ALL: [Self; 3] = [Self::WithDisk, Self::WithoutDisk, Self::DiskOnly];

    fn name(self) -> String {
        let name = match self {
            Self::WithDisk => "redundancy disk",
            Self::WithoutDisk => "redundancy none",
            Self::DiskOnly => "disk loop",
        };
        name.to_owned()
    }
}

impl Study for WritesStudy {
    fn name(&self) -> &'static str {
        "writes"
    }

    fn title(&self) -> &'static str {
        "sustained writes and the copy on disk"
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(1024, 64) * MIB);
        let steps = context.choose(20, 3);
        context.interleave(result, &Copies::ALL, Copies::name, |round, copies, result| {
            let attached = attach(context, copies, size)?;
            let mut rates: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
            for _ in 0..steps {
                let time = Length::Time(Duration::from_millis(context.choose(1000, 300)));
                let step = JOB.run(&attached.path, size, time, None, &context.shop.interrupt)?;
                rates[usize::from(is_full(context, &attached)?)].push(step.mib_per_second);
            }
            record(result, round, copies, &rates);
            Ok(())
        })?;
        compare(result);
        Ok(())
    }
}

fn compare(result: &mut StudyResult) {
    let [with, without, disk] = Copies::ALL.map(Copies::name);
    let fabric = "at fabric speed below the bound";
    result.goal(fabric, BELOW, &with, &without, SPEED_GOAL, Better::Higher);
    result.goal("not below disk speed at the bound", AT, &with, &disk, SPEED_GOAL, Better::Higher);
}

fn attach(context: &Context, copies: Copies, size: Size) -> Result<Attached, HarnessError> {
    let shop = &context.shop;
    if copies == Copies::DiskOnly {
        return Subject::DiskLoop.attach(shop, size, None);
    }
    let donor = shop.product()?.donor(Size(size.0 + size.0 / 4), Transport::SharedMemory, None, &shop.interrupt)?;
    let with_disk = copies == Copies::WithDisk;
    let storage = Storage {
        donors: vec![donor.address.clone()],
        redundancy: if with_disk { "disk" } else { "none" }.to_owned(),
        backing: with_disk.then(|| shop.directory.path().join("writes-backing")),
        slab_size: None,
        lend: None,
    };
    shop.spillway_device(size, Some(&storage), None, vec![donor])
}

/// Whether the device's backlog is at its bound; a device without one never is.
fn is_full(context: &Context, attached: &Attached) -> Result<bool, HarnessError> {
    let Some(name) = &attached.device else { return Ok(false) };
    let status = context.shop.product()?.device_status(name, &context.shop.interrupt)?;
    let full = status.disk.is_some_and(|disk| disk.backlog_pages as f64 >= FULL_SHARE * disk.backlog_pages_max as f64);
    Ok(full && status.disk.is_some_and(|disk| disk.backlog_pages_max > 0))
}

/// The mean of the steps below the bound, and of those at it. Devices without a backlog are a baseline for both.
fn record(result: &mut StudyResult, round: usize, copies: Copies, rates: &[Vec<f64>; 2]) {
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    for (case, rates) in [(BELOW, &rates[0]), (AT, if copies == Copies::WithDisk { &rates[1] } else { &rates[0] })] {
        if !rates.is_empty() {
            result.record(round, case, &copies.name(), MIB_PER_SECOND, mean(rates));
        }
    }
    if copies == Copies::WithDisk && rates[1].is_empty() {
        result.skip(AT, "the backlog never reached its bound: the disk kept up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn recorded(with: &[Vec<f64>; 2]) -> StudyResult {
        let mut result = StudyResult::new("writes", "", true, Machine::default());
        record(&mut result, 0, Copies::WithDisk, with);
        record(&mut result, 0, Copies::WithoutDisk, &[vec![1000.0], vec![]]);
        record(&mut result, 0, Copies::DiskOnly, &[vec![100.0], vec![]]);
        compare(&mut result);
        result
    }

    #[test]
    fn both_sides_of_the_bound_are_judged() {
        let result = recorded(&[vec![850.0, 950.0], vec![70.0]]);
        assert_eq!(result.median(BELOW, "redundancy disk"), Some(900.0));
        let verdicts: Vec<_> = result.goals.iter().map(|goal| goal.verdict()).collect();
        assert_eq!(verdicts, ["met", "NOT met"]);
        assert!(result.skipped.is_empty());
    }

    #[test]
    fn a_backlog_that_never_fills_is_told() {
        let result = recorded(&[vec![850.0], vec![]]);
        assert_eq!(result.goals[1].verdict(), "not measured");
        assert!(result.skipped[0].reason.contains("kept up"));
    }

    #[test]
    fn the_disk_alone_is_measured_without_the_product() {
        if crate::harness::tool::need("fio").is_err() {
            println!("left out: fio is not installed");
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        let attached = attach(&context, Copies::DiskOnly, Size(8 * MIB));
        let Ok(attached) = attached else {
            println!("left out: no loop device");
            return;
        };
        assert!(!is_full(&context, &attached).unwrap());
        assert!(attach(&context, Copies::WithDisk, Size(8 * MIB)).is_err());
    }
}
