//! `spillway top` as a user sees it: on a terminal, as text, and as lines.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use serde_json::Value;

use super::pseudo_terminal::PseudoTerminal;
use super::stage::{COPIED_BYTES, Stage};
use crate::support::{self, has_program, skip, wait_until};

#[test]
fn the_live_view_shows_a_device_and_its_donors_and_obeys_keys() {
    let Some(mut stage) = Stage::set(&["nbdcopy", "setsid"]) else { return };
    stage.device_on();
    let mut top = PseudoTerminal::start(&stage.spillway(&["top", "--interval", "0.2"]));
    // The registry's path is long, so only the end of an address is shown.
    let is_whole = |screen: &str| {
        screen.contains("spillway top")
            && screen.lines().any(|line| line.starts_with("disk") && line.contains("device"))
            && screen.matches("agent.sock").count() == 1
            && screen.contains("second.sock")
            && screen.contains("agent: ")
    };
    let screen = top.wait_for("the device and its donors", is_whole);
    assert!(!screen.contains("DEGRADED"), "{screen}");
    stage.copy();
    top.wait_for("what was copied", |screen| {
        screen.lines().any(|line| line.starts_with("disk") && line.contains(" 8 MiB "))
    });
    top.press("h");
    top.wait_for("the help", |screen| screen.contains("any key closes it"));
    top.press("x");
    top.wait_for("the help to go", |screen| !screen.contains("any key closes it"));
    top.press("/second\r");
    let screen =
        top.wait_for("the filter", |screen| screen.contains("filter: second") && !screen.contains("filter: second_"));
    assert!(screen.contains("second.sock") && !screen.contains("agent.sock"), "{screen}");
    top.press("\x1b");
    top.wait_for("all rows again", |screen| !screen.contains("filter:") && screen.contains("agent.sock"));
    top.press("s");
    top.wait_for("another order", |screen| screen.contains("by out") && screen.contains("agent.sock"));
    stage.kill_second();
    top.wait_for("what is degraded", |screen| {
        screen.contains("DEGRADED") && screen.lines().any(|line| line.starts_with("!disk")) && screen.contains("lost")
    });
    top.press("q");
    assert!(top.end().success());
    wait_until("the terminal to be as before", || top.is_as_before().then_some(()));
}

#[test]
fn a_live_view_that_is_told_to_end_puts_the_terminal_back() {
    if !has_program("setsid") {
        return skip("setsid");
    }
    let registry = support::registry_directory();
    for (how, signal) in [("TERM", Some(15)), ("\x03", None)] {
        let mut command = support::spillway(&registry.path().join("r"));
        let mut top = PseudoTerminal::start(command.arg("top"));
        top.wait_for("an idle machine", |screen| screen.contains("nothing borrows memory here"));
        assert!(!top.is_as_before(), "{how:?}");
        if signal.is_some() {
            top.signal(how);
        } else {
            top.press(how);
        }
        let ending = top.end();
        assert_eq!((ending.signal(), ending.success()), (signal, signal.is_none()), "{how:?}");
        wait_until("the terminal to be as before", || top.is_as_before().then_some(()));
    }
}

#[test]
fn one_picture_and_lines_of_json_need_no_terminal() {
    let Some(stage) = Stage::set(&["nbdcopy"]) else { return };
    stage.device_on();
    let mut lines = stage
        .spillway(&["top", "--json", "--interval", "0.1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(lines.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&reader.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!((&first["programs"][0]["name"], first["total"]["bytes_in"].as_f64()), (&"disk".into(), Some(0.0)));
    assert_eq!(first["donors"].as_array().unwrap().len(), 2);
    stage.copy();
    // What passed, added up over the lines, is what was copied.
    let (mut came, mut then) = (0.0, first["seconds"].as_f64().unwrap());
    wait_until("what was copied", || {
        let line = next();
        let now = line["seconds"].as_f64().unwrap();
        came += line["total"]["bytes_in"].as_f64().unwrap() * (now - then);
        then = now;
        (came >= 0.8 * COPIED_BYTES as f64).then_some(())
    });
    drop(reader);
    let ending = wait_until("it to end without a reader", || lines.try_wait().unwrap());
    assert!(ending.success(), "{ending}");

    let said = support::run(&mut stage.spillway(&["top", "--once", "--interval", "0.1"])).done("top --once");
    let picture = said.text();
    assert!(
        picture.contains("PROGRAM/DEVICE") && picture.contains("\ndisk ") && !picture.contains('\x1b'),
        "{picture}"
    );
    let said = support::run(&mut stage.spillway(&["top"]));
    assert_eq!(said.status.code(), Some(2));
    assert!(said.errors.contains("--once") && said.errors.contains("--json"), "{}", said.errors);
}
