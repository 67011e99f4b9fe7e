//! CPU time and memory of processes, and what the kernel counted about swapping, from `/proc`.

use rustix::process::Pid;
use spillway_sys::machine_memory::bytes_of;
use spillway_sys::process_stat::ProcessStat;

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
    /// Its part of shared memory (`memfd`): where slabs are.
    pub shared_bytes: u64,
}

impl ProcessMemory {
    /// Of a process now; `None` when it is gone.
    pub fn of(process: Pid) -> Option<Self> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", process.as_raw_nonzero())).ok();
        Self::parse(&read("smaps_rollup")?, &read("status")?)
    }

    fn parse(rollup: &str, status: &str) -> Option<Self> {
        let shared_bytes = bytes_of(rollup, "Pss_Shmem").unwrap_or(0);
        let tables_bytes = bytes_of(status, "VmPTE").unwrap_or(0);
        Some(Self { own_bytes: (bytes_of(rollup, "Pss")? + tables_bytes).saturating_sub(shared_bytes), shared_bytes })
    }
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
        let memory = ProcessMemory::parse(rollup, "VmPeak: 9 kB\nVmPTE:\t 24 kB\n").unwrap();
        assert_eq!(memory, ProcessMemory { own_bytes: 224 * 1024, shared_bytes: 500 * 1024 });
        assert_eq!(ProcessMemory::parse("Pss: 3 kB\n", "").unwrap().own_bytes, 3072);
        assert_eq!(ProcessMemory::parse("", "VmPTE: 24 kB\n"), None);
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
