//! The commands as a user gives them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::{Command, Output};

fn research(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spillway-research")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_recorded_trace_is_replayed_against_what_is_asked_for() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/traces/redis.trace.gz");
    let output = research(&["replay", "--compare", "blocks", "--local", "50", trace]);
    let said = text(&output.stdout);
    for part in ["# blocks", "redis L(50): time", "blocks-32", "elastic", "read-around"] {
        assert!(said.contains(part), "{part} is missing in\n{said}{}", text(&output.stderr));
    }
    assert!(!said.contains("L(25)") && !said.contains("# replacement"), "{said}");
}

#[test]
fn mistakes_say_what_to_do() {
    for (arguments, status, expected) in [
        (["run", "--only", "magic"].as_slice(), 1, "hpbd"),
        (&["replay", "/nonexistent/trace"], 1, "/nonexistent/trace"),
        (&["replay", concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")], 1, "not a trace"),
        (&["replay", "--compare", "magic"], 2, "eager-eviction"),
        (&["replay", "--local", "0"], 2, "--local"),
        (&["cluster", "storm"], 2, "slab-size"),
    ] {
        let output = research(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn what_the_simulator_is_asked_is_answered() {
    let said = text(&research(&["cluster", "balance", "--machines", "8", "--seed", "3"]).stdout);
    assert!(said.contains("unplaced: 0") && said.contains("messages_per_slab"), "{said}");
}
