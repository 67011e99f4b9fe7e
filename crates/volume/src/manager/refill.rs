//! Copies pages from one copy of a slab to another: to a new donor, to a copy that missed writes, or back from the
//! disk.
//!
//! Works on batches of pages and owns a batch while it moves, exactly as a writer does; so a program's requests for
//! other pages go on, and one for these waits some microseconds. Runs on the mover's thread with queue pairs of its
//! own.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::queue_pair::{Operation, PostError};
use spillway_fabric::units::{BufferRange, PAGE_SIZE_BYTES, Priority, RemoteAddress, SlabHandle, SlabIndex};

use crate::engine::queue_pairs::{QueuePairSet, SubRequest, Target};
use crate::limits::{COPIES_MAX, MOVE_BATCH_PAGES};
use crate::slab_map::Volume;
use crate::slab_map::page_bits::{Bit, PageWord, WORD_PAGES};
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::slab_entry::{CopyLocations, Location};

/// What one pass over a slab achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Pages copied.
    pub copied: u64,
    /// Pages that the target still misses: their only copies could not be read now, or another thread kept owning them.
    pub missing: u64,
}

/// The mover's own queue pairs, see the module text.
pub struct Refill {
    volume: Arc<Volume>,
    queue_pairs: QueuePairSet,
    pool: Arc<BufferPool>,
}

const _: () = assert!(MOVE_BATCH_PAGES as u64 == WORD_PAGES, "a batch is a word of page bits");

/// How long a batch waits for the owner of one of its pages before it is skipped.
const OWNER_PATIENCE: Duration = Duration::from_millis(50);

impl Refill {
    /// `queue_pairs` are this thread's; their queue pairs use `pool`, which has one slot of [`MOVE_BATCH_PAGES`].
    pub fn new(volume: Arc<Volume>, queue_pairs: QueuePairSet, pool: Arc<BufferPool>) -> Self {
        assert!(pool.slot_size_bytes() == MOVE_BATCH_PAGES * PAGE_SIZE_BYTES, "a batch fills the buffer");
        Self { volume, queue_pairs, pool }
    }

    /// Brings the copy at `target` in `copy_index` of `slab` up to date with the others. Stops early, with pages
    /// missing, when the copy was taken away meanwhile.
    pub fn fill(&mut self, slab: SlabIndex, copy_index: usize, target: Location) -> Pass {
        let mut pass = Pass::default();
        for first in self.volume.geometry.words(slab) {
            let word = self.volume.bits.word(first);
            if word.stored() & !word.copies[copy_index] == 0 {
                continue;
            }
            pass.copied += self.fill_batch(slab, first, copy_index, target);
            let word = self.volume.bits.word(first);
            pass.missing += u64::from((word.stored() & !word.copies[copy_index]).count_ones());
        }
        pass
    }

    fn fill_batch(&mut self, slab: SlabIndex, first: PageIndex, copy_index: usize, target: Location) -> u64 {
        let volume = Arc::clone(&self.volume);
        if !self.acquire(first) {
            return 0;
        }
        self.queue_pairs.adopt();
        let entry = volume.slab(slab);
        let gate = entry.gate.enter();
        let locations = entry.locations();
        let mut copied = 0;
        if locations[copy_index] == Some(target) && !volume.is_suspect(target.donor) {
            let word = volume.bits.word(first);
            copied = self.move_runs(slab, first, copy_index, target, &locations, &word);
        }
        entry.gate.leave(gate);
        volume.bits.release(first, MOVE_BATCH_PAGES as u64);
        copied
    }

