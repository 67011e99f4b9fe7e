//! Copies pages from one copy of a slab to another: to a new donor, to a copy that missed writes, or back from the
//! disk.
//!
//! Protected pages are compared with their proofs on the way, and travel as they are: a copy is never made from what is
//! not what was written.
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
use crate::engine::refuse_page;
use crate::limits::{COPIES_MAX, MOVE_BATCH_PAGES};
use crate::protection::{PageBytes, PageProof};
use crate::slab_map::Volume;
use crate::slab_map::page_bits::{Bit, PageWord, WORD_PAGES};
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::proofs::{Intent, PageProofs, ProofWriter};
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
    /// A page as it came, and its content.
    scratch: Box<(PageBytes, PageBytes)>,
    /// Unless pages are plain.
    writer: Option<ProofWriter>,
}

/// Where pages of a batch can be read: in a copy, or on the disk.
#[derive(Clone, Copy, Debug)]
struct Source {
    target: Target,
    slab: SlabHandle,
    bit: Bit,
}

const _: () = assert!(MOVE_BATCH_PAGES as u64 == WORD_PAGES, "a batch is a word of page bits");

/// How long a batch waits for the owner of one of its pages before it is skipped.
const OWNER_PATIENCE: Duration = Duration::from_millis(50);

impl Refill {
    /// `queue_pairs` are this thread's; their queue pairs use `pool`, which has one slot of [`MOVE_BATCH_PAGES`].
    pub fn new(volume: Arc<Volume>, queue_pairs: QueuePairSet, pool: Arc<BufferPool>) -> Self {
        assert!(pool.slot_size_bytes() == MOVE_BATCH_PAGES * PAGE_SIZE_BYTES, "a batch fills the buffer");
        let scratch = Box::new(([0; PAGE_SIZE_BYTES], [0; PAGE_SIZE_BYTES]));
        let writer = volume.proofs.as_ref().map(PageProofs::new_writer);
        Self { volume, queue_pairs, pool, scratch, writer }
    }

