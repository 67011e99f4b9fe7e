//! A program has forked children, the youngest of which is replaced all the time, and each of them knows every word
//! of its pages: the pager is killed, or its guardian, while all of them have pages elsewhere.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::both_ways::stage::Stage;
use crate::pager::violence::guardian_of;
use crate::support::processes::{EndedAtLast, executing, pages_away};
use crate::support::{self, Running, UNTIL_TOLD, wait_until};

/// Memory of the program and of each child.
const PROGRAM_MIB: u64 = 32;

/// The program and at least two of its children.
const MEMBERS_MIN: usize = 3;

/// So many of each member's 8,192 pages are elsewhere, as far as its budget is kept: all members together have room
/// for 6,144.
const PAGES_AWAY: usize = 1024;

/// So many pages come back, to all members together, while no process is killed.
const PAGES_READ: u64 = 10_000;

fn start(stage: &mut Stage, verifier: &Path) -> Running {
    let size = PROGRAM_MIB.to_string();
    stage.run_on_a_donor(&[verifier.to_str().unwrap(), &size, UNTIL_TOLD, "19", "forking"])
}

/// Waits until there are several members, and none of them has all of its pages.
fn wait_away(running: &mut Running, verifier: &Path) {
    running.wait_until("every member's pages to be elsewhere", || {
        let members = executing(verifier);
        let is_beyond = |pid: &u32| pages_away(*pid, PROGRAM_MIB << 20).is_some_and(|pages| pages > PAGES_AWAY);
        (members.len() >= MEMBERS_MIN && members.iter().all(is_beyond)).then_some(())
    });
}

/// Waits until members have read pages that were elsewhere, from now on.
fn wait_read(stage: &Stage, running: &mut Running) {
    let reads = || stage.pager_now().map(|pager| pager.fill.count);
    let before = running.wait_until("its statistics", reads);
    running.wait_until("pages to be read", || (reads()? > before + PAGES_READ).then_some(()));
}

/// Every member ends with the pager, none of them has read a wrong word, and the donor has its memory back.
fn kill_pager(stage: &Stage, mut running: Running, verifier: &Path) {
    running.wait_until("the donor to tell of it", || (stage.lent_bytes()? > 0).then_some(()));
    wait_away(&mut running, verifier);
    running.signal("KILL");
    wait_until("every member to end", || executing(verifier).is_empty().then_some(()));
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9));
    assert!(!said.errors.contains("wrong"), "{}", said.errors);
    stage.wait_returned();
    wait_until("the guardian to remove what is left", || stage.items("run").is_empty().then_some(()));
    stage.assert_clean();
}

#[test]
fn a_killed_pager_takes_parent_and_children_along_before_they_read_a_wrong_word() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let _family = EndedAtLast(&verifier);
    let mut running = start(&mut stage, &verifier);
    wait_away(&mut running, &verifier);
    wait_read(&stage, &mut running);
    kill_pager(&stage, running, &verifier);
}

#[test]
fn a_guardian_that_replaced_a_killed_one_takes_parent_and_children_along() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let _family = EndedAtLast(&verifier);
    let mut running = start(&mut stage, &verifier);
    for _ in 0..2 {
        wait_away(&mut running, &verifier);
        let pager = running.pid();
        let guardian = running.wait_until("a guardian", || guardian_of(pager));
        support::signal(guardian, "KILL");
        running.wait_until("another guardian", || guardian_of(pager).filter(|other| *other != guardian));
        wait_read(&stage, &mut running);
    }
    kill_pager(&stage, running, &verifier);
}
