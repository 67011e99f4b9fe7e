//! Memory cgroups, versions 1 and 2: a limit on local memory for a program and its children.
//!
//! A program enters by itself, through a shell that writes its own process id and then becomes the program; so no
//! page is ever charged elsewhere. A limited group has a [`ReclaimGuard`], as programs under `spillway run` have.
//!
//! Invariant: when the value is dropped, every process still in the group is ended (only what was started in it can be
//! there) and the group is removed.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spillway_machine::cgroup;
use spillway_sys::memory_hierarchy::{Hierarchy, Version};
use spillway_sys::proc_text::fields::counter_of;

use super::HarnessError;
use super::interrupt::Interrupt;
use super::process::bound;
use super::reclaim_guard::ReclaimGuard;

/// How long an emptied group may take until it can be removed.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(10);

/// A memory cgroup of this run's own.
#[derive(Debug)]
pub struct MemoryGroup {
    version: Version,
    group: cgroup::MemoryGroup,
    guard: Option<ReclaimGuard>,
}

/// What a group holds and has been through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Local memory that it needs: all that is charged to it, page tables included, less file pages that no process
    /// uses.
    pub working_bytes: u64,
    /// Major faults: those that had to wait for a device.
    pub major_faults: u64,
}

impl MemoryGroup {
    /// A new group whose local memory is bounded by `limit_bytes`.
    pub fn create(limit_bytes: Option<u64>) -> Result<Self, HarnessError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let hierarchy = Hierarchy::detect().ok_or_else(|| {
            HarnessError::Missing("no memory cgroup is mounted; mount one under /sys/fs/cgroup".to_owned())
        })?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("spillway-bench-{}-{number}", std::process::id());
        let made = cgroup::MemoryGroup::create_apart(&hierarchy, &name).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                HarnessError::Missing("making a memory cgroup needs root; use sudo".to_owned())
            }
            _ => HarnessError::system("making a memory cgroup")(error),
        })?;
        let mut group = Self { version: hierarchy.version, group: made, guard: None };
        if let Some(limit) = limit_bytes {
            group.limit(limit)?;
        }
        Ok(group)
    }

    /// A new group that the kernel keeps within `limit_bytes` at the moment of each charge, on cgroup version 2,
    /// which needs no guard for it: for measurements that nothing is to run beside.
    pub fn strict(limit_bytes: u64) -> Result<Self, HarnessError> {
        let group = Self::create(None)?;
        match group.version {
            Version::V1 => Err(HarnessError::Missing("a strict limit needs cgroup version 2".to_owned())),
            Version::V2 => group.write("memory.max", &limit_bytes.to_string()).map(|()| group),
        }
    }

    /// The same limit as `spillway run` sets: version 2 throttles at it and kills only well above it.
    fn limit(&mut self, limit_bytes: u64) -> Result<(), HarnessError> {
        self.group.set_limit(Some(limit_bytes)).map_err(HarnessError::system("limiting a memory cgroup"))?;
        let statistics = self.group.path().join("memory.stat");
        self.guard = Some(ReclaimGuard::start(statistics, self.charge_file(), limit_bytes));
        Ok(())
    }

    /// Leaves `room_bytes` beyond what it holds now, as if other programs had taken the rest; gives the limit.
    pub fn leave_room(&self, room_bytes: u64) -> Result<u64, HarnessError> {
        let limit_bytes = self.charged_bytes() + room_bytes;
        self.write(self.name("memory.limit_in_bytes", "memory.max"), &limit_bytes.to_string())?;
        Ok(limit_bytes)
    }

    /// All that is charged to it now.
    pub fn charged_bytes(&self) -> u64 {
        std::fs::read_to_string(self.charge_file()).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// `command` as a command that enters the group first.
    pub fn enter(&self, command: &Command) -> Command {
        let mut shell = bound("sh");
        shell.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").args(self.group.procs_files());
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            shell.current_dir(directory);
        }
        shell
    }

    /// What it holds now.
    pub fn usage(&self) -> GroupUsage {
        let text = std::fs::read_to_string(self.group.path().join("memory.stat")).unwrap_or_default();
        let unused_bytes = counter_of(&text, self.name("total_inactive_file", "inactive_file")).unwrap_or(0);
        // The two files are not read at one moment.
        let working_bytes = self.charged_bytes().saturating_sub(unused_bytes);
        GroupUsage { working_bytes, major_faults: self.group.major_faults() }
    }

    fn charge_file(&self) -> PathBuf {
        self.group.path().join(self.name("memory.usage_in_bytes", "memory.current"))
    }

    fn name<'name>(&self, one: &'name str, two: &'name str) -> &'name str {
        if self.version == Version::V1 { one } else { two }
    }

    fn write(&self, file: &str, value: &str) -> Result<(), HarnessError> {
        let path = self.group.path().join(file);
        std::fs::write(&path, value).map_err(HarnessError::system(format!("writing {value} to {}", path.display())))
    }

    fn end_processes(&self) {
        for process in self.group.processes().into_iter().filter_map(|process| Pid::from_raw(process.try_into().ok()?))
        {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        self.guard.take();
        let removed = Interrupt::never().poll("the end of a memory cgroup", REMOVAL_DEADLINE, || {
            self.group.remove(Instant::now()).map_err(|_| self.end_processes()).ok()
        });
        if let Err(error) = removed {
            eprintln!("spillway-bench: cannot remove {}: {error}; remove it with rmdir", self.group.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::process::{Collected, Running};

    fn group(limit: Option<u64>) -> Option<MemoryGroup> {
        MemoryGroup::create(limit).map_err(spillway_sys::skipping::skip_because).ok()
    }

    #[test]
    fn a_program_runs_inside_and_the_group_goes() {
        let Some(group) = group(Some(64 << 20)) else { return };
        let path = group.group.path().to_owned();
        let mut command = Command::new("sh");
        command.arg("-c").arg("cat /proc/self/cgroup; echo \"$WORD\"").env("WORD", "two words");
        let output = Collected::default();
        let running = Running::start("a look", &mut group.enter(&command), output.clone()).unwrap();
        assert!(running.wait(Duration::from_secs(60), &Interrupt::never(), || {}).unwrap().status.success());
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(output.text().contains(name) && output.text().contains("two words"), "{}", output.text());
        drop(group);
        assert!(!path.exists());
    }

    #[test]
    fn a_limit_is_the_kernels_and_only_limited_groups_are_guarded() {
        let Some(limited) = group(Some(48 << 20)) else { return };
        let file = limited.group.path().join(limited.name("memory.limit_in_bytes", "memory.high"));
        assert_eq!(std::fs::read_to_string(file).unwrap().trim(), (48 << 20).to_string());
        assert!(limited.guard.is_some());
        let Some(free) = group(None) else { return };
        assert!(free.guard.is_none() && free.group.path() != limited.group.path());
    }

    #[test]
    fn a_strict_limit_has_no_guard_and_needs_version_two() {
        match MemoryGroup::strict(48 << 20) {
            Ok(group) => {
                assert!(group.version == Version::V2 && group.guard.is_none());
                let limit = std::fs::read_to_string(group.group.path().join("memory.max")).unwrap();
                assert_eq!(limit.trim(), (48 << 20).to_string());
            }
            // The machine has the older version, and is told so; or no process may make groups here.
            Err(error) => match MemoryGroup::create(None) {
                Ok(group) => {
                    assert!(group.version == Version::V1 && error.to_string().contains("version 2"), "{error}");
                }
                Err(error) => spillway_sys::skipping::skip_because(error),
            },
        }
    }

    #[test]
    fn environment_and_directory_go_along() {
        let Some(group) = group(None) else { return };
        let mut command = Command::new("sh");
        command.args(["-c", "pwd; echo \"$ONE$HOME\""]).env("ONE", "1 *").env_remove("HOME").current_dir("/");
        let output = Collected::default();
        let running = Running::start("a look", &mut group.enter(&command), output.clone()).unwrap();
        assert!(running.wait(Duration::from_secs(60), &Interrupt::never(), || {}).unwrap().status.success());
        assert_eq!(output.text(), "/\n1 *\n");
    }

    #[test]
    fn its_memory_is_counted() {
        let Some(group) = group(None) else { return };
        let mut command = Command::new("sh");
        // A shell that holds a text of some MiB until it is ended.
        command.args(["-c", "text=$(head -c 6000000 /dev/zero | tr '\\0' x); sleep 100; echo $text"]);
        let _running = Running::start("a holder", &mut group.enter(&command), Collected::default()).unwrap();
        let holds = || (group.usage().working_bytes > 5_000_000).then_some(());
        Interrupt::never().poll("the text in its group", Duration::from_secs(60), holds).unwrap();
    }

    #[test]
    fn what_is_left_inside_is_ended() {
        let Some(group) = group(None) else { return };
        let path = group.group.path().to_owned();
        let mut command = Command::new("sleep");
        let mut running =
            Running::start("a sleeper", &mut group.enter(command.arg("100")), Collected::default()).unwrap();
        let inside = || (!group.group.processes().is_empty()).then_some(());
        Interrupt::never().poll("the sleeper in its group", Duration::from_secs(60), inside).unwrap();
        drop(group);
        assert!(!path.exists());
        let ended = || (!running.is_running()).then_some(());
        Interrupt::never().poll("its end", Duration::from_secs(60), ended).unwrap();
    }
}
