//! The process of a device is killed under load: its keeper starts another one, which has every byte that was
//! acknowledged.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::both_ways::stage::Stage;
use crate::support::{self, wait_until};
use rustix::fs::OFlags;
use serde_json::Value;

const PAGE: usize = 4096;
const DEVICE_PAGES: u64 = (64 << 20) / PAGE as u64;
/// Pages of one write.
const RUN_PAGES: u64 = 8;

/// A page-aligned buffer, as direct I/O wants it.
#[repr(align(4096))]
struct Aligned([u8; PAGE * RUN_PAGES as usize]);

/// What was written: the last acknowledged number of each page, and the run that had no answer.
#[derive(Default)]
pub(crate) struct Written {
    acknowledged: HashMap<u64, u64>,
    unanswered: Option<(u64, u64)>,
    clock: u64,
    /// There is one copy of each page. A page of the run without an answer may be half written when the device's
    /// process is killed; then it cannot be read until it is written again.
    has_one_copy: bool,
}

fn open(device: &Path) -> File {
    let direct = OFlags::DIRECT.bits() as i32;
    File::options().read(true).write(true).custom_flags(direct).open(device).unwrap()
}

fn stamp(bytes: &mut [u8], page: u64, number: u64) {
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(page ^ number << 20 ^ (index as u64) << 56).to_le_bytes());
    }
}

impl Written {
    /// Writes runs all over the device, some again and again, until the device fails or `enough` says so.
    pub(crate) fn write(&mut self, device: &Path, mut enough: impl FnMut(u64) -> bool) {
        let file = open(device);
        let mut buffer = Box::new(Aligned([0; _]));
        for round in 0.. {
            let spread = if round % 2 == 0 { 40 } else { DEVICE_PAGES / RUN_PAGES };
            let first = (self.clock + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) % spread * RUN_PAGES;
            match self.write_run(&file, first, &mut buffer) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::InvalidInput => panic!("{error}"),
                Err(_) => return,
            }
            if enough(round) {
                return;
            }
        }
    }

    /// Writes one run, through `buffer`.
    fn write_run(&mut self, file: &File, first: u64, buffer: &mut Aligned) -> std::io::Result<()> {
        self.clock += 1;
        for page in 0..RUN_PAGES {
            stamp(&mut buffer.0[page as usize * PAGE..][..PAGE], first + page, self.clock);
        }
        self.unanswered = Some((first, self.clock));
        file.write_all_at(&buffer.0, first * PAGE as u64)?;
        self.unanswered = None;
        self.acknowledged.extend((first..first + RUN_PAGES).map(|page| (page, self.clock)));
        Ok(())
    }

    /// Every page is as acknowledged, or as in the write without an answer. What is found is the truth from here on. A
    /// page that was half written is written again.
    pub(crate) fn check(&mut self, device: &Path) {
        let file = open(device);
        let mut buffer = Box::new(Aligned([0; _]));
        let mut expected = vec![0; PAGE];
        for first in (0..DEVICE_PAGES).step_by(RUN_PAGES as usize) {
            if let Err(error) = file.read_exact_at(&mut buffer.0, first * PAGE as u64) {
                let is_unanswered = self.unanswered.is_some_and(|(start, _)| start == first);
                assert!(self.has_one_copy && is_unanswered, "pages from {first} on cannot be read: {error}");
                self.write_run(&file, first, &mut buffer).unwrap();
                file.read_exact_at(&mut buffer.0, first * PAGE as u64).unwrap();
            }
            for page in first..first + RUN_PAGES {
                let found = &buffer.0[(page - first) as usize * PAGE..][..PAGE];
                let unanswered = self.unanswered.filter(|(start, _)| (*start..start + RUN_PAGES).contains(&page));
                let numbers = [self.acknowledged.get(&page).copied(), unanswered.map(|(_, number)| number)];
                let is = |number: Option<u64>, expected: &mut [u8]| {
                    expected.fill(0);
                    if let Some(number) = number {
                        stamp(expected, page, number);
                    }
                    found == &*expected
                };
                if !is(numbers[0], &mut expected) {
                    assert!(numbers[1].is_some() && is(numbers[1], &mut expected), "page {page} is wrong: {numbers:?}");
                    self.acknowledged.extend(numbers[1].map(|number| (page, number)));
                }
            }
        }
        self.unanswered = None;
    }
}

