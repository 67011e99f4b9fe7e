//! Where the serving side of a data connection finds slabs.

use spillway_sys::mapping::Mapping;

use crate::units::SlabHandle;

/// The slabs that one session may use.
pub trait SlabDirectory: Send + Sync {
    /// Calls `use_memory` once with the memory of `slab`, which stays lent during the call, and returns true; false,
    /// without a call, if it is not lent. The call is short: it never waits for the peer.
    fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool;

    /// Whether `slab` is registered with an RDMA device. Its pages are pinned then, and a discard zeroes them in place:
    /// the device would go on with pages that were punched out.
    fn is_registered(&self, _slab: SlabHandle) -> bool {
        false
    }
}
