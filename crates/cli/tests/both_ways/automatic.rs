//! A budget that follows what the program loses to page-ins.

use crate::VIA;
use crate::both_ways::stage::Stage;
use crate::support::{self, Running, UNTIL_TOLD, skip};

const MEBIBYTES: u64 = 96;

/// So much of its idle half has left, and its budget with it.
const SHRUNK_BYTES: u64 = 80 << 20;

/// What the program may lose. The kernel's pressure leaves out most of what first comes back from swap, and what the
/// pager counts is the time of all threads.
fn slowdown() -> &'static str {
    if VIA == "pager" { "50%" } else { "10%" }
}

/// Whether the kernel counts the pressure of groups, without which there is no automatic budget over a swap device.
fn counts_pressure() -> bool {
    VIA == "pager" || std::path::Path::new("/proc/pressure/memory").exists()
}

#[test]
fn a_budget_shrinks_while_memory_is_idle_and_grows_when_all_of_it_is_used() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    if !counts_pressure() {
        return skip("pressure of memory groups (PSI)");
    }
    let verifier = stage.compile("verifier", &[]);
    let (megabytes, verifier) = (MEBIBYTES.to_string(), verifier.to_str().expect("a path of ours is text"));
    let options = ["--local", "auto", "--slowdown", slowdown(), "--lend", "256M", "--slab-size", "4M"];
    let program = [verifier, &megabytes, UNTIL_TOLD, "7", "half"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    running.wait_until("its budget to shrink", || {
        let run = stage.run_now()?;
        (run.limit_bytes? < SHRUNK_BYTES && run.usage.swapped_bytes > 8 << 20).then_some(())
    });
    running.signal("USR2");
    running.wait_until("its budget to grow", || (stage.run_now()?.limit_bytes? >= MEBIBYTES << 20).then_some(()));
    let statistics = stage.end_verifier(running);
    let faults = if VIA == "pager" { &statistics["pager"]["fill"]["count"] } else { &statistics["major_faults"] };
    assert!(faults.as_u64() > Some(0), "{statistics:#}");
    stage.assert_clean();
}

#[test]
fn a_slowdown_without_an_automatic_budget_is_a_mistake() {
    let Some(stage) = Stage::set(&[]) else { return };
    let said = support::run(&mut stage.run(&["--slowdown", "5%"], &["/bin/true"]));
    assert!(said.errors.contains("--local auto"), "{}", said.errors);
}
