//! Processes of a run that are in another memory group than the run's, where its budget does not hold: container
//! engines, `systemd-run` and schedulers of jobs move what they start.
//!
//! In version 1 a group without a limit says nothing about memory, so a process that joined one is put back. A group
//! with a limit is what the program asked for, and in version 2 a group is more than memory: the user is told.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use spillway_sys::lease::read_unless_leased;
use spillway_sys::mapping::PAGE_SIZE_BYTES;
use spillway_sys::memory_hierarchy::{Hierarchy, Version};
use spillway_sys::proc_text::words;

use super::MemoryGroup;

/// Processes that are looked at at most: the first ones of a run are those that move others.
const PROCESSES_MAX: usize = 256;

/// Limits from here on are none: version 1 says the largest multiple of a page in 63 bits.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// A process outside of its run's group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its number.
    pub process: u32,
    /// The group that it went to, from the root of all on.
    pub group: PathBuf,
    /// What it has in local memory.
    pub local_bytes: u64,
    /// Whether it is in the run's group again.
    pub is_back: bool,
}

impl Stray {
    /// What to tell the user.
    pub fn describe(&self) -> String {
        let (process, group, local) = (self.process, self.group.display(), crate::size::human(self.local_bytes));
        if self.is_back {
            return format!(
                "process {process} of the program went to the memory group {group}, which has no limit, and was put back; \
                 what it had local then, {local}, stays beside --local until it is freed"
            );
        }
        format!(
            "process {process} of the program went to the memory group {group}: --local does not hold there, and it has {local} \
             local; start what makes that group (a container engine, systemd-run) outside, and `spillway run` inside of it"
        )
    }
}

/// The processes among `first` and what it started that are outside of `group`; those that can be are put back.
/// Groups of other runs of ours have budgets of their own, and those of our devices must have no limit.
pub fn find(hierarchy: &Hierarchy, group: &MemoryGroup, first: u32) -> Vec<Stray> {
    let members: HashSet<u32> = group.processes().into_iter().collect();
    // Where the first process is before it enters the group; a return to there is not seen.
    let starting = hierarchy.own_group().unwrap_or_default();
    let ours = MemoryGroup::directory(hierarchy);
    let mut strays = Vec::new();
    for process in family(first) {
        if members.contains(&process) {
            continue;
        }
        // One that ended is in no group.
        let Ok(place) = hierarchy.group_of(process) else { continue };
        let local_bytes = resident_bytes(process);
        // Without memory it has just ended.
        if place.starts_with(&ours) || (place == starting && process == first) || local_bytes == 0 {
            continue;
        }
        let may_be_back = hierarchy.version == Version::V1 && !has_limit(hierarchy, &place);
        let is_back = may_be_back && group.add(process).is_ok();
        let group = Path::new("/").join(place.strip_prefix(&hierarchy.root).unwrap_or(&place));
        strays.push(Stray { process, group, local_bytes, is_back });
    }
    strays
}

/// `first` and what it started, as far as they live.
fn family(first: u32) -> Vec<u32> {
    let mut family = vec![first];
    let mut next = 0;
    while let Some(process) = family.get(next).copied() {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let text = read_unless_leased(task.path().join("children")).unwrap_or_default();
            family.extend(words::processes(&text));
        }
        family.truncate(PROCESSES_MAX);
    }
    family
}

/// Whether this group of version 1, or one above it, has a limit.
fn has_limit(hierarchy: &Hierarchy, group: &Path) -> bool {
    group.ancestors().take_while(|place| place.starts_with(&hierarchy.root)).any(|place| {
        let text = read_unless_leased(place.join("memory.limit_in_bytes")).unwrap_or_default();
        words::numbers(&text).next().is_some_and(|bytes| bytes < NO_LIMIT_BYTES)
    })
}

fn resident_bytes(process: u32) -> u64 {
    let text = read_unless_leased(format!("/proc/{process}/statm")).unwrap_or_default();
    words::first(&text).map_or(0, |[_, resident_pages]: [u64; 2]| resident_pages * PAGE_SIZE_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_child_is_of_the_family_and_has_memory() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        assert!(family(std::process::id()).contains(&child.id()));
        assert!(resident_bytes(child.id()) > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(resident_bytes(u32::MAX >> 1), 0);
    }

    #[test]
    fn what_went_elsewhere_is_put_back_or_told() {
        let Some(hierarchy) = Hierarchy::detect().filter(|_| rustix::process::geteuid().is_root()) else {
            return spillway_sys::skipping::skip("a memory cgroup, or root");
        };
        let group = MemoryGroup::create(&hierarchy, &format!("test-strays-{}", std::process::id())).unwrap();
        let elsewhere = hierarchy.root.join(format!("spillway-test-strays-{}", std::process::id()));
        fs::create_dir(&elsewhere).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        group.add(child.id()).unwrap();
        assert_eq!(find(&hierarchy, &group, child.id()), []);
        fs::write(elsewhere.join("cgroup.procs"), child.id().to_string()).unwrap();
        if hierarchy.version == Version::V1 {
            let stray = find(&hierarchy, &group, child.id()).pop().unwrap();
            assert!(stray.is_back && stray.describe().contains("was put back"), "{stray:?}");
            assert_eq!(group.processes(), [child.id()]);
            fs::write(elsewhere.join("memory.limit_in_bytes"), "1073741824").unwrap();
            fs::write(elsewhere.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let stray = find(&hierarchy, &group, child.id()).pop().unwrap();
        assert!(!stray.is_back && stray.group.starts_with("/") && stray.local_bytes > 0, "{stray:?}");
        assert!(stray.describe().contains("--local does not hold there"), "{}", stray.describe());
        child.kill().unwrap();
        child.wait().unwrap();
        group.remove(Instant::now() + Duration::from_secs(20)).unwrap();
        fs::remove_dir(&elsewhere).unwrap();
    }
}
