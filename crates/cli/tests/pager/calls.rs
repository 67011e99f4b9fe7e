//! System calls that the pager has to hear of before they are made: guard pages, a userfaultfd of the program's own,
//! a move of several mappings. The kernel tells of none of these, or refuses them where memory is registered.

use std::process::Command;

use spillway_sys::call_filter::Asked;

use crate::VIA;
use crate::both_ways::programs::PAGED_BY;
use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::{Place, program};
use crate::support::{self, skip};

const OPTIONS: [&str; 6] = ["--local", "24M", "--lend", "256M", "--slab-size", "4M"];
const MIB: &str = "32";

/// What each mode writes, and why it cannot be tried.
fn modes() -> Vec<(&'static str, &'static str)> {
    let asked = Asked::on_this_kernel(false, false);
    let mut modes = vec![
        ("missing", "4096 of 4096 pages served by itself\n"),
        ("protected", "4096 of 4096 pages served by itself\n"),
    ];
    if asked.guards {
        modes.extend(["guards", "vector"].map(|mode| (mode, "8192 pages with guards as written\n")));
    } else {
        skip("guard pages (Linux 6.13)");
    }
    if asked.moves {
        modes.push(("move", "8192 pages moved as written\n"));
    } else {
        skip("moves of several mappings (Linux 6.17)");
    }
    modes
}

fn check(mut run: Command, expected: &str) -> String {
    let said = support::run(run.env(PAGED_BY, VIA)).done(expected);
    assert_eq!(said.text(), expected, "{}", said.errors);
    said.errors
}

/// The cases `guard`, `mremap-several` and `own-userfaultfd`.
#[test]
fn guards_moves_and_own_userfaultfds_work_as_without_the_pager() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let calls = stage.compile("calls", &["-pthread"]);
    for (mode, expected) in modes() {
        let errors = check(stage.run(&OPTIONS, &[calls.to_str().unwrap(), mode, MIB]), expected);
        let paging = &stage.statistics()["pager"];
        assert!(paging["pages_out_dirty"].as_u64().unwrap() > 4096, "{paging:#}");
        assert_eq!(paging["forks"], 0, "the kernel tells root of forks: {paging:#}");
        // What stays in local memory because of that is told.
        let is_own = matches!(mode, "missing" | "protected");
        assert_eq!(errors.contains("userfaultfd of its own for 16384 KiB"), is_own, "{errors}");
    }
    stage.assert_clean();
}

#[test]
fn a_users_guards_moves_and_own_userfaultfds_do_too() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let calls = program(&stage, &place, "calls");
    for (mode, expected) in modes() {
        check(place.run(&OPTIONS, &[&calls, mode, MIB]), expected);
        let paging = &place.statistics()["pager"];
        assert!(paging["pages_out_dirty"].as_u64().unwrap() > 4096, "{paging:#}");
    }
}

/// A program beside one that already listens for its own calls is started, and told what that means.
#[test]
fn a_run_inside_of_another_says_what_it_does_not_hear() {
    let Some(stage) = Stage::set(&[]) else { return };
    let inner = stage.run(&OPTIONS, &["echo", "paged"]);
    let mut words = vec![inner.get_program().to_str().unwrap().to_owned()];
    words.extend(inner.get_args().map(|word| word.to_str().unwrap().to_owned()));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = support::run(&mut stage.run(&OPTIONS, &words));
    assert!(said.output == b"paged\n" && said.errors.contains("does not hear of some system calls"), "{}", said.errors);
}
