//! A budget that follows what the program loses to page-ins.

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, UNTIL_TOLD};

const MEBIBYTES: u64 = 96;

/// So much of its idle half has left, and its budget with it.
const SHRUNK_BYTES: u64 = 80 << 20;

#[test]
fn a_budget_shrinks_while_memory_is_idle_and_grows_when_all_of_it_is_used() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let (megabytes, verifier) = (MEBIBYTES.to_string(), verifier.to_str().expect("a path of ours is text"));
    let options = ["--local", "auto", "--slowdown", "50%", "--lend", "256M", "--slab-size", "4M"];
    let program = [verifier, &megabytes, UNTIL_TOLD, "7", "half"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    let run = |pointer: &str| stage.items("run").first()?.pointer(pointer).and_then(Value::as_u64);
    running.wait_until("its budget to shrink", || {
        let (limit, lent) = (run("/report/limit_bytes")?, run("/report/usage/swapped_bytes")?);
        (limit < SHRUNK_BYTES && lent > 8 << 20).then_some(())
    });
    running.signal("USR2");
    running.wait_until("its budget to grow", || (run("/report/limit_bytes")? >= MEBIBYTES << 20).then_some(()));
    let statistics = stage.end_verifier(running);
    assert!(statistics["pager"]["fill"]["count"].as_u64() > Some(0), "{statistics:#}");
    stage.assert_clean();
}

#[test]
fn a_slowdown_without_an_automatic_budget_is_a_mistake() {
    let Some(stage) = Stage::set(&[]) else { return };
    let said = support::run(&mut stage.run(&["--slowdown", "5%"], &["/bin/true"]));
    assert!(said.errors.contains("--local auto"), "{}", said.errors);
}
