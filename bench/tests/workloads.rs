//! The workloads as a user runs them: the same checksums on every machine, a status for every mistake.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::{Command, Output};

use spillway_workloads::{WorkloadReport, names};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spillway-bench")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn report(arguments: &[&str]) -> WorkloadReport {
    let output = bench(&[&["workload"], arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A change here makes results of different versions incomparable, so it needs an entry in the changelog. `key-value`
/// is not in the list: its popularity law takes powers from the system's library, which may round differently.
#[test]
fn checksums_are_the_same_everywhere() {
    for (name, checksum) in [
        ("fill-sequential", "cd7961d5431d611f"),
        ("fill-strided", "cd7961d5431d611f"),
        ("fill-random", "cd7961d5431d611f"),
        ("fill-modify", "ca260c05a76ea9b6"),
        ("quicksort", "87cb94c259e5ce74"),
        ("barnes-hut", "fcf2747296107c0b"),
        ("page-rank", "7b15dd94ab2865b8"),
        ("matrix", "8bb235ca655c5fd9"),
    ] {
        let output = bench(&["workload", name, "--size", "1M", "--seed", "42"]);
        assert_eq!(text(&output.stdout), format!("checksum {name} 1M {checksum}\n"));
    }
}

#[test]
fn times_are_only_in_the_json() {
    for name in names() {
        let plain = || text(&bench(&["workload", name, "--size", "300K"]).stdout);
        assert_eq!(plain(), plain(), "{name} prints the same each time");
        let report = report(&[name, "--size", "300K"]);
        assert!(plain().contains(&report.checksum), "{name}");
        assert_eq!((report.workload.as_str(), report.size_bytes), (name, 300 * 1024));
        assert!(report.elapsed_seconds > 0.0 && report.phases.iter().any(|phase| phase.us_per_page > 0.0), "{name}");
    }
}

#[test]
fn threads_change_the_time_only() {
    for name in names() {
        let one = report(&[name, "--size", "300K", "--threads", "1"]);
        let four = report(&[name, "--size", "300K", "--threads", "4"]);
        assert_eq!((one.checksum, four.threads), (four.checksum, 4), "{name}");
    }
}

#[test]
fn mistakes_have_their_status_and_say_what_to_do() {
    for (arguments, status, expected) in [
        (vec!["workload", "bubblesort"], 1, "quicksort"),
        (vec!["workload", "quicksort", "--size", "1K"], 1, "give at least"),
        (vec!["workload", "quicksort", "--threads", "0"], 1, "from 1 to"),
        (vec!["workload", "quicksort", "--size", "much"], 2, "256M"),
        (vec!["workload", "quicksort", "--size", "99999999999T"], 2, "256M"),
        (vec!["workload"], 2, "NAME"),
        (vec!["measure"], 2, "measure"),
        (vec!["run", "--only", "magic"], 1, "programs"),
        (vec!["run", "--rounds", "0"], 1, "--rounds"),
        (vec!["run", "--only", "cost", "--directory", "/dev/shm"], 1, "on a disk"),
        (vec!["demo", "--directory", "/nonexistent"], 1, "/nonexistent"),
    ] {
        let output = bench(&arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn inner_commands_are_not_in_the_help() {
    let help = text(&bench(&["--help"]).stdout);
    assert!(help.contains("workload") && help.contains("demo"));
    assert!(!help.contains("redis-job"));
    assert!(!text(&bench(&["demo", "--help"]).stdout).contains("--tiny"));
}
