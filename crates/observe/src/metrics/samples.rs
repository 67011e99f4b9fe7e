//! What an [`Observation`] has to say, as samples of metrics.
//!
//! Runs come and go under names that are process ids, so they have no label of their own: their figures add up, and so
//! do those of devices that belong to runs. Without I/O and without state; [`super::ledger`] has the state.

use spillway_block::latency::LatencyStatus;
use spillway_donor::DonorStatus;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_pager::statistics::PagerStatistics;
use spillway_report::kind::{Kind, Report};
use spillway_report::run::RunReport;
use spillway_volume::status::{DeviceStatus, DonorLinkStatus};

use super::catalogue::{self as metrics, Metric};
use super::histogram::Histogram;
use crate::observation::{self, Observation, Thing};

/// One value of one thing.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Of which metric.
    pub(crate) metric: &'static Metric,
    /// The labels' values, in the order of the metric's labels.
    pub(crate) labels: Vec<String>,
    /// Whose it is. A counter that is smaller than before, of the same source, began anew.
    pub(crate) source: String,
    /// The value.
    pub(crate) value: Value,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// As it is now, or counted since the source began.
    Number(f64),
    /// Counted since the source began.
    Histogram(Box<Histogram>),
}

/// States of slabs, donors and processes are told even if there are none, so that an alert sees them come.
const STATES: [&str; 4] = ["running", "silent", "orphaned", "dead"];
/// See [`STATES`].
const LINK_STATES: [&str; 3] = ["connected", "connecting", "lost"];
/// See [`STATES`].
const WAYS: [&str; 2] = ["swap", "pager"];

/// Everything that `observation` says.
pub(crate) fn samples(observation: &Observation) -> Vec<Sample> {
    let mut samples = Samples::default();
    samples.of("").number(&metrics::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1);
    if let Some(memory) = observation.memory {
        samples.of("").number(&metrics::MACHINE_MEMORY, &[], memory.total_bytes);
        samples.of("").number(&metrics::MACHINE_AVAILABLE, &[], memory.available_bytes);
    }
    for kind in [Kind::Run, Kind::Device, Kind::Donor, Kind::Agent] {
        for state in STATES {
            let is_counted = |thing: &&Thing| thing.kind == kind && thing.state == state;
            let count = observation.things.iter().filter(is_counted).count();
            samples.of("").number(&metrics::PROCESSES, &[kind.word(), state], count as u64);
        }
    }
    for way in WAYS {
        samples.of("").number(&metrics::RUNS, &[way], 0);
    }
    for thing in &observation.things {
        samples.of(&source(thing)).thing(thing);
    }
    samples.all
}

/// What names a thing for good: another one of its name has another process.
pub(crate) fn source(thing: &Thing) -> String {
    format!("{}-{} {}", thing.kind.word(), thing.name, thing.pid.unwrap_or(0))
}

#[derive(Debug, Default)]
struct Samples {
    source: String,
    all: Vec<Sample>,
}

impl Samples {
    /// What follows is of `source`.
    fn of(&mut self, source: &str) -> &mut Self {
        source.clone_into(&mut self.source);
        self
    }

    fn push(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.all.push(Sample { metric, labels, source: self.source.clone(), value });
    }

    fn number(&mut self, metric: &'static Metric, labels: &[&str], value: u64) {
        self.push(metric, labels, Value::Number(value as f64));
    }

    fn truth(&mut self, metric: &'static Metric, labels: &[&str], value: bool) {
        self.number(metric, labels, value.into());
    }

    fn pages(&mut self, metric: &'static Metric, labels: &[&str], pages: u64) {
        self.number(metric, labels, pages * PAGE_SIZE_BYTES as u64);
    }

    fn histogram(&mut self, metric: &'static Metric, labels: &[&str], latency: &LatencyStatus) {
        self.push(metric, labels, Value::Histogram(Box::new(Histogram::of(latency))));
    }

