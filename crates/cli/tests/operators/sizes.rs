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

/// Fills 96 MiB, and goes through that at random places: what it has is what it will have while it is looked at.
const MEASURED: &str = "
import mmap
size, page = 96 << 20, 4096
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for first in range(0, size, page):
    memory[first] = 1
place = 1
for turn in range(60000):
    place = place * 1103515245 % 2147483648 + 12345
    memory[place // 16 % (size // page) * page] = turn % 256
print('done')
";

#[test]
fn a_program_is_measured_with_parts_of_its_memory() {
    let program = ["/usr/bin/python3", "-c", MEASURED];
    let (output, errors) = size(&[&["--measure", "--via", "pager", "--json", "--"][..], &program].concat());
    assert_eq!(output, "done\n", "the output of one run of five");
    let told: Value = serde_json::from_str(&errors).unwrap_or_else(|error| panic!("{error}: {errors}"));
    let footprint = told["footprint_bytes"].as_u64().unwrap();
    assert!((80 << 20..140 << 20).contains(&footprint), "{told:#}");
    let trials = told["trials"].as_array().unwrap();
    let of = |name: &str| trials.iter().map(|trial| trial[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("percent"), [100, 75, 50, 25]);
    assert_eq!(of("bytes")[1..], [75, 50, 25].map(|percent| footprint * percent / 100));
    let page_ins = of("page_ins");
    assert!(page_ins[0] < 500 && page_ins[1] > 1000 && page_ins.is_sorted(), "{told:#}");
    for trial in trials {
        let (seconds, slowdown) = (trial["seconds"].as_f64().unwrap(), trial["slowdown_percent"].as_f64().unwrap());
        let alone = told["seconds_alone"].as_f64().unwrap();
        assert!((slowdown - 100.0 * (seconds / alone - 1.0)).abs() < 1e-6, "{told:#}");
    }
}

#[test]
fn a_program_that_fails_is_not_measured() {
    let registry = registry_directory();
    let size = |arguments: &[&str]| run(spillway(&registry.path().join("r")).arg("size").args(arguments));
    for options in [&["--measure", "--"][..], &["--measure", "--json", "--"]] {
        let said = size(&[options, &["/bin/sh", "-c", "exit 7"]].concat());
        assert_eq!(said.status.code(), Some(7), "{}", said.errors);
        assert!(said.errors.contains("nothing was measured"), "{}", said.errors);
    }
    let said = size(&["--measure", "--donor", "unix:/no/such.sock", "--key", "none", "--", "/bin/true"]);
    assert_eq!(said.status.code(), Some(1), "{}", said.errors);
    assert!(
        said.errors.contains("run with 100% local failed") && said.errors.contains("no/such.sock"),
        "{}",
        said.errors
    );
    let said = size(&["--donor", "unix:/no/such.sock", "--", "/bin/true"]);
    assert!(said.status.code() == Some(2) && said.errors.contains("--measure"), "{}", said.errors);
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
