//! Whole studies with a script that stands in for the product: its "devices" are loop devices over files on a disk.
//! So the runner, its results and its cleaning up are tested without the product, and without heavy measurements.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spillway_bench::result::{Skip, StudyResult};
use spillway_bench::summary::RunSummary;
use spillway_report::device::DeviceReport;
use spillway_report::kind::Kind;
use spillway_report::status::Item;
use spillway_testing::programs::write_program;
use spillway_volume::status::{DeviceStatus, DiskStatus, DonorLinkStatus};

/// The time a busy machine may take for one study.
const DEADLINE: Duration = Duration::from_secs(240);

const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/calls"
command="$1 $2"
while [ $# -gt 0 ]; do
    case "$1" in
        --name) name=$2 ;;
        --size) size=$2 ;;
    esac
    shift
done
case "$command" in
    donate*)
        echo '{"tcp": "127.0.0.1:1", "unix": "/nonexistent/donor.sock"}'
        exec sleep 1000 ;;
    "device on")
        truncate --size "$size" "$here/$name.area"
        losetup --find --show "$here/$name.area" | tee "$here/$name.path" ;;
    "device off")
        losetup --detach "$(cat "$here/$name.path")" && rm "$here/$name.path" "$here/$name.area" ;;
    "device status")
        echo '{"items": ['
        for file in "$here"/*.path; do
            name=$(basename "$file" .path)
            sed "s/NAME/$name/; s/4711/$PPID/; $separator" "$here/item"
            separator='s/^/, /'
        done
        echo ']}' ;;
    *) exit 1 ;;
esac
"#;

struct Stage {
    directory: tempfile::TempDir,
}

impl Stage {
    /// `None`, with the reason told, where loop devices or fio are not to be had.
    fn new() -> Option<Self> {
        let has_fio = Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !rustix::process::geteuid().is_root() || !has_fio || !Path::new("/dev/loop-control").exists() {
            spillway_sys::skipping::skip("root, fio or loop devices");
            return None;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let stand_in = directory.path().join("spillway");
        write_program(&stand_in, STAND_IN);
        let donor = DonorLinkStatus { transport: "shm".to_owned(), ..DonorLinkStatus::default() };
        let disk = DiskStatus { backlog_pages: 95, backlog_pages_max: 100, ..DiskStatus::default() };
        let (donors, disk) = (vec![donor], Some(disk));
        let device = DeviceStatus { pages_stored: 7, donors, disk, ..DeviceStatus::default() };
        let item = Item {
            kind: Kind::Device,
            name: "NAME".to_owned(),
            pid: Some(4711),
            state: "running".to_owned(),
            report: serde_json::to_value(DeviceReport { device, ..DeviceReport::default() }).unwrap(),
            swap: None,
            warnings: Vec::new(),
        };
        std::fs::write(directory.path().join("item"), serde_json::to_vec(&item).unwrap()).unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Some(Self { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, study: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillway-bench"));
        command.args(["run", "--quick", "--rounds", "1", "--only", study, "--spillway"]).arg(self.path("spillway"));
        command.arg("--directory").arg(self.path("work")).arg("--results").arg(self.path("results"));
        command
    }

    fn summary(&self) -> RunSummary {
        let text = std::fs::read_to_string(self.path("results").join("summary.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn result(&self, study: &str) -> StudyResult {
        let text = std::fs::read_to_string(self.path("results").join(format!("{study}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn assert_nothing_is_left(&self) {
        let left: Vec<_> = std::fs::read_dir(self.path("work")).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
        let endings = ["area", "path"];
        let is_ours = |path: &PathBuf| path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one));
        let entries = std::fs::read_dir(self.directory.path()).unwrap().flatten().map(|entry| entry.path());
        let left: Vec<_> = entries.filter(is_ours).collect();
        assert!(left.is_empty(), "devices are left: {left:?}");
    }
}

#[test]
fn the_study_of_writes_tells_steps_at_the_bound_apart() {
    let Some(stage) = Stage::new() else { return };
    assert!(stage.command("writes").output().unwrap().status.success());
    let result = stage.result("writes");
    // The stand-in's backlog is always at its bound.
    let at_the_bound = result.measure("128 KiB writes, backlog at its bound", "disk copy, shm");
    assert!(at_the_bound.is_some(), "{:?}", result.measures);
    assert!(result.measure("128 KiB writes, backlog below its bound", "disk copy, shm").is_none());
    let verdict = |goal: &str| {
        let found = result.goals.iter().find(|one| one.goal.contains(goal)).unwrap();
        found.met.is_some()
    };
    assert!(!verdict("until the backlog's bound") && verdict("not below disk speed"), "{:?}", result.goals);
    assert_eq!(result.median("the backlog's bound", "disk copy, shm"), Some(100.0 * 4096.0 / 1_048_576.0));
    stage.assert_nothing_is_left();
}

#[test]
fn the_study_of_costs_takes_memory_and_processor_time_apart() {
    let Some(stage) = Stage::new() else { return };
    let output = stage.command("cost").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result = stage.result("cost");
    // The stand-in's donor has no socket that could be taken away, so it is unknown that TCP would be used.
    let is_left_out = |skip: &Skip| skip.what == "spillway tcp" && skip.reason.contains("donor.sock");
    assert!(result.skipped.iter().any(is_left_out), "{:?}", result.skipped);
    assert_eq!(result.subjects(), ["spillway shm borrower", "spillway shm donor", "spillway local borrower"]);
    // The stand-in's donor is a sleeping shell; its "device" is served by this benchmark.
    assert_eq!(result.median("128 KiB write", "spillway shm donor"), Some(0.0));
    assert!(result.median("own memory with nothing stored", "spillway shm donor").is_some_and(|size| size > 0.0));
    assert!(result.goals.iter().all(|goal| goal.met == Some(true)), "{:?}", result.goals);
    assert!(String::from_utf8_lossy(&output.stdout).contains("# cost"), "the table is on standard output");
    for file in ["cost.md", "cost-cpu-s-gib.svg"] {
        assert!(stage.path("results").join(file).is_file(), "{file}");
    }
    let calls = std::fs::read_to_string(stage.path("calls")).unwrap();
    assert_eq!(calls.matches("device on").count(), calls.matches("device off").count());
    stage.assert_nothing_is_left();
}

#[test]
fn several_studies_share_one_summary() {
    let Some(stage) = Stage::new() else { return };
    let output = stage.command("cost").args(["--only", "writes"]).output().unwrap();
    assert!(output.status.success());
    let summary = stage.summary();
    let studies: Vec<_> = summary.studies.iter().map(|study| (study.study.as_str(), study.complete)).collect();
    assert_eq!(studies, [("cost", true), ("writes", true)]);
    assert!(summary.quick && summary.studies.iter().all(|study| !study.goals.is_empty()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not on standard output"));
    assert!(place("# cost") < place("# writes") && place("# writes") < place("# Summary"));
    assert!(String::from_utf8_lossy(&output.stderr).contains(" left)"), "what remains is told");
    stage.assert_nothing_is_left();
}

#[test]
fn an_interrupt_keeps_what_was_measured_and_leaves_nothing() {
    let Some(stage) = Stage::new() else { return };
    let mut child = stage.command("cost").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("spillway tcp")), "the second subject is announced");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    lines.for_each(drop);
    let end = Instant::now() + DEADLINE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it did not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let result = stage.result("cost");
    assert!(result.measures.iter().any(|measure| measure.subject == "spillway shm donor"), "{:?}", result.measures);
    assert!(!result.complete && !stage.summary().studies[0].complete, "it does not pass for a whole one");
    stage.assert_nothing_is_left();
}

#[test]
fn a_product_that_fails_is_left_out_with_its_message() {
    let Some(stage) = Stage::new() else { return };
    write_program(&stage.path("spillway"), "#!/bin/sh\necho 'there is too little memory to lend' >&2\nexit 1\n");
    let output = stage.command("cost").output().unwrap();
    assert!(output.status.success(), "what is left out is no failure of the run");
    let result = stage.result("cost");
    assert!(result.measures.is_empty());
    assert!(result.skipped.iter().all(|skip| skip.reason.contains("too little memory")), "{:?}", result.skipped);
    stage.assert_nothing_is_left();
}
