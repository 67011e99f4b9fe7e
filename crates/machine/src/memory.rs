//! How much memory the machine has, as commands tell it, and what `run` may lend of it.

use std::io;

use spillway_sys::machine_memory::MachineMemory;

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// All memory.
    pub total_bytes: u64,
    /// What can be had without swapping, by the kernel's estimate.
    pub available_bytes: u64,
}

impl Memory {
    /// Now.
    pub fn read() -> io::Result<Self> {
        let MachineMemory { total_bytes, available_bytes } = MachineMemory::read()?;
        Ok(Self { total_bytes, available_bytes })
    }

    /// What `run` may lend of its own machine: all that is available but the reserve and a tenth of all memory.
    pub fn lendable_bytes(&self, reserve_bytes: u64) -> u64 {
        self.available_bytes.saturating_sub(reserve_bytes).saturating_sub(self.total_bytes / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
