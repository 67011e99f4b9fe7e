//! Huge pages given back (`SPILLWAY_HUGE_PAGES=yes`): memory that leaves, comes back and is huge again, word by word,
//! with forks and with a donor that is killed meanwhile.

use std::fs;

use serde_json::Value;

use crate::both_ways::stage::Stage;
use crate::support::{Running, skip};

/// A stage, unless this kernel has no huge pages for programs that ask for them.
fn stage() -> Option<Stage> {
    let stage = Stage::set(&["gcc"])?;
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if enabled.is_empty() || enabled.contains("[never]") {
        skip("huge pages (transparent_hugepage is never)");
        return None;
    }
    Some(stage)
}

/// Runs the program to its end, and gives what the pager told.
fn end(stage: &Stage, running: Running) -> Value {
    let said = running.end().done("the program with huge pages");
    assert!(said.text().contains("huge again, wrong 0\n"), "{}{}", said.text(), said.errors);
    let statistics = stage.statistics();
    assert_eq!(statistics["device"]["device"]["pages_lost"], 0, "{statistics:#}");
    stage.assert_clean();
    let pager = statistics["pager"].clone();
    let number = |name: &str| pager[name].as_u64().unwrap();
    assert!(number("pages_out_dirty") > 1000 && number("huge_pages_given_back") > 0, "{pager:#}");
    assert!(number("huge_pages_split") <= number("huge_pages_given_back"), "{pager:#}");
    pager
}

#[test]
fn memory_that_came_back_has_huge_pages_again() {
    let Some(stage) = stage() else { return };
    let program = stage.compile("huge", &[]);
    let options = ["--local", "80M", "--lend", "256M", "--slab-size", "4M"];
    let running = Running::start(
        stage.run(&options, &[program.to_str().unwrap(), "64", "check"]).env("SPILLWAY_HUGE_PAGES", "yes"),
    );
    end(&stage, running);
}

#[test]
fn children_read_and_write_huge_pages_that_were_given_back() {
    let Some(stage) = stage() else { return };
    let program = stage.compile("huge", &[]);
    let options = ["--local", "160M", "--lend", "384M", "--slab-size", "4M"];
    let running = Running::start(
        stage.run(&options, &[program.to_str().unwrap(), "64", "check", "forks"]).env("SPILLWAY_HUGE_PAGES", "yes"),
    );
    end(&stage, running);
}

#[test]
fn a_donor_that_is_killed_takes_no_page_of_a_huge_page_along() {
    let Some(mut stage) = stage() else { return };
    let program = stage.compile("huge", &[]);
    (0..3).for_each(|_| {
        stage.donor("256M");
    });
    let donors = stage.donor_options();
    let mut options = vec!["--local", "80M", "--lend", "192M", "--slab-size", "4M"];
    options.extend(["--key", "none", "--redundancy", "replicas=2"]);
    options.extend(donors.iter().map(String::as_str));
    let mut running = Running::start(
        stage.run(&options, &[program.to_str().unwrap(), "64", "check"]).env("SPILLWAY_HUGE_PAGES", "yes"),
    );
    running.wait_until("pages at donors", || {
        let out = stage.pager_now().map(|pager| pager.pages_out_dirty)?;
        (out > 2000).then_some(())
    });
    stage.signal_donor(1, "KILL");
    end(&stage, running);
}
