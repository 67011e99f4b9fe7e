//! The study `pager-peers` with scripts that stand in for the product and for fltrace, and with its driver for umap
//! over a header that stands in for umap's: pages of a file, mapped. So the runs, the checks and the driver's visits
//! are tested without a pager.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use spillway_bench::result::StudyResult;
use spillway_pager::statistics::PagerStatistics;
use spillway_report::run::{EndedRunReport, RunDevice};
use spillway_research::studies::pager_peers::{FLTRACE_VARIABLE, UMAP_VARIABLE};
use spillway_testing::programs::write_program;

/// The time a busy machine may take for one step.
const DEADLINE: Duration = Duration::from_secs(240);

/// Runs the program, and tells of it what the file `told` says.
const PRODUCT: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/calls"
[ "$1" = run ] || exit 1
while [ "$1" != -- ]; do
    [ "$1" = --stats ] && stats=$2
    shift
done
shift
cp "$here/told" "$stats"
exec "$@"
"#;

/// Runs the program among lines of its own, and leaves a file where it is.
const FLTRACE: &str = r#"#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
while [ "$1" != -- ]; do shift; done
shift
echo recorded > fltrace-data-1.out
echo "CPU 00| {ready"
"$@" || exit 1
echo "Run complete."
"#;

/// Waits for a child that does not end.
const STUCK: &str = r#"#!/bin/sh
echo $$ > "$(dirname "$0")/pids"
sleep 1000 &
echo $! >> "$(dirname "$0")/pids"
echo stuck > "$(dirname "$0")/stuck"
wait
"#;

/// What of umap's header the driver uses. `ALIAS` gives both halves of the region the same pages.
const HEADER: &str = r#"
#include <stdlib.h>
#include <string.h>
#define UMAP_PRIVATE MAP_PRIVATE
#define UMAP_FAILED MAP_FAILED
static void *umap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    if (strcmp(getenv("UMAP_PAGESIZE"), "4096") || strcmp(getenv("UMAP_BUFSIZE"), "2048") || flags != UMAP_PRIVATE) return UMAP_FAILED;
    char *region = mmap(address, length, protection, MAP_SHARED, file, offset);
#ifdef ALIAS
    mmap(region + length / 2, length / 2, protection, MAP_SHARED | MAP_FIXED, file, offset);
#endif
    return region;
}
"#;

struct Stage {
    directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { directory: tempfile::tempdir_in("/var/tmp").unwrap() };
        write_program(&stage.path("spillway"), PRODUCT);
        stage.product_was_seen_with(9 << 20);
        std::fs::create_dir(stage.path("work")).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// What the product tells of its runs: that they had as much memory at most.
    fn product_was_seen_with(&self, local_bytes_peak: u64) {
        let pager = Some(PagerStatistics { local_bytes_peak, ..PagerStatistics::default() });
        let device = Some(RunDevice::Volume { device: Box::default() });
        let told = EndedRunReport { pager, device, ..EndedRunReport::default() };
        self.write("told", &serde_json::to_string(&told).unwrap());
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Compiles the driver; `false`, with the reason told, without a compiler.
    fn compile_driver(&self, options: &[&str]) -> bool {
        if Command::new("gcc").arg("--version").stdout(Stdio::null()).status().is_err() {
            spillway_sys::skipping::skip("gcc");
            return false;
        }
        std::fs::create_dir_all(self.path("include/umap")).unwrap();
        self.write("include/umap/umap.h", HEADER);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/studies/pager_peers/umap_visit.c");
        let mut command = Command::new("gcc");
        command.args(["-O2", "-Wall", "-Werror", "-I"]).arg(self.path("include")).args(options);
        assert!(command.arg("-o").arg(self.path("umap-visit")).arg(source).status().unwrap().success());
        true
    }

    /// The study with such peers as this stage has.
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillway-research"));
        command.args(["run", "--quick", "--rounds", "2", "--only", "pager-peers", "--spillway"]);
        command.arg(self.path("spillway")).arg("--directory").arg(self.path("work"));
        // What a peer writes beside it, and not where it is told to, is left there.
        command.arg("--results").arg(self.path("results")).current_dir(self.path("work"));
        for (variable, name) in [(FLTRACE_VARIABLE, "fltrace"), (UMAP_VARIABLE, "umap-visit")] {
            command.env_remove(variable);
            if self.path(name).exists() {
                command.env(variable, self.path(name));
            }
        }
        command
    }

    fn result(&self) -> StudyResult {
        let output = self.command().output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.assert_nothing_is_left();
        serde_json::from_str(&self.text("results/pager-peers.json")).unwrap()
    }

    fn assert_nothing_is_left(&self) {
        let left: Vec<_> = std::fs::read_dir(self.path("work")).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A study that runs; one whose test failed is interrupted.
struct Study(Child);

impl Drop for Study {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
            let _ = self.0.wait();
        }
    }
}

