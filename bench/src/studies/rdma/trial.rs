//! One round, on the machine that has the device.
//!
//! Its numbers are those of one round of a [`StudyResult`]; what failed is among what was left out.

use std::net::IpAddr;
use std::time::Instant;

use spillway_sys::verbs;
use spillway_volume::settings::transport::TransportChoice;

use super::bare::BareLoop;
use super::volume::{Reads, VolumeReads};
use super::{BARE, RDMA, REQUESTS, SIZES, TCP, devices, memory, request_case, size_case};
use crate::harness::cpu_use::counted;
use crate::harness::subject::Workshop;
use crate::harness::usage::cpu_seconds;
use crate::harness::{HarnessError, tool};
use crate::machine::Machine;
use crate::result::{CPU_SECONDS_PER_GIB, MICROSECONDS, StudyResult};
use crate::size::{GIB, MIB, Size};
use crate::statistics::Summary;

/// The device of soft-RoCE that a guest gets.
const GUEST_DEVICE: &str = "rxe_lo";

/// Memory that is read.
const AREA_BYTES: u64 = 16 * MIB;

/// Blocks of reads whose times are compared, subject by subject in turn; an odd number, which has a middle.
const BLOCKS: usize = 15;

/// Reads of a block by their size: some milliseconds of each.
fn block_reads(bytes: u64) -> usize {
    ((MIB / bytes) as usize).clamp(8, 64)
}

/// Pages that are read while the donor's CPU time is looked at: so many that a clock tick (10 ms) is little.
const COSTED_PAGES: usize = 100_000;

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
}

impl Trial {
    /// In a guest, which gets its device now.
    pub fn in_guest(shop: &Workshop, quick: bool) -> Result<Self, HarnessError> {
        if !std::path::Path::new("/sys/class/infiniband").join(GUEST_DEVICE).exists() {
            let words = ["link", "add", GUEST_DEVICE, "type", "rxe", "netdev", "lo"];
            tool::run("rdma", words, &shop.interrupt)?;
        }
        Ok(Self { device: GUEST_DEVICE.to_owned(), quick })
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
        self.reads(shop, address, &mut result)?;
        memory::measure(address, &mut result)?;
        devices::measure(shop, address, &mut result)?;
        Ok(result)
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
            compare(&request_case(request), request, &mut subjects, shop, result)?;
        }
        for bytes in SIZES {
            let mut subjects: [(&str, &mut dyn Reads); 3] = [(BARE, &mut bare), (RDMA, &mut rdma), (TCP, &mut tcp)];
            compare(&size_case(bytes), (bytes, 1), &mut subjects, shop, result)?;
        }
        let process = donor.running.id();
        let mut subjects: [(&str, &mut dyn Reads); 2] = [(RDMA, &mut rdma), (TCP, &mut tcp)];
        let pages = if self.quick { COSTED_PAGES / 10 } else { COSTED_PAGES };
        for (name, subject) in &mut subjects {
            shop.interrupt.check()?;
            let before = cpu_seconds(process);
            let (read, used) = counted(|| subject.read(4096, 16, pages));
            read?;
            let gibibytes = pages as f64 * 4096.0 / GIB as f64;
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

/// Blocks of the same reads from each subject in turn; the median of each subject's blocks is recorded.
fn compare(
    case: &str,
    (bytes, depth): (u64, usize),
    subjects: &mut [(&str, &mut dyn Reads)],
    shop: &Workshop,
    result: &mut StudyResult,
) -> Result<(), HarnessError> {
    let count = block_reads(bytes).max(2 * depth);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    for _ in 0..BLOCKS {
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
