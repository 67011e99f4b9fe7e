//! The words of the field as types, so that a page number cannot be passed for a slab handle.

use std::fmt;

/// Bytes of a page, the unit of the borrower's volume.
pub const PAGE_SIZE_BYTES: usize = 4096;

/// A slab of a volume, counted from its start: pages `[index * pages per slab, (index + 1) * pages per slab)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabIndex(pub u32);

/// What a donor calls a slab that it has lent to one borrower, within one control session. Small and dense: the shm
/// transport uses it as the place of the slab in its window. A handle is not reused within a session until its
/// release was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabHandle(pub u32);

/// A running donor: random, made anew at each start, so that a donor that came back without its memory is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DonorId(pub u128);

/// A borrower's volume: random, made anew at each start of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BorrowerId(pub u128);

/// Where a request reads or writes: `offset_bytes` into a lent slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// The lent slab.
    pub slab: SlabHandle,
    /// Bytes from its start; a multiple of the page size.
    pub offset_bytes: u32,
}

/// A range of a [`BufferPool`](crate::buffer_pool::BufferPool).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRange {
    /// Bytes from the pool's start.
    pub offset_bytes: u32,
    /// Bytes of the range.
    pub length_bytes: u32,
}

/// The caller's name for a request; comes back in its completion. Unique among the requests in flight on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// Which requests pass which when credits are short: a lower class never takes the last credits that a higher one may
/// need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// An application waits for this page, or for the room of this page, which leaves.
    Demand,
    /// A page that is expected to be asked for soon.
    Prefetch,
    /// Pages that are discarded, moved or refilled: no application waits for them.
    WriteBack,
}

impl Priority {
    /// All classes, the most urgent first.
    pub const ALL: [Priority; 3] = [Priority::Demand, Priority::Prefetch, Priority::WriteBack];
}

macro_rules! display_hex {
    ($($type:ident),*) => { $(impl fmt::Display for $type {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "{:032x}", self.0)
        }
    })* };
}
display_hex!(DonorId, BorrowerId);

macro_rules! display_number {
    ($($type:ident),*) => { $(impl fmt::Display for $type {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "{}", self.0)
        }
    })* };
}
display_number!(SlabIndex, SlabHandle, Tag);
