//! Requests to a block device and swap-ins: the product's device by RDMA and by TCP, and nbdkit's memory over TCP.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use spillway_workloads::size::{MIB, Size};

use super::{NBDKIT, RDMA, REQUESTS, SWAP_CASE, TCP, device_case};
use crate::harness::HarnessError;
use crate::harness::cleanup::Cleanup;
use crate::harness::fio::{self, Job, Length};
use crate::harness::memory_group::MemoryGroup;
use crate::harness::spillway::{Storage, transports};
use crate::harness::subject::{Subject, Workshop};
use crate::harness::swap_area::SwapArea;
use crate::result::{MICROSECONDS, StudyResult};
use crate::studies::program_run::{run_workload, workload_command};

/// The program's working set; half of it fits. The device is four times as large: one more than half full gives a
/// page's room back when the page is read.
const WORKING_SET: Size = Size(16 * MIB);

/// The program's code and page tables.
const PROGRAM_BYTES: u64 = 4 * MIB;

/// Small, as guests are.
const SLAB_SIZE: Size = Size(4 * MIB);

/// How long requests of one kind are made.
const TIME: Duration = Duration::from_millis(1000);

/// What is compared, and the transport of ours.
pub const SUBJECTS: [(&str, Option<&str>); 3] = [(RDMA, Some("rdma")), (TCP, Some("tcp")), (NBDKIT, None)];

/// Measures one of the [`SUBJECTS`].
pub fn measure(
    shop: &Workshop,
    address: IpAddr,
    (subject, transport): (&str, Option<&'static str>),
    result: &mut StudyResult,
) -> Result<(), HarnessError> {
    match transport {
        Some(transport) => ours(shop, address, transport, result, subject),
        None => nbdkit(shop, result, subject),
    }
}

fn device_size() -> Size {
    Size(WORKING_SET.0 * 4)
}

fn ours(
    shop: &Workshop,
    address: IpAddr,
    transport: &'static str,
    result: &mut StudyResult,
    subject: &str,
) -> Result<(), HarnessError> {
    let product = shop.product()?;
    let donor = product.donor_at(Size(device_size().0 * 2), address, &shop.interrupt)?;
    let storage = Storage {
        donors: vec![donor.address.clone()],
        redundancy: "none".to_owned(),
        slab_size: Some(SLAB_SIZE),
        transport: Some(transport),
        ..Storage::default()
    };
    let mut cleanup = Cleanup::default();
    cleanup.keep("ending a donor", donor);
    let made = product.device_on(device_size(), Some(&storage), None, &mut cleanup, &shop.interrupt);
    let measured = made.and_then(|(path, name)| {
        on(shop, &path, result, subject)?;
        let status = product.device_status(&name, &shop.interrupt)?;
        if transports(&status) == [transport] && status.pages_lost == 0 {
            return Ok(());
        }
        Err(HarnessError::wrong(subject, format!("{status:?}")))
    });
    measured.and(undo(cleanup))
}

fn nbdkit(shop: &Workshop, result: &mut StudyResult, subject: &str) -> Result<(), HarnessError> {
    Subject::NbdkitTcp.check()?;
    let device = Subject::NbdkitTcp.attach(shop, device_size(), None)?;
    on(shop, &device.path, result, subject).and(device.detach())
}

fn undo(mut cleanup: Cleanup) -> Result<(), HarnessError> {
    let failures = cleanup.run();
    if failures.is_empty() { Ok(()) } else { Err(HarnessError::failed("taking a device apart", failures.join("; "))) }
}

fn on(shop: &Workshop, path: &Path, result: &mut StudyResult, subject: &str) -> Result<(), HarnessError> {
    fio::fill(path, WORKING_SET, &shop.interrupt)?;
    for (bytes, depth) in REQUESTS {
        let job = Job { pattern: "randread", block_bytes: bytes, depth: depth as u32 };
        let found = job.run(path, WORKING_SET, Length::Time(TIME), None, &shop.interrupt)?;
        result.record(0, &device_case((bytes, depth)), subject, MICROSECONDS, found.p50_us);
    }
    // Read-ahead would hide what one page costs.
    let _page_cluster = PageCluster::none()?;
    let _swap = SwapArea::on(path, &shop.interrupt)?;
    let group = MemoryGroup::strict(WORKING_SET.0 / 2 + PROGRAM_BYTES)?;
    let command = workload_command("visit", WORKING_SET)?;
    let report = run_workload("visit", &mut group.enter(&command), &shop.interrupt)?;
    let random = report.phases.iter().find(|phase| phase.phase == "random").and_then(|phase| phase.page_ins);
    let page_ins = random.ok_or_else(|| HarnessError::failed("visit", "no page of it came from swap"))?;
    result.record(0, SWAP_CASE, subject, MICROSECONDS, page_ins.p50_us);
    Ok(())
}

const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// The kernel reads nothing ahead while this lives.
struct PageCluster(String);

impl PageCluster {
    fn none() -> Result<Self, HarnessError> {
        let what = || HarnessError::system("setting vm.page-cluster");
        let before = std::fs::read_to_string(PAGE_CLUSTER).map_err(what())?;
        std::fs::write(PAGE_CLUSTER, "0").map_err(what())?;
        Ok(Self(before))
    }
}

impl Drop for PageCluster {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(PAGE_CLUSTER, &self.0) {
            eprintln!("rdma: vm.page-cluster stays 0, it was {}: {error}", self.0.trim());
        }
    }
}
