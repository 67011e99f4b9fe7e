//! What lending takes: CPU seconds of donor and borrower for each GiB moved, and memory beyond what is lent.
//!
//! Over shared memory the borrower copies and the donor does nothing, so its figure has to be zero, but for preparing
//! slabs, which the first write shows. Memory is what the kernel says of the two processes: their own with their page
//! tables, once with nothing stored (buffers, slab map, page bits of the whole device) and then what each GiB adds;
//! and of the slabs what no page is stored in (slabs that are prepared ahead, and the rest of those in use).

use std::time::Duration;

use rustix::process::Pid;
use spillway_workloads::size::{GIB, MIB, PAGE_SIZE_BYTES, Size};

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::fio::{Job, Length};
use crate::harness::subject::{Attached, Subject};
use crate::harness::usage::{ProcessMemory, cpu_seconds};
use crate::result::{Better, CPU_SECONDS_PER_GIB, MEBIBYTES, MIB_PER_GIB, StudyResult};

const SUBJECTS: [Subject; 3] = [Subject::SpillwayShm, Subject::SpillwayTcp, Subject::SpillwayLocal];

/// The first write of each page: donors prepare slabs meanwhile (allocate and zero them), whatever the fabric.
const FIRST: &str = "first 128 KiB write";

const JOBS: [(&str, Job); 4] = [
    (FIRST, Job { pattern: "write", block_bytes: 131_072, depth: 4 }),
    ("128 KiB write", Job { pattern: "write", block_bytes: 131_072, depth: 4 }),
    ("128 KiB read", Job { pattern: "read", block_bytes: 131_072, depth: 4 }),
    ("4 KiB read", Job { pattern: "randread", block_bytes: 4096, depth: 4 }),
];

const FIXED_MEMORY: &str = "own memory with nothing stored";
const OWN_MEMORY: &str = "own memory that each GiB stored adds";
const SPARE_SLABS: &str = "slabs beyond the pages stored";

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

    fn seconds_per_round(&self) -> (u64, u64) {
        (20, 7)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(1024, 64) * MIB);
        context.interleave_devices(result, &SUBJECTS, |round, subject, result| {
            let attached = subject.attach(&context.shop, size, None)?;
            let empty = Memory::of(context, &attached)?;
            for (name, job) in JOBS {
                // Small requests take twenty times as long for the same bytes; an eighth of them says as much.
                let part = if job.block_bytes == PAGE_SIZE_BYTES { Size(size.0 / 8) } else { size };
                measure(context, result, (round, name), subject, &attached, job, part)?;
            }
            // What serves from its own memory lends nothing.
            if subject == Subject::SpillwayLocal {
                return Ok(());
            }
            record_memory(result, round, subject, empty, Memory::of(context, &attached)?)
        })?;
        for (name, _) in JOBS.into_iter().filter(|(name, _)| *name != FIRST) {
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

/// Memory of a device and its donors at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    borrower_bytes: u64,
    donors_bytes: u64,
    slabs_bytes: u64,
    stored_bytes: u64,
}

impl Memory {
    fn of(context: &Context, attached: &Attached) -> Result<Self, HarnessError> {
        let name = attached.device.as_deref().unwrap_or_default();
        let (status, process) = context.shop.product()?.device_with_process(name, &context.shop.interrupt)?;
        let gone = || HarnessError::failed("measuring memory", "a process ended meanwhile, or did not tell its id");
        let process = process.and_then(|process| Pid::from_raw(process.cast_signed()));
        let borrower = process.and_then(ProcessMemory::of).ok_or_else(gone)?;
        let donors: Option<Vec<_>> =
            attached.donors.iter().map(|donor| ProcessMemory::of(donor.running.id())).collect();
        Ok(Self::sum(borrower, &donors.ok_or_else(gone)?, status.pages_stored * PAGE_SIZE_BYTES))
    }

    fn sum(borrower: ProcessMemory, donors: &[ProcessMemory], stored_bytes: u64) -> Self {
        Self {
            borrower_bytes: borrower.own_bytes,
            donors_bytes: donors.iter().map(|donor| donor.own_bytes).sum(),
            slabs_bytes: donors.iter().map(|donor| donor.files_bytes).sum(),
            stored_bytes,
        }
    }
}

fn record_memory(
    result: &mut StudyResult,
    round: usize,
    subject: Subject,
    empty: Memory,
    full: Memory,
) -> Result<(), HarnessError> {
    if full.stored_bytes == 0 {
        return Err(HarnessError::failed("measuring memory", "the device says that it stores nothing"));
    }
    let mebibytes = |bytes: f64| bytes / MIB as f64;
    let for_each = |bytes: f64| mebibytes(bytes) / (full.stored_bytes as f64 / GIB as f64);
    let sides =
        [("borrower", empty.borrower_bytes, full.borrower_bytes), ("donor", empty.donors_bytes, full.donors_bytes)];
    for (side, before, after) in sides {
        let name = format!("{} {side}", subject.name());
        result.record(round, FIXED_MEMORY, &name, MEBIBYTES, mebibytes(before as f64));
        result.record(round, OWN_MEMORY, &name, MIB_PER_GIB, for_each(after as f64 - before as f64));
    }
    let spare = full.slabs_bytes as f64 - full.stored_bytes as f64;
    result.record(round, SPARE_SLABS, &donor_name(subject), MIB_PER_GIB, for_each(spare));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_count_at_donors_and_only_what_is_not_stored() {
        let borrower = ProcessMemory { own_bytes: 30 * MIB, files_bytes: 300 * MIB };
        let donors = [
            ProcessMemory { own_bytes: 4 * MIB, files_bytes: 500 * MIB },
            ProcessMemory { own_bytes: 6 * MIB, files_bytes: 140 * MIB },
        ];
        let full = Memory::sum(borrower, &donors, GIB / 2);
        assert_eq!((full.donors_bytes, full.slabs_bytes), (10 * MIB, 640 * MIB));
        let empty = Memory { borrower_bytes: 29 * MIB, donors_bytes: 11 * MIB, ..Memory::default() };
        let mut result = StudyResult::new("cost", "", true, crate::machine::Machine::default());
        record_memory(&mut result, 0, Subject::SpillwayShm, empty, full).unwrap();
        let median = |case, side| result.median(case, &format!("spillway shm {side}"));
        assert_eq!(median(FIXED_MEMORY, "borrower"), Some(29.0));
        assert_eq!((median(OWN_MEMORY, "borrower"), median(OWN_MEMORY, "donor")), (Some(2.0), Some(-2.0)));
        assert_eq!(median(SPARE_SLABS, "donor"), Some(256.0));
    }

    #[test]
    fn a_device_that_stores_nothing_is_an_error() {
        let mut result = StudyResult::new("cost", "", true, crate::machine::Machine::default());
        let nothing = Memory::default();
        let error = record_memory(&mut result, 0, Subject::SpillwayTcp, nothing, nothing).unwrap_err();
        assert!(error.to_string().contains("stores nothing") && result.measures.is_empty());
    }

    #[test]
    fn the_yardstick_has_no_donor() {
        assert_eq!(donor_name(Subject::SpillwayShm), "spillway shm donor");
        assert!(SUBJECTS.contains(&Subject::SpillwayLocal));
    }
}
