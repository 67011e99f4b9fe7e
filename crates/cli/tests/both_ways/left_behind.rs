//! A program is killed whose forked child lives on: the child's pages are those of the fork, and some of them are
//! elsewhere.

use std::os::unix::process::ExitStatusExt;

use crate::both_ways::stage::Stage;
use crate::support::processes::{EndedAtLast, executing, pages_away};
use crate::support::{self, UNTIL_TOLD};

/// Memory of the program and of its child, each.
const PROGRAM_MIB: u64 = 40;

/// So many of the child's 10,240 pages are elsewhere when its parent is killed: the budget leaves room for 6,144.
const CHILDS_PAGES_AWAY: usize = 2048;

/// So many different pages of both are at the donor then: more than before the fork, so the parent has written some
/// since.
const PAGES_LENT: u64 = 5120;

#[test]
fn a_child_whose_parent_is_killed_finds_every_word_of_the_fork() {
    let Some(mut stage) = Stage::set(&["gcc"]) else { return };
    let verifier = stage.compile("verifier", &[]);
    let _family = EndedAtLast(&verifier);
    let size = PROGRAM_MIB.to_string();
    let mut running = stage.run_on_a_donor(&[verifier.to_str().unwrap(), &size, UNTIL_TOLD, "17", "left"]);
    running.wait_until("the parent to write pages of its own", || {
        (stage.device_now()["pages_stored"].as_u64()? > PAGES_LENT).then_some(())
    });
    let parent = running.wait_until("the child's pages to be elsewhere", || {
        let family = executing(&verifier);
        let of_the_family = |pid: &u32| support::processes::children(*pid).iter().any(|child| family.contains(child));
        let parent = family.iter().copied().find(of_the_family)?;
        let child = family.iter().copied().find(|pid| *pid != parent && family.len() == 2)?;
        (pages_away(child, PROGRAM_MIB << 20)? > CHILDS_PAGES_AWAY).then_some(parent)
    });
    support::signal(parent, "KILL");
    // Its output ends with the child.
    let said = running.end();
    assert_eq!(said.status.signal(), Some(9), "{} {}", said.status, said.errors);
    assert!(said.text().contains("child pages 10240 wrong 0"), "{} {}", said.text(), said.errors);
    assert!(!said.errors.contains("wrong"), "{}", said.errors);
    stage.wait_returned();
    stage.assert_clean();
}
