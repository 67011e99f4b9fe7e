//! A program short of memory, and swap to the device under test. For guests: nothing here is safe on a machine that others use.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use spillway_sys::swap;

use super::PATIENCE;

/// A memory cgroup (version 2) that is removed at the end.
pub(crate) struct MemoryGroup(PathBuf);

impl MemoryGroup {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let group = Self(PathBuf::from(format!("/sys/fs/cgroup/spillway-test-{}", std::process::id())));
        fs::create_dir(&group.0).unwrap();
        // Throttled at the limit and killed only well above it: the kernel's reclaim goes by statistics that lag, and would now and
        // then kill a program whose swap is nearly empty (docs/decisions/limit-guard.md).
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
        shell.stdout(std::process::Stdio::null()).spawn().unwrap()
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
