//! The backing file as a queue pair: page-sized requests of an I/O thread, through one io_uring.
//!
//! A request that was handed to the kernel cannot be taken back, so unlike a connection a disk is never given up: its
//! requests complete when the disk answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use spillway_sys::io_ring::{IoRing, RingMemory, RingOperation};

use super::{BackingFile, Progress, progress};
use crate::buffer_pool::BufferPool;
use crate::credit::Credits;
use crate::limits::QUEUE_DEPTH_MAX;
use crate::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};
use crate::units::{BufferRange, RemoteAddress, Tag};

/// A request in a slot of the ring.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    operation: Operation,
    file_offset: u64,
    buffer: BufferRange,
    moved_bytes: usize,
    tag: Tag,
}

impl Transfer {
    /// What is still to be done.
    fn rest(&self) -> RingOperation {
        let file_offset = self.file_offset + self.moved_bytes as u64;
        let memory_offset = self.buffer.offset_bytes as usize + self.moved_bytes;
        let length = self.buffer.length_bytes - self.moved_bytes as u32;
        match self.operation {
            Operation::Read => RingOperation::Read { memory_offset, length, file_offset },
            Operation::Write => RingOperation::Write { memory_offset, length, file_offset },
            Operation::Discard => RingOperation::PunchHole { file_offset, length: length.into() },
        }
    }

    fn progress(&self, result: Result<usize, i32>) -> Progress {
        match (self.operation, result) {
            // A hole is punched whole, and reports no bytes.
            (Operation::Discard, Ok(_)) => Progress::Ended(Ok(())),
            _ => progress(self.buffer.length_bytes as usize, self.moved_bytes, result),
        }
    }
}

/// One I/O thread's way to the backing file.
#[derive(Debug)]
pub struct FileQueuePair {
    ring: IoRing,
    slab_size_bytes: u64,
    size_bytes: u64,
    credits: Credits,
    transfers: Box<[Option<Transfer>]>,
    free_slots: Vec<usize>,
    /// Requests that ended without the disk: they lie outside the file. Never longer than the credits.
    refused: Vec<Tag>,
}

impl FileQueuePair {
    /// A queue pair that moves pages between `pool` and `file`, which is cut into slabs of `slab_size_bytes`.
    pub fn open(file: &BackingFile, slab_size_bytes: u64, pool: Arc<BufferPool>) -> io::Result<Self> {
        let memory: Arc<dyn RingMemory> = pool;
        Ok(Self {
            ring: IoRing::new(file.descriptor()?, memory, QUEUE_DEPTH_MAX, 0)?,
            slab_size_bytes,
            size_bytes: file.size_bytes(),
            credits: Credits::new(),
            transfers: vec![None; QUEUE_DEPTH_MAX].into(),
            free_slots: (0..QUEUE_DEPTH_MAX).rev().collect(),
            refused: Vec::with_capacity(QUEUE_DEPTH_MAX),
        })
    }

    /// Where `remote` lies in the file, if the whole range does.
    fn file_offset(&self, remote: RemoteAddress, length_bytes: u32) -> Option<u64> {
        let end_in_slab = u64::from(remote.offset_bytes) + u64::from(length_bytes);
        let start = u64::from(remote.slab.0).checked_mul(self.slab_size_bytes)? + u64::from(remote.offset_bytes);
        let inside = end_in_slab <= self.slab_size_bytes && start + u64::from(length_bytes) <= self.size_bytes;
        inside.then_some(start)
    }

    fn start(&mut self, transfer: Transfer) {
        let slot = self.free_slots.pop().expect("there are as many slots as credits");
        self.ring.push(slot, transfer.rest());
        self.transfers[slot] = Some(transfer);
    }

    /// Takes the next ended request from the ring, sending unfinished ones on.
    fn next_ended(&mut self) -> Option<Completion> {
        loop {
            let (slot, result) = self.ring.next_completion()?;
            let transfer = self.transfers[slot].as_mut().expect("a busy slot has a transfer");
            match transfer.progress(result) {
                Progress::Rest(moved_bytes) => {
                    transfer.moved_bytes = moved_bytes;
                    self.ring.push(slot, transfer.rest());
                }
                Progress::Ended(result) => {
                    let tag = transfer.tag;
                    self.transfers[slot] = None;
                    self.free_slots.push(slot);
                    return Some(Completion { tag, result });
                }
            }
        }
    }

    /// What could not be handed over now is tried again by the next poll; [`QueuePair::wants_write`] asks for one.
    fn submit(&mut self) {
        let _ = self.ring.submit();
    }
}

