//! How much memory the machine has: `/proc/meminfo` (proc(5)).

use std::fs;
use std::io;

use crate::proc_text::fields::bytes_of;

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
    fn this_machine_has_memory() {
        let memory = MachineMemory::read().unwrap();
        assert!(memory.total_bytes > 0 && memory.available_bytes <= memory.total_bytes);
    }
}
