//! One round, on the machine that has the device.
//!
//! Its numbers are those of one round of a [`StudyResult`]; what failed is among what was left out.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use spillway_sys::verbs;
use spillway_volume::settings::transport::TransportChoice;

use super::bare::BareLoop;
use super::volume::{Reads, VolumeReads};
use super::{BARE, RDMA, REQUESTS, SIZES, TCP, devices, memory, request_case, size_case};
use crate::harness::cpu_use::counted;
use crate::harness::subject::Workshop;
use crate::harness::usage::cpu_seconds;
use crate::harness::{HarnessError, tool};
use crate::limits::RDMA_PARTS_DEADLINE;
use crate::machine::Machine;
use crate::result::{CPU_SECONDS_PER_GIB, MICROSECONDS, StudyResult};
use crate::statistics::Summary;
use spillway_workloads::size::{GIB, MIB, Size};

/// The device of soft-RoCE that a guest gets.
const GUEST_DEVICE: &str = "rxe_lo";

/// Memory that is read.
const AREA_BYTES: u64 = 16 * MIB;

/// Blocks of reads whose times are compared, subject by subject in turn; an odd number, which has a middle.
const BLOCKS: usize = 15;

/// Blocks of one case at least, however slow the machine is.
const BLOCKS_MIN: usize = 3;

/// After so long no other block of a case is begun. An adapter needs less than a second for all; an emulated guest
/// needs minutes for large reads. There are thirteen cases.
const CASE_LIMIT: Duration = Duration::from_secs(10);

/// Reads of a block by their size: some milliseconds of each.
fn block_reads(bytes: u64) -> usize {
    ((MIB / bytes) as usize).clamp(8, 64)
}

/// Pages that are read while the donor's CPU time is looked at: so many that a clock tick (10 ms) is little.
const COSTED_PAGES: usize = 100_000;

/// They are read in parts of this many, and no other is begun after [`CASE_LIMIT`].
const COSTED_PART_PAGES: usize = 2_000;

/// The donor's process.
pub const DONOR: &str = "donor process";
/// Threads of the kernel: soft-RoCE's work, and the network's.
pub const KERNEL: &str = "kernel threads";

/// How CPU time is called.
pub fn cost_case(transport: &str) -> String {
    format!("CPU of 4 KiB reads, depth 16: {transport}")
}

/// What a round does.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The device's name.
    pub device: String,
    /// A tenth of the pages, to see that all works.
    pub quick: bool,
    /// No part is begun after it, so that what was measured before is not lost with the guest's time.
    pub end: Option<Instant>,
}

impl Trial {
    /// In a guest, which gets its device now.
    pub fn in_guest(shop: &Workshop, quick: bool) -> Result<Self, HarnessError> {
        if !std::path::Path::new("/sys/class/infiniband").join(GUEST_DEVICE).exists() {
            let words = ["link", "add", GUEST_DEVICE, "type", "rxe", "netdev", "lo"];
            tool::run("rdma", words, &shop.interrupt)?;
        }
        Ok(Self { device: GUEST_DEVICE.to_owned(), quick, end: Some(Instant::now() + RDMA_PARTS_DEADLINE) })
    }

    /// Where the device is on the network.
    fn address(&self) -> Result<IpAddr, HarnessError> {
        let all = verbs::addresses().map_err(|error| HarnessError::Missing(error.to_string()))?;
        let ours = all.iter().filter(|address| address.device == self.device);
        let addresses: Vec<IpAddr> = ours.filter_map(verbs::PortAddress::ip).collect();
        let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
        let usable = addresses.iter().find(|address| address.is_ipv4());
        usable.or_else(|| addresses.iter().find(|address| !is_link_local(address))).copied().ok_or_else(|| {
            HarnessError::Missing(format!("the device {} has no IP address (see 'rdma link')", self.device))
        })
    }

