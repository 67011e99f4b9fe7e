//! Processes as `/proc` tells of them: whose children they are, what they execute, and how much of their memory is
//! away.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::{signal, wait_until};

const PAGE_BYTES: u64 = 4096;

fn processes() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

/// Processes with that parent, zombies left out.
pub(crate) fn children(parent: u32) -> HashSet<u32> {
    let is_child = |pid: &u32| status_of(*pid).is_some_and(|(found, state)| found == parent && state != "Z");
    processes().filter(is_child).collect()
}

/// Parent and state.
fn status_of(pid: u32) -> Option<(u32, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    Some((field("PPid:")?.parse().ok()?, field("State:")?.to_owned()))
}

/// The most memory that a process had at a time so far, files that it maps included.
pub(crate) fn peak_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let kib = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a process has memory") << 10
}

/// Whether it has ended.
pub(crate) fn is_gone(pid: u32) -> bool {
    status_of(pid).is_none_or(|(_, state)| state == "Z")
}

/// Processes with that argument.
pub(crate) fn with_argument(argument: &Path) -> Vec<u32> {
    let argument = argument.as_os_str().as_encoded_bytes();
    let has_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == argument)
    };
    processes().filter(has_it).collect()
}

/// Kills all processes that were started with `value` in their environment, and theirs, as when a container is removed.
pub(crate) fn kill_all_with(value: &Path) {
    let value = value.as_os_str().as_encoded_bytes();
    let has_it = |pid: &u32| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable.ends_with(value))
    };
    wait_until("no process to be left", || {
        let living: Vec<u32> = processes().filter(has_it).filter(|pid| !is_gone(*pid)).collect();
        // None of them has time to mend what the others leave.
        ["STOP", "KILL"].iter().for_each(|name| living.iter().for_each(|pid| signal(*pid, name)));
        living.is_empty().then_some(())
    });
}

/// Processes that execute `binary`, zombies left out: the program and whatever it forked. The kernel names a program by
/// its path without links.
pub(crate) fn executing(binary: &Path) -> Vec<u32> {
    let binary = fs::canonicalize(binary).unwrap_or_else(|_| binary.to_owned());
    let does = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == binary);
    processes().filter(does).filter(|pid| !is_gone(*pid)).collect()
}

/// Kills in the end what is left of a binary's processes, as where a test failed.
pub(crate) struct EndedAtLast<'a>(pub(crate) &'a Path);

impl Drop for EndedAtLast<'_> {
    fn drop(&mut self) {
        executing(self.0).into_iter().for_each(|pid| signal(pid, "KILL"));
    }
}

/// Pages of a process's anonymous mappings of at least `least_bytes` that are not in its memory. `None` if it has no
/// such mapping, or ends. Opening its pagemap would bring them back.
pub(crate) fn pages_away(pid: u32, least_bytes: u64) -> Option<usize> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    let (mut found, mut mapped_bytes) = (None, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:").filter(|_| mapped_bytes > 0) {
            let local_bytes = kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10;
            *found.get_or_insert(0) += ((mapped_bytes - local_bytes) / PAGE_BYTES) as usize;
            mapped_bytes = 0;
        } else if line.contains('-') {
            let range = anonymous_mapping(line).filter(|(start, end)| end - start >= least_bytes);
            mapped_bytes = range.map_or(0, |(start, end)| end - start);
        }
    }
    found
}

/// Where a line of `/proc/PID/maps` begins and ends, if it is private memory of no file.
fn anonymous_mapping(line: &str) -> Option<(u64, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (range, protection, inode) = (*fields.first()?, *fields.get(1)?, *fields.get(4)?);
    let (start, end) = range.split_once('-').filter(|_| protection == "rw-p" && inode == "0")?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}
