//! For which processes of the machine pages are prefetched, and how many pages may be on their way for them.
//!
//! Processes are told apart when they fault, so those that start later are no other case. What is known of one is
//! looked up again after a while, as it may become another program, or move to another cgroup. Programs under
//! `spillway run` are left to their runs.
//!
//! The room is what the machine has available, and what the limits of the process's memory cgroup and of those above
//! it leave, whichever is least. Pages that are on their way for other processes count in full, so a small cgroup
//! beside a busy one may be prefetched less for than alone, and never more.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spillway_device::prefetch::headroom::{CgroupMemory, Subjects};
use spillway_machine::cgroup::MemoryGroup;
use spillway_sys::lease::read_unless_leased;
use spillway_sys::machine_memory::MachineMemory;
use spillway_sys::memory_hierarchy::{Hierarchy, Version};
use spillway_sys::proc_text::words;

use super::plan::PrefetchPlan;
use crate::limits::{ROOM_LOOK_INTERVAL, SUBJECT_LOOK_INTERVAL, SUBJECTS_MAX};

/// Something that is looked up again after a while.
#[derive(Clone, Debug)]
struct Looked<T> {
    at: Instant,
    found: T,
}

impl<T> Looked<T> {
    fn now(found: T) -> Self {
        Self { at: Instant::now(), found }
    }

    fn is_fresh(&self, interval: Duration) -> bool {
        self.at.elapsed() < interval
    }
}

/// See the module text.
#[derive(Debug)]
pub(super) struct MachineSubjects {
    plan: PrefetchPlan,
    hierarchy: Option<Hierarchy>,
    /// By number: the memory cgroup of a process that is prefetched for; `None` for others.
    processes: HashMap<u32, Looked<Option<PathBuf>>>,
    /// By directory.
    rooms: HashMap<PathBuf, Looked<usize>>,
    machine: Option<Looked<usize>>,
}

impl MachineSubjects {
    pub(super) fn new(plan: PrefetchPlan) -> Self {
        let (processes, rooms) = (HashMap::new(), HashMap::new());
        Self { plan, hierarchy: Hierarchy::detect(), processes, rooms, machine: None }
    }

    fn look_at(&self, process: u32) -> Option<PathBuf> {
        let Some(hierarchy) = &self.hierarchy else {
            // Without memory cgroups there are no limits of theirs.
            return self.is_wanted(process, Path::new("")).then(PathBuf::new);
        };
        // One that has ended is prefetched for no more.
        let group = hierarchy.group_of(process).ok()?;
        let is_in_run = group.starts_with(MemoryGroup::directory(hierarchy));
        (!is_in_run && self.is_wanted(process, &group)).then_some(group)
    }

    fn is_wanted(&self, process: u32, group: &Path) -> bool {
        let plan = &self.plan;
        plan.is_for_all()
            || plan.cgroups.iter().any(|wanted| group.starts_with(wanted))
            || !plan.names.is_empty() && names_of(process).iter().any(|name| plan.names.contains(name))
    }

    /// What the limits of a group and of those above it leave.
    fn room_of_group(&mut self, group: &Path) -> usize {
        if let Some(room) = self.rooms.get(group).filter(|room| room.is_fresh(ROOM_LOOK_INTERVAL)) {
            return room.found;
        }
        let Some(Hierarchy { version, root }) = &self.hierarchy else { return usize::MAX };
        let limited = group.ancestors().take_while(|group| *group != root && group.starts_with(root));
        let room = limited.map(|group| room_of(group, *version)).min().unwrap_or(usize::MAX);
        if self.rooms.len() >= SUBJECTS_MAX {
            self.rooms.clear();
        }
        self.rooms.insert(group.to_owned(), Looked::now(room));
        room
    }

    /// What is available without anything else leaving; the kernel has taken its watermarks off already.
    fn room_of_machine(&mut self) -> usize {
        if let Some(room) = self.machine.as_ref().filter(|room| room.is_fresh(ROOM_LOOK_INTERVAL)) {
            return room.found;
        }
        let available = MachineMemory::read().map_or(0, |memory| memory.available_bytes);
        let room = CgroupMemory { limit_bytes: Some(available), ..CgroupMemory::default() }.room_pages();
        self.machine = Some(Looked::now(room));
        room
    }
}

impl Subjects for MachineSubjects {
    fn room_pages(&mut self, process: u32) -> Option<usize> {
        let known = self.processes.get(&process).filter(|known| known.is_fresh(SUBJECT_LOOK_INTERVAL));
        let group = match known {
            Some(known) => known.found.clone(),
            None => {
                let found = self.look_at(process);
                if self.processes.len() >= SUBJECTS_MAX {
                    // Those that still fault are looked up again.
                    self.processes.clear();
                }
                self.processes.insert(process, Looked::now(found.clone()));
                found
            }
        }?;
        Some(self.room_of_group(&group).min(self.room_of_machine()))
    }
}