    fn thing(&mut self, thing: &Thing) {
        match &thing.report {
            Report::Device(report) if report.run.is_some() => self.volume_of_run("swap", &report.device),
            Report::Device(report) => {
                let has_failed = report.given_up || report.device.failure.is_some();
                self.truth(&metrics::DEVICE_FAILED, &[&thing.name], has_failed);
                if let Some(used_bytes) = thing.swap_used_bytes {
                    self.number(&metrics::DEVICE_SWAP_USED, &[&thing.name], used_bytes);
                }
                self.device(&thing.name, &report.device);
            }
            Report::Run(run) => self.run(run),
            Report::Donor(report) => self.donor(&thing.name, &report.donor),
            Report::Agent(report) => report.donor.iter().for_each(|donor| self.donor(&thing.name, donor)),
            Report::None => {}
        }
    }

    fn device(&mut self, name: &str, device: &DeviceStatus) {
        self.number(&metrics::DEVICE_SIZE, &[name], device.size_bytes);
        self.pages(&metrics::DEVICE_STORED, &[name], device.pages_stored);
        self.pages(&metrics::DEVICE_LOST, &[name], device.pages_lost);
        self.truth(&metrics::DEVICE_DEGRADED, &[name], !observation::is_well(device));
        self.traffic(name, device);
        let slabs = &device.slabs;
        for (state, count) in [
            ("unmapped", slabs.unmapped),
            ("mapped", slabs.mapped),
            ("degraded", slabs.degraded),
            ("migrating", slabs.migrating),
            ("lost", slabs.lost),
        ] {
            self.number(&metrics::DEVICE_SLABS, &[name, state], count);
        }
        if let Some(disk) = &device.disk {
            self.pages(&metrics::DEVICE_BACKLOG, &[name], disk.backlog_pages);
            self.pages(&metrics::DEVICE_BACKLOG_MAX, &[name], disk.backlog_pages_max);
            self.number(&metrics::DEVICE_DISK_ERRORS, &[name], disk.write_errors);
            self.number(&metrics::DEVICE_DISK_WRONG, &[name], disk.wrong_pages);
        }
        self.truth(&metrics::DEVICE_DISK_ONLY, &[name], is_disk_only(device));
        for state in LINK_STATES {
            let count = device.donors.iter().filter(|donor| donor.state == state).count();
            self.number(&metrics::DEVICE_DONORS, &[name, state], count as u64);
        }
        let source = self.source.clone();
        for donor in &device.donors {
            self.of(&format!("{source} {}", donor.address)).link(name, donor);
        }
    }

    fn traffic(&mut self, name: &str, device: &DeviceStatus) {
        let traffic = &device.traffic;
        self.pages(&metrics::DEVICE_IN, &[name], traffic.pages_in);
        self.pages(&metrics::DEVICE_OUT, &[name], traffic.pages_out);
        self.pages(&metrics::DEVICE_DISCARDED, &[name], traffic.pages_discarded);
        self.pages(&metrics::DEVICE_IN_FROM_DISK, &[name], traffic.pages_in_from_disk);
        self.number(&metrics::DEVICE_FAILED_REQUESTS, &[name], traffic.failed_requests);
        self.push(&metrics::DEVICE_CPU, &[name], Value::Number(traffic.cpu_seconds));
        for (operation, requests, latency) in [
            ("read", traffic.read_requests, &traffic.read_latency),
            ("write", traffic.write_requests, &traffic.write_latency),
        ] {
            self.number(&metrics::DEVICE_REQUESTS, &[name, operation], requests);
            self.histogram(&metrics::DEVICE_LATENCY, &[name, operation], latency);
        }
    }

