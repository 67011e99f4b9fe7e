//! What a program may learn of its memory without touching it: which pages are there, which were written, and what
//! they hold (docs/guarantees.md). The cases own-pagemap, procmem and crash-reporter.

use serde_json::Value;

use crate::VIA;
use crate::both_ways::programs::PAGED_BY;
use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::{Place, program};
use crate::support;

const OPTIONS: [&str; 6] = ["--local", "16M", "--lend", "256M", "--slab-size", "4M"];
const MIB: &str = "20";
const NONE_MISSED: &str = "0 of 5120 used pages missed\n";
const NONE_FAILED: &str = "0 of 5120 pages failed\n";

/// What each mode writes, and what the user is told.
const MODES: [(&str, &str, Option<&str>); 12] = [
    ("mincore", NONE_MISSED, None),
    ("scan", NONE_MISSED, Some("has its memory read by")),
    ("written", NONE_MISSED, Some("has its memory read by")),
    ("early-scan", NONE_MISSED, Some("has its memory read by")),
    ("early-pagemap", NONE_MISSED, Some("has its memory read by")),
    ("closed", NONE_MISSED, Some("has its memory read by")),
    ("child", NONE_MISSED, None),
    ("mem", NONE_FAILED, Some("has its memory read by")),
    ("thread-mem", NONE_FAILED, Some("has its memory read by")),
    ("dump", NONE_FAILED, None),
    ("traced", NONE_FAILED, None),
    ("calls", "5120 pages as written\n", None),
];

fn check_paged(paging: &Value, mode: &str) {
    // A descriptor that is open all the time keeps all of it.
    let is_paged = paging["pages_out_dirty"].as_u64().unwrap() > 1024;
    assert_eq!(is_paged, !mode.starts_with("early-"), "{mode}: {paging:#}");
}

#[test]
fn what_a_program_asks_of_its_memory_is_answered_as_without_the_pager() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let residency = stage.compile("residency", &[]);
    for (mode, expected, told) in MODES {
        let mut run = stage.run(&OPTIONS, &[residency.to_str().unwrap(), mode, MIB]);
        let said = support::run(run.env(PAGED_BY, VIA)).done(mode);
        assert_eq!(said.text(), expected, "{mode}: {}", said.errors);
        check_paged(&stage.statistics()["pager"], mode);
        assert!(told.is_none_or(|told| said.errors.contains(told)), "{mode}: {}", said.errors);
    }
    stage.assert_clean();
}

#[test]
fn a_users_program_is_answered_so_too() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let residency = program(&stage, &place, "residency");
    for (mode, expected, _) in
        MODES.into_iter().filter(|(mode, ..)| matches!(*mode, "mincore" | "scan" | "mem" | "dump"))
    {
        let said = support::run(place.run(&OPTIONS, &[&residency, mode, MIB]).env(PAGED_BY, VIA)).done(mode);
        assert_eq!(said.text(), expected, "{mode}: {}", said.errors);
        check_paged(&place.statistics()["pager"], mode);
    }
}
