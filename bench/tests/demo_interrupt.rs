//! Ctrl-C at any moment of the demo leaves nothing behind: no process, no swap area, no cgroup, no file, no place for
//! the kernel's events.
//!
//! A script stands in for the product: `donate` says where it lends, `run` runs the program without a limit. So the
//! test does not depend on the product, and what is left behind can only be the demo's.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use spillway_report::run::{EndedRunReport, RunDevice};
use spillway_testing::programs::write_program;

/// The time a busy machine may take for any of the steps.
const DEADLINE: Duration = Duration::from_secs(240);

/// The stand-in: notes its process id, then does what the subcommand asks. A run does not end while the file `hold`
/// is there.
const STAND_IN: &str = r#"#!/bin/sh
echo $$ >> "$(dirname "$0")/pids"
command=$1
while [ $# -gt 0 ]; do
    case "$1" in
        --stats) stats=$2 ;;
        --) shift; break ;;
    esac
    shift
done
case "$command" in
    donate)
        echo '{"tcp": "127.0.0.1:1", "unix": "/nonexistent/donor.sock"}'
        exec sleep 1000 ;;
    run)
        [ -e "$(dirname "$0")/hold" ] && exec sleep 1000
        cp "$(dirname "$0")/stats" "$stats"
        exec "$@" ;;
esac
exit 1
"#;

/// A demo under test; ended when dropped, so that a failing test leaves nothing either.
struct Demo {
    child: Child,
    messages: Receiver<String>,
    directory: tempfile::TempDir,
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn start(programs: &[&str]) -> Option<Demo> {
    start_in(tempfile::tempdir_in("/var/tmp").unwrap(), programs)
}

fn start_in(directory: tempfile::TempDir, programs: &[&str]) -> Option<Demo> {
    if !is_root() {
        spillway_sys::skipping::skip("root");
        return None;
    }
    let stand_in = directory.path().join("spillway");
    write_program(&stand_in, STAND_IN);
    let device = Some(RunDevice::Volume { device: Box::default() });
    let told = EndedRunReport { wall_seconds: 0.5, device, ..EndedRunReport::default() };
    std::fs::write(directory.path().join("stats"), serde_json::to_vec(&told).unwrap()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillway-bench"));
    command.args(["demo", "--tiny", "--spillway"]).arg(&stand_in).arg("--directory").arg(work(directory.path()));
    programs.iter().for_each(|name| {
        command.args(["--only", name]);
    });
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
    let (sender, messages) = channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    Some(Demo { child, messages, directory })
}

/// Where the demo's files go, apart from the stand-in.
fn work(directory: &Path) -> PathBuf {
    let work = directory.join("work");
    std::fs::create_dir_all(&work).unwrap();
    work
}

impl Demo {
    /// Reads its messages up to one that contains `text`.
    fn read_until(&self, text: &str) {
        let end = Instant::now() + DEADLINE;
        let mut seen = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.messages.recv_timeout(left);
            let line = line.unwrap_or_else(|error| panic!("'{text}' did not come ({error}) after {seen:#?}"));
            if line.contains(text) {
                return;
            }
            seen.push(line);
        }
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; gives how it ended and what it printed.
    fn finish(&mut self) -> (ExitStatus, String) {
        let end = Instant::now() + DEADLINE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it did not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut output = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        (self.child.wait().unwrap(), output)
    }

    /// Nothing of it is left: files, processes, swap areas, cgroups.
    fn assert_nothing_is_left(&self) {
        let work = work(self.directory.path());
        let files: Vec<_> = std::fs::read_dir(&work).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(files.is_empty(), "files are left: {files:?}");
        let pids = std::fs::read_to_string(self.directory.path().join("pids")).unwrap_or_default();
        let alive = |pid: &&str| test_kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap()).is_ok();
        let left: Vec<_> = pids.lines().filter(alive).collect();
        assert!(left.is_empty(), "processes are left: {left:?}");
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
        assert!(!swaps.contains(work.to_str().unwrap()), "{swaps}");
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let groups = mounts.lines().filter(|line| line.contains(" cgroup")).filter_map(|line| line.split(' ').nth(1));
        let name = format!("spillway-bench-{}-", self.child.id());
        for entry in groups.filter_map(|root| std::fs::read_dir(root).ok()).flatten().flatten() {
            assert!(!entry.file_name().to_string_lossy().starts_with(&name), "{:?} is left", entry.path());
        }
        assert_eq!(self.places_for_events(), Vec::<PathBuf>::new());
        assert!(!mounts.contains(&name), "{mounts}");
    }

    /// Its places for the kernel's events, wherever tracefs is mounted.
    fn places_for_events(&self) -> Vec<PathBuf> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let roots = mounts.lines().filter(|line| line.contains(" tracefs ")).filter_map(|line| line.split(' ').nth(1));
        let places = roots.filter_map(|root| std::fs::read_dir(Path::new(root).join("instances")).ok()).flatten();
        let name = format!("spillway-bench-{}-", self.child.id());
        let ours = |place: &PathBuf| place.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
        places.flatten().map(|entry| entry.path()).filter(ours).collect()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

fn interrupt_at(text: &str, signal: Signal) {
    let Some(mut demo) = start(&["quicksort"]) else { return };
    demo.read_until(text);
    demo.send(signal);
    let (status, _) = demo.finish();
    assert_eq!(status.code(), Some(130), "the status of an interrupted program");
    demo.assert_nothing_is_left();
}

#[test]
fn while_donors_start() {
    interrupt_at("starting 3 donors", Signal::INT);
}

#[test]
fn while_all_is_local() {
    interrupt_at("all memory local", Signal::INT);
}

#[test]
fn while_memory_is_lent() {
    interrupt_at("75 % local, over the swap device", Signal::INT);
}

#[test]
fn while_the_kernel_records_events() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(directory.path().join("hold"), "").unwrap();
    let Some(mut demo) = start_in(directory, &["quicksort"]) else { return };
    if !std::fs::read_to_string("/proc/filesystems").unwrap().contains("\ttracefs\n") {
        return spillway_sys::skipping::skip_because("this kernel has no tracefs");
    }
    demo.read_until("over the swap device");
    let end = Instant::now() + DEADLINE;
    while demo.places_for_events().is_empty() {
        assert!(Instant::now() < end, "no place for events came");
        std::thread::sleep(Duration::from_millis(10));
    }
    demo.send(Signal::INT);
    assert_eq!(demo.finish().0.code(), Some(130));
    demo.assert_nothing_is_left();
}

#[test]
fn while_disk_swap_is_on() {
    interrupt_at("50 % local, over disk swap", Signal::TERM);
}

#[test]
fn twice_in_a_row() {
    let Some(mut demo) = start(&["quicksort"]) else { return };
    demo.read_until("over disk swap");
    demo.send(Signal::INT);
    demo.send(Signal::HUP);
    assert_eq!(demo.finish().0.code(), Some(130));
    demo.assert_nothing_is_left();
}

#[test]
fn not_at_all() {
    let Some(mut demo) = start(&["quicksort"]) else { return };
    let (status, output) = demo.finish();
    assert!(status.success(), "{output}");
    for part in ["| quicksort", "100 %", "25 %", "wrong bytes"] {
        assert!(output.contains(part), "{part}\n{output}");
    }
    demo.assert_nothing_is_left();
}