    fn acquire(&self, first: PageIndex) -> bool {
        let give_up = Instant::now() + OWNER_PATIENCE;
        while !self.volume.bits.try_acquire(first, MOVE_BATCH_PAGES as u64) {
            if Instant::now() > give_up {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Reads the missing pages run by run, and writes each run to the target.
    fn move_runs(
        &mut self,
        slab: SlabIndex,
        first: PageIndex,
        copy_index: usize,
        target: Location,
        locations: &CopyLocations,
        word: &PageWord,
    ) -> u64 {
        let missing = word.stored() & !word.copies[copy_index];
        let mut copied = 0;
        let mut page = 0;
        while page < MOVE_BATCH_PAGES as u64 {
            let Some((source, count)) = self.run_at(page, missing, slab, locations, word) else {
                page += 1;
                continue;
            };
            let buffer = self.pool.slot(0).part(0, count as usize * PAGE_SIZE_BYTES);
            let offset_bytes = self.volume.geometry.offset_in_slab_bytes(first + page);
            let from = RemoteAddress { slab: source.1, offset_bytes };
            let to = RemoteAddress { slab: target.handle, offset_bytes };
            let moved = self.exchange(source.0, Operation::Read, from, buffer)
                && self.exchange(Target::Donor(target.donor), Operation::Write, to, buffer);
            if moved {
                self.volume.bits.set(Bit::Copy(copy_index), first + page, count);
                copied += count;
            }
            page += count;
        }
        copied
    }

    /// Where missing page `page` of the batch can be read, and how many missing pages in a row can be read there.
    fn run_at(
        &self,
        page: u64,
        missing: u64,
        slab: SlabIndex,
        locations: &CopyLocations,
        word: &PageWord,
    ) -> Option<((Target, SlabHandle), u64)> {
        let reachable = |copy_index: &usize| {
            locations[*copy_index].is_some_and(|location| self.queue_pairs.is_usable(location.donor))
        };
        let sources =
            (0..COPIES_MAX).filter(reachable).map(|copy_index| (word.copies[copy_index], locations[copy_index]));
        let donor = sources.filter_map(|(valid, location)| {
            let location = location?;
            Some((valid, (Target::Donor(location.donor), location.handle)))
        });
        let disk = std::iter::once((word.disk, (Target::Disk, SlabHandle(slab.0))));
        let (valid, source) = donor.chain(disk).find(|(valid, _)| valid & missing & (1 << page) != 0)?;
        Some((source, u64::from((!(valid & missing) >> page).trailing_zeros()).min(MOVE_BATCH_PAGES as u64 - page)))
    }

    /// One request, waited for; false when it failed.
    fn exchange(&mut self, target: Target, operation: Operation, remote: RemoteAddress, buffer: BufferRange) -> bool {
        let sub_request = SubRequest { owner: 0, copy_index: 0, target, priority: Priority::WriteBack };
        loop {
            match self.queue_pairs.post(sub_request, operation, remote, buffer, Instant::now()) {
                Ok(()) => break,
                Err(PostError::Down) => return false,
                Err(PostError::Busy) => self.queue_pairs.poll(Instant::now(), &mut |_, _| {}),
            }
        }
        let mut result = None;
        loop {
            self.queue_pairs.poll(Instant::now(), &mut |_, ended| result = Some(ended));
            match result {
                Some(Ok(())) => return true,
                Some(Err(_)) => {
                    if let Target::Donor(donor) = target {
                        self.volume.report_trouble(donor);
                    }
                    return false;
                }
                None => self.sleep(),
            }
            // The manager may have taken the donor away: its sub-requests end as orphans.
            self.queue_pairs.adopt();
        }
    }

    fn sleep(&mut self) {
        if self.queue_pairs.needs_polling() || self.queue_pairs.arm() {
            return;
        }
        let mut waits = Vec::new();
        self.queue_pairs.for_each_event(&mut |event, wants_write| {
            let write = if wants_write { rustix::event::PollFlags::OUT } else { rustix::event::PollFlags::empty() };
            waits.push(PollFd::from_borrowed_fd(event, rustix::event::PollFlags::IN | write));
        });
        let patience = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _: Result<usize, io::Error> = poll(&mut waits, Some(&patience)).map_err(io::Error::from);
    }
}
