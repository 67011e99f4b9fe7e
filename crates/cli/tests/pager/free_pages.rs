//! What a guest frees and reports (virtio-balloon, free page reporting) is freed at the donors.

use std::fs;

use serde_json::Value;
use spillway_virtual_machine::script_guest::Parts;
use spillway_virtual_machine::{Failure, ScriptGuest, emulated};

use crate::both_ways::stage::Stage;
use crate::support::{Running, skip};

/// Memory of the guest, and what its program has for a while.
const GUEST_MIB: u64 = 224;
const TESTED_MIB: u64 = 128;

/// So little that most of what the program had is with donors when it ends.
const LOCAL: &str = "64M";

/// Its last words come when the memory is free; then the guest only waits.
const SCRIPT: &str = "/bin/memory_test 128; echo 'its memory is free'; $box sleep 3600\n";

/// Pages of a MiB.
const PAGES_PER_MIB: u64 = 256;

fn pages_stored(stage: &Stage) -> Option<u64> {
    let device = stage.device_now();
    device["device"]["pages_stored"].as_u64().or_else(|| device["pages_stored"].as_u64())
}

#[test]
fn pages_that_a_guest_reports_as_free_are_freed_at_the_donors() {
    emulated(|| {
        let Some(stage) = Stage::set(&["gcc"]) else { return };
        let programs = [stage.compile("memory_test", &["-static"])];
        let parts = Parts { modules: &["virtio_balloon"], programs: &programs, script: SCRIPT, ..Parts::default() };
        let missing = |failure: Failure| skip(failure.missing().unwrap_or_else(|| panic!("{failure}")));
        let Ok(guest) = ScriptGuest::pack(stage.disk(), &parts).map_err(missing) else { return };
        let console = stage.disk().join("console");
        let more = ["-device", "virtio-balloon-device,free-page-reporting=on"].map(str::to_owned);
        let words = guest.words(GUEST_MIB, &console, &more).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let options = ["--local", LOCAL, "--lend", "512M", "--slab-size", "4M"];
        let mut running = Running::start(&mut stage.run(&options, &words));
        let said = || String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
        let mut most = 0;
        running.wait_until("the guest's program to end", || {
            most = most.max(pages_stored(&stage).unwrap_or(0));
            said().contains("its memory is free").then_some(())
        });
        assert!(said().contains(&format!("memory test of {TESTED_MIB} MiB: 0 wrong words")), "{}", said());
        // What does not fit, of the program and the guest's kernel.
        assert!(most > TESTED_MIB / 2 * PAGES_PER_MIB, "{most} pages were stored at most");
        // The pages of a program lie between those of its kernel, so many are in short runs.
        let freed_min = TESTED_MIB * PAGES_PER_MIB;
        running.wait_until("so many to be freed", || (pages_stored(&stage)? + freed_min < most).then_some(()));
        running.signal("TERM");
        running.end();
        let statistics = stage.statistics();
        assert_eq!(statistics.pointer("/device/device/pages_lost").and_then(Value::as_u64), Some(0), "{statistics:#}");
        stage.assert_clean();
    });
}
