//! The backing file as a queue pair: page-sized requests of an I/O thread, through one io_uring.
//!
//! A request that was handed to the kernel cannot be taken back, so unlike a connection a disk is never given up: its
//! requests complete when the disk answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use spillway_sys::io_ring::{IoRing, RingMemory, RingOperation};

use super::{BackingError, BackingFile, Progress, progress};
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
    /// Same as [`BackingFile::prepare`].
    pub fn prepare(path: &std::path::Path, size_bytes: u64) -> Result<BackingFile, BackingError> {
        BackingFile::prepare(path, size_bytes)
    }

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
}
