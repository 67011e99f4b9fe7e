//! The board and the alerts in `packaging/` ask for metrics and labels that exist.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::catalogue::{ALL, Kind, Metric};

fn packaged(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every expression of the board.
fn board_expressions() -> Vec<String> {
    let board: Value = serde_json::from_str(&packaged("grafana/spillway.json")).unwrap();
    let targets = board["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Words that begin as our metrics do, each with what follows it.
fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.match_indices("spillway_").filter(move |(at, _)| !text[..*at].ends_with(is_part)).map(move |(at, _)| {
        let rest = &text[at..];
        rest.split_at(rest.find(|character| !is_part(character)).unwrap_or(rest.len()))
    })
}

/// The metric that a word in an expression means.
fn metric_of(word: &str) -> Option<&'static Metric> {
    let is_it = |metric: &&&Metric| match metric.kind {
        Kind::Histogram => ["_bucket", "_sum", "_count"].iter().any(|end| word == format!("{}{end}", metric.name)),
        _ => word == metric.full_name(),
    };
    ALL.iter().find(is_it).copied()
}

/// What is wrong with the metrics that `expression` names, and with the labels by which it selects.
fn mistakes(expression: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    for (word, after) in named(expression) {
        let Some(metric) = metric_of(word) else {
            mistakes.push(format!("there is no metric {word}"));
            continue;
        };
        let selector = after.strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
        for label in
            selector.split(',').filter_map(|part| part.split(['=', '!']).next()).filter(|label| !label.is_empty())
        {
            // The scrape adds the instance.
            if label != "instance" && !metric.labels.iter().any(|known| known.name == label) {
                mistakes.push(format!("{word} has no label {label}"));
            }
        }
    }
    mistakes
}

#[test]
fn the_board_asks_for_metrics_and_labels_that_exist() {
    let expressions = board_expressions();
    assert!(expressions.len() > 20, "only {} expressions were found", expressions.len());
    for expression in &expressions {
        assert!(named(expression).next().is_some() && mistakes(expression).is_empty(), "{:?}", mistakes(expression));
    }
}

#[test]
fn the_alerts_ask_for_metrics_and_labels_that_exist_and_cover_what_goes_wrong() {
    let rules = packaged("prometheus/spillway.rules.yml");
    assert_eq!(mistakes(&rules), Vec::<String>::new());
    let used: BTreeSet<_> = named(&rules).filter_map(|(word, _)| metric_of(word)).map(|metric| metric.name).collect();
    for needed in [
        "spillway_device_slabs",
        "spillway_device_lost_bytes",
        "spillway_run_lost_bytes",
        "spillway_device_disk_only",
        "spillway_device_page_in_from_disk_bytes",
        "spillway_donor_recalls_overdue",
        "spillway_donor_leases_refused",
        "spillway_device_request_latency_seconds",
        "spillway_run_fault_latency_seconds",
        "spillway_processes",
        "spillway_device_donor_wrong_reads",
        "spillway_device_disk_wrong_reads",
    ] {
        assert!(used.contains(needed), "no alert uses {needed}");
    }
}

#[test]
fn mistakes_in_expressions_are_found() {
    assert_eq!(mistakes("sum by (instance) (spillway_device_size_bytes{device=\"x\",instance=~\"a\"})"), [""; 0]);
    for wrong in [
        "spillway_device_size_byte",
        "spillway_device_page_in_bytes",
        "spillway_device_request_latency_seconds",
        "spillway_run_local_bytes{device=\"x\"}",
    ] {
        assert_eq!(mistakes(wrong).len(), 1, "{wrong}");
    }
}

#[test]
fn every_panel_of_the_board_is_explained_and_in_its_place() {
    let board: Value = serde_json::from_str(&packaged("grafana/spillway.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let mut places = BTreeSet::new();
    for panel in panels {
        assert!(!panel["title"].as_str().unwrap().is_empty() && !panel["description"].as_str().unwrap().is_empty());
        assert!(
            ["none", "short", "s", "bytes", "Bps"]
                .contains(&panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap())
        );
        let place = &panel["gridPos"];
        assert!(places.insert((place["x"].as_u64(), place["y"].as_u64())), "two panels at {place}");
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{place}");
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
}
