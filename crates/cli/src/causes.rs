//! What lies behind an error of the kernel that only says that there is too little of something: a limit of the
//! caller's, or a rule of the machine.
//!
//! The process that met the error may be another one (a donor, a device), whose limits are those of this one.

use rustix::process::Resource;
use spillway_machine::size::human;
use spillway_sys::callers_limits::still_limited;
use spillway_sys::proc_text::{cgroups, fields};

/// One line for the user for each cause that `failure` can have on this machine.
pub(crate) fn of(failure: &str) -> Vec<String> {
    let mut found = Vec::new();
    if failure.contains("Cannot allocate memory") {
        found.extend([Resource::As, Resource::Data].into_iter().filter_map(too_low));
        found.extend(promised());
    }
    if failure.contains("File too large") {
        found.extend(too_low(Resource::Fsize));
    }
    if failure.contains("Too many open files") {
        found.extend(too_low(Resource::Nofile));
    }
    if failure.contains("Resource temporarily unavailable") {
        found.extend(processes());
    }
    found
}

/// Bytes of stack with which every command works; a run by the pager fails with half of it.
const STACK_BYTES_MIN: u64 = 512 << 10;

/// What to tell a user whose limit leaves no room for this program.
pub(crate) fn too_little_stack() -> Option<String> {
    still_limited(Resource::Stack).filter(|(limit, _)| *limit < STACK_BYTES_MIN)?;
    too_low(Resource::Stack)
}

fn too_low(resource: Resource) -> Option<String> {
    let (limit, option) = still_limited(resource)?;
    let shown = if resource == Resource::Nofile { limit.to_string() } else { human(limit) };
    // ulimit(1) takes KiB, and file sizes in blocks of 1 KiB (bash).
    let value = if resource == Resource::Nofile { limit } else { limit / 1024 };
    Some(format!(
        "`ulimit {option}` is {shown}, which Spillway's own processes need more than, and this user may not raise it; \
         to limit the program alone: spillway run ... sh -c 'ulimit {option} {value}; exec PROGRAM'"
    ))
}

/// A machine that promises no more memory than it has (Documentation/mm/overcommit-accounting.rst).
fn promised() -> Option<String> {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    (mode.trim() == "2").then_some(())?;
    let text = std::fs::read("/proc/meminfo").ok()?;
    let (limit, used) = (fields::bytes_of(&text, "CommitLimit")?, fields::bytes_of(&text, "Committed_AS")?);
    Some(format!(
        "this machine promises no more memory than it has (vm.overcommit_memory=2), and {} of {} are left; \
         raise vm.overcommit_ratio, or borrow less (--lend)",
        human(limit.saturating_sub(used)),
        human(limit)
    ))
}

/// Limits of processes, of which threads are some.
fn processes() -> Option<String> {
    let limit = rustix::process::getrlimit(Resource::Nproc).current;
    let user = limit.map(|count| format!("`ulimit -u` lets this user have {count} processes and threads; raise it"));
    let groups = std::fs::read("/proc/self/cgroup").unwrap_or_default();
    let group = cgroups::all(&groups).find_map(|group| {
        let place = if group.is_version_two() {
            "/sys/fs/cgroup"
        } else if group.has_controller("pids") {
            "/sys/fs/cgroup/pids"
        } else {
            return None;
        };
        let path = str::from_utf8(group.path).ok()?;
        let count = std::fs::read_to_string(format!("{place}{path}/pids.max")).ok()?.trim().to_owned();
        (count != "max").then(|| format!("its control group {path} may have {count} processes and threads (pids.max)"))
    });
    match (group, user) {
        (Some(group), Some(user)) => Some(format!("{group}; {user}")),
        (group, user) => group.or(user),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_failures_have_no_cause_here() {
        assert!(of("no such donor").is_empty());
        let memory = of("cannot map: Cannot allocate memory (os error 12)");
        assert_eq!(memory.iter().any(|line| line.contains("-v")), still_limited(Resource::As).is_some());
    }

    #[test]
    fn the_line_for_a_limit_says_how_the_program_alone_is_limited() {
        let line = too_low(Resource::Nofile).unwrap();
        assert!(line.contains("ulimit -n") && line.contains("exec PROGRAM"), "{line}");
    }
}