/// The name that a process has given itself, of which the kernel keeps 15 bytes, and that of its program's file.
fn names_of(process: u32) -> Vec<String> {
    let own = read_unless_leased(format!("/proc/{process}/comm"));
    let own = own.map(|name| String::from_utf8_lossy(name.trim_ascii_end()).into_owned());
    let file = fs::read_link(format!("/proc/{process}/exe")).ok();
    let file = file.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    own.into_iter().chain(file).collect()
}

/// What the group's own limit leaves; none if the group cannot be looked at, for instance because it has gone.
fn room_of(group: &Path, version: Version) -> usize {
    let Some(limit_bytes) = limit_of(group, version) else { return usize::MAX };
    let Ok(usage) = MemoryGroup::usage_at(group, version) else { return 0 };
    let memory = CgroupMemory {
        limit_bytes: Some(limit_bytes),
        charged_bytes: usage.charged_bytes,
        unmovable_bytes: usage.locked_bytes + usage.kernel_bytes,
        is_stalled: usage.is_stalled,
    };
    memory.room_pages()
}

/// The least limit of a group; `None` without one. Version 1 writes a very large number for none.
fn limit_of(group: &Path, version: Version) -> Option<u64> {
    let files: &[&str] = match version {
        Version::V1 => &["memory.limit_in_bytes"],
        Version::V2 => &["memory.high", "memory.max"],
    };
    let limit = |file: &&str| words::numbers(&read_unless_leased(group.join(file)).ok()?).next();
    files.iter().filter_map(limit).filter(|limit| *limit < 1 << 62).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::choice::PrefetchChoice;

    fn subjects(cgroups: &[&Path], names: &[&str]) -> MachineSubjects {
        let mut plan = PrefetchPlan::of_all(PrefetchChoice::Streams);
        plan.cgroups = cgroups.iter().map(|path| path.to_path_buf()).collect();
        plan.names = names.iter().map(|name| (*name).to_owned()).collect();
        MachineSubjects::new(plan)
    }

    #[test]
    fn processes_are_found_by_name_by_group_or_all() {
        let own = std::process::id();
        let name = &names_of(own)[1];
        assert!(subjects(&[], &[]).room_pages(own).is_some());
        assert!(subjects(&[], &["no-such-program", name]).room_pages(own).is_some());
        assert_eq!(subjects(&[], &["no-such-program"]).room_pages(own), None);
        assert_eq!(subjects(&[], &[]).room_pages(u32::MAX - 1), None, "no such process");
        let Some(hierarchy) = Hierarchy::detect() else {
            return spillway_sys::skipping::skip("memory cgroups");
        };
        assert!(subjects(&[&hierarchy.root], &[]).room_pages(own).is_some());
        let other = hierarchy.root.join("no-such-group");
        assert_eq!(subjects(&[&other], &[]).room_pages(own), None);
        assert!(subjects(&[&other], &[name]).room_pages(own).is_some(), "either suffices");
    }

    #[test]
    fn the_least_limit_counts_and_a_group_without_one_does_not() {
        let group = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(group.path().join(file), text).unwrap();
        assert_eq!(room_of(group.path(), Version::V2), usize::MAX);
        [("memory.high", "max\n"), ("memory.max", "max\n")].iter().for_each(|(file, text)| write(file, text));
        assert_eq!(room_of(group.path(), Version::V2), usize::MAX);
        write("memory.high", "33554432\n");
        write("memory.max", "67108864\n");
        assert_eq!(room_of(group.path(), Version::V2), 0, "what it holds is not told");
        write("memory.current", "33554432\n");
        write("memory.stat", "unevictable 0\nkernel 0\n");
        assert_eq!(room_of(group.path(), Version::V2), (32 << 20) / 8 / 4096);
        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit_of(group.path(), Version::V1), None);
    }

    #[test]
    fn limits_above_a_group_count_too() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        let limit = |group: &Path, mebibytes: u64| {
            fs::write(group.join("memory.max"), (mebibytes << 20).to_string()).unwrap();
            fs::write(group.join("memory.current"), "0").unwrap();
            fs::write(group.join("memory.stat"), "").unwrap();
        };
        limit(&inner, 64);
        limit(&root.path().join("outer"), 8);
        limit(root.path(), 1);
        let mut subjects = subjects(&[], &[]);
        subjects.hierarchy = Some(Hierarchy { version: Version::V2, root: root.path().to_owned() });
        assert_eq!(subjects.room_of_group(&inner), (8 << 20) / 8 / 4096, "the root has no limit of its own");
        limit(&inner, 4);
        assert_eq!(subjects.room_of_group(&inner), (8 << 20) / 8 / 4096, "it was looked at just now");
        subjects.rooms.clear();
        assert_eq!(subjects.room_of_group(&inner), (4 << 20) / 8 / 4096);
    }
}
