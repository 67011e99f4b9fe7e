//! Memory cgroups, version 1 and 2, as far as a local budget needs them.
//!
//! - [`usage`]: what a group holds; `pressure`: how long it waits, in version 1.
//! - [`strays`]: processes that went to another group.
//!
//! All groups lie under one directory `spillway`, so that `doctor` finds those of dead runs.

mod pressure;
pub mod strays;
pub mod usage;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spillway_sys::memory_hierarchy::{Hierarchy, Version};
use spillway_sys::proc_text::words::processes;

use self::pressure::PressureGroup;
use self::usage::GroupUsage;
use crate::limits;

/// The directory of all our groups.
const PARENT: &str = "spillway";

/// The group in a group of version 2 in which its processes are. No controller is enabled for it, so it has no files
/// about memory: programs that take their group's limit for the machine's memory (Java, Node) find none. It is not
/// theirs to keep, as they are paged and do not notice. Version 1 has such files in every group, and Java asks for
/// the limits above it there.
const MEMBERS: &str = "members";

/// Memory cgroup v1's "no limit": the largest multiple of the page size in 63 bits.
const UNLIMITED_V1: &str = "-1";

/// A memory cgroup of ours.
#[derive(Clone, Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    version: Version,
    /// Of version 1: what counts its pressure, if it has that.
    pressure: Option<PressureGroup>,
}

