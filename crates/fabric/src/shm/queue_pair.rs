//! Requests on shared memory: the copy happens in `post`, the completion is yielded by the next `poll`.
//!
//! A discard takes much longer than a copy (the kernel frees page by page), and its thread has other requests: each
//! `poll` carries out a bounded part of the oldest one. `docs/decisions/slabs.md` has the measurement.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use spillway_sys::mapping::Mapping;

use super::window::ShmWindow;
use crate::buffer_pool::BufferPool;
use crate::credit::Credits;
use crate::limits::{DISCARD_STEP_BYTES, QUEUE_DEPTH_MAX};
use crate::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};
use crate::units::RemoteAddress;

/// One I/O thread's way to the slabs of a window.
#[derive(Debug)]
pub struct ShmQueuePair {
    window: Arc<ShmWindow>,
    pool: Arc<BufferPool>,
    credits: Credits,
    /// Never longer than the credits, so it never grows past its first capacity.
    ended: VecDeque<Completion>,
    /// Under way, the oldest first; bounded like `ended`.
    discards: VecDeque<Discard>,
}

/// A discard of which the first bytes are done.
#[derive(Clone, Copy, Debug)]
struct Discard {
    request: Request,
    done_bytes: usize,
}

impl ShmQueuePair {
    /// A queue pair that copies between `pool` and the slabs of `window`.
    pub fn new(window: Arc<ShmWindow>, pool: Arc<BufferPool>) -> Self {
        let (ended, discards) = (VecDeque::with_capacity(QUEUE_DEPTH_MAX), VecDeque::with_capacity(QUEUE_DEPTH_MAX));
        Self { window, pool, credits: Credits::new(), ended, discards }
    }

    fn copy(&self, request: &Request) -> Result<(), RequestError> {
        let buffer = request.buffer.offset_bytes as usize;
        let length = request.buffer.length_bytes as usize;
        let pool = self.pool.memory();
        self.window.access(request.remote, length, |memory, offset| {
            match request.operation {
                Operation::Read => pool.copy_from(buffer, memory, offset, length),
                // What is written to a donor is not read soon.
                Operation::Write => memory.stream_from(offset, pool, buffer, length),
                Operation::Discard => unreachable!("a discard is carried out by polls"),
            }
            Ok(())
        })
    }

    /// Carries out the next part of the oldest discard.
    fn discard_some(&mut self) {
        let Some(discard) = self.discards.front_mut() else { return };
        let Discard { request, done_bytes } = *discard;
        let length = request.buffer.length_bytes as usize;
        let part = DISCARD_STEP_BYTES.min(length - done_bytes);
        let result = self.window.access(request.remote, length, |memory, offset| {
            memory.remove(offset + done_bytes, part).map_err(|error| medium(&error))
        });
        discard.done_bytes += part;
        if result.is_err() || discard.done_bytes == length {
            self.discards.pop_front();
            self.ended.push_back(Completion { tag: request.tag, result });
        }
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
        if request.operation == Operation::Discard {
            self.discards.push_back(Discard { request, done_bytes: 0 });
        } else {
            let result = self.copy(&request);
            self.ended.push_back(Completion { tag: request.tag, result });
        }
        Ok(())
    }

    fn poll(&mut self, _now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        let down = self.window.is_closed();
        if down {
            let given_up = self.discards.drain(..);
            self.ended.extend(
                given_up.map(|discard| Completion { tag: discard.request.tag, result: Err(RequestError::Down) }),
            );
        } else {
            self.discard_some();
        }
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

    /// Bytes move in `post` alone.
    fn halt(&mut self) -> bool {
        true
    }

    fn mapped(&self, remote: RemoteAddress, length_bytes: usize) -> Option<(&Mapping, usize)> {
        if self.window.is_closed() { None } else { self.window.place(remote, length_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use spillway_sys::memfd::Memfd;

    use super::*;
    use crate::units::{PAGE_SIZE_BYTES, Priority, SlabHandle, Tag};

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

    /// A window with one slab of several steps, full of ones, and a discard of all of it.
    fn long_discard() -> (ShmQueuePair, Arc<ShmWindow>, Memfd, Request) {
        const LONG: usize = 3 * DISCARD_STEP_BYTES + PAGE_SIZE_BYTES;
        let window = ShmWindow::new(LONG as u64, 1).unwrap();
        let file = Memfd::create("slab", LONG as u64).unwrap();
        window.attach(SlabHandle(0), &file).unwrap();
        Mapping::shared(&file, LONG).unwrap().write(0, &vec![1; LONG]);
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let discard = Request {
            operation: Operation::Discard,
            remote: RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 },
            buffer: crate::units::BufferRange { offset_bytes: 0, length_bytes: LONG as u32 },
            tag: Tag(7),
            priority: Priority::Demand,
        };
        (ShmQueuePair::new(Arc::clone(&window), pool), window, file, discard)
    }

    #[test]
    fn a_long_discard_does_not_hold_up_what_comes_after_it() {
        let (mut pair, _window, file, discard) = long_discard();
        pair.post(discard, Instant::now()).unwrap();
        let last =
            RemoteAddress { offset_bytes: discard.buffer.length_bytes - PAGE_SIZE_BYTES as u32, ..discard.remote };
        let read =
            Request { operation: Operation::Read, remote: last, buffer: pair.pool.slot(0), tag: Tag(8), ..discard };
        let done = |tag| vec![Completion { tag: Tag(tag), result: Ok(()) }];
        for _ in 0..3 {
            pair.post(read, Instant::now()).unwrap();
            assert_eq!(poll(&mut pair), done(8), "the read is over, the discard is not");
            assert_eq!(pair.in_flight(), 1);
        }
        assert_eq!(poll(&mut pair), done(7));
        assert_eq!((pair.in_flight(), file.resident_bytes().unwrap()), (0, 0), "every page is freed");
    }

    #[test]
    fn a_discard_that_is_cut_off_ends_once_and_says_so() {
        let (mut pair, window, file, discard) = long_discard();
        pair.post(discard, Instant::now()).unwrap();
        assert_eq!(poll(&mut pair), []);
        window.detach(SlabHandle(0)).unwrap();
        assert_eq!(poll(&mut pair), [Completion { tag: Tag(7), result: Err(RequestError::NotLent) }]);
        window.attach(SlabHandle(0), &file).unwrap();
        pair.post(discard, Instant::now()).unwrap();
        window.close();
        assert_eq!(poll(&mut pair), [Completion { tag: Tag(7), result: Err(RequestError::Down) }]);
        assert_eq!((poll(&mut pair), pair.in_flight()), (vec![], 0));
        assert!(file.resident_bytes().unwrap() > 0, "nothing is freed behind the window's end");
    }
}