/// How the placements are called that the machine allows.
fn placements(result: &StudyResult) -> &'static [&'static str] {
    if result.machine.cpus > 1 { &["same CPU", "unpinned"] } else { &["same CPU"] }
}

/// Why `side` was left out, wherever it ran.
fn reason<'result>(result: &'result StudyResult, side: &str) -> &'result str {
    let found = result.skipped.iter().find(|skip| skip.what.starts_with(&format!("{side}, ")));
    &found.unwrap_or_else(|| panic!("{side} was not left out: {:?}", result.skipped)).reason
}

#[test]
fn our_pager_and_both_peers_make_the_same_visits() {
    let stage = Stage::new();
    write_program(&stage.path("fltrace"), FLTRACE);
    if !stage.compile_driver(&[]) {
        return;
    }
    let result = stage.result();
    assert!(result.skipped.is_empty(), "{:?}", result.skipped);
    assert_eq!(result.subjects(), ["spillway pager", "fltrace", "umap"]);
    let placements = placements(&result);
    let phases = ["fill", "sequential", "random", "random, with a change"];
    let cases = placements.iter().flat_map(|placement| phases.map(|phase| format!("{phase}, {placement}")));
    assert_eq!(result.cases(), cases.collect::<Vec<_>>());
    assert_eq!(result.measures.len(), 3 * 4 * placements.len());
    assert!(result.measures.iter().all(|measure| measure.samples.iter().flatten().count() == 2));
    assert_eq!(result.comparisons.len(), 2 * 4 * placements.len());
    assert!(result.comparisons.iter().all(|found| found.baseline == "spillway pager"));
    let goals = &result.goals;
    assert!(goals.len() == 2 * placements.len() && goals.iter().all(|goal| goal.met.is_some()), "{goals:?}");
    assert!(stage.path("results/pager-peers-us.svg").is_file());
    let calls = stage.text("calls");
    let runs = 2 * placements.len();
    assert_eq!(calls.matches("run --local 9M --via pager").count(), runs, "{calls}");
    assert_eq!(calls.matches("record -L=9 -M=512 -S=1 -- ").count(), runs, "{calls}");
}

#[test]
fn peers_without_a_name_are_left_out_with_the_variable_and_the_document() {
    let stage = Stage::new();
    let result = stage.result();
    for (peer, variable) in [("fltrace", FLTRACE_VARIABLE), ("umap", UMAP_VARIABLE)] {
        let reason = reason(&result, peer);
        assert!(reason.contains(variable) && reason.contains("bench/README.md"), "{reason}");
    }
    assert_eq!(result.subjects(), ["spillway pager"]);
    let goals = &result.goals;
    assert!(goals.len() == 2 * placements(&result).len() && goals.iter().all(|goal| goal.met.is_none()));
}

#[test]
fn runs_that_did_something_else_are_no_measurements() {
    let stage = Stage::new();
    stage.product_was_seen_with(16 << 20);
    let other_seed = r#"$(echo "$@" | sed "s/--seed [0-9]*/--seed $(date +%N)/")"#;
    write_program(&stage.path("fltrace"), &FLTRACE.replace(r#""$@" ||"#, &format!("{other_seed} ||")));
    if !stage.compile_driver(&["-DALIAS"]) {
        return;
    }
    let result = stage.result();
    assert!(reason(&result, "spillway pager").contains("16384 KiB"), "it had all of its memory");
    assert!(reason(&result, "umap").contains("a word that was not written"), "{}", reason(&result, "umap"));
    // No process was there before its first run to compare it with.
    assert!(reason(&result, "fltrace").contains("WRONG OUTPUT"), "{}", reason(&result, "fltrace"));
    assert!(result.measures.iter().all(|measure| measure.subject == "fltrace" && measure.samples.len() == 1));
}

#[test]
fn an_interrupt_ends_a_peer_that_is_stuck_and_what_it_started() {
    let stage = Stage::new();
    write_program(&stage.path("fltrace"), STUCK);
    let mut study = Study(stage.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let messages = BufReader::new(study.0.stderr.take().unwrap());
    let reader = std::thread::spawn(move || messages.lines().map_while(Result::ok).for_each(drop));
    let end = Instant::now() + DEADLINE;
    while !stage.path("stuck").exists() {
        assert!(Instant::now() < end && study.0.try_wait().unwrap().is_none(), "the peer was not started");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&study.0), Signal::INT).unwrap();
    reader.join().unwrap();
    assert_eq!(study.0.wait().unwrap().code(), Some(130));
    let pids = stage.text("pids");
    let is_gone = |pid: &str| test_kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap()).is_err();
    assert_eq!(pids.lines().count(), 2);
    while !pids.lines().all(is_gone) {
        assert!(Instant::now() < end, "{pids} are left");
        std::thread::sleep(Duration::from_millis(10));
    }
    stage.assert_nothing_is_left();
}
