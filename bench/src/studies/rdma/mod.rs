//! RDMA beside our TCP, beside nbdkit, and beside a bare loop of verbs.
//!
//! | part | question |
//! |---|---|
//! | [`bare`] | what a read costs that is posted and polled for, and nothing else: the floor |
//! | [`volume`] | what the same read costs through a volume, by RDMA and by TCP, from a donor in another process |
//! | [`devices`] | what a request to a block device and a swap-in cost, by RDMA, by TCP, and from nbdkit over TCP |
//! | [`memory`] | HPBD's question: register memory, or copy into memory that is registered |
//!
//! Latency by size (4 KiB to 1 MiB) is HPBD's too. The donor's CPU time is told apart: of its process, and of the
//! kernel's threads, which do an adapter's work for soft-RoCE.
//!
//! Without `--device` all of it runs in a guest over soft-RoCE (`rdma_rxe` on the loopback interface), because few
//! hosts have RDMA. Guests are emulated where the processor does not help, so only ratios count. With `--device NAME`
//! it runs here, over that device, donor and borrower on this machine.

pub mod bare;
pub mod devices;
pub mod memory;
pub mod trial;
pub mod volume;

use std::time::Instant;

use self::trial::Trial;
use super::guest::merge;
use super::program_run::own_program;
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::guest::{DIRECTORY, Guest};
use crate::harness::subject::Workshop;
use crate::limits::{GUEST_STUDY_DEADLINE, RDMA_TRIAL_DEADLINE};
use crate::plot::lines::{Line, LineChart};
use crate::result::{Better, StudyResult};
use spillway_workloads::size::MIB;

/// The command of this program that does one round.
pub const COMMAND: &str = "rdma-trial";

/// The bare loop.
pub const BARE: &str = "bare loop";
/// A volume whose donor is reached by RDMA.
pub const RDMA: &str = "spillway rdma";
/// A volume whose donor is reached by TCP.
pub const TCP: &str = "spillway tcp";
/// nbdkit's memory over loopback TCP.
pub const NBDKIT: &str = "nbdkit tcp";

/// Bytes of a request, and requests in flight.
pub const REQUESTS: [(u64, usize); 4] = [(4096, 1), (4096, 16), (128 * 1024, 1), (128 * 1024, 16)];

/// Bytes of a request whose latency is told, and of memory that is registered or copied.
pub const SIZES: [u64; 9] = [4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, MIB];

/// A read from a volume is at most this part of TCP's.
const TCP_GOAL: f64 = 0.5;

/// A read from a volume costs at most this much of the bare loop's.
const BARE_GOAL: f64 = 1.15;

/// How a request to a volume is called.
pub fn request_case((bytes, depth): (u64, usize)) -> String {
    format!("{} KiB read, depth {depth}", bytes / 1024)
}

/// How a request to a block device is called.
pub fn device_case(request: (u64, usize)) -> String {
    format!("block device: {}, p50", request_case(request))
}

/// How a swap-in is called.
pub const SWAP_CASE: &str = "swap: a random page-in, p50";

/// How latency by size is called.
pub fn size_case(bytes: u64) -> String {
    format!("latency of {} KiB", bytes / 1024)
}

/// How HPBD's question is called.
pub fn memory_case(bytes: u64) -> String {
    format!("{} KiB of memory", bytes / 1024)
}

/// The study of RDMA.
#[derive(Clone, Copy, Debug)]
pub struct RdmaStudy;

