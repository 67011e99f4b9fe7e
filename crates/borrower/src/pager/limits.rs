//! Every bound of the pager, with its origin. Relations between them are checked at compile time.

use spillway_fabric::units::PAGE_SIZE_BYTES;

/// The smallest budget: the write-back pool and the pages that must stay (stacks, thread control blocks) take a part of it.
pub const BUDGET_BYTES_MIN: u64 = 16 << 20;

/// Pages of a group of neighbours: 128 KiB, HPBD's largest request; a slot of the write-back pool.
pub const GROUP_PAGES: usize = 32;

/// Bytes of a group.
pub const GROUP_SIZE_BYTES: u64 = (GROUP_PAGES * PAGE_SIZE_BYTES) as u64;

const _: () = {
    assert!(GROUP_PAGES == 32, "a group's bits fill a u32");
};
