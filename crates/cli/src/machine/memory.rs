//! How much memory the machine has, as commands tell it, and what `run` may lend of it.

use std::io;

use spillway_report::status::Memory;
use spillway_sys::machine_memory::MachineMemory;

/// Now.
pub(crate) fn read() -> io::Result<Memory> {
    let MachineMemory { total_bytes, available_bytes } = MachineMemory::read()?;
    Ok(Memory { total_bytes, available_bytes })
}

/// What `run` may lend of its own machine: all that is available but the reserve and a tenth of all memory.
pub(crate) fn lendable_bytes(memory: &Memory, reserve_bytes: u64) -> u64 {
    memory.available_bytes.saturating_sub(reserve_bytes).saturating_sub(memory.total_bytes / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = read().unwrap();
        assert!(memory.total_bytes > 0 && memory.available_bytes <= memory.total_bytes);
    }

    #[test]
    fn the_reserve_is_never_lent() {
        let memory = Memory { total_bytes: 1000, available_bytes: 500 };
        assert_eq!(lendable_bytes(&memory, 100), 300);
        assert_eq!(lendable_bytes(&memory, 450), 0);
    }
}
