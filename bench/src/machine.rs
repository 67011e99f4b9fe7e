//! Where a measurement was taken: kernel, processor, memory. Numbers without these cannot be compared.

use serde::{Deserialize, Serialize};
use spillway_sys::machine_memory::MachineMemory;

/// The machine, as far as it matters to paging.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub processor: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// All memory.
    pub memory_bytes: u64,
    /// Pages that the kernel reads ahead at a swap-in, as a power of two (`vm.page-cluster`).
    pub page_cluster: Option<u32>,
}

impl Machine {
    /// The machine this runs on.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: MachineMemory::read().map_or(0, |memory| memory.total_bytes),
            page_cluster: read("/proc/sys/vm/page-cluster").trim().parse().ok(),
        }
    }
}

/// The value of `name` in lines of the form `name : value`.
fn field(text: &str, name: &str) -> String {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned());
    values.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::here();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty(), "{machine:?}");
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotalX: 1 kB\nMemTotal:   2048 kB\nmodel name\t: A fast one: really\n";
        assert_eq!(field(text, "MemTotal"), "2048 kB");
        assert_eq!(field(text, "model name"), "A fast one: really");
        assert_eq!(field(text, "nothing"), "");
    }
}
