//! Requests on shared memory: the copy happens in `post`, the completion is yielded by the next `poll`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::window::ShmWindow;
use crate::buffer_pool::BufferPool;
use crate::credit::Credits;
use crate::limits::QUEUE_DEPTH_MAX;
use crate::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};

/// One I/O thread's way to the slabs of a window.
#[derive(Debug)]
pub struct ShmQueuePair {
    window: Arc<ShmWindow>,
    pool: Arc<BufferPool>,
    credits: Credits,
    /// Never longer than the credits, so it never grows past its first capacity.
    ended: VecDeque<Completion>,
}

impl ShmQueuePair {
    /// A queue pair that copies between `pool` and the slabs of `window`.
    pub fn new(window: Arc<ShmWindow>, pool: Arc<BufferPool>) -> Self {
        Self { window, pool, credits: Credits::new(), ended: VecDeque::with_capacity(QUEUE_DEPTH_MAX) }
    }

    fn carry_out(&self, request: &Request) -> Result<(), RequestError> {
        let buffer = request.buffer.offset_bytes as usize;
        let length = request.buffer.length_bytes as usize;
        let pool = self.pool.memory();
        self.window.access(request.remote, length, |memory, offset| {
            match request.operation {
                Operation::Read => pool.copy_from(buffer, memory, offset, length),
                Operation::Write => memory.copy_from(offset, pool, buffer, length),
                Operation::Discard => memory.remove(offset, length).map_err(|error| medium(&error))?,
            }
            Ok(())
        })
    }
}

fn medium(error: &io::Error) -> RequestError {
    RequestError::Medium(error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()))
}

impl QueuePair for ShmQueuePair {
    fn post(&mut self, request: Request, _now: Instant) -> Result<(), PostError> {
        if self.window.is_closed() {
            return Err(PostError::Down);
        }
        if !self.credits.take(request.priority) {
            return Err(PostError::Busy);
        }
        let result = self.carry_out(&request);
        self.ended.push_back(Completion { tag: request.tag, result });
        Ok(())
    }

    fn poll(&mut self, _now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        let down = self.window.is_closed();
        let count = self.ended.len();
        for _ in 0..count {
            let mut completion = self.ended.pop_front().expect("as many ended as were counted");
            if down {
                completion.result = Err(RequestError::Down);
            }
            self.credits.give_back();
            complete(completion);
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.credits.held()
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_down(&self) -> bool {
        self.window.is_closed()
    }
}
