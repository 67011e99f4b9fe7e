//! Page contents are verified at random while donors are killed, stopped and started again.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::{Running, UNTIL_TOLD, soak_seconds};

/// Between two events: time to fill slabs again.
const PAUSE: Duration = Duration::from_secs(1);

/// The verifier of pages: what a verifier is told, but for where each test begins.
#[derive(Clone, Copy)]
enum Family {
    /// One program.
    Alone,
    /// A program and its child, which begin with the same pages, and each goes on with its own: as much together as
    /// one alone.
    Forked,
}

impl Family {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Alone => &["80", UNTIL_TOLD, "11"],
            Self::Forked => &["40", UNTIL_TOLD, "13", "forked"],
        }
    }
}

/// Verifiers under `run` on three donors, until [`end`].
fn start(stage: &mut Stage, redundancy: &[&str], family: Family) -> Running {
    start_on(stage, "160M", redundancy, family)
}

/// The same, with `memory` at each donor.
fn start_on(stage: &mut Stage, memory: &str, redundancy: &[&str], family: Family) -> Running {
    let verifier = stage.compile("verifier", &[]);
    for _ in 0..3 {
        stage.donor(memory);
    }
    let donors = stage.donor_options();
    let mut options = vec!["--local", "24M", "--lend", "96M", "--slab-size", "4M", "--key", "none"];
    options.extend(redundancy);
    options.extend(donors.iter().map(String::as_str));
    let program = [&[verifier.to_str().unwrap()], family.arguments()].concat();
    Running::start(&mut stage.run(&options, &program))
}

/// The verifiers' end, and nothing left behind, neither here nor at donors.
fn end(stage: &Stage, running: Running) {
    stage.end_verifier(running);
    stage.wait_returned();
    stage.assert_clean();
}

/// Waits until the device's status is as `reached` wants it, while the verifier works.
fn wait_device(stage: &Stage, running: &mut Running, what: &str, reached: impl Fn(&Value) -> Option<bool>) {
    running.wait_until(what, || reached(&stage.device_now())?.then_some(()));
}

/// Waits until the donors hold pages, which is when losing one means something.
fn wait_lent(stage: &Stage, running: &mut Running) {
    wait_device(stage, running, "pages to be lent", |device| Some(device["pages_stored"].as_u64()? > 2048));
}

/// Every copy is where it should be.
fn wait_whole(stage: &Stage, running: &mut Running) {
    wait_device(stage, running, "every copy to be made again", |device| {
        Some(device["slabs"]["degraded"] == 0 && device["slabs"]["migrating"] == 0)
    });
}

/// The loss of a donor is noticed.
fn wait_lost(stage: &Stage, running: &mut Running, donor: usize) {
    wait_device(stage, running, "the loss to be noticed", |device| {
        Some(device["donors"][donor]["state"].as_str()? != "connected")
    });
}

/// One donor is killed, and another one stopped; in a soak so on in turn.
fn go_through(stage: &mut Stage, running: &mut Running) {
    let deadline = Instant::now() + Duration::from_secs(soak_seconds(0));
    wait_lent(stage, running);
    // A page whose second copy is still being made would be lost with its first, as promised.
    wait_whole(stage, running);
    for turn in 0.. {
        if Instant::now() >= deadline && turn >= 2 {
            return;
        }
        let donor = turn % 3;
        if turn % 2 == 0 {
            stage.signal_donor(donor, "KILL");
            wait_lost(stage, running, donor);
            stage.start_donor(donor);
        } else {
            // Until its borrower has had enough of its silence.
            stage.signal_donor(donor, "STOP");
            wait_lost(stage, running, donor);
            stage.signal_donor(donor, "CONT");
        }
        std::thread::sleep(PAUSE);
        wait_whole(stage, running);
    }
}

/// A backing file on this stage's disk.
fn backing(stage: &Stage) -> String {
    stage.disk().join("backing").to_str().unwrap().to_owned()
}

#[test]
fn chaos_with_a_copy_on_disk_loses_nothing() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let backing = backing(&stage);
    let mut running = start(&mut stage, &["--redundancy", "disk", "--backing", &backing], Family::Alone);
    go_through(&mut stage, &mut running);
    end(&stage, running);
}

