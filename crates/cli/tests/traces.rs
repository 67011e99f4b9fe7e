//! The traces of real programs in `bench/traces`: each can be replayed and plotted, and its figures make sense.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, unused_imports)]
mod support;
mod tree;

use std::path::{Path, PathBuf};

use serde_json::Value;
use spillway_testing::svg::is_well_formed;

use support::{registry_directory, run, spillway};

/// Bytes of all traces together: a clone of the repository stays small.
const TRACES_BYTES_MAX: u64 = 4 << 20;

/// Bytes of a picture at most, whatever the trace: a browser shows it at once.
const PICTURE_BYTES_MAX: usize = 8 << 20;

fn traces() -> Vec<PathBuf> {
    tree::files(&tree::root().join("bench/traces"), ".trace.gz")
}

fn output(arguments: &[&str], trace: &Path) -> Vec<u8> {
    let registry = registry_directory();
    let mut command = spillway(&registry.path().join("r"));
    run(command.args(arguments).arg(trace)).done("spillway trace").output
}

fn figure(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no {name} in {value:#}"))
}

fn policy<'a>(told: &'a Value, name: &str) -> &'a Value {
    told["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == name).unwrap()
}

#[test]
fn traces_of_real_programs_are_small_and_some_have_threads_and_children() {
    let traces = traces();
    let bytes: u64 = traces.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(traces.len() >= 4 && bytes <= TRACES_BYTES_MAX, "{bytes} bytes of {traces:?}");
    let about = std::fs::read_to_string(tree::root().join("bench/traces/README.md")).unwrap();
    let mut with_threads = 0;
    for trace in &traces {
        let name = trace.file_name().unwrap().to_str().unwrap();
        assert!(about.contains(name), "README.md says nothing of {name}");
        let told: Value =
            serde_json::from_slice(&output(&["trace", "replay", "--json", "--policy", "none"], trace)).unwrap();
        with_threads += usize::from(figure(&told["trace"], "threads") > 1.0);
        assert!(figure(&told["trace"], "events") > 5000.0 && figure(&told["trace"], "lost") == 0.0, "{told:#}");
    }
    assert!(with_threads >= 2, "{with_threads} traces have several threads");
}

#[test]
fn traces_of_real_programs_have_sane_figures() {
    for trace in traces() {
        let told: Value = serde_json::from_slice(&output(&["trace", "replay", "--json"], &trace)).unwrap();
        let name = trace.display();
        for one in told["policies"].as_array().unwrap() {
            let rates = ["accuracy", "coverage", "timeliness"].map(|rate| one[rate].as_f64().unwrap_or(0.0));
            assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{name}: {one:#}");
        }
        let none = policy(&told, "none");
        assert_eq!((figure(none, "faults_left"), figure(none, "pages_prefetched")), (figure(&told, "faults"), 0.0));
        // The default never costs much, and never leaves more faults than none, and so does Leap.
        for better in ["streams", "leap"] {
            let one = policy(&told, better);
            assert!(figure(one, "faults_left") <= figure(none, "faults_left"), "{name}: {told:#}");
            assert!(figure(one, "waited_ms") <= 1.1 * figure(none, "waited_ms"), "{name}: {told:#}");
        }
        let (streams, leap) = (policy(&told, "streams"), policy(&told, "leap-published"));
        assert!(figure(streams, "waited_ms") <= 1.02 * figure(leap, "waited_ms"), "{name}: {told:#}");
        // A majority finds all that a strict look finds, as long as runs go on.
        for runs in told["runs"].as_array().unwrap().chunks(2) {
            let regular = |runs: &Value| figure(runs, "sequential") + figure(runs, "stride");
            assert!(regular(&runs[1]) >= regular(&runs[0]), "{name}: {runs:#?}");
        }
    }
}

#[test]
fn pictures_of_real_programs_are_well_formed_and_small() {
    for trace in traces() {
        for subject in ["map", "distances"] {
            let picture = String::from_utf8(output(&["trace", "plot", "--of", subject], &trace)).unwrap();
            assert!(is_well_formed(&picture), "{}", trace.display());
            assert!(picture.len() < PICTURE_BYTES_MAX, "{}: {} bytes", trace.display(), picture.len());
        }
    }
}
