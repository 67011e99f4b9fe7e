//! The files beside this one have every field of each report. Reading one and writing it again gives the same: a field
//! that is renamed, moved, added or written in another way fails here. Then readers outside of this tree have to
//! follow, and CHANGELOG.md says so.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spillway_report::cluster::ClusterReport;
use spillway_report::device::DeviceReport;
use spillway_report::donor::{AgentReport, DonorReport};
use spillway_report::format;
use spillway_report::kind::{Kind, Report};
use spillway_report::run::{EndedRunReport, RunDevice, RunReport};

fn snapshot(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Compares what is written of the report `name` with the file.
fn check<Report: Serialize + DeserializeOwned>(name: &str) -> Report {
    let before = snapshot(name);
    let report: Report = format::read(&before).unwrap();
    let written = serde_json::to_value(&report).unwrap();
    let pretty = |value| serde_json::to_string_pretty(value).unwrap();
    assert_eq!(pretty(&written), pretty(&before), "{name}");
    let text = serde_json::to_string(&report).unwrap();
    let read_again: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(&read_again).unwrap(), before, "{name} by way of text");
    report
}

#[test]
fn each_report_keeps_its_fields() {
    let device: DeviceReport = check("device.json");
    assert_eq!(device.device.traffic.read_latency.histogram_ns.values().sum::<u64>(), 200, "the buckets are there");
    check::<RunReport>("run_by_pager.json");
    check::<RunReport>("run_over_swap.json");
    check::<DonorReport>("donor.json");
    check::<AgentReport>("agent.json");
    check::<ClusterReport>("cluster.json");
}

#[test]
fn a_run_that_ended_tells_of_its_device_or_its_volume() {
    let over_swap: EndedRunReport = check("ended_over_swap.json");
    assert!(matches!(over_swap.device, Some(RunDevice::Swap(_))) && over_swap.pager.is_none());
    let by_pager: EndedRunReport = check("ended_by_pager.json");
    assert!(matches!(by_pager.device, Some(RunDevice::Volume { .. })) && by_pager.pager.is_some());
}

#[test]
fn a_renamed_field_is_no_zero() {
    for (kind, name, part, field) in [
        (Kind::Device, "device.json", "/device", "pages_stored"),
        (Kind::Run, "run_by_pager.json", "/pager/pager", "lent_bytes"),
        (Kind::Run, "run_over_swap.json", "", "footprint_bytes"),
        (Kind::Donor, "donor.json", "/donor", "lent_bytes"),
    ] {
        let mut report = snapshot(name);
        let fields = report.pointer_mut(part).unwrap().as_object_mut().unwrap();
        let value = fields.remove(field).unwrap();
        fields.insert("renamed".to_owned(), value);
        let error = Report::read(kind, &report).unwrap_err().to_string();
        assert!(error.contains(&format!("missing field `{field}`")), "{error}");
        assert!(error.contains("start the process again"), "{error}");
    }
}

#[test]
fn a_field_of_a_device_under_a_run_is_named_if_it_is_wrong() {
    let mut report = snapshot("ended_over_swap.json");
    report["device"]["device"]["pages_stored"] = json!("many");
    let error = format::read::<EndedRunReport>(&report).unwrap_err().to_string();
    assert!(error.contains("invalid type: string \"many\", expected u64"), "{error}");
}