impl Study for RdmaStudy {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn title(&self) -> &'static str {
        "RDMA beside TCP, nbdkit and a bare loop of verbs"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (80, 50)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let mut guest = Guest::with_rdma(own_program()?, Instant::now() + GUEST_STUDY_DEADLINE);
        let place = context.rdma_device.clone().unwrap_or_else(|| "a guest".to_owned());
        let outcome = context.interleave(
            result,
            &[()],
            |()| place.clone(),
            |round, (), result| {
                let found = match &context.rdma_device {
                    Some(device) => {
                        Trial { device: device.clone(), quick: context.quick, end: None }.run(&context.shop)?
                    }
                    None => in_guest(&context.shop, &mut guest, context.quick)?,
                };
                merge(result, round, found);
                Ok(())
            },
        );
        judge(result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        let chart = |title: &str, subjects: &[&str], case: fn(u64) -> String| {
            let value = |subject: &str, bytes| result.measure(&case(bytes), subject)?.summary;
            let line = |subject: &&str| Line {
                name: (*subject).to_owned(),
                values: SIZES.map(|bytes| value(subject, bytes)).to_vec(),
            };
            let chart = LineChart {
                title: title.to_owned(),
                steps_title: "KiB".to_owned(),
                steps: SIZES.map(|bytes| (bytes / 1024).to_string()).to_vec(),
                lines: subjects.iter().map(line).collect(),
            };
            chart.svg()
        };
        vec![
            ("rdma-sizes".to_owned(), chart("microseconds of a read by its size", &[BARE, RDMA, TCP], size_case)),
            ("rdma-memory".to_owned(), chart("microseconds by size", &memory::SUBJECTS, memory_case)),
        ]
    }
}

/// One round in the guest, as this program prints it there.
fn in_guest(shop: &Workshop, guest: &mut Guest, quick: bool) -> Result<StudyResult, HarnessError> {
    let spillway = shop.product()?.binary().to_string_lossy().into_owned();
    let words = [COMMAND, "--directory", DIRECTORY, "--spillway", &spillway];
    let mut arguments: Vec<String> = words.map(str::to_owned).to_vec();
    arguments.extend(quick.then(|| "--quick".to_owned()));
    let output = guest.run(&[], &arguments, RDMA_TRIAL_DEADLINE, &shop.interrupt)?;
    serde_json::from_str(&output).map_err(HarnessError::system("reading what a trial in the guest printed"))
}

fn judge(result: &mut StudyResult) {
    let page = request_case(REQUESTS[0]);
    result.goal("a 4 KiB read by RDMA at most half of TCP's", &page, RDMA, TCP, TCP_GOAL, Better::Lower);
    result.goal("a 4 KiB read at most 1.15 of a bare loop's", &page, RDMA, BARE, BARE_GOAL, Better::Lower);
    for request in REQUESTS {
        result.compare(&request_case(request), RDMA, TCP);
        result.compare(&request_case(request), RDMA, BARE);
        result.compare(&device_case(request), RDMA, TCP);
        result.compare(&device_case(request), RDMA, NBDKIT);
    }
    result.compare(SWAP_CASE, RDMA, TCP);
    result.compare(SWAP_CASE, RDMA, NBDKIT);
    for bytes in SIZES {
        result.compare(&size_case(bytes), RDMA, TCP);
        result.compare(&size_case(bytes), RDMA, BARE);
        result.compare(&memory_case(bytes), memory::SUBJECTS[0], memory::SUBJECTS[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::result::MICROSECONDS;
    use crate::studies::tests::context;

    #[test]
    fn goals_are_of_one_page_at_a_time() {
        let mut result = StudyResult::new("rdma", "", true, Machine::default());
        for (subject, value) in [(BARE, 50.0), (RDMA, 60.0), (TCP, 130.0)] {
            result.record(0, &request_case(REQUESTS[0]), subject, MICROSECONDS, value);
            for bytes in SIZES {
                result.record(0, &size_case(bytes), subject, MICROSECONDS, value);
            }
        }
        judge(&mut result);
        let verdicts: Vec<_> = result.goals.iter().map(crate::result::Goal::verdict).collect();
        assert_eq!(verdicts, ["met", "NOT met"]);
        assert_eq!(RdmaStudy.plots(&result)[0].1.matches("<circle").count(), 3 * SIZES.len());
    }

    #[test]
    fn without_the_product_and_without_the_device_it_says_so() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut context = context(directory.path(), 1);
        let mut result = StudyResult::new("rdma", "", true, Machine::default());
        RdmaStudy.run(&context, &mut result).unwrap();
        assert!(result.skipped[0].reason.contains("not built"), "{:?}", result.skipped);
        context.rdma_device = Some("no-such-device".to_owned());
        let mut result = StudyResult::new("rdma", "", true, Machine::default());
        RdmaStudy.run(&context, &mut result).unwrap();
        assert_eq!(result.skipped.len(), 1, "{:?}", result.skipped);
    }
}
