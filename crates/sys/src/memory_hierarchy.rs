//! Which version of memory cgroups the kernel has, and where they are mounted.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The two interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each controller.
    V1,
    /// One hierarchy for all.
    V2,
}

/// The mounted hierarchy that has the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its interface.
    pub version: Version,
    /// Where it is mounted.
    pub root: PathBuf,
}

impl Hierarchy {
    /// The one of this machine; `None` if none is mounted.
    pub fn detect() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let has_memory = |root: &str| {
            let controllers = fs::read_to_string(format!("{root}/cgroup.controllers")).unwrap_or_default();
            controllers.split_ascii_whitespace().any(|controller| controller == "memory")
        };
        Self::find(&mounts, &has_memory)
    }

    /// In the text of `/proc/self/mounts`: device, place, type, options.
    fn find(mounts: &str, v2_has_memory: &dyn Fn(&str) -> bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (root, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let version = match kind {
                "cgroup2" if v2_has_memory(root) => Version::V2,
                "cgroup" if options.split(',').any(|option| option == "memory") => Version::V1,
                _ => return None,
            };
            Some(Self { version, root: root.into() })
        })
    }

    /// Where the hierarchy of version 2 is mounted beside this one; `None` where this one is it, or none is.
    pub fn version_two_beside(&self) -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        (self.version == Version::V1).then(|| version_two(&mounts)).flatten()
    }

    /// The group that this process is in.
    pub fn own_group(&self) -> io::Result<PathBuf> {
        Ok(self.group_in(&fs::read_to_string("/proc/self/cgroup")?))
    }

    /// The group that `process` is in.
    pub fn group_of(&self, process: u32) -> io::Result<PathBuf> {
        Ok(self.group_in(&fs::read_to_string(format!("/proc/{process}/cgroup"))?))
    }

    fn group_in(&self, text: &str) -> PathBuf {
        let path = self.path_in(text).unwrap_or_default();
        let group = self.root.join(path.trim_start_matches('/'));
        // In a container the path may be the host's and the mount the container's.
        if group.is_dir() { group } else { self.root.clone() }
    }

    /// In the text of a file `cgroup` of `/proc`: number, controllers, path.
    fn path_in<'a>(&self, text: &'a str) -> Option<&'a str> {
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let own = match self.version {
                Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
                Version::V2 => number == "0" && controllers.is_empty(),
            };
            own.then_some(path)
        })
    }
}

/// The first place of a hierarchy of version 2 in the text of `/proc/self/mounts`.
fn version_two(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (root, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| root.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";

    #[test]
    fn the_hierarchy_with_the_memory_controller_is_taken() {
        let v1 = Hierarchy { version: Version::V1, root: "/sys/fs/cgroup/memory".into() };
        assert_eq!(Hierarchy::find(HYBRID, &|_| false), Some(v1));
        let v2 = Hierarchy { version: Version::V2, root: "/sys/fs/cgroup/unified".into() };
        assert_eq!(Hierarchy::find(HYBRID, &|_| true), Some(v2));
        assert_eq!(Hierarchy::find("proc /proc proc rw 0 0\n", &|_| true), None);
    }

    #[test]
    fn version_two_is_found_beside_version_one() {
        assert_eq!(version_two(HYBRID), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(version_two("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"), None);
        let alone = Hierarchy { version: Version::V2, root: "/sys/fs/cgroup".into() };
        assert_eq!(alone.version_two_beside(), None);
    }

    #[test]
    fn the_own_group_is_told_by_version() {
        let text = "5:cpu,memory:/a/b\n4:devices:/x\n0::/c:d\n";
        let own = |version| Hierarchy { version, root: "/".into() }.path_in(text);
        assert_eq!(own(Version::V1), Some("/a/b"));
        assert_eq!(own(Version::V2), Some("/c:d"));
    }
}
