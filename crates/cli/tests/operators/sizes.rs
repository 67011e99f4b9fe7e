//! `spillway size`: what it says of programs whose need is known.

use std::process::Command;

use serde_json::Value;

use crate::support::{registry_directory, run, spillway};

/// 64 MiB, of which a part is used round and round, for some seconds.
const SCRIPT: &str = "
import mmap, sys, time
size, page = 64 << 20, 4096
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for place in range(0, size, page):
    memory[place] = 1
end = time.process_time() + 4
while time.process_time() < end:
    for place in range(0, size * int(sys.argv[1]) // 100, page):
        memory[place] = 2
print('done')
";

fn size(arguments: &[&str]) -> (String, String) {
    let registry = registry_directory();
    let mut command = spillway(&registry.path().join("r"));
    let said = run(command.arg("size").args(arguments)).done("spillway size");
    (said.text(), said.errors)
}

fn report(used_percent: &str) -> Value {
    let program = ["/usr/bin/python3", "-c", SCRIPT, used_percent];
    let (output, errors) = size(&[&["--json", "--page-in-us", "10", "--"][..], &program].concat());
    assert_eq!(output, "done\n", "standard output is the program's");
    serde_json::from_str(&errors).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

#[test]
fn a_program_needs_what_it_uses_and_not_what_it_has() {
    let megabytes = |value: &Value| value.as_f64().unwrap() / f64::from(1 << 20);
    let (all, half) = (report("100"), report("50"));
    for told in [&all, &half] {
        // The interpreter has some besides.
        assert!((64.0..90.0).contains(&megabytes(&told["footprint_bytes"])), "{told:#}");
    }
    // Each was seen to go round some times. Windows are told apart by factors of 1.4.
    let need = |told: &Value| megabytes(&told["named"][0]["bytes"]);
    assert!(need(&all) > 44.0, "{all:#}");
    assert!((20.0..50.0).contains(&need(&half)), "{half:#}");
}

#[test]
fn a_process_that_runs_is_looked_at_and_drawn() {
    let directory = registry_directory();
    let svg = directory.path().join("curve.svg");
    let script = format!("import time\nmemory = bytearray(32 << 20)\n{SCRIPT}");
    let mut child = Command::new("python3").args(["-c", &script, "100"]).spawn().unwrap();
    let pid = child.id().to_string();
    let (told, _) = size(&["--pid", &pid, "--seconds", "3", "--svg", svg.to_str().unwrap()]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(told.contains("local costs") && told.contains("page-table scans") && told.contains('#'), "{told}");
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(spillway_testing::svg::is_well_formed(&drawn), "{drawn}");
}

#[test]
fn a_recorded_trace_has_a_curve_too() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/traces");
    let mut traces = std::fs::read_dir(trace).unwrap().map(|entry| entry.unwrap().path());
    let trace = traces.find(|path| path.extension().is_some_and(|end| end == "gz")).unwrap();
    let registry = registry_directory();
    let mut command = spillway(&registry.path().join("r"));
    let said = run(command.args(["size", "--trace"]).arg(&trace));
    let is_timed = said.errors.is_empty();
    assert!(if is_timed { said.text().contains("recorded faults") } else { said.errors.contains("no times") });
}
