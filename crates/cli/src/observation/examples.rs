//! Reports for tests: one of each kind, with every figure set that the metrics and `top` read.

use std::time::Duration;

use spillway_block::latency::LatencyHistogram;
use spillway_donor::DonorStatus;
use spillway_machine::cgroup::usage::GroupUsage;
use spillway_machine::memory::Memory;
use spillway_pager::pager::PagerStatus;
use spillway_report::device::DeviceReport;
use spillway_report::donor::DonorReport;
use spillway_report::format::Format;
use spillway_report::kind::{Kind, Report};
use spillway_report::run::{Choice, RunReport, Way};
use spillway_volume::status::{DeviceStatus, DiskStatus, DonorLatencyStatus, DonorLinkStatus};

use super::{Observation, Thing};

/// A volume that has brought in so many pages, at 10 us each but for one in a hundred at 500 us.
pub(crate) fn device_status(pages_in: u64) -> DeviceStatus {
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
pub(crate) fn link(address: &str, state: &str) -> DonorLinkStatus {
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
pub(crate) fn device_report(name: &str, pages_in: u64) -> DeviceReport {
    let device = DeviceStatus { name: name.to_owned(), ..device_status(pages_in) };
    DeviceReport { device, ..DeviceReport::default() }
}

/// A pager with faults of every kind.
pub(crate) fn pager_status(pages_in: u64) -> PagerStatus {
    let mut status = PagerStatus { device: device_status(pages_in), ..PagerStatus::default() };
    let latency = status.device.traffic.read_latency.clone();
    for kind in [&mut status.pager.fill, &mut status.pager.staged, &mut status.pager.zero, &mut status.pager.write] {
        (kind.count, kind.latency) = (pages_in, latency.clone());
    }
    status
}

/// A donor that lends so much to one borrower.
pub(crate) fn donor_status(lent_bytes: u64) -> DonorStatus {
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
pub(crate) fn donor_report(donor: DonorStatus) -> Report {
    Report::Donor(Box::new(DonorReport { format: Format::default(), donor, sandbox: None }))
}

/// A thing that runs.
pub(crate) fn thing(kind: Kind, name: &str, report: Report) -> Thing {
    Thing {
        kind,
        name: name.to_owned(),
        pid: Some(7),
        program: None,
        state: "running".to_owned(),
        warnings: Vec::new(),
        swap_used_bytes: None,
        report,
    }
}

/// The report of a run by the pager.
pub(crate) fn run_report(pages_in: u64) -> RunReport {
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

/// A run by the pager.
pub(crate) fn run(name: &str, pages_in: u64) -> Thing {
    thing(Kind::Run, name, Report::Run(Box::new(run_report(pages_in))))
}

/// A swap device.
pub(crate) fn device(name: &str, pages_in: u64) -> Thing {
    let report = Report::Device(Box::new(device_report(name, pages_in)));
    Thing { swap_used_bytes: Some(123 << 20), ..thing(Kind::Device, name, report) }
}

/// A machine with one of each.
pub(crate) fn observation(pages_in: u64) -> Observation {
    let donor = donor_report(donor_status(96 << 20));
    Observation {
        memory: Some(Memory { total_bytes: 8 << 30, available_bytes: 3 << 30 }),
        things: vec![run("4711", pages_in), device("swap", pages_in), thing(Kind::Donor, "lender", donor)],
    }
}
