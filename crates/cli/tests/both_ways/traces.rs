//! Page faults of real runs, recorded, replayed and plotted.

use std::path::Path;

use serde_json::Value;

use super::stage::Stage;
use crate::VIA;
use crate::support::{self, skip};

/// Half of what the two walkers use together.
const OPTIONS: [&str; 6] = ["--local", "32M", "--lend", "128M", "--slab-size", "4M"];

/// Runs `trace record` with these options; `None` where the kernel lets no faults be sampled, and says so.
fn record(stage: &Stage, trace: &Path, options: &[&str], program: &[&str]) -> Option<String> {
    let mut command = stage.spillway(&["trace", "record", "--via", VIA, "--output"]);
    command.arg(trace).args(OPTIONS).args(options).arg("--").args(program);
    let said = support::run(&mut command);
    if VIA == "swap" && said.errors.contains("perf_event_open") {
        assert!(!said.status.success() && !trace.exists(), "no program without its trace: {}", said.errors);
        skip("samples of page faults (perf events)");
        return None;
    }
    let said = said.done("trace record");
    assert!(said.text().contains("wrong 0"), "{}", said.text());
    Some(said.errors)
}

fn replayed(stage: &Stage, trace: &Path) -> Value {
    let said = support::run(stage.spillway(&["trace", "replay", "--json"]).arg(trace)).done("trace replay");
    serde_json::from_slice(&said.output).expect("a replay is JSON")
}

#[test]
fn faults_of_threads_and_children_are_recorded_and_replayed() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let walker = stage.compile("walker", &["-lpthread"]);
    let walker = walker.to_str().unwrap();
    let trace = stage.disk().join("walkers.trace.gz");
    let both = format!("{walker} 32 1 2 2 & {walker} 32 1 2 2; wait");
    let Some(errors) = record(&stage, &trace, &[], &["sh", "-c", &both]) else { return };
    assert!(errors.contains("recorded ") && errors.contains("walkers.trace.gz"), "{errors}");
    let told = replayed(&stage, &trace);
    let number =
        |pointer: &str| told.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}: {told:#}"));
    assert_eq!((told["trace"]["kind"].as_str(), number("/trace/lost")), (Some("major-faults"), 0.0));
    assert!(number("/trace/threads") >= 4.0 && number("/trace/address_spaces") >= 2.0, "{told:#}");
    assert!(number("/trace/events") > 1000.0 && number("/trace/pages") > 1000.0, "{told:#}");
    // Each thread reads its part in order. Pages that stayed are gaps, over which a majority looks and a strict look
    // does not. What the two of a process do together looks sequential only by chance.
    assert_eq!((&told["runs"][2]["by"], &told["runs"][3]["look"]), (&"thread".into(), &"majority".into()), "{told:#}");
    let sequential = |runs: usize| number(&format!("/runs/{runs}/sequential"));
    assert!(sequential(3) > 0.5 && sequential(3) > sequential(1) && sequential(2) >= sequential(0), "{told:#}");
    let streams = &told["policies"][1];
    assert_eq!(streams["name"], "streams");
    assert!(streams["coverage"].as_f64().unwrap() > 0.8, "{told:#}");
    let picture = support::run(stage.spillway(&["trace", "plot"]).arg(&trace)).done("trace plot");
    assert!(picture.text().starts_with("<svg") && picture.text().matches("<path").count() >= 4, "a colour for each");
    stage.assert_clean();
}

#[test]
fn what_finds_no_room_is_told_and_the_program_ends_as_it_would() {
    let Some(stage) = Stage::set(&["gcc"]) else { return };
    let walker = stage.compile("walker", &["-lpthread"]);
    let trace = stage.disk().join("walker.trace");
    let program = [walker.to_str().unwrap(), "64", "1", "1", "1"];
    let Some(errors) = record(&stage, &trace, &["--limit", "4K", "--all-faults"], &program) else { return };
    assert!(errors.contains("found no room in 4 KiB; give a larger --limit"), "{errors}");
    let told = replayed(&stage, &trace);
    assert_eq!(told["trace"]["kind"], "faults");
    assert!(told["trace"]["lost"].as_u64().unwrap() > 1000, "{told:#}");
    let mut again = stage.spillway(&["trace", "record", "--via", VIA, "--output"]);
    let said = support::run(again.arg(stage.disk().join("b.trace")).args(OPTIONS).args(["--", "sh", "-c", "exit 7"]));
    assert_eq!(said.status.code(), Some(7), "{}", said.errors);
    stage.assert_clean();
}
