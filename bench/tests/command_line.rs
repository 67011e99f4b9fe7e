//! Mistakes on the command line: told at once, with what to do, before anything is started.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_spillway-bench")).args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} was accepted");
    output
}

fn message(arguments: &[&str]) -> String {
    String::from_utf8(bench(arguments).stderr).unwrap()
}

#[test]
fn unknown_names_list_the_known_ones() {
    for (arguments, known) in [
        (["run", "--only", "magic"].as_slice(), ["device", "swap", "cost", "writes", "programs"].as_slice()),
        (&["demo", "--only", "doom"], &["quicksort", "numpy", "sort", "redis"]),
        (&["workload", "nothing"], &["quicksort", "barnes-hut", "page-rank", "matrix"]),
    ] {
        let text = message(arguments);
        assert!(known.iter().all(|name| text.contains(name)), "{arguments:?}: {text}");
    }
}

#[test]
fn one_wrong_name_among_right_ones_starts_nothing() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = directory.path().to_str().unwrap();
    let text = message(&["run", "--only", "cost", "--only", "costs", "--directory", place, "--results", place]);
    assert!(text.contains("'costs'"), "{text}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn numbers_out_of_range_are_told() {
    for rounds in ["0", "101"] {
        let text = message(&["run", "--rounds", rounds]);
        assert!(text.contains("1 to 100"), "{text}");
    }
    for arguments in [["workload", "matrix", "--size", "12Q"], ["workload", "matrix", "--size", "-1"]] {
        assert!(!message(&arguments).is_empty());
    }
}

#[test]
fn contradictions_and_unknown_words_are_usage_errors() {
    for arguments in [
        ["demo", "--quick", "--large"].as_slice(),
        &["run", "--slow"],
        &["measure"],
        &[],
        &["workload"],
        &["run", "--rounds", "many"],
    ] {
        assert_eq!(bench(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_directory_in_memory_is_refused_before_anything_starts() {
    if !std::path::Path::new("/dev/shm").is_dir() {
        return spillway_sys::skipping::skip("/dev/shm");
    }
    for command in ["run", "demo"] {
        let text = message(&[command, "--directory", "/dev/shm"]);
        assert!(text.contains("--directory") && text.contains("memory"), "{text}");
    }
}

#[test]
fn help_names_every_choice() {
    for (command, words) in [
        ("run", ["--only", "--quick", "--rounds", "--results"].as_slice()),
        ("demo", &["--quick", "--large", "--only"]),
        ("workload", &["--size", "--seed", "--threads", "--json"]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_spillway-bench")).args([command, "--help"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(words.iter().all(|word| text.contains(word)), "{command}: {text}");
        assert!(!text.contains("--tiny"), "what is for tests only is not shown");
    }
}

#[test]
fn a_run_over_an_rdma_device_that_is_not_there_writes_a_report_that_says_so() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = directory.path().to_str().unwrap();
    // Root is needed; the product is not, as the device is looked for first.
    let run = ["run", "--only", "rdma", "--device", "no-such-device", "--rounds", "1"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway-bench"));
    let output = command.args(run).args(["--directory", place, "--results", place]).output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    let report = directory.path().join("rdma.md");
    assert!(output.status.success() && messages.contains(report.to_str().unwrap()), "{messages}");
    let text = std::fs::read_to_string(report).unwrap();
    assert!(text.contains("Left out") && text.contains("no-such-device"), "{text}");
}
