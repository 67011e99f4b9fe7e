//! How many pages may be on their way into a cgroup at a time.
//!
//! A page that is being read counts in the cgroup and cannot leave it. If all that a cgroup holds were such pages,
//! the kernel would find nothing to take from it, and would kill a program. So they are a small part of what can
//! leave. A cgroup that is beyond its limit, or whose programs wait for memory, gets none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use spillway_sys::mapping::PAGE_SIZE_BYTES;

use crate::limits::{IN_FLIGHT_DIVISOR, IN_FLIGHT_PAGES_MAX};

/// A cgroup at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupMemory {
    /// What it may have; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// What it has.
    pub charged_bytes: u64,
    /// Of it, what cannot leave: locked memory and the kernel's own.
    pub unmovable_bytes: u64,
    /// Its programs wait for memory.
    pub is_stalled: bool,
}

impl CgroupMemory {
    /// Pages that may be on their way into it.
    pub fn room_pages(&self) -> usize {
        if self.is_stalled {
            return 0;
        }
        let Some(limit_bytes) = self.limit_bytes else { return IN_FLIGHT_PAGES_MAX };
        let movable_bytes = limit_bytes.saturating_sub(self.unmovable_bytes);
        let room_bytes = movable_bytes / IN_FLIGHT_DIVISOR;
        // A limit that only slows down (`memory.high`) is exceeded by pages that others bring.
        if self.charged_bytes > limit_bytes + room_bytes {
            return 0;
        }
        usize::try_from(room_bytes / PAGE_SIZE_BYTES as u64).unwrap_or(usize::MAX).min(IN_FLIGHT_PAGES_MAX)
    }
}

/// Which processes are prefetched for, and how much may be on its way for them.
pub trait Subjects: Send {
    /// Pages that may be on their way, of all processes together, when `process` faults; `None` if it is not
    /// prefetched for.
    fn room_pages(&mut self, process: u32) -> Option<usize>;
}

/// What the process that watches a cgroup tells the one that prefetches for it.
#[derive(Clone, Debug, Default)]
pub struct Headroom {
    room_pages: Arc<AtomicUsize>,
}

impl Headroom {
    /// The cgroup was looked at.
    pub fn observe(&self, memory: &CgroupMemory) {
        self.room_pages.store(memory.room_pages(), Ordering::Relaxed);
    }

    /// Pages that may be on their way; none before the first look.
    pub fn room_pages(&self) -> usize {
        self.room_pages.load(Ordering::Relaxed)
    }
}

/// All whose faults are sampled are in the cgroup.
impl Subjects for Headroom {
    fn room_pages(&mut self, _process: u32) -> Option<usize> {
        Some(Headroom::room_pages(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(limit_mib: u64, charged_mib: u64, unmovable_mib: u64, is_stalled: bool) -> usize {
        let [limit, charged_bytes, unmovable_bytes] = [limit_mib, charged_mib, unmovable_mib].map(|mib| mib * MIB);
        CgroupMemory { limit_bytes: Some(limit), charged_bytes, unmovable_bytes, is_stalled }.room_pages()
    }

    #[test]
    fn a_part_of_what_can_leave_may_be_on_its_way() {
        assert_eq!(room(16, 16, 0, false), 16 * 256 / IN_FLIGHT_DIVISOR as usize);
        assert_eq!(room(16, 16, 8, false), 8 * 256 / IN_FLIGHT_DIVISOR as usize);
        assert_eq!(room(1 << 20, 1 << 20, 0, false), IN_FLIGHT_PAGES_MAX);
        assert_eq!(CgroupMemory::default().room_pages(), IN_FLIGHT_PAGES_MAX, "no limit");
    }

    #[test]
    fn a_cgroup_in_need_gets_none() {
        assert_eq!(room(16, 16, 0, true), 0, "its programs wait");
        assert_eq!(room(16, 20, 0, false), 0, "it is beyond its limit");
        assert_eq!(room(16, 16, 16, false), 0, "nothing can leave");
        assert_eq!(Headroom::default().room_pages(), 0, "not looked at yet");
    }

    #[test]
    fn the_last_look_counts() {
        let headroom = Headroom::default();
        let told = headroom.clone();
        headroom.observe(&CgroupMemory::default());
        assert_eq!(told.room_pages(), IN_FLIGHT_PAGES_MAX);
    }
}
