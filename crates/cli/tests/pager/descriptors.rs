//! A pager has several descriptors for each program, and the program its own limit of them.

use std::process::Command;

use crate::stage::Stage;
use crate::support;

/// A limit that a pager of [`PROGRAMS`] programs does not get by with, and one that it does.
const LIMITS: [u64; 2] = [64, 1024];

/// Programs that live at the same time.
const PROGRAMS: usize = 40;

/// All programs wait until the last one was started. The pipe is open for reading and writing, so nobody waits for it to be opened.
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
