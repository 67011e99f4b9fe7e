//! Clusters under faults, by many seeds.

use std::time::{Duration, Instant};

use spillway_simulator::cluster::Cluster;
use spillway_simulator::report::Report;
use spillway_simulator::settings::Settings;

/// Seeds: each combination of replicas, disk, faults at once, and lists or membership.
const SEEDS: u64 = 24;

fn run(seed: u64) -> Report {
    let outcome = std::panic::catch_unwind(|| Cluster::new(Settings::storm(seed), Instant::now()).run());
    let Ok(report) = outcome else {
        panic!(
            "seed {seed} breaks a rule; see it again with: cargo run --release -p spillway-simulator -- --seed {seed}"
        )
    };
    assert!(report.accesses > 10_000 && report.cuts + report.crashes > 0, "too calm: {report}");
    report
}

#[test]
fn no_rule_is_broken_in_any_storm() {
    let settings: Vec<Settings> = (0..SEEDS).map(Settings::storm).collect();
    assert!(settings.iter().any(|settings| settings.faults_at_once == 2 && settings.has_membership));
    assert!(settings.iter().any(|settings| settings.faults_at_once == 1 && !settings.has_membership));
    assert!(settings.iter().any(|settings| settings.first_fault < Duration::from_secs(1) && settings.has_membership));
    let reports: Vec<Report> = (0..SEEDS).map(run).collect();
    // Each kind of trouble comes in some storm, and is mended.
    for (what, of) in [
        ("sessions lost", (|report| report.sessions_lost) as fn(&Report) -> u64),
        ("donors added", |report| report.additions),
        ("donors removed", |report| report.removals),
        ("donors drained", |report| report.drains),
        ("drains undone", |report| report.undone),
        ("recalls withdrawn", |report| report.withdrawn),
        ("copies filled", |report| report.fills),
        ("slabs recalled", |report| report.recalls),
        ("slabs moved", |report| report.moves),
        ("slabs stuck", |report| report.stuck),
        ("slabs lost", |report| report.slabs_lost),
        ("datagrams of the membership", |report| report.datagrams),
    ] {
        assert!(reports.iter().map(of).sum::<u64>() > 0, "no {what} in {SEEDS} storms");
    }
}

#[test]
fn a_seed_repeats_a_run() {
    assert_eq!(run(1), run(1));
}
