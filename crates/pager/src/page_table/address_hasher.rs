//! The hash of a page table's groups.

use std::hash::Hasher;

/// Hashes a group's address by one multiplication (Fibonacci hashing, Knuth, volume 3, 6.4): a page that leaves or
/// comes is looked up six times, and the standard hash took 8 % of the fault thread's own time. The thread that
/// chooses the addresses of a program harms its own table only.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The table takes its place from the low bits, and those of an address are all alike.
        self.0 = mixed ^ (mixed >> 32);
    }
}