fn device_on(stage: &mut Stage, redundancy: &str) -> PathBuf {
    for _ in 0..3 {
        stage.donor("160M");
    }
    let donors = stage.donor_options();
    let backing = stage.disk().join("backing").display().to_string();
    let mut options =
        vec!["device", "on", "--size", "64M", "--slab-size", "4M", "--key", "none", "--redundancy", redundancy];
    if redundancy.contains("disk") {
        options.extend(["--backing", &backing]);
    }
    options.extend(donors.iter().map(String::as_str));
    PathBuf::from(support::run(&mut stage.spillway(&options)).done("device on").text().trim())
}

fn report(stage: &Stage) -> Option<Value> {
    stage.items("device").first().map(|item| item.report.clone()).filter(Value::is_object)
}

/// How often the device's process was started again, as its status says.
fn restarts(report: &Value) -> u64 {
    let notes = report["notes"].as_array().cloned().unwrap_or_default();
    let note = notes.iter().filter_map(Value::as_str).find(|note| note.contains("was started again"));
    note.map_or(0, |note| note.split(", ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap())
}

/// The process that owns the device's entry.
fn keeper(stage: &Stage) -> u32 {
    let owner = fs::read(stage.registry().join("device-device/owner.json")).unwrap();
    serde_json::from_slice::<Value>(&owner).unwrap()["pid"].as_u64().unwrap() as u32
}

/// Its child, which serves.
fn server(stage: &Stage) -> u32 {
    let keeper = keeper(stage);
    wait_until("the keeper to have a child", || {
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
        children.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// Waits for the process that follows after `count` others; where its device is.
fn await_restart(stage: &Stage, count: u64) -> PathBuf {
    wait_until("the device to be served again", || {
        let report = report(stage)?;
        let path = report["device"]["path"].as_str().filter(|path| path.starts_with("/dev"))?;
        (restarts(&report) > count).then(|| PathBuf::from(path))
    })
}

/// Tells what the device said of itself when its test fails.
struct TellsOnFailure {
    registry: PathBuf,
}

impl Drop for TellsOnFailure {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        println!("the log of the device:");
        println!("{}", fs::read_to_string(self.registry.join("device-device.log")).unwrap_or_default());
        let said = support::run(support::spillway(&self.registry).args(["status", "--json"]));
        println!("its status: {}", said.text());
    }
}

fn survives(redundancy: &str, kills: u32) {
    let Some(mut stage) = Stage::set_beside_others(&[]) else { return };
    let mut device = device_on(&mut stage, redundancy);
    let _tells = TellsOnFailure { registry: stage.registry() };
    let mut written = Written { has_one_copy: redundancy == "none", ..Written::default() };
    written.write(&device, |round| round > 3000);
    for _ in 0..kills {
        // Where the machine is busy, one may also have failed to start.
        let before = restarts(&wait_until("the device's report", || report(&stage)));
        let server = server(&stage);
        // Killed while writes are on their way; the block device ends in errors, which ends the writing.
        let mut killer = None;
        written.write(&device, |round| {
            if round == 300 {
                killer = Some(std::thread::spawn(move || support::signal(server, "KILL")));
            }
            assert!(round < 10_000_000, "the device of a killed process goes on");
            false
        });
        killer.expect("the device ended before it was killed").join().unwrap();
        device = await_restart(&stage, before);
        written.check(&device);
    }
    written.write(&device, |round| round > 500);
    written.check(&device);
    let health = stage.device()["health"].as_str().unwrap().to_owned();
    assert!(!health.contains("lost") && !health.contains("given up"), "{health}");
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    stage.assert_clean();
}

/// More often than a device is started that serves nothing.
#[test]
fn a_device_that_is_killed_twelve_times_while_it_serves_has_every_byte() {
    survives("disk", 12);
}

#[test]
fn a_killed_device_with_replicas_has_every_byte() {
    survives("replicas=2", 3);
}

#[test]
fn a_killed_device_whose_only_copies_are_at_donors_has_every_byte() {
    survives("none", 3);
}

#[test]
fn a_device_whose_keeper_died_too_is_mended_and_its_donors_get_their_memory_back() {
    let Some(mut stage) = Stage::set_beside_others(&[]) else { return };
    let device = device_on(&mut stage, "none");
    Written::default().write(&device, |round| round > 200);
    wait_until("the donors to lend", || (stage.lent_bytes()? > 0).then_some(()));
    let (keeper, server) = (keeper(&stage), server(&stage));
    // The keeper first, or it starts another server.
    support::signal(keeper, "KILL");
    support::signal(server, "KILL");
    wait_until("the device to be mended", || {
        support::run(&mut stage.spillway(&["doctor", "--mend", "--json"]));
        stage.items("device").is_empty().then_some(())
    });
    // Not at once: another process of the device might have come for it.
    stage.wait_returned();
    stage.assert_clean();
}

#[test]
fn a_device_without_its_keeper_serves_on_and_ends_when_it_is_unused() {
    let Some(mut stage) = Stage::set_beside_others(&[]) else { return };
    let device = device_on(&mut stage, "none");
    let mut written = Written::default();
    written.write(&device, |round| round > 50);
    let (keeper, server) = (keeper(&stage), server(&stage));
    let user = open(&device);
    support::signal(keeper, "KILL");
    wait_until("the keeper to be gone", || (!is_alive(keeper)).then_some(()));
    written.check(&device);
    assert!(is_alive(server), "a device in use is served without its keeper");
    drop(user);
    wait_until("the server to end by itself", || (!is_alive(server)).then_some(()));
    support::run(&mut stage.spillway(&["doctor", "--mend", "--json"])).done("doctor --mend");
    stage.wait_returned();
    stage.assert_clean();
}

fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A device each of whose processes fails at its start, once its keeper has given it up; what to rename to mend it.
fn given_up(stage: &Stage) -> (PathBuf, PathBuf) {
    // Without its backing file no process can go on with the device.
    let (backing, aside) = (stage.disk().join("backing"), stage.disk().join("aside"));
    fs::rename(&backing, &aside).unwrap();
    support::signal(server(stage), "KILL");
    let health = wait_until("the keeper to give up", || {
        let report = report(stage).filter(|report| report["given_up"] == true)?;
        Some(report["device"]["health"].as_str()?.to_owned())
    });
    assert!(health.contains("its pages are kept") && health.contains("doctor --mend"), "{health}");
    (aside, backing)
}

/// A process that cannot live is given up after some tries; its pages are kept, and are served again on demand.
#[test]
fn a_crash_loop_ends_in_errors_and_doctor_brings_the_pages_back() {
    let Some(mut stage) = Stage::set_beside_others(&[]) else { return };
    let device = device_on(&mut stage, "disk");
    let mut written = Written::default();
    written.write(&device, |round| round > 500);
    let keeper = keeper(&stage);
    let user = open(&device);
    let (aside, backing) = given_up(&stage);
    // It does not wait for a process that does not come.
    let read = user.read_exact_at(&mut Box::new(Aligned([0; _])).0, 0);
    assert!(read.is_err(), "no process can have read it");
    drop(user);
    let log = fs::read_to_string(stage.registry().join("device-device.log")).unwrap();
    assert!(log.contains("given up"), "{log}");
    fs::rename(&aside, &backing).unwrap();
    // It may find more to mend on this machine.
    let mended = support::run(&mut stage.spillway(&["doctor", "--mend"]));
    assert!(mended.text().contains("is served again, at /dev/"), "{}\n{}", mended.text(), mended.errors);
    let device = PathBuf::from(report(&stage).unwrap()["device"]["path"].as_str().unwrap());
    written.check(&device);
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    assert!(!is_alive(keeper), "nothing of the device is left");
    stage.assert_clean();
}

#[test]
fn a_device_that_was_given_up_can_be_switched_off() {
    let Some(mut stage) = Stage::set_beside_others(&[]) else { return };
    let device = device_on(&mut stage, "disk");
    Written::default().write(&device, |round| round > 50);
    let keeper = keeper(&stage);
    given_up(&stage);
    support::run(&mut stage.spillway(&["device", "off"])).done("device off");
    assert!(!is_alive(keeper), "nothing of the device is left");
    stage.assert_clean();
}
