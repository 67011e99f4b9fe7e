//! Programs that a debugger stops: what it reads and writes cannot wait for a page that is away.

use crate::VIA;
use crate::both_ways::programs::PAGED_BY;
use crate::both_ways::stage::Stage;
use crate::pager::ordinary_user::{Place, program};
use crate::support;

const OPTIONS: [&str; 6] = ["--local", "24M", "--lend", "256M", "--slab-size", "4M"];
const EXPECTED: &str = "12288 pages read by a debugger\n";

#[test]
fn a_debugger_reads_and_writes_memory_that_was_away() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let debugged = stage.compile("debugged", &[]);
    let mut run = stage.run(&OPTIONS, &[debugged.to_str().unwrap(), "48"]);
    let said = support::run(run.env(PAGED_BY, VIA)).done("debugged");
    assert_eq!(said.text(), EXPECTED, "{}", said.errors);
    // A stop that is over soon is not told, but the excess that it causes is.
    assert!(said.errors.contains("a debugger"), "{}", said.errors);
    let paging = &stage.statistics()["pager"];
    assert!(paging["pages_out_dirty"].as_u64().unwrap() > 6144, "{paging:#}");
    stage.assert_clean();
}

#[test]
fn a_users_debugger_does_too() {
    let Some(stage) = Stage::set(&["gcc", "unshare", "setpriv"]) else { return };
    let Some(place) = Place::new(&stage) else { return };
    let debugged = program(&stage, &place, "debugged");
    let said = support::run(place.run(&OPTIONS, &[&debugged, "48"]).env(PAGED_BY, VIA)).done("debugged");
    assert_eq!(said.text(), EXPECTED, "{}", said.errors);
}
