//! Pages in this process's own memory: the yardstick that shows what a front end costs without any donor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use spillway_fabric::buffer_pool::BufferPool;
use spillway_sys::mapping::Mapping;

use crate::metrics::Metrics;
use crate::request::{BlockError, BlockOperation, BlockRequest};
use crate::service::{BlockService, Completed, Waiting};

/// Serves requests from a mapping that all threads share.
pub struct LocalMemory {
    memory: Arc<Mapping>,
    metrics: Arc<Metrics>,
    pool: Arc<BufferPool>,
    requests: Box<[Option<(BlockRequest, Instant)>]>,
}

impl LocalMemory {
    /// `memory` is the whole device.
    pub fn new(memory: Arc<Mapping>, metrics: Arc<Metrics>, pool: Arc<BufferPool>) -> Self {
        let requests = vec![None; pool.slot_count()].into_boxed_slice();
        Self { memory, metrics, pool, requests }
    }

    fn serve(&self, request: &BlockRequest) -> Result<(), BlockError> {
        let end = request.offset_bytes.checked_add(request.length_bytes).ok_or(BlockError::Invalid)?;
        if end > self.memory.length() as u64 {
            return Err(BlockError::Invalid);
        }
        let buffer = self.pool.slot(request.slot).offset_bytes as usize;
        let (offset, length) = (request.offset_bytes as usize, request.length_bytes as usize);
        match request.operation {
            BlockOperation::Read => self.pool.memory().copy_from(buffer, &self.memory, offset, length),
            BlockOperation::Write => self.memory.copy_from(offset, self.pool.memory(), buffer, length),
            BlockOperation::Discard => self.memory.zero(offset, length),
            BlockOperation::Flush => {}
        }
        Ok(())
    }
}

impl BlockService for LocalMemory {
    fn submit(&mut self, request: BlockRequest, now: Instant) {
        self.requests[request.slot] = Some((request, now));
    }

    fn poll(&mut self, now: Instant, completed: Completed<'_>) -> Waiting {
        for slot in 0..self.requests.len() {
            if let Some((request, arrived)) = self.requests[slot].take() {
                let result = self.serve(&request);
                self.metrics.record(&request, result.is_ok(), now.saturating_duration_since(arrived));
                completed(slot, result);
            }
        }
        Waiting::Nothing
    }

    fn for_each_event<'a>(&'a self, _visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {}
}
