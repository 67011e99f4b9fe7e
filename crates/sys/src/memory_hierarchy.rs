//! Which version of memory cgroups the kernel has, and where they are mounted.

use crate::lease::read_unless_leased;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::proc_text::cgroups::{self, Membership};
use crate::proc_text::mounts::{self, Mount};
use crate::proc_text::{unescaped, words};

/// The list of mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";

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
        let has_memory = |root: &Path| {
            let controllers = fs::read(root.join("cgroup.controllers")).unwrap_or_default();
            words::all(&controllers).any(|controller| controller == b"memory")
        };
        Self::find(&fs::read(MOUNTS).ok()?, &has_memory)
    }

    fn find(mountinfo: &[u8], v2_has_memory: &dyn Fn(&Path) -> bool) -> Option<Self> {
        mounts::all(mountinfo).find_map(|mount| {
            let root = point_of(&mount);
            let version = match mount.kind {
                b"cgroup2" if v2_has_memory(&root) => Version::V2,
                b"cgroup" if mount.has_option("memory") => Version::V1,
                _ => return None,
            };
            Some(Self { version, root })
        })
    }

    /// Where the hierarchy of version 2 is mounted beside this one; `None` where this one is it, or none is.
    pub fn version_two_beside(&self) -> Option<PathBuf> {
        (self.version == Version::V1).then(|| version_two(&fs::read(MOUNTS).ok()?)).flatten()
    }

    /// The group that this process is in.
    pub fn own_group(&self) -> io::Result<PathBuf> {
        Ok(self.group_in(&fs::read("/proc/self/cgroup")?))
    }

    /// The group that `process` is in.
    pub fn group_of(&self, process: u32) -> io::Result<PathBuf> {
        Ok(self.group_in(&read_unless_leased(format!("/proc/{process}/cgroup"))?))
    }

    fn group_in(&self, text: &[u8]) -> PathBuf {
        let path = self.path_in(text).unwrap_or_default();
        let from = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
        let group = self.root.join(OsStr::from_bytes(&path[from..]));
        // In a container the path may be the host's and the mount the container's.
        if group.is_dir() { group } else { self.root.clone() }
    }

    /// In the text of a file `cgroup` of `/proc`.
    fn path_in<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        let is_own = |group: &Membership<'_>| match self.version {
            Version::V1 => group.has_controller("memory"),
            Version::V2 => group.is_version_two(),
        };
        cgroups::all(text).find(is_own).map(|group| group.path)
    }
}

/// The first place of a hierarchy of version 2.
fn version_two(mountinfo: &[u8]) -> Option<PathBuf> {
    mounts::all(mountinfo).find(|mount| mount.kind == b"cgroup2").map(|mount| point_of(&mount))
}

fn point_of(mount: &Mount<'_>) -> PathBuf {
    OsString::from_vec(unescaped(mount.point).collect()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user has mounted something at a place whose name is no text.
    const HYBRID: &[u8] = b"20 1 0:20 / /home/\xff fuse.x rw - fuse.cgroup2  rw,user_id=1000\n\
        21 1 0:21 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        22 21 0:22 / /sys/fs/cgroup/cpu rw,relatime shared:1 - cgroup cgroup rw,cpu\n\
        23 21 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        24 21 0:24 / /sys/fs/cgroup/a\\040memory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn the_hierarchy_with_the_memory_controller_is_taken() {
        let v1 = Hierarchy { version: Version::V1, root: "/sys/fs/cgroup/a memory".into() };
        assert_eq!(Hierarchy::find(HYBRID, &|_| false), Some(v1));
        let v2 = Hierarchy { version: Version::V2, root: "/sys/fs/cgroup/unified".into() };
        assert_eq!(Hierarchy::find(HYBRID, &|_| true), Some(v2));
        assert_eq!(Hierarchy::find(b"20 1 0:20 / /proc rw - proc proc rw\n", &|_| true), None);
    }

    #[test]
    fn version_two_is_found_beside_version_one() {
        assert_eq!(version_two(HYBRID), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(version_two(b"24 21 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"), None);
        let alone = Hierarchy { version: Version::V2, root: "/sys/fs/cgroup".into() };
        assert_eq!(alone.version_two_beside(), None);
    }

    #[test]
    fn the_own_group_is_told_by_version() {
        let text = b"5:cpu,memory:/a/b\n4:devices:/x\n0::/c:d\n";
        let own = |version| Hierarchy { version, root: "/".into() }.path_in(text).map(<[u8]>::to_vec);
        assert_eq!(own(Version::V1), Some(b"/a/b".to_vec()));
        assert_eq!(own(Version::V2), Some(b"/c:d".to_vec()));
    }
}
