//! A donor that dies and comes back: what the log says of it, to the journal and to a file, and what a terminal shows
//! while copies are made.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use spillway_report::kind::Kind;

use super::pseudo_terminal::PseudoTerminal;
use super::stage::Stage;
use crate::support::{Running, wait_until};

/// Waits until the log has lines that contain these, in any order.
fn wait_for_lines(log: &Path, expected: &[&str]) {
    wait_until(&format!("{expected:?} in the log"), || {
        let text = fs::read_to_string(log).unwrap();
        expected.iter().all(|expected| text.lines().any(|line| is_like(line, expected))).then_some(())
    });
}

/// `expected` is the begin of a line, and what it contains, with a bar between the two.
fn is_like(line: &str, expected: &str) -> bool {
    let (begin, within) = expected.split_once('|').unwrap_or(("", expected));
    line.starts_with(begin) && line.contains(within)
}

/// Serves the device of `stage` with this file as standard error, and says which file that is as systemd does.
fn device_on(stage: &Stage, log: &Path, inode_added: u64) {
    let file = File::create(log).unwrap();
    let metadata = file.metadata().unwrap();
    let stream = format!("{}:{}", metadata.dev(), metadata.ino() + inode_added);
    let mut command = stage.device_command();
    let status = command.env("JOURNAL_STREAM", stream).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).status();
    assert!(status.unwrap().success(), "{}", fs::read_to_string(log).unwrap());
}

#[test]
fn the_journal_gets_each_change_of_state_with_its_priority() {
    let Some(mut stage) = Stage::set(&["nbdcopy"]) else { return };
    let log = stage.file("journal");
    device_on(&stage, &log, 0);
    stage.copy();
    stage.kill_second();
    let lost = ["<4>|is lost (", "<4>| slabs lack a copy", "<4>|device 'disk': health: "];
    wait_for_lines(&log, &lost);
    stage.start_second();
    wait_for_lines(&log, &["<6>|second.sock is connected", "<6>|every slab has all its copies", "<6>|health: ok"]);
    let text = fs::read_to_string(&log).unwrap();
    // Besides, the command itself says what its device lacks.
    let mut logged = text.lines().filter(|line| !line.starts_with("spillway: "));
    assert!(logged.all(|line| line.starts_with('<')), "each line of the log has a priority: {text}");
    assert_eq!(text.matches("lack a copy").count(), 1, "once: {text}");
    stage.end_agent();
}

#[test]
fn a_file_that_is_not_the_journal_gets_plain_lines() {
    let Some(mut stage) = Stage::set(&["nbdcopy"]) else { return };
    // Standard error of the command is not the journal, so the device has a log file of its own.
    device_on(&stage, &stage.file("errors"), 1);
    stage.copy();
    stage.kill_second();
    let log = stage.registry().join("device-disk.log");
    wait_for_lines(&log, &["WARN", " slabs lack a copy"]);
    assert!(!fs::read_to_string(&log).unwrap().lines().any(|line| line.starts_with('<')));
    stage.end_agent();
}

#[test]
fn a_terminal_shows_how_far_the_missing_copies_are_and_a_pipe_gets_lines() {
    let Some(mut stage) = Stage::set(&["nbdcopy"]) else { return };
    stage.device_on();
    stage.copy();
    stage.kill_second();
    wait_until("copies to be missing", || {
        let items = stage.items();
        let report = items.iter().find(|item| item.kind == Kind::Device)?.read().ok()?;
        (report.volume()?.slabs.degraded > 0).then_some(())
    });
    let mut terminal = PseudoTerminal::start(&stage.spillway(&["status", "--wait"]));
    let lines = Running::start(&mut stage.spillway(&["status", "--wait"]));
    let silent = Running::start(&mut stage.spillway(&["status", "--wait", "--json"]));
    let shown = terminal.wait_for("the progress", |screen| screen.contains("missing copies: 0 %: 0 B of "));
    assert_eq!(shown.matches("missing copies").count(), 1, "one line, redrawn: {shown}");
    // Time for a pipe's first line.
    terminal.wait_for("a stall to be told", |screen| screen.contains("nothing for 1"));
    stage.start_second();
    assert!(terminal.end().success());
    let last = terminal.contents();
    assert!(!last.contains("missing copies") && last.contains("12 MiB lent"), "the line is gone: {last}");
    let said = lines.end().done("status --wait into a pipe");
    let told: Vec<&str> = said.errors.lines().filter(|line| line.contains("missing copies: ")).collect();
    assert!((1..200).contains(&told.len()) && !said.errors.contains('\r'), "{}", said.errors);
    assert!(said.text().contains("health: ok"), "{}", said.text());
    let said = silent.end().done("status --wait --json");
    assert!(said.errors.is_empty(), "{}", said.errors);
    serde_json::from_slice::<serde_json::Value>(&said.output).unwrap();
    stage.end_agent();
}
