//! The part of a request that lies in one slab: what a request is served by.

use spillway_fabric::units::SlabIndex;

use crate::slab_map::page_index::PageIndex;

/// The part of a request that lies in one slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) slab: SlabIndex,
    /// First page, of the volume.
    pub(super) first: PageIndex,
    /// Pages.
    pub(super) count: u64,
    /// Where its data lies in the request's buffer.
    pub(super) buffer_offset_bytes: u64,
}
