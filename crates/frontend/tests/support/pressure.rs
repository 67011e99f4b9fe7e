//! A program short of memory, and swap to the device under test. For guests, but for [`fill_and_verify`]: the rest is
//! not safe on a machine that others use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use spillway_sys::memfd::Memfd;
use spillway_sys::swap::{self, SwapDiscard};

use super::PATIENCE;
use super::in_guest::ServerProcess;

/// A memory cgroup (version 2) that is removed at the end.
pub(crate) struct MemoryGroup(PathBuf);

impl MemoryGroup {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let group = Self(PathBuf::from(format!("/sys/fs/cgroup/spillway-test-{}", std::process::id())));
        fs::create_dir(&group.0).unwrap();
        // Throttled at the limit and killed only well above it: the kernel's reclaim goes by statistics that lag, and
        // would now and then kill a program whose swap is nearly empty (docs/decisions/limit-guard.md).
        fs::write(group.0.join("memory.high"), limit_bytes.to_string()).unwrap();
        fs::write(group.0.join("memory.max"), (limit_bytes * 3 / 2).to_string()).unwrap();
        group
    }

    /// Starts `command` inside.
    pub(crate) fn start(&self, command: &mut Command) -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ >\"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.0).arg(command.get_program());
        shell.args(command.get_args());
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap());
        }
        shell.stdout(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Swap on a device; off again before the device goes, whatever happens.
pub(crate) struct SwappedOn(pub(crate) PathBuf);

impl Drop for SwappedOn {
    fn drop(&mut self) {
        let _ = swap::off(&self.0);
    }
}

/// Fills memory and finds it as it was written, twice: the process that is short of memory.
pub(crate) fn fill_and_verify() {
    let bytes: usize = std::env::var("SPILLWAY_TEST_FILL").expect("another test starts this one").parse().unwrap();
    let mut words: Vec<u64> = vec![0; bytes / 8];
    let word_at = |at: usize, round: u64| (at as u64).wrapping_mul(round ^ 0x9E37_79B9_7F4A_7C15);
    for round in 1..=2_u64 {
        words.iter_mut().enumerate().for_each(|(at, word)| *word = word_at(at, round));
        let wrong = words.iter().enumerate().filter(|(at, word)| **word != word_at(*at, round));
        assert_eq!(wrong.count(), 0, "round {round}");
    }
}

/// This program with [`fill_and_verify`] in it.
pub(crate) fn filler(bytes: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "fill_and_verify", "--ignored"]).env("SPILLWAY_TEST_FILL", bytes.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Bytes of a swap area in use.
pub(crate) fn used_bytes(area: &Path) -> u64 {
    swap::areas().unwrap().iter().find(|one| one.path == area).map_or(0, |one| one.used_bytes)
}

/// A program twice as large as its memory goes on with what it wrote, while `server`, which serves its swap at
/// `path`, is killed `deaths` times and followed.
pub(crate) fn swap_through_deaths(
    mut server: ServerProcess,
    memory: &Memfd,
    path: &Path,
    limit_bytes: u64,
    deaths: usize,
) {
    let group = MemoryGroup::new(limit_bytes);
    swap::make(path, "test", [2; 16]).unwrap();
    swap::on(path, Some(100), SwapDiscard::Pages).unwrap();
    let swapped_on = SwappedOn(path.to_owned());
    let mut program = group.start(&mut filler(limit_bytes * 5 / 2));
    let (mut most_bytes, mut kills) = (0, 0);
    let give_up = Instant::now() + 2 * PATIENCE;
    let status = loop {
        most_bytes = used_bytes(path).max(most_bytes);
        if let Some(status) = program.try_wait().unwrap() {
            break status;
        }
        if most_bytes > limit_bytes / 2 && kills < deaths {
            server.follow(memory);
            kills += 1;
        }
        assert!(Instant::now() < give_up, "the program goes on after {kills} deaths of the server");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "the program saw what it wrote: {status}");
    assert!(most_bytes > limit_bytes / 2, "it was swapped: {most_bytes} bytes at most");
    assert!(kills > 0);
    drop(swapped_on);
    server.end();
}
