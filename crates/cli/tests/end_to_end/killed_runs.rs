//! What a run over a swap device leaves to others: processes in the background, and what was killed.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::both_ways::manners::SMALL;
use crate::both_ways::programs::{self, Kind};
use crate::both_ways::stage::Stage;
use crate::support::{self, Running, wait_until};

/// So much of the verifiers' memory is lent before anything happens.
const LENT_BYTES: u64 = 8 << 20;

#[test]
fn programs_left_in_the_background_live_on() {
    let Some(stage) = Stage::set(&["sh"]) else { return };
    let file = stage.disk().join("pid");
    let script = format!("sleep 1000 >/dev/null 2>&1 & echo $! > {}", file.display());
    support::run(&mut stage.run(&SMALL, &["sh", "-c", &script])).done("run");
    let pid = std::fs::read_to_string(file).unwrap();
    let alive = Command::new("kill").args(["-0", pid.trim()]).status().unwrap().success();
    support::signal(pid.trim().parse().unwrap(), "KILL");
    assert!(alive, "the background process ended with the run");
    stage.assert_clean();
}

#[test]
fn a_killed_run_is_taken_down_by_others() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let program = [verifier.to_str().unwrap(), "64", "1000", "1"];
    let options = ["--local", "16M", "--lend", "128M", "--slab-size", "4M"];
    let mut running = Running::start(&mut stage.run(&options, &program));
    stage.wait_lent(&mut running, LENT_BYTES);
    running.signal("KILL");
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9));
    // Its device's process notices, and everything goes without a command.
    wait_until("the remains to go", || stage.status().is_empty().then_some(()));
    stage.assert_clean();
}

/// A run that swaps, until its devices and donors lend.
fn lending(stage: &Stage, frontend: &str) -> Running {
    let verifier = stage.compile("verifier", &[]);
    let program = [verifier.to_str().unwrap(), "48", "1000", "2"];
    let options = ["--local", "16M", "--lend", "128M", "--slab-size", "4M", "--frontend", frontend];
    let mut running = Running::start(&mut stage.run(&options, &program));
    stage.wait_lent(&mut running, LENT_BYTES);
    running
}

/// The program loses its pages and its run; whatever it was doing, it ends and the next mending removes the rest.
fn assert_mended(stage: &Stage) {
    wait_until("mending to succeed", || {
        let said = support::run(&mut stage.spillway(&["doctor", "--mend", "--json"]));
        (said.status.success() && stage.status().is_empty()).then_some(())
    });
    stage.assert_clean();
}

#[test]
fn a_run_killed_with_all_its_helpers_is_mended() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let running = lending(&stage, "auto");
    let helpers: Vec<u32> =
        ["device", "donor"].into_iter().flat_map(|kind| stage.items(kind)).filter_map(|item| item.pid).collect();
    assert_eq!(helpers.len(), 4);
    for pid in helpers {
        support::signal(pid, "KILL");
    }
    running.signal("KILL");
    running.end();
    assert_mended(&stage);
}

/// As when a container was removed: only the kernel tells of the swap device then.
#[test]
fn a_killed_run_whose_registry_is_gone_is_mended() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let areas = || std::fs::read_to_string("/proc/swaps").unwrap().lines().count();
    let before = areas();
    let running = lending(&stage, "loop-fuse");
    support::processes::kill_all_with(&stage.registry());
    running.end();
    assert_eq!(areas(), before + 1, "its swap area is on");
    std::fs::remove_dir_all(stage.registry()).unwrap();
    assert_mended(&stage);
    assert_eq!(areas(), before, "it is off");
}

#[test]
fn static_programs_need_nothing_of_their_own() {
    programs::exerciser(Kind::Steady, "mremap", &["-static"]);
}
