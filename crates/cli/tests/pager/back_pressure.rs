//! Rule 15: answers wait while the budget is used up, so that no process that writes faster than pages leave goes
//! beyond it.

use crate::both_ways::shares::{assert_held, assert_left};
use crate::both_ways::stage::Stage;
use crate::support;

#[test]
fn a_program_that_fills_memory_as_fast_as_it_can_waits_for_its_pages_to_leave() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let binary = stage.compile("exerciser", &[]);
    let program = [binary.to_str().unwrap(), "touch", "512", "/nonexistent"];
    assert_held(|| {
        let options = ["--local", "64M", "--lend", "768M", "--slab-size", "4M"];
        let said = support::run(&mut stage.run(&options, &program)).done("a fast writer");
        assert_eq!(said.text(), "touch 131072 pages as written\n");
        let statistics = stage.statistics();
        assert_left(&statistics);
        assert!(statistics["pager"]["held_back"].as_u64() > Some(0), "it never waited: {statistics:#}");
        statistics
    });
    stage.assert_clean();
}
