//! Page contents are verified at random while donors are killed, stopped and started again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::overcommit::soak_seconds;
use crate::stage::Stage;
use crate::support::{self, Running, Said};

/// What happens to donors in turn.
#[derive(Clone, Copy)]
enum Event {
    /// It is killed, and started again without its memory.
    Kill,
    /// It is stopped for longer than silence is allowed, and goes on.
    Stop,
}

/// Seconds between two events: time to notice a loss and to fill slabs again.
const PAUSE: Duration = Duration::from_secs(4);

/// A stopped donor is silent for longer than its borrowers allow (two seconds).
const STOPPED: Duration = Duration::from_secs(3);

/// A verifier under `run` on three donors.
fn start(stage: &mut Stage, redundancy: &[&str], seconds: u64) -> Running {
    start_on(stage, "160M", redundancy, seconds)
}

/// The same, with `memory` at each donor.
fn start_on(stage: &mut Stage, memory: &str, redundancy: &[&str], seconds: u64) -> Running {
    let verifier = stage.compile("verifier", &[]);
    for _ in 0..3 {
        stage.donor(memory);
    }
    let donors = stage.donor_options();
    let mut options = vec!["--local", "24M", "--lend", "96M", "--slab-size", "4M", "--key", "none"];
    options.extend(redundancy);
    options.extend(donors.iter().map(String::as_str));
    let seconds = seconds.to_string();
    Running::start(&mut stage.run(&options, &[verifier.to_str().unwrap(), "80", &seconds, "11"]))
}

/// Waits until the donors hold pages, which is when losing one means something.
fn wait_lent(stage: &Stage, running: &mut Running) {
    support::wait_until("pages to be lent", || {
        assert!(!running.has_ended(), "the run ended before anything was lent");
        let device = stage.items("device");
        (device.first()?["report"]["device"]["pages_stored"].as_u64()? > 2048).then_some(())
    });
}

/// Every copy is where it should be.
fn wait_whole(stage: &Stage, running: &mut Running) {
    support::wait_until("every copy to be made again", || {
        if running.has_ended() {
            return Some(());
        }
        let device = stage.items("device");
        let slabs = &device.first()?["report"]["device"]["slabs"];
        (slabs["degraded"] == 0 && slabs["migrating"] == 0).then_some(())
    });
}

fn go_through(stage: &mut Stage, running: &mut Running, events: &[Event], seconds: u64) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    // A page whose second copy is still being made would be lost with its first, as promised.
    wait_whole(stage, running);
    for turn in 0.. {
        if Instant::now() >= deadline || running.has_ended() {
            return;
        }
        let donor = turn % 3;
        match events[turn % events.len()] {
            Event::Kill => {
                stage.signal_donor(donor, "KILL");
                std::thread::sleep(PAUSE / 4);
                stage.start_donor(donor);
            }
            Event::Stop => {
                stage.signal_donor(donor, "STOP");
                std::thread::sleep(STOPPED);
                stage.signal_donor(donor, "CONT");
            }
        }
        std::thread::sleep(PAUSE / 2);
        wait_whole(stage, running);
    }
}

fn assert_exact(stage: &Stage, said: &Said) {
    assert!(said.status.success(), "{}\n{}", said.status, said.errors);
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    let statistics = stage.statistics();
    assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
}

#[test]
fn chaos_with_a_copy_on_disk_loses_nothing() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let seconds = soak_seconds(14);
    let backing: PathBuf = stage.disk().join("backing");
    let backing = backing.to_str().unwrap().to_owned();
    let mut running = start(&mut stage, &["--redundancy", "disk", "--backing", &backing], seconds);
    wait_lent(&stage, &mut running);
    go_through(&mut stage, &mut running, &[Event::Kill, Event::Stop], seconds);
    let said = running.end();
    assert_exact(&stage, &said);
    stage.assert_clean();
}

#[test]
fn chaos_with_two_replicas_loses_nothing() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let seconds = soak_seconds(14);
    let mut running = start(&mut stage, &["--redundancy", "replicas=2"], seconds);
    wait_lent(&stage, &mut running);
    go_through(&mut stage, &mut running, &[Event::Kill, Event::Stop], seconds);
    let said = running.end();
    assert_exact(&stage, &said);
    stage.assert_clean();
}

#[test]
fn chaos_that_takes_every_donor_leaves_the_disk() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let seconds = soak_seconds(8);
    let backing = stage.disk().join("backing").to_str().unwrap().to_owned();
    let mut running = start(&mut stage, &["--redundancy", "disk", "--backing", &backing], seconds);
    wait_lent(&stage, &mut running);
    (0..3).for_each(|donor| stage.signal_donor(donor, "KILL"));
    support::wait_until("the status to tell of it", || {
        if running.has_ended() {
            return Some(());
        }
        let health = stage.items("device").first()?["report"]["device"]["health"].as_str()?.to_owned();
        (!health.starts_with("ok")).then_some(())
    });
    stage.start_donor(1);
    let said = running.end();
    assert_exact(&stage, &said);
    stage.assert_clean();
}

#[test]
fn chaos_with_full_donors_leaves_the_rest_to_the_disk() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let seconds = soak_seconds(10);
    let backing = stage.disk().join("backing").to_str().unwrap().to_owned();
    // Together they lend 36 MiB, and the verifier leaves 56.
    let mut running = start_on(&mut stage, "12M", &["--redundancy", "disk", "--backing", &backing], seconds);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    support::wait_until("every donor to be full, and the status to say what it means", || {
        if running.has_ended() {
            return Some(());
        }
        let items = stage.items("device");
        let device = &items.first()?["report"]["device"];
        let held: u64 = device["donors"].as_array()?.iter().filter_map(|donor| donor["slabs"].as_u64()).sum();
        let told = device["health"].as_str()?.contains("wait for a copy");
        (held == 9 && told).then_some(())
    });
    for turn in 0.. {
        if Instant::now() >= deadline || running.has_ended() {
            break;
        }
        stage.signal_donor(turn % 3, "KILL");
        std::thread::sleep(PAUSE / 4);
        stage.start_donor(turn % 3);
        std::thread::sleep(PAUSE / 2);
    }
    let said = running.end();
    assert_exact(&stage, &said);
    stage.assert_clean();
}
