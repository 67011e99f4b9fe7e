//! The volume of a simulated world: memory of this process.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use spillway_block::local_memory::LocalMemory;
use spillway_block::metrics::Metrics;
use spillway_block::request::BlockRequest;
use spillway_block::service::{BlockService, Completed, UseMemory, Waiting};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::Priority;
use spillway_pager::threads::lock::lock;
use spillway_sys::mapping::Mapping;

use crate::{PAGE, roll};

/// The volume's pages as the pager's threads read and write them: some can be read in place.
pub(super) struct SimulatedEngine {
    requests: LocalMemory,
    volume: Arc<Mapping>,
    /// Of four reads so many find their pages mapped.
    mapped_quarters: Arc<AtomicU64>,
    /// Requests that came.
    submitted: Arc<Mutex<Vec<BlockRequest>>>,
    /// Nothing is answered.
    is_stalled: Arc<AtomicBool>,
    dice: u64,
}

impl SimulatedEngine {
    /// All of `volume`, through `buffers`; the others are the test's side of it.
    pub(super) fn new(
        volume: &Arc<Mapping>,
        buffers: &Arc<BufferPool>,
        mapped_quarters: &Arc<AtomicU64>,
        submitted: &Arc<Mutex<Vec<BlockRequest>>>,
        is_stalled: &Arc<AtomicBool>,
    ) -> Self {
        let requests = LocalMemory::new(Arc::clone(volume), Arc::new(Metrics::default()), Arc::clone(buffers));
        let (mapped_quarters, submitted) = (Arc::clone(mapped_quarters), Arc::clone(submitted));
        Self {
            requests,
            volume: Arc::clone(volume),
            mapped_quarters,
            submitted,
            is_stalled: Arc::clone(is_stalled),
            dice: 1,
        }
    }
}

impl BlockService for SimulatedEngine {
    fn submit(&mut self, request: BlockRequest, now: Instant) {
        lock(&self.submitted).push(request);
        self.requests.submit(request, now);
    }

    fn promote(&mut self, slot: usize) {
        let mut submitted = lock(&self.submitted);
        let request = submitted.iter_mut().rfind(|request| request.slot == slot);
        request.expect("only what was submitted is promoted").priority = Priority::Demand;
    }

    fn poll(&mut self, now: Instant, completed: Completed<'_>) -> Waiting {
        if self.is_stalled.load(Ordering::Relaxed) {
            return Waiting::Event;
        }
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
