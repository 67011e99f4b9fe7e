//! CPU time and memory of processes, and what the kernel counted about swapping, from `/proc`.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::Pid;
use spillway_sys::proc_text::fields::bytes_of;
use spillway_sys::process_stat::ProcessStat;

/// The unit of `st_blocks` (stat(2)).
const BLOCK_SIZE_BYTES: u64 = 512;

/// Pages that the kernel has swapped since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapCount {
    /// Pages in.
    pub pages_in: u64,
    /// Pages out.
    pub pages_out: u64,
}

impl SwapCount {
    /// The count now.
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }

    /// What was swapped since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            pages_in: self.pages_in.saturating_sub(earlier.pages_in),
            pages_out: self.pages_out.saturating_sub(earlier.pages_out),
        }
    }

    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            values.next().unwrap_or(0)
        };
        Self { pages_in: value("pswpin "), pages_out: value("pswpout ") }
    }
}

/// The processes in `/proc`, or the threads in the `task` of one.
pub fn numbers_in(directory: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// CPU seconds that the process has used, in user mode and in the kernel; `None` when it is gone.
pub fn cpu_seconds(process: Pid) -> Option<f64> {
    let stat = ProcessStat::of_process(process.as_raw_nonzero().get().unsigned_abs()).ok()?;
    Some(stat.cpu_ticks()? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Its own: heap, stacks, program, page tables; what others map too counts by its part.
    pub own_bytes: u64,
    /// Of all files in memory (`memfd`) that it has open, whether it maps them or not: where slabs are.
    pub files_bytes: u64,
}

impl ProcessMemory {
    /// Of a process now; `None` when it is gone.
    pub fn of(process: Pid) -> Option<Self> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", process.as_raw_nonzero())).ok();
        let own_bytes = own_bytes(&read("smaps_rollup")?, &read("status")?)?;
        Some(Self { own_bytes, files_bytes: files_bytes(process) })
    }
}

fn own_bytes(rollup: &str, status: &str) -> Option<u64> {
    let shared_bytes = bytes_of(rollup, "Pss_Shmem").unwrap_or(0);
    let tables_bytes = bytes_of(status, "VmPTE").unwrap_or(0);
    Some((bytes_of(rollup, "Pss")? + tables_bytes).saturating_sub(shared_bytes))
}

/// What the files in memory that `process` has open take, each once. (`Pss_Shmem` leaves out what no process has
/// mapped.)
fn files_bytes(process: Pid) -> u64 {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).into_iter().flatten();
    let in_memory = descriptors.flatten().map(|entry| entry.path()).filter(|path| {
        std::fs::read_link(path).is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"))
    });
    let found: BTreeMap<u64, u64> = in_memory
        .filter_map(|path| std::fs::metadata(path).ok())
        .map(|file| (file.ino(), file.blocks() * BLOCK_SIZE_BYTES))
        .collect();
    found.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let own = rustix::process::getpid();
        assert!(cpu_seconds(own).is_some_and(|seconds| seconds >= 0.0));
        assert!(ProcessMemory::of(own).is_some_and(|memory| memory.own_bytes > 0));
        let none = Pid::from_raw(i32::MAX).unwrap();
        assert_eq!((cpu_seconds(none), ProcessMemory::of(none)), (None, None));
    }

    #[test]
    fn shared_memory_and_page_tables_are_told_apart() {
        let rollup = "Rss: 900 kB\nPss:  700 kB\nPss_Dirty: 5 kB\nPss_Anon: 100 kB\nPss_Shmem: 500 kB\n";
        assert_eq!(own_bytes(rollup, "VmPeak: 9 kB\nVmPTE:\t 24 kB\n"), Some(224 * 1024));
        assert_eq!(own_bytes("Pss: 3 kB\n", ""), Some(3072));
        assert_eq!(own_bytes("", "VmPTE: 24 kB\n"), None);
    }

    #[test]
    fn files_in_memory_count_once_and_unmapped() {
        let before = files_bytes(rustix::process::getpid());
        let file = std::fs::File::from(
            rustix::fs::memfd_create("usage", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory"),
        );
        let again = file.try_clone().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8192], 0).unwrap();
        let after = files_bytes(rustix::process::getpid());
        // Other tests of this process have none.
        assert_eq!(after - before, 8192);
        drop((file, again));
    }

    #[test]
    fn swapping_is_counted_from_the_earlier_count() {
        let text = "pgmajfault 3\npswpin 10\npswpout 25\npswpin_zero 7\n";
        let count = SwapCount::parse(text);
        assert_eq!(count, SwapCount { pages_in: 10, pages_out: 25 });
        let earlier = SwapCount { pages_in: 4, pages_out: 30 };
        assert_eq!(count.since(earlier), SwapCount { pages_in: 6, pages_out: 0 });
        assert_eq!(SwapCount::parse(""), SwapCount::default());
    }
}
