//! What the memory cgroups around a process leave it.
//!
//! Memory is charged to the process's own group, and through it to every group above: the tightest of them decides
//! how much can still be had. A donor that lent more would make the kernel page its slabs out, or kill it, and pages
//! of other machines' programs with it; a pager that brought more back would have the program killed. Both versions
//! of the interface are understood; a group without a limit does not count.

use std::path::Path;

use crate::lease::read_unless_leased;
use crate::memory_hierarchy::{Hierarchy, Version};
use crate::proc_text::fields::counter_of;
use crate::proc_text::words;

/// Version 1 says "no limit" by the largest multiple of a page in 63 bits; no machine has half of it.
const UNLIMITED_BYTES_MIN: u64 = 1 << 62;

/// What this process could still get within its groups' limits; `None` where no limit holds.
pub fn available_bytes() -> Option<u64> {
    let hierarchy = Hierarchy::detect()?;
    let own = hierarchy.own_group().ok()?;
    available_between(&own, &hierarchy.root, hierarchy.version)
}

/// What `process` could still get within its groups' limits; `None` where no limit holds, or it has ended.
pub fn available_bytes_for(process: u32) -> Option<u64> {
    let hierarchy = Hierarchy::detect()?;
    let group = hierarchy.group_of(process).ok()?;
    available_between(&group, &hierarchy.root, hierarchy.version)
}

/// The least that any group from `own` up to `root` leaves.
fn available_between(own: &Path, root: &Path, version: Version) -> Option<u64> {
    own.ancestors().take_while(|group| group.starts_with(root)).filter_map(|group| available_in(group, version)).min()
}

/// What one group leaves: its limit, without what is used and cannot leave at once. Cached files that no thread
/// looked at lately can; all other caches would come back from the disk again and again.
fn available_in(group: &Path, version: Version) -> Option<u64> {
    let (limits, used, cached) = match version {
        Version::V1 => (&["memory.limit_in_bytes"][..], "memory.usage_in_bytes", "total_inactive_file"),
        // From `memory.high` on, the kernel slows the group down.
        Version::V2 => (&["memory.max", "memory.high"][..], "memory.current", "inactive_file"),
    };
    let limit_bytes = limits.iter().filter_map(|file| number(&group.join(file))).min()?;
    if limit_bytes >= UNLIMITED_BYTES_MIN {
        return None;
    }
    let used_bytes = number(&group.join(used)).unwrap_or(0);
    let statistics = read_unless_leased(group.join("memory.stat")).unwrap_or_default();
    let cached_bytes = counter_of(&statistics, cached).unwrap_or(0);
    Some(limit_bytes.saturating_sub(used_bytes.saturating_sub(cached_bytes)))
}

/// The number in a file; none if there is no file, or it says `max`.
fn number(path: &Path) -> Option<u64> {
    words::numbers(&read_unless_leased(path).ok()?).next()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A tree of groups `root/outer/own`, each with the files given for it.
    fn tree(groups: [&[(&str, &str)]; 3]) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let mut group = root.path().to_owned();
        for (name, files) in ["", "outer", "own"].into_iter().zip(groups) {
            group.push(name);
            fs::create_dir_all(&group).unwrap();
            files.iter().for_each(|(file, text)| fs::write(group.join(file), text).unwrap());
        }
        (root, group)
    }

    fn available(groups: [&[(&str, &str)]; 3], version: Version) -> Option<u64> {
        let (root, own) = tree(groups);
        available_between(&own, root.path(), version)
    }

    const UNLIMITED_V1: &[(&str, &str)] =
        &[("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "5000\n")];

    #[test]
    fn without_a_limit_the_groups_do_not_count() {
        assert_eq!(available([UNLIMITED_V1; 3], Version::V1), None);
        let unlimited: &[_] = &[("memory.max", "max\n"), ("memory.high", "max\n"), ("memory.current", "5000\n")];
        assert_eq!(available([&[], unlimited, unlimited], Version::V2), None);
        assert_eq!(available([&[], &[], &[]], Version::V2), None);
    }

    #[test]
    fn the_tightest_group_on_the_way_up_decides() {
        let own: &[_] = &[("memory.limit_in_bytes", "9000\n"), ("memory.usage_in_bytes", "1000\n")];
        let outer: &[_] = &[("memory.limit_in_bytes", "10000\n"), ("memory.usage_in_bytes", "9500\n")];
        assert_eq!(available([UNLIMITED_V1, outer, own], Version::V1), Some(500));
        assert_eq!(available([UNLIMITED_V1, UNLIMITED_V1, own], Version::V1), Some(8000));
        assert_eq!(available([own, UNLIMITED_V1, UNLIMITED_V1], Version::V1), Some(8000), "a container's own root");
    }

    #[test]
    fn version_2_counts_both_of_its_limits_and_unread_caches_as_free() {
        let statistics = "anon 700\nfile 900\ninactive_file 300\nactive_file 600\n";
        let group = |high| {
            [("memory.max", "9000"), ("memory.high", high), ("memory.current", "5000"), ("memory.stat", statistics)]
        };
        assert_eq!(available([&[], &[], &group("max")], Version::V2), Some(9000 - 4700));
        assert_eq!(available([&[], &group("6000"), &group("max")], Version::V2), Some(6000 - 4700));
    }

    #[test]
    fn a_group_beyond_its_limit_leaves_nothing() {
        let group: &[_] = &[("memory.limit_in_bytes", "1000"), ("memory.usage_in_bytes", "5000")];
        assert_eq!(available([&[], &[], group], Version::V1), Some(0));
    }

    #[test]
    fn groups_outside_the_root_are_not_looked_at() {
        let group: &[_] = &[("memory.limit_in_bytes", "1000"), ("memory.usage_in_bytes", "0")];
        let (root, own) = tree([group, UNLIMITED_V1, UNLIMITED_V1]);
        assert_eq!(available_between(&own, &root.path().join("outer"), Version::V1), None);
    }

    #[test]
    fn another_process_is_asked_for_by_its_number() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // Its groups are this process's; usage changes in between.
        assert_eq!(available_bytes_for(child.id()).is_some(), available_bytes().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(available_bytes_for(u32::MAX >> 1), None);
    }

    #[test]
    fn fields_are_told_apart_by_their_whole_name() {
        assert_eq!(counter_of("total_inactive_filez 1\ntotal_inactive_file 7\n", "total_inactive_file"), Some(7));
        assert_eq!(counter_of("inactive_file many\n", "inactive_file"), None);
    }
}
