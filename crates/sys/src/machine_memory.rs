//! How much memory the machine has: `/proc/meminfo` (proc(5)); and the form in which such lists are written.

use std::fs;
use std::io;

/// The lines that decisions are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All memory.
    pub total_bytes: u64,
    /// What can be had without swapping, by the kernel's estimate.
    pub available_bytes: u64,
}

impl MachineMemory {
    /// Now.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let lacking = "/proc/meminfo has no MemTotal or MemAvailable; Linux 3.14 or later is needed";
        Self::parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, lacking))
    }

    fn parse(text: &str) -> Option<Self> {
        Some(Self { total_bytes: bytes_of(text, "MemTotal")?, available_bytes: bytes_of(text, "MemAvailable")? })
    }
}

/// Bytes of the line `name: NUMBER kB` of a list of the kernel's (`meminfo`, `status`, `smaps_rollup`).
pub fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_lines_are_found() {
        let text = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    900 kB\nSwapTotal: 0 kB\n";
        let memory = MachineMemory::parse(text).unwrap();
        assert_eq!(memory, MachineMemory { total_bytes: 1_024_000, available_bytes: 921_600 });
        assert_eq!(MachineMemory::parse("MemTotal: 5 kB\n"), None);
        assert_eq!(MachineMemory::parse("MemTotal: x kB\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn lines_of_other_lists_are_found_by_their_whole_name() {
        let text = "Rss:  8 kB\nPss:\t4 kB\nPss_Anon:   2 kB\nThreads:\t3\n";
        assert_eq!(bytes_of(text, "Pss_Anon"), Some(2048));
        assert_eq!(bytes_of(text, "Pss"), Some(4096));
        assert_eq!((bytes_of(text, "Anon"), bytes_of(text, "Ps"), bytes_of(text, "Threads")), (None, None, None));
        assert_eq!(bytes_of("Huge: 99999999999999999 kB\n", "Huge"), None, "more than can be counted");
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = MachineMemory::read().unwrap();
        assert!(memory.total_bytes > 0 && memory.available_bytes <= memory.total_bytes);
    }
}
