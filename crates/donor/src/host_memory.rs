//! What the kernel says about the memory that this process could have.

use std::fmt;
use std::io;

use spillway_sys::machine_memory::MachineMemory;
use spillway_sys::memory_group;
use spillway_sys::proc_text::words::some_pressure;

/// One look at the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemorySample {
    /// What the donor could still get without swapping.
    pub available_bytes: u64,
    /// What decides about that.
    pub bound: Bound,
    /// Share of the last ten seconds in which some task waited for memory; `None` where the kernel does not tell (PSI).
    pub pressure_percent: Option<f64>,
}

/// The bound that allows a donor the least memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The machine's `MemAvailable`.
    Machine,
    /// A limit of a memory cgroup around the process.
    Group,
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Machine => "on this machine",
            Self::Group => "within the limit of the memory cgroup that the donor runs in",
        })
    }
}

/// Looks at the machine's memory now.
pub fn sample() -> io::Result<MemorySample> {
    let machine_bytes = MachineMemory::read()?.available_bytes;
    // Kernels without PSI, or with it switched off, have no such file.
    let pressure = std::fs::read_to_string("/proc/pressure/memory").ok();
    let (available_bytes, bound) = tightest(machine_bytes, memory_group::available_bytes());
    Ok(MemorySample { available_bytes, bound, pressure_percent: pressure.as_deref().and_then(parse_pressure) })
}

fn tightest(machine_bytes: u64, group_bytes: Option<u64>) -> (u64, Bound) {
    match group_bytes {
        Some(group_bytes) if group_bytes < machine_bytes => (group_bytes, Bound::Group),
        _ => (machine_bytes, Bound::Machine),
    }
}

fn parse_pressure(text: &str) -> Option<f64> {
    str::from_utf8(some_pressure(text, "avg10")?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        assert!(sample().unwrap().available_bytes > 0);
    }

    #[test]
    fn the_smaller_of_the_machines_memory_and_the_groups_limit_counts() {
        assert_eq!(tightest(100, None), (100, Bound::Machine));
        assert_eq!(tightest(100, Some(200)), (100, Bound::Machine));
        assert_eq!(tightest(100, Some(20)), (20, Bound::Group));
    }

    #[test]
    fn the_kernels_texts_are_understood() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(parse_pressure(text), Some(12.5));
    }

    #[test]
    fn other_texts_give_nothing() {
        assert_eq!(parse_pressure(""), None);
    }
}
