//! The volume of a simulated world: memory of this process.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use spillway_sys::mapping::Mapping;

use super::{PAGE, roll};
use crate::block::BlockRequest;
use crate::local_memory::LocalMemory;
use crate::service::{BlockService, Completed, UseMemory, Waiting};

/// The volume's pages as a fault thread reads them: some can be read in place.
pub(super) struct SimulatedEngine {
    pub(super) requests: LocalMemory,
    pub(super) volume: Arc<Mapping>,
    /// Of four reads so many find their pages mapped.
    pub(super) mapped_quarters: Arc<AtomicU64>,
    /// Requests that came.
    pub(super) submitted: Arc<AtomicU64>,
    pub(super) dice: u64,
}

impl BlockService for SimulatedEngine {
    fn submit(&mut self, request: BlockRequest, now: Instant) {
        self.submitted.fetch_add(1, Ordering::Relaxed);
        self.requests.submit(request, now);
    }

    fn poll(&mut self, now: Instant, completed: Completed<'_>) -> Waiting {
        self.requests.poll(now, completed)
    }

    fn for_each_event<'a>(&'a self, visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {
        self.requests.for_each_event(visit);
    }

    fn read_in_place(&mut self, offset_bytes: u64, length: u64, use_memory: UseMemory<'_>) -> bool {
        let is_there = length > 0 && offset_bytes + length <= self.volume.length() as u64;
        let is_mapped = is_there && roll(&mut self.dice) >> 62 < self.mapped_quarters.load(Ordering::Relaxed);
        if is_mapped {
            let used_bytes = use_memory(&self.volume, offset_bytes as usize);
            assert!(used_bytes <= length && used_bytes.is_multiple_of(PAGE), "{used_bytes} of {length}");
        }
        is_mapped
    }
}
