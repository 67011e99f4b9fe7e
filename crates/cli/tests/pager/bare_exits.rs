//! Programs whose threads end by bare system calls: no library hears that the last of them has, and an agent is left.

use crate::both_ways::stage::Stage;
use crate::support;

/// Runs the program in one of its modes, twice beyond its budget.
fn ends(mode: &str) {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("bare_exits", &["-pthread"]);
    let options = ["--local", "24M", "--lend", "128M", "--slab-size", "4M"];
    let said = support::run(&mut stage.run(&options, &[binary.to_str().unwrap(), mode, "48"]));
    assert_eq!(said.text(), "bare exits wrong 0\n", "{}", said.errors);
    assert_eq!(said.status.code(), Some(9), "its own status: {}", said.errors);
    let paging = &stage.statistics()["pager"];
    assert!(paging["pages_out_dirty"].as_u64().unwrap() > 0, "there was an agent: {paging:#}");
    stage.assert_clean();
}

#[test]
fn a_program_whose_threads_end_by_bare_system_calls_ends() {
    ends("threads");
}

#[test]
fn a_program_of_one_thread_that_ends_by_a_bare_system_call_ends() {
    ends("one");
}