#[test]
fn chaos_while_a_forked_child_lives_loses_nothing_of_either() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start(&mut stage, &["--redundancy", "replicas=2"], Family::Forked);
    go_through(&mut stage, &mut running);
    end(&stage, running);
}

/// More than twice as long as a silent donor is waited for whose pages have another copy.
const STOPPED: Duration = Duration::from_secs(5);

/// Every donor is stopped for a while, so nothing has a copy within reach: the process that needs a page waits. They
/// go on one after the other, and of each the control channel before its data connections, or after them.
fn stop_all_for_a_while(redundancy: &str, transport: &str) {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let mut running = start(&mut stage, &["--redundancy", redundancy, "--transport", transport], Family::Alone);
    wait_lent(&stage, &mut running);
    (0..3).for_each(|donor| stage.signal_donor(donor, "STOP"));
    std::thread::sleep(STOPPED);
    assert!(!running.has_ended(), "the run ended: {}", running.last_errors());
    (0..3).for_each(|donor| stage.signal_donor(donor, "CONT"));
    let until = Instant::now() + STOPPED;
    wait_device(&stage, &mut running, "the donors to be as before", |device| {
        assert_eq!(device["pages_lost"], 0, "{device}");
        let donors = device["donors"].as_array()?;
        Some(Instant::now() > until && donors.iter().all(|donor| donor["state"] == "connected"))
    });
    end(&stage, running);
}

#[test]
#[ignore = "as much as its neighbour does over TCP: `make soak` runs it"]
fn donors_that_are_stopped_for_a_while_lose_nothing_without_another_copy() {
    stop_all_for_a_while("none", "auto");
}

#[test]
fn donors_over_tcp_that_are_stopped_for_a_while_lose_nothing_without_another_copy() {
    stop_all_for_a_while("none", "tcp");
}

/// Each must be found silent before its data connections are given up, half a second later: a machine that lets one
/// thread wait for so long and not the other loses pages here.
#[test]
#[ignore = "a machine without a free processor may fail it: `make soak` runs it"]
fn replicas_that_are_all_stopped_for_a_while_lose_nothing() {
    stop_all_for_a_while("replicas=2", "tcp");
}

#[test]
fn chaos_that_takes_every_donor_leaves_parent_and_child_the_disk() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let backing = backing(&stage);
    let mut running = start(&mut stage, &["--redundancy", "disk", "--backing", &backing], Family::Forked);
    wait_lent(&stage, &mut running);
    (0..3).for_each(|donor| stage.signal_donor(donor, "KILL"));
    wait_device(&stage, &mut running, "the status to tell of it", |device| {
        Some(!device["health"].as_str()?.starts_with("ok"))
    });
    stage.start_donor(1);
    wait_device(&stage, &mut running, "the donor to be found again", |device| {
        Some(device["donors"][1]["state"] == "connected")
    });
    end(&stage, running);
}

/// Every donor is full, so that some pages have fewer copies than they should; then one donor after the other is
/// killed.
fn chaos_with_full_donors(redundancy: &str, family: Family) {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let backing = backing(&stage);
    // Together they lend 36 MiB, and the verifiers leave 56.
    let mut running = start_on(&mut stage, "12M", &["--redundancy", redundancy, "--backing", &backing], family);
    wait_device(&stage, &mut running, "every donor to be full, and the status to say what it means", |device| {
        let held: u64 = device["donors"].as_array()?.iter().filter_map(|donor| donor["slabs"].as_u64()).sum();
        Some(held == 9 && device["health"].as_str()?.contains("wait for a copy"))
    });
    let deadline = Instant::now() + Duration::from_secs(soak_seconds(0));
    for turn in 0.. {
        if Instant::now() >= deadline && turn >= 2 {
            break;
        }
        stage.signal_donor(turn % 3, "KILL");
        wait_lost(&stage, &mut running, turn % 3);
        stage.start_donor(turn % 3);
        std::thread::sleep(PAUSE);
    }
    end(&stage, running);
}

#[test]
fn chaos_with_full_donors_leaves_second_copies_to_the_disk() {
    chaos_with_full_donors("disk+replicas=2", Family::Alone);
}

#[test]
fn chaos_with_full_donors_loses_nothing_of_parent_and_child() {
    chaos_with_full_donors("disk", Family::Forked);
}
