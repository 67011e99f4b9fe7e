//! Reports for tests of several crates, with every figure set that a reader of a report reads.
//!
//! Behind the feature `test-support`, which only tests ask for, so no shipped program has it.

use std::time::Duration;

use spillway_block::latency::LatencyHistogram;
use spillway_donor::DonorStatus;
use spillway_fabric::membership::Counters;
use spillway_fabric::wire::WIRE_VERSION;
use spillway_machine::cgroup::usage::GroupUsage;
use spillway_pager::pager::PagerStatus;
use spillway_volume::status::{DeviceStatus, DiskStatus, DonorLatencyStatus, DonorLinkStatus};

use crate::cluster::{ClusterReport, MemberReport};
use crate::device::DeviceReport;
use crate::donor::DonorReport;
use crate::format::Format;
use crate::kind::Report;
use crate::run::{Choice, RunReport, Way};

/// A volume that has brought in so many pages, at 10 us each but for one in a hundred at 500 us.
pub fn device_status(pages_in: u64) -> DeviceStatus {
    let histogram = LatencyHistogram::default();
    for page in 0..pages_in {
        histogram.record(Duration::from_micros(if page % 100 == 99 { 500 } else { 10 }));
    }
    let mut status = DeviceStatus {
        size_bytes: 1 << 30,
        slab_size_bytes: 32 << 20,
        redundancy: "disk".to_owned(),
        health: "ok".to_owned(),
        pages_stored: 1000,
        disk: Some(DiskStatus { backlog_pages: 2, backlog_pages_max: 100, ..DiskStatus::default() }),
        donors: vec![link("a:1", "connected"), link("b:1", "lost")],
        ..DeviceStatus::default()
    };
    status.slabs.mapped = 3;
    status.slabs.degraded = 1;
    let traffic = &mut status.traffic;
    (traffic.pages_in, traffic.pages_out, traffic.read_requests, traffic.write_requests) =
        (pages_in, 2 * pages_in, pages_in, pages_in);
    (traffic.read_latency, traffic.write_latency) = (histogram.status(), histogram.status());
    status
}

/// A donor as a volume sees it.
pub fn link(address: &str, state: &str) -> DonorLinkStatus {
    let mut latency = DonorLatencyStatus { reads_taken_elsewhere: 3, ..DonorLatencyStatus::default() };
    (latency.reads.p50_us, latency.reads.p99_us) = (80.0, 400.0);
    DonorLinkStatus {
        address: address.to_owned(),
        state: state.to_owned(),
        transport: "tcp".to_owned(),
        slabs: 2,
        free_bytes: 1 << 30,
        latency,
        ..DonorLinkStatus::default()
    }
}

/// A device's whole report.
pub fn device_report(name: &str, pages_in: u64) -> DeviceReport {
    let device = DeviceStatus { name: name.to_owned(), ..device_status(pages_in) };
    DeviceReport { device, ..DeviceReport::default() }
}

/// A pager with faults of every kind.
pub fn pager_status(pages_in: u64) -> PagerStatus {
    let mut status = PagerStatus { device: device_status(pages_in), ..PagerStatus::default() };
    let latency = status.device.traffic.read_latency.clone();
    for kind in [&mut status.pager.fill, &mut status.pager.staged, &mut status.pager.zero, &mut status.pager.write] {
        (kind.count, kind.latency) = (pages_in, latency.clone());
    }
    status
}

/// A donor that lends so much to one borrower.
pub fn donor_status(lent_bytes: u64) -> DonorStatus {
    serde_json::from_value(serde_json::json!({
        "id": "d", "addresses": ["127.0.0.1:7070"], "quota_bytes": 1 << 30, "lent_bytes": lent_bytes,
        "prepared_bytes": 64 << 20, "headroom_bytes": 1 << 28, "available_bytes": 1_u64 << 32,
        "free_to_lend_bytes": 1 << 29, "draining": false, "sessions_lingering": 0,
        "sessions": [{"borrower": "b", "volume": "v", "peer": "p:1", "transport": "tcp", "slabs": 2,
            "lent_bytes": lent_bytes, "read_bytes": 4096, "written_bytes": 8192}],
        "recalls": {"asked": 7, "returned": 3, "withdrawn": 2, "overdue": 1},
        "counters": {"sessions_opened": 1, "sessions_resumed": 0, "connections_refused": 2, "leases_granted": 9,
            "leases_refused": 1, "leases_unprepared": 4, "slabs_unlocked": 0},
    }))
    .expect("these are the fields of a donor's status")
}

/// The report of a donor's process.
pub fn donor_report(donor: DonorStatus) -> Report {
    Report::Donor(Box::new(DonorReport { format: Format::default(), donor, sandbox: None }))
}

/// The report of a run by the pager.
pub fn run_report(pages_in: u64) -> RunReport {
    RunReport {
        via: Some(Choice { way: Way::Pager, reason: "asked for".to_owned() }),
        local: "50%".to_owned(),
        limit_bytes: Some(64 << 20),
        usage: GroupUsage { charged_bytes: 60 << 20, swapped_bytes: 40 << 20, ..GroupUsage::default() },
        footprint_bytes: 100 << 20,
        pager: Some(pager_status(pages_in)),
        ..RunReport::default()
    }
}

/// A machine of a cluster, which has its number in its name and address. The first, 0, is the one that tells.
pub fn member(number: usize, state: &str, quota_bytes: Option<u64>) -> MemberReport {
    MemberReport {
        name: Some(format!("node{number}")),
        address: format!("10.0.{}.{}:7070", number / 256, number % 256),
        machine: None,
        generation: None,
        state: state.to_owned(),
        is_self: number == 0,
        answered: true,
        zone: None,
        rack: None,
        quota_bytes,
        lent_bytes: quota_bytes.map(|_| 0),
        used_bytes: None,
        release: None,
        wire_version: Some(WIRE_VERSION),
    }
}

/// A cluster of these machines.
pub fn view(members: Vec<MemberReport>) -> ClusterReport {
    ClusterReport {
        format: Format::default(),
        name: "home".to_owned(),
        discovery: "gossip".to_owned(),
        sealed: true,
        key_file: Some("/etc/key".into()),
        key_ids: Vec::new(),
        machine: String::new(),
        identity_file: String::new(),
        members,
        warnings: Vec::new(),
        traffic: Counters::default(),
    }
}
