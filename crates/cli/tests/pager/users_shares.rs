//! Programs of a user without any capability at half and at a quarter of their memory: they write what they always
//! write.

use std::fs;

use crate::VIA;
use crate::both_ways::programs::{DICTIONARIES, Kind, MIB, PAGED_BY, SORT, sort_input};
use crate::both_ways::shares::{all_local, assert_footprint, assert_share};
use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::{Place, program};
use crate::support;

/// Says which capabilities the program has that it becomes.
const TELL_RIGHTS: &str = "grep CapEff: /proc/self/status && exec \"$@\"";

/// What a program writes with all of its memory local, and under the user's pager.
fn same_output(kind: Kind, stage: &Stage, place: &Place, program: &[&str]) {
    let (native, peak_bytes) = all_local(stage, program);
    let expected = format!("CapEff:\t0000000000000000\n{}", native.text());
    let program = [&["sh", "-c", TELL_RIGHTS, "sh"], program].concat();
    for local in ["50%", "25%"] {
        kind.judge(|| {
            let options = ["--via", "pager", "--local", local, "--lend", "384M", "--slab-size", "4M"];
            let said = support::run(place.run(&options, &program).env(PAGED_BY, VIA)).done(local);
            assert!(said.text() == expected, "{program:?} at {local} wrote something else\nstderr: {}", said.errors);
            let statistics = place.statistics();
            assert_eq!(statistics["pager"]["pages_lost"], 0, "{statistics:#}");
            assert_share(&statistics);
            assert_footprint(&statistics, peak_bytes);
            statistics
        });
    }
}

/// A file that the user may read.
fn file(place: &Place, name: &str, content: &str) -> String {
    let path = place.path().join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_users_sort_writes_what_it_always_writes() {
    let Some(stage) = Stage::set(&["gcc", "sort", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let input = file(&place, "input", &sort_input());
    same_output(Kind::Steady, &stage, &place, &[&SORT[..], &[&input]].concat());
}

#[test]
fn a_users_python_keeps_its_dictionaries() {
    let Some(stage) = Stage::set(&["gcc", "/usr/bin/python3", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let script = file(&place, "dictionaries.py", DICTIONARIES);
    same_output(Kind::Growing, &stage, &place, &["/usr/bin/python3", &script]);
}

/// What the kernel itself writes to and looks at: signal stacks, and locks whose holders have ended.
#[test]
fn a_users_signal_stacks_and_robust_locks_are_whole() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let peculiarities = program(&stage, &place, "peculiarities");
    for mode in ["altstack", "robust"] {
        same_output(Kind::Steady, &stage, &place, &[&peculiarities, mode, MIB, "/"]);
    }
}
