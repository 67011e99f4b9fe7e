//! What a memory cgroup holds: local memory, files in it, and what was paged out.

use std::io;
use std::path::Path;

use spillway_sys::lease::text_unless_leased;
use spillway_sys::memory_hierarchy::Version;
use spillway_sys::proc_text::decimal;
pub(super) use spillway_sys::proc_text::fields::counter_of as field;
use spillway_sys::proc_text::words::some_pressure;

/// A group at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GroupUsage {
    /// Local memory of all kinds.
    pub charged_bytes: u64,
    /// Of it, cached files, which leave without being paged out.
    pub file_bytes: u64,
    /// Pages of files that were dropped and read again so soon that they had better stayed (`workingset_refault_file`
    /// of the kernel), since the group was made.
    pub file_refaults: u64,
    /// Of it, memory that cannot leave (locked).
    pub locked_bytes: u64,
    /// Of it, the kernel's own: page tables, stacks, open files. It cannot leave, or little of it.
    pub kernel_bytes: u64,
    /// Memory that was paged out and is not local.
    pub swapped_bytes: u64,
    /// Its processes wait for memory that the kernel cannot take from it: what there is of it is locked, page tables,
    /// or the kernel's.
    pub is_stalled: bool,
    /// How long any of its threads waited for pages, since the begin, in microseconds. The pager adds threads up, the
    /// kernel's pressure counts them once. `None` where the kernel does not say.
    pub stalled_us: Option<u64>,
}

impl GroupUsage {
    /// What the program uses, wherever it lies: local plus lent, without cached files.
    pub fn footprint_bytes(&self) -> u64 {
        self.charged_bytes.saturating_sub(self.file_bytes) + self.swapped_bytes
    }
}

fn number(group: &Path, file: &str) -> io::Result<u64> {
    let path = group.join(file);
    let text = text_unless_leased(&path)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{} holds no number", path.display())))
}

/// Reads the files of a group.
pub(super) fn read(group: &Path, version: Version) -> io::Result<GroupUsage> {
    let statistics = text_unless_leased(group.join("memory.stat"))?;
    match version {
        Version::V1 => {
            let charged_bytes = number(group, "memory.usage_in_bytes")?;
            let both = number(group, "memory.memsw.usage_in_bytes").ok();
            // Absent where the kernel kills instead (MemoryGroup::wait_instead_of_kill).
            let state = text_unless_leased(group.join("memory.oom_control")).unwrap_or_default();
            let is_stalled = field(&state, "under_oom") == Some(1);
            let kernel_bytes = number(group, "memory.kmem.usage_in_bytes").unwrap_or(0);
            Ok(GroupUsage { is_stalled, kernel_bytes, ..from_v1(&statistics, charged_bytes, both) })
        }
        Version::V2 => {
            let charged_bytes = number(group, "memory.current")?;
            // Absent on kernels that do not account for swap.
            let slots_bytes = number(group, "memory.swap.current").unwrap_or(0);
            // Absent where the kernel counts no pressure.
            let pressure = text_unless_leased(group.join("memory.pressure")).unwrap_or_default();
            Ok(GroupUsage {
                stalled_us: some_stalled_us(&pressure),
                ..from_v2(&statistics, charged_bytes, slots_bytes)
            })
        }
    }
}

/// For how long some thread waited for memory, of a file of pressure (`Documentation/accounting/psi.rst`).
pub(super) fn some_stalled_us(pressure: &str) -> Option<u64> {
    decimal(some_pressure(pressure, "total")?)
}

/// `both` counts each page once, wherever it is; the statistic `total_swap` is what remains without that account.
fn from_v1(statistics: &str, charged_bytes: u64, both: Option<u64>) -> GroupUsage {
    let total = |name: &str| field(statistics, name).unwrap_or(0);
    GroupUsage {
        charged_bytes,
        file_bytes: total("total_active_file") + total("total_inactive_file"),
        file_refaults: total("total_workingset_refault_file"),
        locked_bytes: total("total_unevictable"),
        kernel_bytes: 0,
        swapped_bytes: both.map_or_else(|| total("total_swap"), |both| both.saturating_sub(charged_bytes)),
        is_stalled: false,
        stalled_us: None,
    }
}

/// A page in the swap cache has a slot and is local too; it counts as local.
fn from_v2(statistics: &str, charged_bytes: u64, slots_bytes: u64) -> GroupUsage {
    let total = |name: &str| field(statistics, name).unwrap_or(0);
    GroupUsage {
        charged_bytes,
        file_bytes: total("active_file") + total("inactive_file"),
        file_refaults: total("workingset_refault_file"),
        locked_bytes: total("unevictable"),
        kernel_bytes: total("kernel"),
        swapped_bytes: slots_bytes.saturating_sub(total("swapcached")),
        is_stalled: false,
        stalled_us: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_counts_each_page_once() {
        let text = "active_file 1\ntotal_swap 70\ntotal_active_file 10\ntotal_inactive_file 20\ntotal_unevictable 5\n\
                    workingset_refault_file 2\ntotal_workingset_refault_file 6\n";
        let usage = from_v1(text, 100, Some(160));
        let expected = GroupUsage {
            charged_bytes: 100,
            file_bytes: 30,
            file_refaults: 6,
            locked_bytes: 5,
            kernel_bytes: 0,
            swapped_bytes: 60,
            is_stalled: false,
            stalled_us: None,
        };
        assert_eq!(usage, expected);
        assert_eq!(usage.footprint_bytes(), 130);
        assert_eq!(from_v1(text, 100, None).swapped_bytes, 70);
    }

    #[test]
    fn stalls_are_those_of_some_thread() {
        let text =
            "some avg10=0.00 avg60=1.00 avg300=0.00 total=503498473\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
        assert_eq!((some_stalled_us(text), some_stalled_us("")), (Some(503_498_473), None));
    }

    #[test]
    fn version_two_takes_the_swap_cache_as_local() {
        let text = "active_file 10\ninactive_file 20\nunevictable 0\nswapcached 15\nworkingset_refault_file 4\n";
        let usage = from_v2(text, 100, 60);
        assert_eq!(usage.file_refaults, 4);
        assert_eq!((usage.swapped_bytes, usage.footprint_bytes()), (45, 115));
        assert_eq!(from_v2("", 100, 0).footprint_bytes(), 100);
    }

    #[test]
    fn statistics_that_disagree_for_a_moment_never_wrap() {
        let usage = GroupUsage { charged_bytes: 10, file_bytes: 20, swapped_bytes: 7, ..GroupUsage::default() };
        assert_eq!(usage.footprint_bytes(), 7);
        assert_eq!(from_v1("", 100, Some(90)).swapped_bytes, 0);
        assert_eq!(from_v2("swapcached 9\n", 0, 4).swapped_bytes, 0);
    }
}
