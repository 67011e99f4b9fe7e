//! How much memory the machine has: `/proc/meminfo`.

use std::fs;
use std::io;

/// The lines of `/proc/meminfo` that decisions are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Memory {
    /// All memory.
    pub(crate) total_bytes: u64,
    /// What can be had without swapping, by the kernel's estimate.
    pub(crate) available_bytes: u64,
}

impl Memory {
    /// Now.
    pub(crate) fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/meminfo")?;
        Self::parse(&text).ok_or_else(|| io::Error::other("/proc/meminfo has no MemTotal or MemAvailable line"))
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
            let kibibytes: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
            kibibytes.checked_mul(1024)
        };
        Some(Self { total_bytes: field("MemTotal")?, available_bytes: field("MemAvailable")? })
    }

    /// What `run` may lend of its own machine: all that is available but the reserve and a tenth of all memory.
    pub(crate) fn lendable_bytes(&self, reserve_bytes: u64) -> u64 {
        self.available_bytes.saturating_sub(reserve_bytes).saturating_sub(self.total_bytes / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_lines_are_found() {
        let text = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    900 kB\nSwapTotal: 0 kB\n";
        let memory = Memory::parse(text).unwrap();
        assert_eq!(memory, Memory { total_bytes: 1_024_000, available_bytes: 921_600 });
        assert_eq!(Memory::parse("MemTotal: 5 kB\n"), None);
        assert_eq!(Memory::parse("MemTotal: x kB\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::read().unwrap();
        assert!(memory.total_bytes > 0 && memory.available_bytes <= memory.total_bytes);
    }

    #[test]
    fn the_reserve_is_never_lent() {
        let memory = Memory { total_bytes: 1000, available_bytes: 500 };
        assert_eq!(memory.lendable_bytes(100), 300);
        assert_eq!(memory.lendable_bytes(450), 0);
    }
}