    /// Brings the copy at `target` in `copy_index` of `slab` up to date with the others. Stops early, with pages
    /// missing, when the copy was taken away meanwhile.
    pub fn fill(&mut self, slab: SlabIndex, copy_index: usize, target: Location) -> Pass {
        let mut pass = Pass::default();
        for first in self.volume.geometry.words(slab) {
            let word = self.volume.bits.word(first);
            if word.stored() & !word.copies[copy_index] == 0 && self.volume.in_doubt(first) == 0 {
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
        let in_doubt = volume.in_doubt(first);
        if !self.acquire(first) {
            return 0;
        }
        self.queue_pairs.adopt();
        let entry = volume.slab(slab);
        let gate = entry.gate.enter();
        let locations = entry.locations();
        let mut copied = 0;
        if locations[copy_index] == Some(target) && !volume.is_suspect(target.donor) {
            for page in (0..MOVE_BATCH_PAGES as u64).filter(|page| in_doubt & (1 << page) != 0) {
                self.settle(first + page, slab, &locations);
            }
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
            let from = RemoteAddress { slab: source.slab, offset_bytes };
            if self.exchange(source.target, Operation::Read, from, buffer) {
                copied += self.pass_on(first + page, count, source, copy_index, target);
            }
            page += count;
        }
        copied
    }

    /// Writes pages that were read, those that are what was written, to the target.
    fn pass_on(&mut self, first: PageIndex, count: u64, source: Source, copy_index: usize, target: Location) -> u64 {
        let right: u64 =
            (0..count).fold(0, |right, page| right | u64::from(self.is_right(first, page, source)) << page);
        let (mut page, mut copied) = (0, 0);
        while page < count {
            let run = u64::from((!(right >> page)).trailing_zeros()).min(count - page);
            if run == 0 {
                page += 1;
                continue;
            }
            let buffer = self.pool.slot(0).part(page as usize * PAGE_SIZE_BYTES, run as usize * PAGE_SIZE_BYTES);
            let offset_bytes = self.volume.geometry.offset_in_slab_bytes(first + page);
            let to = RemoteAddress { slab: target.handle, offset_bytes };
            if self.exchange(Target::Donor(target.donor), Operation::Write, to, buffer) {
                self.volume.bits.set(Bit::Copy(copy_index), first + page, run);
                copied += run;
            }
            page += run;
        }
        copied
    }

    /// Finds out which content the copies of an owned page hold that a dead process was writing: the old one or, where
    /// no copy has that any more, the new one. Other copies go. Without any the page is lost until it is written again.
    /// A copy that cannot be reached now leaves it in doubt.
    fn settle(&mut self, page: PageIndex, slab: SlabIndex, locations: &CopyLocations) {
        let volume = Arc::clone(&self.volume);
        let (Some(proofs), Some(writer)) = (&volume.proofs, self.writer) else { return };
        if !volume.is_in_doubt(page, 1) {
            return;
        }
        let intended: Vec<(Intent, PageProof)> = proofs.intended(page).collect();
        let (old, new) = (proofs.load(page), intended.first().map(|(_, proof)| *proof));
        let mut found = [None; COPIES_MAX];
        for copy_index in (0..COPIES_MAX).filter(|index| volume.bits.any(Bit::Copy(*index), page, 1)) {
            let Some(location) = locations[copy_index] else { return };
            if !self.read_page(page, location) {
                return;
            }
            let (bytes, content) = &mut *self.scratch;
            let mut is_of = |proof: &PageProof| proofs.protection().restore(page, bytes, *proof, content);
            found[copy_index] = Some(old).into_iter().chain(new).find(&mut is_of);
        }
        let kept = [Some(old), new].into_iter().flatten().find(|proof| found.contains(&Some(*proof)));
        match kept {
            Some(proof) if proof != old => proofs.set(writer, page, proof),
            Some(_) => {}
            None => {
                tracing::warn!("page {page} of slab {slab} was being written when a process died; no copy is whole");
                volume.bits.set(Bit::Lost, page, 1);
            }
        }
        (0..COPIES_MAX)
            .filter(|copy_index| kept.is_none() || found[*copy_index] != kept)
            .for_each(|copy_index| volume.bits.clear(Bit::Copy(copy_index), page, 1));
        volume.bits.clear(Bit::Writing, page, 1);
        proofs.forget_intents(intended.into_iter().map(|(intent, _)| intent));
    }

    /// Reads one page of a copy into the scratch room; false when that failed.
    fn read_page(&mut self, page: PageIndex, location: Location) -> bool {
        let buffer = self.pool.slot(0).part(0, PAGE_SIZE_BYTES);
        let offset_bytes = self.volume.geometry.offset_in_slab_bytes(page);
        let from = RemoteAddress { slab: location.handle, offset_bytes };
        let is_read = self.exchange(Target::Donor(location.donor), Operation::Read, from, buffer);
        if is_read {
            self.pool.memory().read(buffer.offset_bytes as usize, &mut self.scratch.0);
        }
        is_read
    }

    /// Whether page `page` of those that were read is what was written; if not, its source is blamed.
    fn is_right(&mut self, first: PageIndex, page: u64, source: Source) -> bool {
        let Some(proofs) = &self.volume.proofs else { return true };
        let (bytes, content) = &mut *self.scratch;
        let offset = self.pool.slot(0).offset_bytes as usize + page as usize * PAGE_SIZE_BYTES;
        self.pool.memory().read(offset, bytes);
        let proof = proofs.load(first + page);
        let is_right = proofs.protection().restore(first + page, bytes, proof, content);
        if !is_right {
            let donor = if let Target::Donor(donor) = source.target { Some(donor) } else { None };
            refuse_page(&self.volume, first + page, proof, source.bit, donor);
        }
        is_right
    }

    /// Where missing page `page` of the batch can be read, and how many missing pages in a row can be read there.
    fn run_at(
        &self,
        page: u64,
        missing: u64,
        slab: SlabIndex,
        locations: &CopyLocations,
        word: &PageWord,
    ) -> Option<(Source, u64)> {
        let of_copies = |is_distrusted: bool| {
            (0..COPIES_MAX).filter_map(move |copy_index| {
                let location = locations[copy_index].filter(|location| self.queue_pairs.is_usable(location.donor))?;
                let (target, bit) = (Target::Donor(location.donor), Bit::Copy(copy_index));
                let source = Source { target, slab: location.handle, bit };
                let is_its_turn = self.volume.trust.is_distrusted(location.donor) == is_distrusted;
                is_its_turn.then_some((word.copies[copy_index], source))
            })
        };
        let on_disk = Source { target: Target::Disk, slab: SlabHandle(slab.0), bit: Bit::Disk };
        // A donor that is not trusted comes last.
        let sources = of_copies(false).chain([(word.disk, on_disk)]).chain(of_copies(true));
        let (valid, source) = sources.into_iter().find(|(valid, _)| valid & missing & (1 << page) != 0)?;
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
