//! What a request to the block device costs: fio, 4 KiB at depth 1 and 16, and 128 KiB, with the client on the
//! server's CPU and on another one.
//!
//! Each round builds a subject, fills it, and runs all jobs on it, so that no subject profits from another's
//! presence. The raw exchange that TCP is measured by is made in the same round as the device over TCP.

use std::time::Duration;

use super::pinning::{Pinning, SERVER_CPU};
use super::{Context, Study, loopback};
use crate::harness::HarnessError;
use crate::harness::fio::{self, Job, Length};
use crate::harness::subject::{Attached, Subject};
use crate::result::{Better, MIB_PER_SECOND, MICROSECONDS, REQUESTS_PER_SECOND, StudyResult};
use spillway_workloads::size::{MIB, Size};

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

/// The numbers of a job, as cases are marked.
const P50: &str = "p50";
const P99: &str = "p99";
const RATE: &str = "rate";
const THROUGHPUT: &str = "throughput";

fn case(job: &str, pinning: Pinning, number: &str) -> String {
    format!("{job}, {}, {number}", pinning.name())
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

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (84, 55)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let pinnings = Pinning::possible(result.machine.cpus);
        let size = Size(context.choose(256, 32) * MIB);
        let outcome = context.interleave_devices(result, &SUBJECTS, |round, subject, result| {
            let attached = subject.attach(&context.shop, size, Some(SERVER_CPU))?;
            fio::fill(&attached.path, size, &context.shop.interrupt)?;
            for pinning in pinnings {
                run_jobs(context, result, (round, subject), &attached, size, *pinning)?;
                if subject == Subject::SpillwayTcp {
                    measure_exchange(context, result, round, *pinning)?;
                }
            }
            Ok(())
        });
        pinnings.iter().for_each(|pinning| judge(result, *pinning));
        outcome
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
    let time = Length::Time(Duration::from_millis(context.choose(600, 300)));
    for (name, job) in JOBS {
        let found = job.run(&attached.path, size, time, Some(pinning.client_cpu()), &context.shop.interrupt)?;
        let mut record = |number, unit, value| {
            result.record(round, &case(name, pinning, number), subject.name(), unit, value);
        };
        record(P50, MICROSECONDS, found.p50_us);
        record(P99, MICROSECONDS, found.p99_us);
        record(RATE, REQUESTS_PER_SECOND, found.requests_per_second);
        if !is_small(job) {
            record(THROUGHPUT, MIB_PER_SECOND, found.mib_per_second);
        }
    }
    Ok(())
}

fn measure_exchange(
    context: &Context,
    result: &mut StudyResult,
    round: usize,
    pinning: Pinning,
) -> Result<(), HarnessError> {
    let count = context.choose(10_000, 500);
    let exchange = loopback::exchange_us(count, Some(SERVER_CPU), Some(pinning.client_cpu()));
    let exchange = exchange.map_err(HarnessError::system("measuring a raw loopback exchange"))?;
    result.record(round, &case(JOBS[0].0, pinning, P50), EXCHANGE, MICROSECONDS, exchange);
    Ok(())
}

/// The ratios that say something, and the goals.
fn judge(result: &mut StudyResult, pinning: Pinning) {
    let [shm, tcp, local, nbdkit, memory, disk] = SUBJECTS.map(Subject::name);
    for (job, _) in JOBS {
        let (latency, rate) = (case(job, pinning, P50), case(job, pinning, RATE));
        let within = "shm within 1.5x of local memory";
        result.goal(within, &latency, shm, local, SHM_GOAL, Better::Lower);
        result.goal(within, &rate, local, shm, SHM_GOAL, Better::Lower);
        let faster = "shm at least 2x faster than nbdkit";
        result.goal(faster, &latency, nbdkit, shm, NBDKIT_GOAL, Better::Higher);
        result.goal(faster, &rate, shm, nbdkit, NBDKIT_GOAL, Better::Higher);
        for (one, other) in [(tcp, local), (nbdkit, tcp), (disk, shm), (shm, memory)] {
            result.compare(&latency, one, other);
        }
    }
    let exchange = (case(JOBS[0].0, pinning, P50), EXCHANGE);
    for (job, _) in JOBS.into_iter().filter(|(_, job)| is_small(*job) && job.depth == 1) {
        let latency = case(job, pinning, P50);
        let operands = [(latency.as_str(), tcp), (latency.as_str(), local), (exchange.0.as_str(), exchange.1)];
        let ratio =
            result.median_of(operands, |[tcp, local, exchange]| tcp / (SHM_GOAL * local + EXCHANGE_GOAL * exchange));
        let goal = "tcp within 1.5x of local memory plus 1.3x a raw 4 KiB exchange";
        result.goal_of(goal, &latency, ratio, 1.0, Better::Lower);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn judged(numbers: &[(&str, f64)]) -> StudyResult {
        let mut result = StudyResult::new("device", "", true, Machine::default());
        for (subject, number) in numbers {
            result.record(0, &case(JOBS[0].0, Pinning::Same, P50), subject, MICROSECONDS, *number);
            if *subject != EXCHANGE {
                result.record(0, &case(JOBS[0].0, Pinning::Same, RATE), subject, REQUESTS_PER_SECOND, 1e6 / number);
            }
        }
        judge(&mut result, Pinning::Same);
        result
    }

    fn verdicts(result: &StudyResult, goal: &str) -> Vec<&'static str> {
        let of_job = |case: &str| case.starts_with(&format!("{}, same CPU", JOBS[0].0));
        let found = result.goals.iter().filter(|one| one.goal.contains(goal) && of_job(&one.case));
        found.map(|goal| goal.verdict()).collect()
    }

    #[test]
    fn goals_follow_from_latency_and_rate() {
        let numbers = [
            ("spillway shm", 14.0),
            ("spillway local", 10.0),
            ("spillway tcp", 29.0),
            (EXCHANGE, 10.0),
            ("nbdkit", 27.0),
        ];
        let result = judged(&numbers);
        assert_eq!(verdicts(&result, "shm within"), ["met", "met"]);
        assert_eq!(verdicts(&result, "nbdkit"), ["NOT met", "NOT met"]);
        // 29 / (15 + 13) is just above 1.
        assert_eq!(verdicts(&result, "tcp within"), ["NOT met"]);
        assert!(result.goals.iter().any(|goal| goal.met.is_none()), "other depths were not measured");
        assert_eq!(result.goals.len(), JOBS.len() * 4 + 2);
        let faster =
            judged(&[("spillway shm", 13.0), ("spillway local", 13.0), ("spillway tcp", 28.0), (EXCHANGE, 10.0)]);
        assert_eq!(verdicts(&faster, "tcp within"), ["met"]);
        assert_eq!(verdicts(&faster, "nbdkit"), ["not measured", "not measured"]);
    }

    #[test]
    fn a_disk_can_be_measured_in_full() {
        if crate::harness::tool::need("fio").is_err() {
            return spillway_sys::skipping::skip_because("fio is not installed");
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        let attached = Subject::DiskFile.attach(&context.shop, Size(MIB), None).unwrap();
        let mut result = StudyResult::new("device", "", true, Machine::default());
        let subject = (0, Subject::DiskFile);
        run_jobs(&context, &mut result, subject, &attached, Size(MIB), Pinning::Same).unwrap();
        // Four small jobs with three numbers each, two large ones with four.
        assert_eq!(result.measures.len(), 4 * 3 + 2 * 4);
        assert!(result.measures.iter().all(|measure| measure.summary.is_some_and(|summary| summary.median > 0.0)));
    }
}