    /// A donor as a device sees it.
    fn link(&mut self, device: &str, donor: &DonorLinkStatus) {
        let labels = [device, donor.address.as_str()];
        let latency = &donor.latency;
        self.truth(&metrics::LINK_CONNECTED, &labels, donor.state == "connected");
        self.truth(&metrics::LINK_SLOW, &labels, latency.is_slow);
        self.number(&metrics::LINK_SLABS, &labels, donor.slabs);
        self.number(&metrics::LINK_FREE, &labels, donor.free_bytes);
        self.push(&metrics::LINK_WAITING, &labels, Value::Number(latency.waiting_us / 1e6));
        self.number(&metrics::LINK_ELSEWHERE, &labels, latency.reads_taken_elsewhere);
        self.number(&metrics::LINK_WRONG, &labels, donor.wrong_pages);
        for (percentile, microseconds) in [("50", latency.reads.p50_us), ("99", latency.reads.p99_us)] {
            if microseconds > 0.0 {
                let labels = [device, donor.address.as_str(), percentile];
                self.push(&metrics::LINK_LATENCY, &labels, Value::Number(microseconds / 1e6));
            }
        }
    }

    fn run(&mut self, run: &RunReport) {
        let Some(via) = run.via.as_ref().map(|via| via.way.name()) else { return };
        self.number(&metrics::RUNS, &[via], 1);
        self.number(&metrics::RUN_LOCAL, &[via], run.usage.charged_bytes);
        self.number(&metrics::RUN_LENT, &[via], run.usage.swapped_bytes);
        if let Some(pager) = &run.pager {
            self.volume_of_run(via, &pager.device);
            self.faults(&pager.pager);
        }
    }

    /// The volume of a run: a pager's, or that of a device of its own.
    fn volume_of_run(&mut self, via: &str, volume: &DeviceStatus) {
        self.truth(&metrics::RUNS_DEGRADED, &[via], !observation::is_well(volume));
        self.pages(&metrics::RUN_LOST, &[via], volume.pages_lost);
        self.pages(&metrics::RUN_IN, &[via], volume.traffic.pages_in);
        self.pages(&metrics::RUN_OUT, &[via], volume.traffic.pages_out);
        self.pages(&metrics::RUN_IN_FROM_DISK, &[via], volume.traffic.pages_in_from_disk);
    }

    fn faults(&mut self, pager: &PagerStatistics) {
        for (kind, faults) in
            [("fill", &pager.fill), ("staged", &pager.staged), ("zero", &pager.zero), ("write", &pager.write)]
        {
            self.number(&metrics::RUN_FAULTS, &[kind], faults.count);
            self.histogram(&metrics::RUN_FAULT_LATENCY, &[kind], &faults.latency);
        }
    }

    /// A donor on this machine.
    fn donor(&mut self, name: &str, donor: &DonorStatus) {
        for (metric, value) in [
            (&metrics::DONOR_QUOTA, donor.quota_bytes),
            (&metrics::DONOR_LENT, donor.lent_bytes),
            (&metrics::DONOR_PREPARED, donor.prepared_bytes),
            (&metrics::DONOR_FREE, donor.free_to_lend_bytes),
            (&metrics::DONOR_HEADROOM, donor.headroom_bytes),
            (&metrics::DONOR_AVAILABLE, donor.available_bytes),
            (&metrics::DONOR_DRAINING, donor.draining.into()),
            (&metrics::DONOR_SESSIONS, donor.sessions.len() as u64),
            (&metrics::DONOR_LINGERING, donor.sessions_lingering),
        ] {
            self.number(metric, &[name], value);
        }
        self.donor_history(name, donor);
        let source = self.source.clone();
        for session in &donor.sessions {
            // Each counts for itself, so that the sum does not fall when one ends.
            self.of(&format!("{source} {}", session.borrower));
            self.number(&metrics::DONOR_READ, &[name], session.read_bytes.unwrap_or(0));
            self.number(&metrics::DONOR_WRITTEN, &[name], session.written_bytes.unwrap_or(0));
        }
    }

