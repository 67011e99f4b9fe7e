//! Each report is compared with a file: a field that is renamed, moved or written in another way fails here.

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;
use serde_json::Value;
use spillway_device::prefetch::PrefetchCounts;
use spillway_pager::mappings::staying_tally::StayingProgram;
use spillway_pager::pager::PagerStatus;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_volume::status::{BandwidthStatus, SlabMapStatus};

use crate::agent::cluster::view::ClusterView;
use crate::arguments::{Arguments, Command};
use crate::cgroup::usage::GroupUsage;
use crate::cluster_donors::choice::tests::member;
use crate::device::records::DeviceReport;
use crate::doctor::check::Way;
use crate::observation::examples;
use crate::prefetch_report::PrefetchReport;
use crate::run::program::Ending;
use crate::run::statistics::{Paging, Statistics};
use crate::run::via::Choice;
use crate::run::watch::RunReport;
use crate::sandbox::Sandbox;

/// Compares `report` with the file `name`.
fn check(name: &str, report: &impl Serialize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report_tests").join(name);
    let text = serde_json::to_string_pretty(&serde_json::to_value(report).unwrap()).unwrap() + "\n";
    if std::env::var_os("SPILLWAY_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let before = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, before, "{} is what readers know; they and CHANGELOG.md follow a change", path.display());
}

fn prefetch() -> PrefetchReport {
    let counts = PrefetchCounts { major_samples: 2, minor_samples: 40, pages_asked: 64, ..PrefetchCounts::default() };
    PrefetchReport::new(Some(PrefetchPolicy::Streams), true, Some("a note".to_owned()), counts)
}

fn device() -> DeviceReport {
    let mut report = examples::device_report("swap", 200);
    (report.run, report.follows) = (Some("77".to_owned()), Some("home".to_owned()));
    (report.notes, report.prefetch) = (vec!["careful".to_owned()], Some(prefetch()));
    report.device.failure = Some("a panic".to_owned());
    report.device.slab_map = SlabMapStatus::new([(7, Some(0)), (0, None)].into_iter());
    report.device.bandwidth =
        Some(BandwidthStatus { bytes_per_second: 10 << 20, requests_held: 3, held_us: 1_500_000 });
    report
}

fn pager() -> PagerStatus {
    let mut status = examples::pager_status(200);
    status.pager.lost_seconds = 0.123;
    status.pager.staying.memfd_bytes = 5 << 20;
    let program = StayingProgram { process: 41, name: "java".to_owned(), bytes: status.pager.staying };
    status.pager.staying_programs = vec![program];
    status.pager.failures = vec!["a failure".to_owned()];
    status
}

fn run(way: Way, pager: Value, prefetch: Value) -> RunReport {
    RunReport {
        via: Some(Choice { way, reason: "asked for".to_owned() }),
        program: "sort".to_owned(),
        volume: "run-77-device".to_owned(),
        lend_bytes_max: Some(1 << 30),
        local: "50%".to_owned(),
        limit_bytes: Some(64 << 20),
        limit_bytes_max: Some(65 << 20),
        usage: GroupUsage { charged_bytes: 60 << 20, stalled_us: Some(7), ..GroupUsage::default() },
        footprint_bytes: 100 << 20,
        follows: Some("home".to_owned()),
        pager,
        prefetch,
        ..RunReport::default()
    }
}

fn statistics(memory: &RunReport, ending: Ending, device: Value, pager: Value, prefetch: Value) -> Statistics {
    let Command::Run(arguments) = Arguments::parse_from(["spillway", "run", "--", "sort", "-n"]).command else {
        panic!("not a run")
    };
    let paging = Paging { major_faults: 7, out_of_memory_kills: 1, limit_hits: 2, device, pager, prefetch };
    Statistics::new(memory, Duration::from_millis(1500), ending, paging, &arguments)
}

#[test]
fn a_device_reports_the_same_fields() {
    check("device.json", &device());
}

#[test]
fn a_run_reports_the_same_fields_in_both_ways() {
    let by_pager = run(Way::Pager, serde_json::to_value(pager()).unwrap(), Value::Null);
    check("run_by_pager.json", &by_pager);
    let over_swap = run(Way::Swap, Value::Null, serde_json::to_value(prefetch()).unwrap());
    check("run_over_swap.json", &over_swap);
}

#[test]
fn a_run_that_ended_reports_the_same_fields_in_both_ways() {
    let PagerStatus { device: volume, pager } = pager();
    let memory = |way| run(way, Value::Null, Value::Null);
    let volume = serde_json::json!({ "device": volume });
    let pager = serde_json::to_value(pager).unwrap();
    check("ended_by_pager.json", &statistics(&memory(Way::Pager), Ending::Signalled(9), volume, pager, Value::Null));
    let (device, prefetch) = (serde_json::to_value(device()).unwrap(), serde_json::to_value(prefetch()).unwrap());
    check("ended_over_swap.json", &statistics(&memory(Way::Swap), Ending::Exited(0), device, Value::Null, prefetch));
}

#[test]
fn a_donor_and_a_cluster_report_the_same_fields() {
    let report = serde_json::json!({ "donor": examples::donor_status(5 << 20), "sandbox": Sandbox::off("a reason") });
    check("donor.json", &report);
    let view = ClusterView {
        key_file: Some("/etc/key".into()),
        key_ids: vec!["0123".to_owned()],
        warnings: vec!["a warning".to_owned()],
        ..crate::cluster_donors::choice::tests::view(vec![member(0, "alive", Some(1 << 30))])
    };
    check("cluster.json", &view);
}