    /// Measures.
    pub fn run(&self, shop: &Workshop) -> Result<StudyResult, HarnessError> {
        let mut result = StudyResult::new("rdma-trial", &self.device, self.quick, Machine::here());
        let address = self.address()?;
        self.part("reads", &mut result, |result| self.reads(shop, address, result))?;
        self.part("registering memory", &mut result, |result| memory::measure(address, result))?;
        for subject in devices::SUBJECTS {
            let name = format!("block device: {}", subject.0);
            self.part(&name, &mut result, |result| devices::measure(shop, address, subject, result))?;
        }
        Ok(result)
    }

    /// Measures one part. One that fails, or that is not begun in time, is left out with its reason.
    fn part(
        &self,
        name: &str,
        result: &mut StudyResult,
        measure: impl FnOnce(&mut StudyResult) -> Result<(), HarnessError>,
    ) -> Result<(), HarnessError> {
        let start = Instant::now();
        if self.end.is_some_and(|end| start >= end) {
            result.skip(name, "the time of this trial was over");
            return Ok(());
        }
        // The last line is told should the trial be ended.
        eprintln!("rdma: {name} begins");
        match measure(result) {
            Err(error) if error.is_interrupt() => Err(error),
            Err(error) => {
                result.skip(name, &error.to_string());
                Ok(())
            }
            Ok(()) => {
                eprintln!("rdma: {name} took {:.0} s", start.elapsed().as_secs_f64());
                Ok(())
            }
        }
    }

    fn reads(&self, shop: &Workshop, address: IpAddr, result: &mut StudyResult) -> Result<(), HarnessError> {
        let product = shop.product()?;
        let donor = product.donor_at(Size(8 * AREA_BYTES), address, &shop.interrupt)?;
        let open = |transport| VolumeReads::open(&donor.address, &product.key(), transport, AREA_BYTES);
        let mut bare = BareLoop::open(address, AREA_BYTES as usize)?;
        let mut rdma = open(TransportChoice::Rdma)?;
        let mut tcp = open(TransportChoice::Tcp)?;
        for request in REQUESTS {
            let mut subjects: [(&str, &mut dyn Reads); 3] = [(BARE, &mut bare), (RDMA, &mut rdma), (TCP, &mut tcp)];
            compare(&request_case(request), request, &mut subjects, CASE_LIMIT, shop, result)?;
        }
        for bytes in SIZES {
            let mut subjects: [(&str, &mut dyn Reads); 3] = [(BARE, &mut bare), (RDMA, &mut rdma), (TCP, &mut tcp)];
            compare(&size_case(bytes), (bytes, 1), &mut subjects, CASE_LIMIT, shop, result)?;
        }
        let process = donor.running.id();
        let mut subjects: [(&str, &mut dyn Reads); 2] = [(RDMA, &mut rdma), (TCP, &mut tcp)];
        let pages = if self.quick { COSTED_PAGES / 10 } else { COSTED_PAGES };
        for (name, subject) in &mut subjects {
            shop.interrupt.check()?;
            let before = cpu_seconds(process);
            let (read, used) = counted(|| read_for_a_while(&mut **subject, pages, CASE_LIMIT));
            let gibibytes = read? as f64 * 4096.0 / GIB as f64;
            let kernel = used.seconds.iter().filter(|(group, _)| group.starts_with("kernel ")).map(|(_, used)| used);
            if let (Some(before), Some(after)) = (before, cpu_seconds(process)) {
                result.record(0, &cost_case(name), DONOR, CPU_SECONDS_PER_GIB, (after - before) / gibibytes);
            }
            let kernel: f64 = kernel.sum();
            result.record(0, &cost_case(name), KERNEL, CPU_SECONDS_PER_GIB, kernel / gibibytes);
        }
        rdma.check()?;
        tcp.check()?;
        rdma.stop();
        tcp.stop();
        Ok(())
    }
}

/// Reads up to `pages` pages, 16 at a time; how many.
fn read_for_a_while(subject: &mut dyn Reads, pages: usize, limit: Duration) -> Result<usize, HarnessError> {
    let (start, mut read) = (Instant::now(), 0);
    while read < pages && start.elapsed() < limit {
        subject.read(4096, 16, COSTED_PART_PAGES)?;
        read += COSTED_PART_PAGES;
    }
    Ok(read)
}