impl MemoryGroup {
    /// Makes the group `name`; taken over if it exists, because then its owner is dead.
    pub fn create(hierarchy: &Hierarchy, name: &str) -> io::Result<Self> {
        let parent = hierarchy.root.join(PARENT);
        make_directory(&parent)?;
        if hierarchy.version == Version::V2 {
            // Refused where the controller is enabled already by other means; the limit's write tells the truth.
            let _ = fs::write(hierarchy.root.join("cgroup.subtree_control"), "+memory");
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        Self::existing(hierarchy, name).made()
    }

    /// Makes the group `name` beside all others of the hierarchy, where neither `run` nor `doctor` looks for it.
    pub fn create_apart(hierarchy: &Hierarchy, name: &str) -> io::Result<Self> {
        if hierarchy.version == Version::V2 {
            let _ = fs::write(hierarchy.root.join("cgroup.subtree_control"), "+memory");
        }
        Self { path: hierarchy.root.join(name), version: hierarchy.version, pressure: None }.made()
    }

    fn made(self) -> io::Result<Self> {
        make_directory(&self.path)?;
        make_directory(&self.members())?;
        Ok(self)
    }

    /// Where its processes are.
    fn members(&self) -> PathBuf {
        match self.version {
            Version::V1 => self.path.clone(),
            Version::V2 => self.path.join(MEMBERS),
        }
    }

    /// The group `name`, which may or may not exist.
    pub fn existing(hierarchy: &Hierarchy, name: &str) -> Self {
        let pressure = Self::pressure_group(hierarchy, name).filter(PressureGroup::exists);
        Self { path: hierarchy.root.join(PARENT).join(name), version: hierarchy.version, pressure }
    }

    fn pressure_group(hierarchy: &Hierarchy, name: &str) -> Option<PressureGroup> {
        let root = hierarchy.version_two_beside()?;
        Some(PressureGroup::at(&root, &Path::new(PARENT).join(name)))
    }

    /// Has the kernel count how long its processes wait for memory ([`GroupUsage::stalled_us`]), of those that enter
    /// it from now on. Version 2 does so anyway.
    pub fn count_pressure(&mut self, hierarchy: &Hierarchy) -> io::Result<()> {
        if self.version == Version::V2 || self.pressure.is_some() {
            return Ok(());
        }
        let name = self.path.file_name().and_then(|name| name.to_str()).expect("it was made of a name");
        let group = Self::pressure_group(hierarchy, name)
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "no cgroup of version 2 is mounted"))?;
        group.create()?;
        self.pressure = Some(group);
        Ok(())
    }

    /// Names of all groups of ours.
    pub fn names(hierarchy: &Hierarchy) -> Vec<String> {
        let Ok(items) = fs::read_dir(hierarchy.root.join(PARENT)) else { return Vec::new() };
        let directories = items.flatten().filter(|item| item.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.filter_map(|item| item.file_name().into_string().ok()).collect()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is there.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// How long ago it was made.
    pub fn age(&self) -> Duration {
        let made = fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        made.ok().and_then(|made| made.elapsed().ok()).unwrap_or_default()
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        write(&self.path.join(file), text)
    }

    /// The file that takes the numbers of processes that are to be in it.
    fn procs_file(&self) -> PathBuf {
        self.members().join("cgroup.procs")
    }

    /// All files that take the number of a process that is to be in it.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        let pressure = self.pressure.iter().map(PressureGroup::procs_file);
        std::iter::once(self.procs_file()).chain(pressure).collect()
    }

    /// Moves a process in; `0` means the caller.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        write(&self.procs_file(), &pid.to_string())
    }

    /// Limits local memory, or lifts the limit. Lowering it below what is used makes the kernel page out before this
    /// returns; what cannot be had at once is not an error.
    ///
    /// Version 2 throttles at the limit (`memory.high`), and kills only well above it: a hard limit kills on a short
    /// peak.
    pub fn set_limit(&self, limit_bytes: Option<u64>) -> io::Result<()> {
        match (self.version, limit_bytes) {
            (Version::V1, None) => self.write("memory.limit_in_bytes", UNLIMITED_V1),
            (Version::V1, Some(bytes)) => match self.write("memory.limit_in_bytes", &bytes.to_string()) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
                result => result,
            },
            (Version::V2, None) => self.write("memory.high", "max").and_then(|()| self.write("memory.max", "max")),
            (Version::V2, Some(bytes)) => {
                let hard = bytes + (bytes / 4).max(limits::HARD_LIMIT_ROOM_BYTES);
                self.write("memory.max", &hard.to_string())?;
                self.write("memory.high", &bytes.to_string())
            }
        }
    }

    /// Lets its processes wait where the kernel finds nothing to take from it, in place of killing one: the process
    /// that watches it raises the limit then ([`GroupUsage::is_stalled`]). Version 2 throttles at the limit, and
    /// needs none of it.
    pub fn wait_instead_of_kill(&self, waits: bool) -> io::Result<()> {
        match self.version {
            Version::V1 => self.write("memory.oom_control", if waits { "1" } else { "0" }),
            Version::V2 => Ok(()),
        }
    }

    /// Keeps what it holds out of swap: a process that serves page-ins must not wait for one.
    fn forbid_swap(&self) {
        let (file, text) = match self.version {
            Version::V1 => ("memory.swappiness", "0"),
            Version::V2 => ("memory.swap.max", "0"),
        };
        // A kernel without swap accounting has no such file; locked memory is what is relied on.
        let _ = self.write(file, text);
    }

    /// What it holds now. Reading it also makes the kernel bring the statistics up to date that its reclaim works from.
    pub fn usage(&self) -> io::Result<GroupUsage> {
        let usage = usage::read(&self.path, self.version)?;
        let counted = self.pressure.as_ref().and_then(PressureGroup::stalled_us);
        Ok(GroupUsage { stalled_us: usage.stalled_us.or(counted), ..usage })
    }

    /// What the group in a directory holds, which may be one of others.
    pub fn usage_at(path: &Path, version: Version) -> io::Result<GroupUsage> {
        usage::read(path, version)
    }

    /// The directory of all groups of ours.
    pub fn directory(hierarchy: &Hierarchy) -> PathBuf {
        hierarchy.root.join(PARENT)
    }

    /// Processes killed by the kernel because of the limit.
    pub fn out_of_memory_kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        usage::field(&text, "oom_kill").unwrap_or(0)
    }

    /// How often it was at its limit and a page had to leave before another came.
    pub fn limit_hits(&self) -> u64 {
        let text = |file| fs::read_to_string(self.path.join(file)).unwrap_or_default();
        match self.version {
            Version::V1 => text("memory.failcnt").trim().parse().unwrap_or(0),
            Version::V2 => usage::field(&text("memory.events"), "max").unwrap_or(0),
        }
    }

    /// Faults of its processes that waited for a page to come in.
    pub fn major_faults(&self) -> u64 {
        let name = match self.version {
            Version::V1 => "total_pgmajfault",
            Version::V2 => "pgmajfault",
        };
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        usage::field(&text, name).unwrap_or(0)
    }

    /// Processes in it.
    pub fn processes(&self) -> Vec<u32> {
        processes(&fs::read(self.procs_file()).unwrap_or_default()).collect()
    }

    /// Moves every process to the group at `target`, a directory of the same hierarchy.
    pub fn release_to(&self, target: &Path) {
        for pid in self.processes() {
            // One that ended meanwhile needs no other group.
            let _ = fs::write(target.join("cgroup.procs"), pid.to_string());
        }
        self.pressure.iter().for_each(PressureGroup::release);
    }

    /// Removes it once it is empty; a group that is not there is removed. Fails if processes stay in it.
    pub fn remove(&self, deadline: Instant) -> io::Result<()> {
        self.pressure.iter().try_for_each(|group| group.remove(deadline))?;
        remove_directory(&self.members(), deadline)?;
        // In version 1 they are one.
        remove_directory(&self.path, deadline)?;
        if let Some(parent) = self.path.parent() {
            // Stays while other runs have groups.
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn remove_directory(path: &Path, deadline: Instant) -> io::Result<()> {
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => std::thread::sleep(limits::POLL_INTERVAL),
        }
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    // Whatever the umask: in a group that others may write to they could make groups of their own.
    match fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        Ok(()) => Ok(()),
    }
}

