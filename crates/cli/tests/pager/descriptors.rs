//! Many programs at once: a pager has several descriptors for each, and the program its own limit of them; and more
//! than can be paged.

use std::process::Command;

use spillway_pager::limits::PROGRAMS_MAX;

use crate::both_ways::stage::Stage;
use crate::support::{self, Running, skip};

/// A limit that a pager of [`PROGRAMS`] programs does not get by with, and one that it does.
const LIMITS: [u64; 2] = [64, 1024];

/// Programs that live at the same time.
const PROGRAMS: usize = 40;

/// All programs wait until the last one was started. The pipe is open for reading and writing, so no process waits
/// for it to be opened.
const SCRIPT: &str = r#"
mkfifo "$1" && exec 3<>"$1" || exit 1
for number in $(seq "$2"); do { read -r nothing <&3; echo "$number"; } & done
for number in $(seq "$2"); do echo >&3; done
wait
ulimit -Sn
ulimit -Hn
"#;

#[test]
fn many_programs_are_paged_under_a_small_limit_of_open_files() {
    let Some(stage) = Stage::set(&["prlimit", "seq"]) else { return };
    let [soft, hard] = LIMITS;
    let (pipe, programs) = (stage.disk().join("pipe"), PROGRAMS.to_string());
    let program = ["sh", "-c", SCRIPT, "sh", pipe.to_str().unwrap(), &programs];
    let run = stage.run(&["--local", "50%", "--lend", "64M", "--slab-size", "4M"], &program);
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={soft}:{hard}")).arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = support::run(&mut command).done("a run with few descriptors").text();
    let mut numbers: Vec<u64> = said.lines().map(|line| line.parse().unwrap()).collect();
    let limits = numbers.split_off(PROGRAMS);
    assert_eq!(limits, LIMITS, "the program has the limits that `run` was started with");
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=PROGRAMS as u64), "every program was there to the end: {said}");
    stage.assert_clean();
}

/// Descriptors that a pager of that many programs and its donors get by with.
const DESCRIPTORS: u64 = 8 * PROGRAMS_MAX as u64;

/// Programs that live until the file is there, and then say their numbers.
const CROWD: &str = r#"
mkfifo "$1" && exec 3<>"$1" || exit 1
for number in $(seq "$3"); do sh -c 'read -r nothing <&3; echo "$0"' "$number" & done
until [ -e "$2" ]; do sleep 0.1; done
for number in $(seq "$3"); do echo >&3; done
wait
"#;

#[test]
fn programs_beyond_those_that_can_be_paged_run_and_the_user_is_told_once() {
    let Some(stage) = Stage::set(&["seq"]) else { return };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if limit.is_some_and(|limit| limit < DESCRIPTORS) {
        return skip("a hard limit of two thousand open files");
    }
    let (pipe, end) = (stage.disk().join("pipe"), stage.disk().join("end"));
    // The shell is one of those that are paged.
    let programs = PROGRAMS_MAX + 2;
    let count = programs.to_string();
    let program = ["sh", "-c", CROWD, "sh", pipe.to_str().unwrap(), end.to_str().unwrap(), &count];
    let mut running =
        Running::start(&mut stage.run(&["--local", "50%", "--lend", "64M", "--slab-size", "4M"], &program));
    let told = format!("{PROGRAMS_MAX} processes are paged, and no more can be");
    running.wait_until("the user to be told", || stage.pager_now()?.failures.join("; ").contains(&told).then_some(()));
    std::fs::write(end, "").unwrap();
    let said = running.end().done("a crowd");
    let mut numbers: Vec<u32> = said.text().lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=programs), "every program was there to the end: {}", said.text());
    assert_eq!(said.errors.matches(&told).count(), 1, "{}", said.errors);
    stage.assert_clean();
}