/// Blocks of the same reads from each subject in turn; the median of each subject's blocks is recorded.
fn compare(
    case: &str,
    (bytes, depth): (u64, usize),
    subjects: &mut [(&str, &mut dyn Reads)],
    limit: Duration,
    shop: &Workshop,
    result: &mut StudyResult,
) -> Result<(), HarnessError> {
    let count = block_reads(bytes).max(2 * depth);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    let begun = Instant::now();
    for block in 0..BLOCKS {
        // An odd number of them has a middle.
        if block >= BLOCKS_MIN && block % 2 == 1 && begun.elapsed() >= limit {
            break;
        }
        shop.interrupt.check()?;
        for ((_, subject), times) in subjects.iter_mut().zip(&mut times) {
            let start = Instant::now();
            subject.read(bytes, depth, count)?;
            times.push(start.elapsed().as_secs_f64() * 1e6 / count as f64);
        }
    }
    for ((name, _), times) in subjects.iter().zip(&times) {
        let median = Summary::of(times).expect("there are some").median;
        result.record(0, case, name, MICROSECONDS, median);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::interrupt::Interrupt;

    /// Something to read that takes its time.
    struct Slow {
        reads: usize,
        pause: Duration,
    }

    impl Reads for Slow {
        fn read(&mut self, _bytes: u64, _depth: usize, count: usize) -> Result<(), HarnessError> {
            self.reads += count;
            std::thread::sleep(self.pause);
            Ok(())
        }
    }

    fn trial(end: Option<Instant>) -> (Trial, StudyResult) {
        let trial = Trial { device: String::new(), quick: false, end };
        (trial, StudyResult::new("rdma-trial", "", false, Machine::default()))
    }

    #[test]
    fn a_part_that_fails_or_comes_too_late_is_left_out_with_its_reason() {
        let (trial_in_time, mut result) = trial(None);
        let failing = |_: &mut StudyResult| Err(HarnessError::failed("reading", "status 12"));
        trial_in_time.part("one", &mut result, failing).unwrap();
        let (late, _) = trial(Some(Instant::now()));
        late.part("two", &mut result, |_| panic!("it is not begun")).unwrap();
        let skipped: Vec<_> = result.skipped.iter().map(|skip| skip.what.as_str()).collect();
        assert_eq!(skipped, ["one", "two"]);
        assert!(result.skipped[0].reason.contains("status 12") && result.skipped[1].reason.contains("over"));
        let ended = |_: &mut StudyResult| Err(HarnessError::Interrupted);
        assert!(trial_in_time.part("three", &mut result, ended).unwrap_err().is_interrupt());
    }

    #[test]
    fn a_case_on_a_slow_machine_has_a_few_blocks_and_no_fewer() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let shop = Workshop::open(None, Some(directory.path()), &Interrupt::never()).unwrap();
        for (limit, blocks) in [(Duration::ZERO, BLOCKS_MIN), (Duration::from_secs(3600), BLOCKS)] {
            let (_, mut result) = trial(None);
            let mut slow = Slow { reads: 0, pause: Duration::ZERO };
            let subjects: &mut [(&str, &mut dyn Reads)] = &mut [(RDMA, &mut slow)];
            compare("case", (4096, 16), subjects, limit, &shop, &mut result).unwrap();
            assert_eq!(slow.reads, blocks * block_reads(4096));
            assert!(result.median("case", RDMA).is_some());
        }
    }

    #[test]
    fn pages_whose_cpu_time_is_looked_at_are_read_until_there_are_enough_or_time_is_over() {
        let mut slow = Slow { reads: 0, pause: Duration::ZERO };
        assert_eq!(read_for_a_while(&mut slow, 2 * COSTED_PART_PAGES, Duration::from_secs(3600)).unwrap(), slow.reads);
        assert_eq!(slow.reads, 2 * COSTED_PART_PAGES);
        let mut slow = Slow { reads: 0, pause: Duration::from_millis(5) };
        let read = read_for_a_while(&mut slow, COSTED_PAGES, Duration::from_millis(1)).unwrap();
        assert_eq!((read, slow.reads), (COSTED_PART_PAGES, COSTED_PART_PAGES));
    }
}