/// A group without a limit for one of our own processes, which stays in it until this is dropped.
#[derive(Debug)]
pub struct OwnGroup {
    group: MemoryGroup,
    original: PathBuf,
}

impl OwnGroup {
    /// Moves this process, so early that its memory is not charged to the process that started it.
    pub fn enter(hierarchy: &Hierarchy, name: &str) -> io::Result<Self> {
        let original = hierarchy.own_group()?;
        let group = MemoryGroup::create(hierarchy, name)?;
        group.add(0)?;
        group.forbid_swap();
        Ok(Self { group, original })
    }

    /// The file that takes this process back, and the directory below which the group is removed: what leaving takes.
    pub fn ways_out(&self) -> (PathBuf, PathBuf) {
        let groups = self.group.path().parent().and_then(Path::parent).unwrap_or(self.group.path());
        (self.original.join("cgroup.procs"), groups.to_path_buf())
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        self.group.release_to(&self.original);
        // A thread that is just ending keeps it for a moment. What remains is found by `doctor`.
        let _ = self.group.remove(Instant::now() + limits::GROUP_REMOVAL_DEADLINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_made_limited_and_removed() {
        let Some(hierarchy) = Hierarchy::detect().filter(|_| rustix::process::geteuid().is_root()) else {
            return spillway_sys::skipping::skip("a memory cgroup, or root");
        };
        let name = format!("test-{}", std::process::id());
        let group = MemoryGroup::create(&hierarchy, &name).unwrap();
        assert!(MemoryGroup::names(&hierarchy).contains(&name));
        group.set_limit(Some(64 << 20)).unwrap();
        let usage = group.usage().unwrap();
        assert!(usage.charged_bytes < 64 << 20);
        assert!(group.processes().is_empty());
        assert_eq!((group.out_of_memory_kills(), group.limit_hits()), (0, 0));
        group.forbid_swap();
        let files = ["memory.swappiness", "memory.swap.max"].map(|file| fs::read_to_string(group.path().join(file)));
        assert!(files.into_iter().flatten().any(|text| text.trim() == "0"), "its memory stays out of swap");
        group.set_limit(None).unwrap();
        group.remove(Instant::now() + Duration::from_secs(20)).unwrap();
        assert!(!group.exists());
        group.remove(Instant::now()).unwrap();
    }

    #[test]
    fn pressure_is_counted_in_both_versions() {
        let Some(hierarchy) = Hierarchy::detect().filter(|_| rustix::process::geteuid().is_root()) else {
            return spillway_sys::skipping::skip("a memory cgroup, or root");
        };
        let name = format!("test-pressure-{}", std::process::id());
        let mut group = MemoryGroup::create(&hierarchy, &name).unwrap();
        let counts = group.count_pressure(&hierarchy);
        if let Err(error) = &counts {
            spillway_sys::skipping::skip(format!("pressure of groups ({error})"));
        }
        let usage = group.usage().unwrap();
        assert_eq!(usage.stalled_us.is_some(), counts.is_ok() || hierarchy.version == Version::V2);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for file in group.procs_files() {
            write(&file, &child.id().to_string()).unwrap();
        }
        // A later process finds all of it by the name.
        let found = MemoryGroup::existing(&hierarchy, &name);
        assert_eq!(found.procs_files(), group.procs_files());
        found.release_to(&hierarchy.root);
        found.remove(Instant::now() + Duration::from_secs(20)).unwrap();
        assert!(group.procs_files().iter().all(|file| !file.exists()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
