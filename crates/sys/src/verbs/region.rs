//! Memory that a device may read and write.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{ProtectionDomain, last_error};
use super::layout::MemoryRegion;
use crate::mapping::Mapping;

/// What owns memory that can be registered.
pub trait Registrable: Send + Sync {
    /// The memory, which stays mapped for as long as the owner lives.
    fn memory(&self) -> &Mapping;
}

impl Registrable for Mapping {
    fn memory(&self) -> &Mapping {
        self
    }
}

/// What a device may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This process's own requests read and write it.
    Local,
    /// A peer's requests too.
    Remote,
}

impl Access {
    /// `IBV_ACCESS_LOCAL_WRITE`, and `REMOTE_WRITE` and `REMOTE_READ` with it.
    fn flags(self) -> u32 {
        match self {
            Self::Local => 1,
            Self::Remote => 1 | 2 | 4,
        }
    }
}

/// Registered memory; a peer's addresses in it count from its start. Taken back on drop.
pub struct Region {
    domain: Arc<ProtectionDomain>,
    region: NonNull<MemoryRegion>,
    owner: Arc<dyn Registrable>,
}

// SAFETY: as for `Device`; the numbers in the region do not change.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers all of `owner`'s memory, which pins it: 2 to 3 ms for 32 MiB that are present. `ENOMEM` means that the
    /// limit of locked memory is too low (`ulimit -l`).
    pub fn register(domain: &Arc<ProtectionDomain>, owner: Arc<dyn Registrable>, access: Access) -> io::Result<Self> {
        let memory = owner.memory();
        let (address, length) = (memory.address() as *mut std::ffi::c_void, memory.length());
        // SAFETY: the range is mapped for as long as `owner` lives, which this value keeps. Its bytes may change at any
        // time, as `Mapping` says.
        let region =
            unsafe { (domain.device.library.reg_mr_iova2)(domain.domain.as_ptr(), address, length, 0, access.flags()) };
        let region = NonNull::new(region).ok_or_else(last_error)?;
        Ok(Self { domain: Arc::clone(domain), region, owner })
    }

    /// What a peer shows to use it.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region lives as long as `self`.
        unsafe { self.region.as_ref() }.rkey
    }

    /// What requests of this process name it by.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref() }.lkey
    }

    /// Bytes of it.
    pub fn length(&self) -> usize {
        self.owner.memory().length()
    }

    /// Whether it was registered with this domain.
    pub fn belongs_to(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Region({} bytes)", self.length())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered by this value and taken back once. Requests of a peer that come later are refused.
        unsafe { (self.domain.device.library.dereg_mr)(self.region.as_ptr()) };
    }
}
