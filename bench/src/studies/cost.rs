//! What lending takes: CPU seconds of donor and borrower for each GiB moved, and memory beyond what is lent.
//!
//! Over shared memory the borrower copies and the donor does nothing, so its figure has to be zero. The memory overhead is
//! that of the whole machine (available memory before and with a filled device, less the pages stored), so that page
//! tables, buffers and prepared slabs count, whoever owns them.

use std::time::Duration;

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::fio::{Job, Length};
use crate::harness::subject::{Attached, Subject};
use crate::harness::usage::cpu_seconds;
use crate::result::{Better, CPU_SECONDS_PER_GIB, MIB_PER_GIB, StudyResult};
use crate::size::{GIB, MIB, PAGE_SIZE_BYTES, Size};

const SUBJECTS: [Subject; 3] = [Subject::SpillwayShm, Subject::SpillwayTcp, Subject::SpillwayLocal];

const JOBS: [(&str, Job); 3] = [
    ("128 KiB write", Job { pattern: "write", block_bytes: 131_072, depth: 4 }),
    ("128 KiB read", Job { pattern: "read", block_bytes: 131_072, depth: 4 }),
    ("4 KiB read", Job { pattern: "randread", block_bytes: 4096, depth: 4 }),
];

const MEMORY_CASE: &str = "memory beyond the pages stored";

/// The CPU time of a tick, over a GiB: below it a figure cannot be told from zero.
const ZERO_BOUND: f64 = 0.02;

/// The study of costs.
#[derive(Clone, Copy, Debug)]
pub struct CostStudy;

/// CPU seconds at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spent {
    borrower: f64,
    donors: f64,
}

impl Study for CostStudy {
    fn name(&self) -> &'static str {
        "cost"
    }

    fn title(&self) -> &'static str {
        "CPU time and memory that lending takes"
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(1024, 64) * MIB);
        context.interleave_devices(result, &SUBJECTS, |round, subject, result| {
            let before = available_bytes()?;
            let attached = subject.attach(&context.shop, size, None)?;
            for (name, job) in JOBS {
                measure(context, result, (round, name), subject, &attached, job, size)?;
            }
            // What serves from its own memory lends nothing.
            if subject != Subject::SpillwayLocal {
                let overhead = overhead(context, &attached, before)?;
                result.record(round, MEMORY_CASE, subject.name(), MIB_PER_GIB, overhead);
            }
            Ok(())
        })?;
        for (name, _) in JOBS {
            let donor = result.median(name, &donor_name(Subject::SpillwayShm));
            result.goal_of("no donor CPU over shm", name, donor, ZERO_BOUND, Better::Lower);
        }
        Ok(())
    }
}

fn donor_name(subject: Subject) -> String {
    format!("{} donor", subject.name())
}

fn spent(context: &Context, attached: &Attached) -> Result<Spent, HarnessError> {
    let name = attached.device.as_deref().unwrap_or_default();
    let status = context.shop.product()?.device_status(name, &context.shop.interrupt)?;
    let donors = attached.donors.iter().filter_map(|donor| cpu_seconds(donor.running.id())).sum();
    Ok(Spent { borrower: status.traffic.cpu_seconds, donors })
}

fn measure(
    context: &Context,
    result: &mut StudyResult,
    (round, case): (usize, &str),
    subject: Subject,
    attached: &Attached,
    job: Job,
    size: Size,
) -> Result<(), HarnessError> {
    let before = spent(context, attached)?;
    let length = Length::Once(Duration::from_secs(300));
    job.run(&attached.path, size, length, None, &context.shop.interrupt)?;
    let after = spent(context, attached)?;
    let gibibytes = size.0 as f64 / GIB as f64;
    let borrower = (after.borrower - before.borrower) / gibibytes;
    result.record(round, case, &format!("{} borrower", subject.name()), CPU_SECONDS_PER_GIB, borrower);
    if subject != Subject::SpillwayLocal {
        let donors = (after.donors - before.donors) / gibibytes;
        result.record(round, case, &donor_name(subject), CPU_SECONDS_PER_GIB, donors);
    }
    Ok(())
}

/// MiB that are gone for each GiB stored.
fn overhead(context: &Context, attached: &Attached, available_before: u64) -> Result<f64, HarnessError> {
    let name = attached.device.as_deref().unwrap_or_default();
    let status = context.shop.product()?.device_status(name, &context.shop.interrupt)?;
    let stored = status.pages_stored * PAGE_SIZE_BYTES;
    if stored == 0 {
        return Err(HarnessError::failed("memory overhead", "the device says that it stores nothing"));
    }
    let gone = available_before.saturating_sub(available_bytes()?);
    Ok((gone as f64 - stored as f64) / MIB as f64 / (stored as f64 / GIB as f64))
}

fn available_bytes() -> Result<u64, HarnessError> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(HarnessError::system("reading /proc/meminfo"))?;
    parse_available(&text).ok_or_else(|| HarnessError::failed("/proc/meminfo", "it has no MemAvailable"))
}

fn parse_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|number| number * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:   2 kB\n"), Some(2048));
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
        assert!(available_bytes().unwrap() > 0);
    }

    #[test]
    fn the_yardstick_has_no_donor() {
        assert_eq!(donor_name(Subject::SpillwayShm), "spillway shm donor");
        assert!(SUBJECTS.contains(&Subject::SpillwayLocal));
    }
}
