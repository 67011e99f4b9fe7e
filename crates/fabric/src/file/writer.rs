//! The background writer's way to the backing file: runs of adjacent pages, gathered from anywhere in a buffer pool and
//! written with one operation each, a bounded number at a time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use spillway_sys::io_ring::{IoRing, RingMemory};

use super::{BackingFile, Progress, progress};
use crate::buffer_pool::BufferPool;
use crate::limits::RUN_PIECES_MAX;
use crate::queue_pair::{Completion, PostError, RequestError};
use crate::units::{BufferRange, Tag};

/// A run in a slot of the ring; its buffers are in the slot's part of `FileWriter::buffers`.
#[derive(Clone, Copy, Debug)]
struct Run {
    file_offset: u64,
    piece_count: usize,
    total_bytes: usize,
    written_bytes: usize,
    tag: Tag,
}

/// See the module text.
#[derive(Debug)]
pub struct FileWriter {
    ring: IoRing,
    size_bytes: u64,
    runs: Box<[Option<Run>]>,
    free_slots: Vec<usize>,
    buffers: Box<[BufferRange]>,
    /// Runs that ended without the disk: they lie outside the file. At most as many as slots.
    refused: Vec<Tag>,
}

impl FileWriter {
    pub(super) fn new(file: &BackingFile, pool: Arc<BufferPool>, depth: usize) -> io::Result<Self> {
        let memory: Arc<dyn RingMemory> = pool;
        let nothing = BufferRange { offset_bytes: 0, length_bytes: 0 };
        Ok(Self {
            ring: IoRing::new(file.descriptor()?, memory, depth, RUN_PIECES_MAX)?,
            size_bytes: file.size_bytes(),
            runs: vec![None; depth].into(),
            free_slots: (0..depth).rev().collect(),
            buffers: vec![nothing; depth * RUN_PIECES_MAX].into(),
            refused: Vec::with_capacity(depth),
        })
    }

    /// Writes `buffers` (at most [`RUN_PIECES_MAX`]), one after another, to byte `file_offset` of the file and on.
    /// Until the completion with `tag`, the buffers belong to the writer. `Busy`: the depth is reached; poll first.
    pub fn post(
        &mut self,
        file_offset: u64,
        buffers: impl IntoIterator<Item = BufferRange>,
        tag: Tag,
    ) -> Result<(), PostError> {
        if self.refused.len() >= self.free_slots.len() {
            return Err(PostError::Busy);
        }
        let slot = *self.free_slots.last().expect("more slots are free than runs are refused");
        let mut run = Run { file_offset, piece_count: 0, total_bytes: 0, written_bytes: 0, tag };
        for buffer in buffers {
            assert!(run.piece_count < RUN_PIECES_MAX, "a run has too many buffers");
            self.buffers[slot * RUN_PIECES_MAX + run.piece_count] = buffer;
            run.piece_count += 1;
            run.total_bytes += buffer.length_bytes as usize;
        }
        let inside = file_offset.checked_add(run.total_bytes as u64).is_some_and(|end| end <= self.size_bytes);
        if !inside || run.total_bytes == 0 {
            self.refused.push(tag);
            return Ok(());
        }
        self.free_slots.pop();
        self.runs[slot] = Some(run);
        self.push(slot, &run);
        Ok(())
    }

    /// Hands the unwritten rest of `run` to the ring.
    fn push(&mut self, slot: usize, run: &Run) {
        let first = slot * RUN_PIECES_MAX;
        let mut skip = run.written_bytes;
        let pieces = self.buffers[first..first + run.piece_count].iter().filter_map(|buffer| {
            let gone = skip.min(buffer.length_bytes as usize);
            skip -= gone;
            let left = buffer.length_bytes as usize - gone;
            (left > 0).then_some((buffer.offset_bytes as usize + gone, left))
        });
        self.ring.push_write_vectored(slot, run.file_offset + run.written_bytes as u64, pieces);
    }

    /// Starts what was posted and calls `complete` for each run that ended, without waiting. Returns how many ended.
    pub fn poll(&mut self, complete: &mut dyn FnMut(Completion)) -> usize {
        // What could not be handed over is tried again by the next poll.
        let _ = self.ring.submit();
        let ended = self.harvest(complete);
        let _ = self.ring.submit();
        ended
    }

    /// Like [`FileWriter::poll`], but waits until at least one run ended, if any is in flight.
    pub fn wait(&mut self, complete: &mut dyn FnMut(Completion)) -> io::Result<usize> {
        let mut ended = self.harvest(complete);
        while ended == 0 && self.in_flight() > 0 {
            self.ring.submit_and_wait()?;
            ended = self.harvest(complete);
        }
        Ok(ended)
    }

    fn harvest(&mut self, complete: &mut dyn FnMut(Completion)) -> usize {
        let mut ended = 0;
        while let Some(tag) = self.refused.pop() {
            complete(Completion { tag, result: Err(RequestError::NotLent) });
            ended += 1;
        }
        while let Some((slot, result)) = self.ring.next_completion() {
            let mut run = self.runs[slot].expect("a busy slot has a run");
            match progress(run.total_bytes, run.written_bytes, result) {
                Progress::Rest(written_bytes) => {
                    run.written_bytes = written_bytes;
                    self.runs[slot] = Some(run);
                    self.push(slot, &run);
                }
                Progress::Ended(result) => {
                    self.runs[slot] = None;
                    self.free_slots.push(slot);
                    complete(Completion { tag: run.tag, result });
                    ended += 1;
                }
            }
        }
        ended
    }

    /// Runs posted and not completed.
    pub fn in_flight(&self) -> usize {
        self.ring.busy_count() + self.refused.len()
    }

    /// Becomes readable when a run ended.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