    /// What a donor has counted since its start.
    fn donor_history(&mut self, name: &str, donor: &DonorStatus) {
        let (recalls, counters) = (&donor.recalls, &donor.counters);
        for (metric, value) in [
            (&metrics::DONOR_RECALLS, recalls.asked),
            (&metrics::DONOR_RECALLS_RETURNED, recalls.returned),
            (&metrics::DONOR_RECALLS_WITHDRAWN, recalls.withdrawn),
            (&metrics::DONOR_RECALLS_OVERDUE, recalls.overdue),
            (&metrics::DONOR_SESSIONS_OPENED, counters.sessions_opened),
            (&metrics::DONOR_REFUSED, counters.connections_refused),
            (&metrics::DONOR_LEASES, counters.leases_granted),
            (&metrics::DONOR_LEASES_REFUSED, counters.leases_refused),
            (&metrics::DONOR_UNLOCKED, counters.slabs_unlocked),
        ] {
            self.number(metric, &[name], value);
        }
    }
}

/// Whether pages go to the disk because there is no donor to take them.
pub(crate) fn is_disk_only(device: &DeviceStatus) -> bool {
    let is_connected = device.donors.iter().any(|donor| donor.state == "connected");
    device.disk.is_some() && !device.donors.is_empty() && !is_connected
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use spillway_report::test_support;

    use super::*;
    use crate::observation::examples;

    fn number(samples: &[Sample], metric: &Metric, labels: &[&str]) -> Vec<f64> {
        let of = samples.iter().filter(|sample| sample.metric == metric && sample.labels == labels);
        of.filter_map(|sample| match sample.value {
            Value::Number(number) => Some(number),
            Value::Histogram(_) => None,
        })
        .collect()
    }

    #[test]
    fn every_metric_is_told_by_a_machine_with_one_of_each() {
        let samples = samples(&examples::observation(300));
        let told: BTreeSet<_> = samples.iter().map(|sample| sample.metric.name).collect();
        let all: BTreeSet<_> = metrics::ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(told, all);
        assert!(samples.iter().all(|sample| sample.labels.len() == sample.metric.labels.len()));
    }

    #[test]
    fn figures_are_in_base_units() {
        let samples = samples(&examples::observation(300));
        assert_eq!(number(&samples, &metrics::DEVICE_IN, &["swap"]), [300.0 * 4096.0]);
        assert_eq!(number(&samples, &metrics::DEVICE_SLABS, &["swap", "degraded"]), [1.0]);
        assert_eq!(number(&samples, &metrics::LINK_LATENCY, &["swap", "a:1", "99"]), [400e-6]);
        assert_eq!(number(&samples, &metrics::LINK_CONNECTED, &["swap", "b:1"]), [0.0]);
        assert_eq!(number(&samples, &metrics::DONOR_WRITTEN, &["lender"]), [8192.0]);
        assert_eq!(number(&samples, &metrics::DEVICE_SWAP_USED, &["swap"]), [f64::from(123 << 20)]);
    }

    #[test]
    fn runs_and_their_devices_have_no_label_of_their_own() {
        let mut observation = examples::observation(10);
        let mut device = examples::device("run-4712", 20);
        if let Report::Device(report) = &mut device.report {
            report.run = Some("4712".to_owned());
        }
        observation.things.push(device);
        let samples = samples(&observation);
        assert!(samples.iter().all(|sample| !sample.labels.iter().any(|label| label.contains("471"))));
        assert_eq!(number(&samples, &metrics::RUN_IN, &["swap"]), [20.0 * 4096.0]);
        assert_eq!(number(&samples, &metrics::RUN_IN, &["pager"]), [10.0 * 4096.0]);
        assert_eq!(number(&samples, &metrics::RUNS, &["pager"]), [0.0, 1.0], "they add up");
    }

    #[test]
    fn falling_back_to_the_disk_is_told() {
        let mut device = test_support::device_status(1);
        assert!(!is_disk_only(&device));
        device.donors[0].state = "lost".to_owned();
        assert!(is_disk_only(&device));
        device.disk = None;
        assert!(!is_disk_only(&device));
    }
}
