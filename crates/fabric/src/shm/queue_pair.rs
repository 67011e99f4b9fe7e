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

#[cfg(test)]
mod tests {
    use spillway_sys::mapping::Mapping;
    use spillway_sys::memfd::Memfd;

    use super::*;
    use crate::units::{PAGE_SIZE_BYTES, Priority, RemoteAddress, SlabHandle, Tag};

    const SLAB: u64 = 1 << 20;

    fn pair() -> (ShmQueuePair, Arc<ShmWindow>, Request) {
        let window = ShmWindow::new(SLAB, 2).unwrap();
        window.attach(SlabHandle(0), &Memfd::create("slab", SLAB).unwrap()).unwrap();
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let request = Request {
            operation: Operation::Write,
            remote: RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 },
            buffer: pool.slot(0),
            tag: Tag(1),
            priority: Priority::Demand,
        };
        (ShmQueuePair::new(Arc::clone(&window), pool), window, request)
    }

    fn poll(pair: &mut ShmQueuePair) -> Vec<Completion> {
        let mut ended = Vec::new();
        pair.poll(Instant::now(), &mut |completion| ended.push(completion));
        ended
    }

    #[test]
    fn a_closed_window_ends_what_is_in_flight_and_takes_nothing_more() {
        let (mut pair, window, request) = pair();
        pair.post(request, Instant::now()).unwrap();
        assert_eq!(pair.in_flight(), 1);
        window.close();
        assert!(pair.is_down());
        assert_eq!(poll(&mut pair), [Completion { tag: Tag(1), result: Err(RequestError::Down) }]);
        assert_eq!(pair.post(request, Instant::now()), Err(PostError::Down));
        assert_eq!(pair.in_flight(), 0);
    }

    #[test]
    fn a_detached_slab_is_refused_and_its_memory_keeps_its_bytes() {
        let (mut pair, window, request) = pair();
        let file = Memfd::create("slab", SLAB).unwrap();
        window.attach(SlabHandle(1), &file).unwrap();
        pair.pool.memory().write(0, &[6; PAGE_SIZE_BYTES]);
        let request = Request { remote: RemoteAddress { slab: SlabHandle(1), offset_bytes: 8192 }, ..request };
        pair.post(request, Instant::now()).unwrap();
        window.detach(SlabHandle(1)).unwrap();
        pair.pool.memory().write(0, &[7; PAGE_SIZE_BYTES]);
        pair.post(Request { tag: Tag(2), ..request }, Instant::now()).unwrap();
        let results: Vec<_> = poll(&mut pair).iter().map(|ended| ended.result).collect();
        assert_eq!(results, [Ok(()), Err(RequestError::NotLent)]);
        let mut byte = [0];
        Mapping::shared(&file, SLAB as usize).unwrap().read(8192, &mut byte);
        assert_eq!(byte, [6]);
    }
}
