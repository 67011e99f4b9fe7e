//! Threads of a program: what the pager adds to them and when, and what of theirs it leaves alone.

use std::process::Command;

use crate::both_ways::peculiarities::peculiarity;
use crate::both_ways::programs::Kind;
use crate::both_ways::stage::Stage;
use crate::support;

/// Fills so many MiB, goes through them until it has as many threads as it is to wait for, or for a while, and tells
/// of its threads and descriptors.
const SCRIPT: &str = "
import os, sys, time
pages = int(sys.argv[1]) << 8
memory = bytearray(b'x' * 4095 + b'.') * pages
threads = lambda: len(os.listdir('/proc/self/task'))
deadline = time.monotonic() + (120 if int(sys.argv[2]) > 1 else 0.5)
while time.monotonic() < deadline and not threads() >= int(sys.argv[2]) > 1:
    assert memory.count(b'x') == 4095 * pages
print(threads(), sorted(os.readlink('/proc/self/fd/' + name).split(':')[0] for name in os.listdir('/proc/self/fd') if int(name) < 3))
print([name for name in os.listdir('/proc/self/fd') if int(name) > 3])
";

/// What the script tells without a pager, or with one that leaves it so much.
fn told(stage: &Stage, local: Option<&str>, mebibytes: &str, threads: &str) -> String {
    let program = ["/usr/bin/python3", "-c", SCRIPT, mebibytes, threads];
    let mut command = match local {
        Some(local) => stage.run(&["--local", local, "--lend", "384M", "--slab-size", "4M"], &program),
        None => {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]);
            command
        }
    };
    support::run(&mut command).done("a look at oneself").text()
}

/// Rule 12: until memory gets short there is nothing of ours that runs in a program.
#[test]
fn a_program_within_its_budget_has_its_own_threads_and_descriptors_only() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let bare = told(&stage, None, "48", "1");
    assert!(bare.starts_with("1 "), "{bare}");
    assert_eq!(told(&stage, Some("256M"), "48", "1"), bare);
    stage.assert_clean();
}

#[test]
fn a_program_beyond_its_budget_has_one_thread_more_and_no_descriptor() {
    let Some(stage) = Stage::set(&["/usr/bin/python3"]) else { return };
    let bare = told(&stage, None, "64", "1");
    assert_eq!(told(&stage, Some("24M"), "64", "2"), bare.replacen("1 ", "2 ", 1));
    stage.assert_clean();
}

/// Rule 4: the kernel needs robust lists and rseq areas when threads end and are switched, and gets no fault served
/// for the former.
#[test]
fn control_blocks_of_sleeping_threads_never_leave() {
    peculiarity(Kind::Steady, "control");
}
