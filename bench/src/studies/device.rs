//! What a request to the block device costs: fio, 4 KiB at depth 1 and 16, and 128 KiB, with the client on the server's CPU
//! and on another one.
//!
//! Each round builds a subject, fills it, and runs all jobs on it, so that no subject profits from another's presence.

use std::time::Duration;

use super::pinning::{Pinning, SERVER_CPU};
use super::{Context, Study, loopback};
use crate::harness::HarnessError;
use crate::harness::fio::{self, Job, Length};
use crate::harness::subject::{Attached, Subject};
use crate::result::{Better, MIB_PER_SECOND, MICROSECONDS, StudyResult};
use crate::size::{MIB, Size};

/// Over shared memory, relative to the same front end over local memory.
const SHM_GOAL: f64 = 1.5;
/// A raw exchange may count so often on top of that over TCP.
const EXCHANGE_GOAL: f64 = 1.3;
/// How much faster than nbdkit's path.
const NBDKIT_GOAL: f64 = 2.0;

/// The name of the raw exchange in results.
const EXCHANGE: &str = "raw loopback exchange";

const SUBJECTS: [Subject; 6] = [
    Subject::SpillwayShm,
    Subject::SpillwayTcp,
    Subject::SpillwayLocal,
    Subject::Nbdkit,
    Subject::TmpfsLoop,
    Subject::DiskLoop,
];

/// The jobs and their names.
const JOBS: [(&str, Job); 6] = [
    ("4 KiB read, depth 1", Job { pattern: "randread", block_bytes: 4096, depth: 1 }),
    ("4 KiB read, depth 16", Job { pattern: "randread", block_bytes: 4096, depth: 16 }),
    ("4 KiB write, depth 1", Job { pattern: "randwrite", block_bytes: 4096, depth: 1 }),
    ("4 KiB write, depth 16", Job { pattern: "randwrite", block_bytes: 4096, depth: 16 }),
    ("128 KiB read, depth 4", Job { pattern: "randread", block_bytes: 131_072, depth: 4 }),
    ("128 KiB write, depth 4", Job { pattern: "randwrite", block_bytes: 131_072, depth: 4 }),
];

/// The study of the block device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceStudy;

fn case(job: &str, pinning: Pinning) -> String {
    format!("{job}, {}", pinning.name())
}

fn is_small(job: Job) -> bool {
    job.block_bytes == 4096
}

impl Study for DeviceStudy {
    fn name(&self) -> &'static str {
        "device"
    }

    fn title(&self) -> &'static str {
        "requests to the block device"
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let pinnings = Pinning::possible(result.machine.cpus);
        let size = Size(context.choose(512, 32) * MIB);
        context.interleave_devices(result, &SUBJECTS, |round, subject, result| {
            let attached = subject.attach(&context.shop, size, Some(SERVER_CPU))?;
            fio::fill(&attached.path, size, &context.shop.interrupt)?;
            pinnings
                .iter()
                .try_for_each(|pinning| run_jobs(context, result, (round, subject), &attached, size, *pinning))
        })?;
        for pinning in pinnings {
            measure_exchange(context, result, *pinning)?;
            goals(result, *pinning);
        }
        result.compare_with(Subject::SpillwayLocal.name());
        result.compare_with(Subject::DiskLoop.name());
        Ok(())
    }
}

fn run_jobs(
    context: &Context,
    result: &mut StudyResult,
    (round, subject): (usize, Subject),
    attached: &Attached,
    size: Size,
    pinning: Pinning,
) -> Result<(), HarnessError> {
    let time = Length::Time(Duration::from_millis(context.choose(3000, 300)));
    for (name, job) in JOBS {
        let found = job.run(&attached.path, size, time, Some(pinning.client_cpu()), &context.shop.interrupt)?;
        let case = case(name, pinning);
        if is_small(job) {
            result.record(round, &case, subject.name(), MICROSECONDS, found.us_per_request);
            result.record(round, &format!("{case}, p99"), subject.name(), MICROSECONDS, found.p99_us);
        } else {
            result.record(round, &case, subject.name(), MIB_PER_SECOND, found.mib_per_second);
        }
    }
    Ok(())
}

fn measure_exchange(context: &Context, result: &mut StudyResult, pinning: Pinning) -> Result<(), HarnessError> {
    for round in 0..context.rounds {
        let count = context.choose(20_000, 500);
        let exchange = loopback::exchange_us(count, SERVER_CPU, pinning.client_cpu());
        let exchange = exchange.map_err(HarnessError::system("measuring a raw loopback exchange"))?;
        result.record(round, &case(JOBS[0].0, pinning), EXCHANGE, MICROSECONDS, exchange);
    }
    Ok(())
}

fn goals(result: &mut StudyResult, pinning: Pinning) {
    let (shm, local) = (Subject::SpillwayShm.name(), Subject::SpillwayLocal.name());
    for (job, _) in JOBS.into_iter().filter(|(_, job)| is_small(*job)) {
        let case = case(job, pinning);
        result.goal("shm within 1.5x of local memory", &case, shm, local, SHM_GOAL, Better::Lower);
        result.goal("at least 2x faster than nbdkit", &case, Subject::Nbdkit.name(), shm, NBDKIT_GOAL, Better::Higher);
    }
    let case = case(JOBS[0].0, pinning);
    let tcp = result.median(&case, Subject::SpillwayTcp.name());
    let ratio = tcp.zip(result.median(&case, local)).zip(result.median(&case, EXCHANGE));
    let ratio = ratio.map(|((tcp, local), exchange)| tcp / (SHM_GOAL * local + EXCHANGE_GOAL * exchange));
    result.goal_of("tcp within 1.5x of local plus 1.3x a raw exchange", &case, ratio, 1.0, Better::Lower);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn goals_follow_from_the_medians() {
        let mut result = StudyResult::new("device", "", true, Machine::default());
        let name = case(JOBS[0].0, Pinning::Same);
        for (subject, number) in [
            ("spillway shm", 14.0),
            ("spillway local", 10.0),
            ("spillway tcp", 29.0),
            (EXCHANGE, 10.0),
            ("nbdkit", 27.0),
        ] {
            result.record(0, &name, subject, MICROSECONDS, number);
        }
        goals(&mut result, Pinning::Same);
        let verdict = |goal: &str| {
            let found = result.goals.iter().find(|one| one.case == name && one.goal.contains(goal)).unwrap();
            found.verdict()
        };
        assert_eq!(verdict("shm within"), "met");
        assert_eq!(verdict("nbdkit"), "NOT met");
        // 29 / (15 + 13) is just above 1.
        assert_eq!(verdict("tcp within"), "NOT met");
        assert!(result.goals.iter().any(|goal| goal.met.is_none()), "other depths were not measured");
    }

    #[test]
    fn a_disk_can_be_measured_in_full() {
        if crate::harness::tool::need("fio").is_err() {
            println!("left out: fio is not installed");
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        let attached = Subject::DiskFile.attach(&context.shop, Size(MIB), None).unwrap();
        let mut result = StudyResult::new("device", "", true, Machine::default());
        let subject = (0, Subject::DiskFile);
        run_jobs(&context, &mut result, subject, &attached, Size(MIB), Pinning::Same).unwrap();
        // Four small jobs with two numbers each, two large ones with one.
        assert_eq!(result.measures.len(), 10);
        assert!(result.measures.iter().all(|measure| measure.summary.is_some_and(|summary| summary.median > 0.0)));
    }
}