impl QueuePair for FileQueuePair {
    fn post(&mut self, request: Request, _now: Instant) -> Result<(), PostError> {
        if !self.credits.take(request.priority) {
            return Err(PostError::Busy);
        }
        match self.file_offset(request.remote, request.buffer.length_bytes) {
            None => self.refused.push(request.tag),
            Some(file_offset) => self.start(Transfer {
                operation: request.operation,
                file_offset,
                buffer: request.buffer,
                moved_bytes: 0,
                tag: request.tag,
            }),
        }
        Ok(())
    }

    fn poll(&mut self, _now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        self.submit();
        let mut ended = 0;
        while let Some(tag) = self.refused.pop() {
            self.credits.give_back();
            complete(Completion { tag, result: Err(RequestError::NotLent) });
            ended += 1;
        }
        while let Some(completion) = self.next_ended() {
            self.credits.give_back();
            complete(completion);
            ended += 1;
        }
        self.submit();
        ended
    }

    fn in_flight(&self) -> usize {
        self.credits.held()
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }

    fn wants_write(&self) -> bool {
        self.ring.unsubmitted() > 0
    }

    fn is_down(&self) -> bool {
        false
    }

    /// The kernel moves bytes by itself until each request has ended.
    fn halt(&mut self) -> bool {
        self.in_flight() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{PAGE_SIZE_BYTES, Priority, SlabHandle};

    const SLAB: u64 = 1 << 20;

    fn open(path: &str) -> BackingFile {
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        BackingFile::unchecked(file, 2 * SLAB)
    }

    /// Carries out one page's `operation` and says how it ended.
    fn carry_out(pair: &mut FileQueuePair, operation: Operation, page: u32) -> Result<(), RequestError> {
        let request = Request {
            operation,
            remote: RemoteAddress { slab: SlabHandle(1), offset_bytes: page * PAGE_SIZE_BYTES as u32 },
            buffer: BufferRange { offset_bytes: 0, length_bytes: PAGE_SIZE_BYTES as u32 },
            tag: Tag(page),
            priority: Priority::Demand,
        };
        let now = Instant::now();
        pair.post(request, now).unwrap();
        let mut result = None;
        while result.is_none() {
            pair.poll(now, &mut |completion| {
                assert_eq!(completion.tag, Tag(page));
                result = Some(completion.result);
            });
        }
        assert_eq!(pair.in_flight(), 0);
        result.unwrap()
    }

    #[test]
    fn a_full_disk_fails_the_write_and_nothing_else() {
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let mut pair = FileQueuePair::open(&open("/dev/full"), SLAB, pool).unwrap();
        let no_space = RequestError::Medium(rustix::io::Errno::NOSPC.raw_os_error());
        assert_eq!(carry_out(&mut pair, Operation::Write, 0), Err(no_space));
        assert_eq!(carry_out(&mut pair, Operation::Read, 1), Ok(()));
        assert_eq!(carry_out(&mut pair, Operation::Write, 2), Err(no_space));
        assert!(!pair.is_down());
    }

    #[test]
    fn a_file_cut_short_behind_our_back_is_an_error_not_a_hang() {
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let file = tempfile::tempfile().unwrap();
        let mut pair = FileQueuePair::open(&BackingFile::unchecked(file, 2 * SLAB), SLAB, pool).unwrap();
        assert!(matches!(carry_out(&mut pair, Operation::Read, 0), Err(RequestError::Medium(_))));
    }

    #[test]
    fn what_cannot_be_punched_says_so() {
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let mut pair = FileQueuePair::open(&open("/dev/full"), SLAB, pool).unwrap();
        assert!(matches!(carry_out(&mut pair, Operation::Discard, 0), Err(RequestError::Medium(_))));
    }

    #[test]
    fn the_event_is_ready_exactly_while_completions_wait() {
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * SLAB).unwrap();
        let mut pair = FileQueuePair::open(&BackingFile::unchecked(file, 2 * SLAB), SLAB, pool).unwrap();
        let epoll = spillway_sys::epoll::Epoll::new().unwrap();
        epoll.add(pair.event().unwrap(), 0, spillway_sys::epoll::Interest::Readable).unwrap();
        let ready = |seconds| epoll.wait(Some(std::time::Duration::from_secs(seconds)), |_| {}).unwrap();
        assert_eq!(ready(0), 0);
        for tag in 0..2 {
            let remote = RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 };
            let buffer = BufferRange { offset_bytes: 0, length_bytes: PAGE_SIZE_BYTES as u32 };
            let priority = Priority::Demand;
            let request = Request { operation: Operation::Read, remote, buffer, tag: Tag(tag), priority };
            pair.post(request, Instant::now()).unwrap();
        }
        assert!(pair.wants_write(), "nothing was handed over yet");
        let mut ended = pair.poll(Instant::now(), &mut |_| {});
        assert!(!pair.wants_write());
        while ended < 2 {
            assert_eq!(ready(60), 1);
            ended += pair.poll(Instant::now(), &mut |_| {});
        }
        assert_eq!(ready(0), 0);
    }
}
