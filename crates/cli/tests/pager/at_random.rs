//! Programs that change their memory at random from many threads, with every word checked.

use std::path::Path;

use crate::both_ways::shares::assert_share;
use crate::both_ways::stress::{self, stress};
use crate::support::soak_seconds;

#[test]
fn stress_with_few_threads_finds_no_wrong_word() {
    stress("50%", "2", 1);
}

#[test]
fn stress_with_many_threads_finds_no_wrong_word() {
    stress("25%", "8", 2);
}

/// As many as the program can have.
#[test]
fn stress_with_32_threads_finds_no_wrong_word() {
    stress("25%", "32", 5);
}

#[test]
#[ignore = "as much as its neighbour does at a quarter: `make soak` runs it"]
fn stress_with_32_threads_at_half_finds_no_wrong_word() {
    stress("50%", "32", 4);
}

/// More fault threads than this machine may have CPUs for: what they do to one another is what matters.
fn stress_with_several_fault_threads(transport: &str) {
    let options = ["--fault-threads", "4", "--transport", transport];
    let Some(statistics) = stress::stress_with(&options, "25%", "8", 3) else { return };
    assert!(statistics["pager"]["faults_helped"].as_u64() > Some(0), "{statistics:#}");
}

#[test]
fn stress_with_several_fault_threads_finds_no_wrong_word() {
    stress_with_several_fault_threads("tcp");
}

#[test]
#[ignore = "as much as its neighbour does over TCP: `make soak` runs it"]
fn stress_with_several_fault_threads_over_shared_memory_finds_no_wrong_word() {
    stress_with_several_fault_threads("shm");
}

/// All of its threads change mappings without a pause, so it is given one where the kernel lets nothing leave else.
#[test]
fn memory_that_moves_to_where_other_memory_was_a_moment_ago_keeps_its_words() {
    let arguments = |_: &Path| vec!["96".into(), soak_seconds(3).to_string(), "8".into()];
    let Some((statistics, _)) = stress::exact("movers", &[], "25%", &arguments) else { return };
    assert_share(&statistics);
}
