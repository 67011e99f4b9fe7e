//! Reading without a request: where a donor's memory is mapped here (shared memory), the thread that needs pages
//! takes them from there himself.
//!
//! A request copies them into a buffer first, and a page that is filled from that is copied twice. What makes the one
//! copy safe is what makes requests safe: the slab's gate is passed before its copy indexes are read, and nothing is
//! detached, nor lent to another borrower, before the gate was drained ([`crate::slab_map::gate`]); page bits are read
//! after the copy indexes (`read`). A donor's file never becomes another slab, so what is read of a donor that has
//! just ended is what it had.
//!
//! Sealed pages are of no use as they lie. Pages with a checksum are compared before they are used; should one differ,
//! a request finds out why.
//!
//! Only the plain case: all pages in one slab, and in one copy of it. Everything else is for a request.

use std::time::Instant;

use spillway_block::request::{BlockOperation, BlockRequest};
use spillway_block::service::UseMemory;
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority, RemoteAddress};
use spillway_sys::mapping::Mapping;

use super::Engine;
use super::proving::Proving;
use super::queue_pairs::QueuePairSet;
use crate::limits::COPIES_MAX;
use crate::slab_map::Volume;
use crate::slab_map::page_bits::Bit;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::slab_entry::CopyLocations;

impl Engine {
    /// See [`spillway_block::service::BlockService::read_in_place`].
    pub(super) fn use_mapped(&mut self, offset_bytes: u64, length_bytes: u64, use_memory: UseMemory<'_>) -> bool {
        let request = BlockRequest {
            slot: 0,
            operation: BlockOperation::Read,
            offset_bytes,
            length_bytes,
            priority: Priority::Demand,
        };
        let page = PAGE_SIZE_BYTES as u64;
        let (first, count) = (PageIndex::at_offset(offset_bytes), length_bytes / page);
        let slab = self.volume.geometry.slab_of(first);
        let is_sealing = self.volume.proofs.as_ref().is_some_and(|proofs| proofs.protection().is_sealing());
        if is_sealing || !self.is_valid(&request) || first + count > self.volume.geometry.pages(slab).end {
            return false;
        }
        let begun = Instant::now();
        self.queue_pairs.adopt();
        let entry = self.volume.slab(slab);
        let pass = entry.gate.enter();
        let locations = entry.locations();
        let found = if self.queue_pairs.has_news() {
            None
        } else {
            let proving = self.proving.as_mut();
            let found = find(&self.volume, &self.queue_pairs, locations, first, count);
            found.filter(|(memory, offset)| is_proven(&self.volume, proving, memory, *offset, first, count))
        };
        let used_bytes = found.map(|(memory, offset)| use_memory(memory, offset));
        entry.gate.leave(pass);
        if let Some(length_bytes @ 1..) = used_bytes {
            entry.count_accesses(length_bytes / page);
            self.metrics.record(&BlockRequest { length_bytes, ..request }, true, begun.elapsed());
        }
        used_bytes.is_some()
    }
}

/// Where these pages of one slab lie in the first of its copies that has them all and is mapped here.
fn find<'a>(
    volume: &Volume,
    queue_pairs: &'a QueuePairSet,
    locations: CopyLocations,
    first: PageIndex,
    count: u64,
) -> Option<(&'a Mapping, usize)> {
    let offset_bytes = volume.geometry.offset_in_slab_bytes(first);
    (0..COPIES_MAX).find_map(|copy_index| {
        let location = locations[copy_index].filter(|location| !volume.is_silent(location.donor))?;
        let remote = RemoteAddress { slab: location.handle, offset_bytes };
        let mapped = queue_pairs.mapped(location.donor, remote, count as usize * PAGE_SIZE_BYTES)?;
        volume.bits.all(Bit::Copy(copy_index), first, count).then_some(mapped)
    })
}

/// Whether the pages at `offset` of `memory` are what was written, as far as that is looked at.
fn is_proven(
    volume: &Volume,
    proving: Option<&mut Proving>,
    memory: &Mapping,
    offset: usize,
    first: PageIndex,
    count: u64,
) -> bool {
    let (Some(proofs), Some(proving)) = (&volume.proofs, proving) else { return true };
    first.up_to(first + count).enumerate().all(|(index, page)| {
        memory.read(offset + index * PAGE_SIZE_BYTES, &mut *proving.bytes);
        proofs.protection().restore(page, &proving.bytes, proofs.load(page), &mut proving.content)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use spillway_fabric::buffer_pool::BufferPool;
    use spillway_fabric::shm::{ShmQueuePair, ShmWindow};
    use spillway_fabric::units::{SlabHandle, SlabIndex};
    use spillway_sys::memfd::Memfd;

    use super::*;
    use crate::engine::queue_pairs::{QueuePairChange, QueuePairMailbox};
    use crate::settings::redundancy::Redundancy;
    use crate::slab_map::Geometry;
    use crate::slab_map::slab_entry::{DonorSlot, Location};
    use spillway_block::metrics::Metrics;
    use spillway_block::service::BlockService;

    const GEOMETRY: Geometry = Geometry { slab_pages: 64, slab_count: 2 };
    const PAGE: u64 = PAGE_SIZE_BYTES as u64;
    const DONOR: DonorSlot = DonorSlot(3);
    const HANDLE: SlabHandle = SlabHandle(5);

    struct World {
        volume: Arc<Volume>,
        mailbox: Arc<QueuePairMailbox>,
        pool: Arc<BufferPool>,
        window: Arc<ShmWindow>,
        engine: Engine,
    }

    /// The first slab is lent over shared memory, and its first 40 pages were written: their number, from 1 on.
    fn world() -> World {
        let volume = Arc::new(Volume::new(GEOMETRY, Redundancy::NONE, None).unwrap());
        let pool = BufferPool::new(1, 64 * PAGE_SIZE_BYTES).unwrap();
        let mailbox = QueuePairMailbox::new();
        let window = ShmWindow::new(GEOMETRY.slab_size_bytes(), 8).unwrap();
        window.attach(HANDLE, &Memfd::create("slab", GEOMETRY.slab_size_bytes()).unwrap()).unwrap();
        let queue_pairs = QueuePairSet::new(Arc::clone(&mailbox), None);
        let metrics = Arc::new(Metrics::default());
        let engine = Engine::new(Arc::clone(&volume), metrics, Arc::clone(&pool), queue_pairs, Instant::now());
        let mut world = World { volume, mailbox, pool, window, engine };
        world.connect();
        world.volume.slab(SlabIndex(0)).fill(0, Location { donor: DONOR, handle: HANDLE });
        for page in 0..40 {
            world.pool.memory().write(page as usize * PAGE_SIZE_BYTES, &[page as u8 + 1; PAGE_SIZE_BYTES]);
        }
        world.engine.submit(
            BlockRequest {
                slot: 0,
                operation: BlockOperation::Write,
                offset_bytes: 0,
                length_bytes: 40 * PAGE,
                priority: Priority::Demand,
            },
            Instant::now(),
        );
        let mut answer = None;
        while answer.is_none() {
            world.engine.poll(Instant::now(), &mut |_, result| answer = Some(result));
        }
        assert_eq!(answer, Some(Ok(())));
        world
    }

    impl World {
        fn connect(&self) {
            let queue_pair = Box::new(ShmQueuePair::new(Arc::clone(&self.window), Arc::clone(&self.pool)));
            self.mailbox.leave(QueuePairChange { donor: DONOR, queue_pair: Some(queue_pair) });
        }

        /// Pages and requests that were read, and accesses of the first slab.
        fn counted(&self) -> (u64, u64, u64) {
            let status = self.engine.metrics.status();
            (status.pages_in, status.read_requests, self.volume.slab(SlabIndex(0)).accesses())
        }

        /// The first byte of each page, if they can be had in place.
        fn read(&mut self, first: u64, count: u64) -> Option<Vec<u8>> {
            let mut bytes = None;
            let is_mapped = self.engine.read_in_place(first * PAGE, count * PAGE, &mut |memory, offset| {
                let byte = |page: u64| {
                    let mut byte = [0];
                    memory.read(offset + page as usize * PAGE_SIZE_BYTES, &mut byte);
                    byte[0]
                };
                bytes = Some((0..count).map(byte).collect());
                count * PAGE
            });
            assert_eq!(is_mapped, bytes.is_some());
            bytes
        }
    }

    #[test]
    fn pages_are_read_where_they_lie_and_counted() {
        let mut world = world();
        assert_eq!(world.read(7, 1), Some(vec![8]));
        assert_eq!(world.read(8, 32), Some((9..41).collect()));
        assert_eq!(world.counted(), (33, 2, 40 + 33));
    }

    #[test]
    fn what_was_not_used_is_not_counted() {
        let mut world = world();
        assert!(world.engine.read_in_place(0, 8 * PAGE, &mut |_, _| 0));
        assert!(world.engine.read_in_place(0, 8 * PAGE, &mut |_, _| 3 * PAGE));
        assert_eq!(world.counted(), (3, 1, 40 + 3));
    }

    #[test]
    fn whatever_is_not_plain_is_left_to_a_request() {
        let mut world = world();
        assert_eq!(world.read(39, 2), None, "the second one was never written");
        // The bits alone would say that all of both slabs is there.
        let next = SlabHandle(HANDLE.0 + 1);
        world.window.attach(next, &Memfd::create("next", GEOMETRY.slab_size_bytes()).unwrap()).unwrap();
        world.volume.slab(SlabIndex(1)).fill(0, Location { donor: DONOR, handle: next });
        world.volume.bits.set(Bit::Copy(0), PageIndex(40), 88);
        assert_eq!((world.read(60, 4), world.read(64, 2)), (Some(vec![0; 4]), Some(vec![0; 2])));
        assert_eq!(world.read(60, 8), None, "two slabs");
        assert_eq!(world.read(127, 2), None, "beyond the volume");
        assert_eq!(world.read(0, 0), None);
        world.volume.set_silent(DONOR, true);
        assert_eq!(world.read(7, 1), None, "others may have it who answer");
        world.volume.set_silent(DONOR, false);
        world.volume.bits.clear(Bit::Copy(0), PageIndex(7), 1);
        assert_eq!(world.read(7, 1), None, "the copy is old");
        assert_eq!(world.read(8, 1), Some(vec![9]));
        world.window.close();
        assert_eq!(world.read(8, 1), None, "the session has ended");
    }

    #[test]
    fn a_copy_that_is_mapped_comes_before_one_that_is_not() {
        let mut world = world();
        world.volume.bits.clear(Bit::Copy(0), PageIndex(0), 40);
        assert_eq!(world.read(8, 1), None);
        // The same memory, as a second copy; the first one is with a donor that is nowhere.
        let entry = world.volume.slab(SlabIndex(0));
        entry.empty(0);
        entry.gone(0);
        entry.fill(0, Location { donor: DonorSlot(DONOR.0 + 1), handle: HANDLE });
        entry.fill(1, Location { donor: DONOR, handle: HANDLE });
        (0..2).for_each(|copy_index| world.volume.bits.set(Bit::Copy(copy_index), PageIndex(0), 40));
        assert_eq!(world.read(8, 1), Some(vec![9]));
        world.mailbox.leave(QueuePairChange { donor: DONOR, queue_pair: None });
        assert_eq!(world.read(8, 1), None, "nobody lends it any more");
        world.connect();
        assert_eq!(world.read(8, 1), Some(vec![9]));
    }

    #[test]
    fn a_copy_is_taken_away_when_no_thread_reads_it_in_place_any_more() {
        let mut world = world();
        let (volume, window) = (Arc::clone(&world.volume), Arc::clone(&world.window));
        let (tell, told) = std::sync::mpsc::channel();
        let (mut tell, mut taker) = (Some(tell), None);
        let is_mapped = world.engine.read_in_place(0, PAGE, &mut |memory, offset| {
            let (theirs, tell) = ((Arc::clone(&volume), Arc::clone(&window)), tell.take().unwrap());
            taker = Some(std::thread::spawn(move || {
                let removed = theirs.0.remove_copy(SlabIndex(0), 0, || _ = tell.send(()));
                theirs.1.detach(HANDLE).unwrap();
                removed
            }));
            // It waits, and looks again and again.
            (0..100).for_each(|_| told.recv().unwrap());
            let mut bytes = [0; PAGE_SIZE_BYTES];
            memory.read(offset, &mut bytes);
            assert_eq!(bytes, [1; PAGE_SIZE_BYTES]);
            assert!(window.is_attached(HANDLE));
            PAGE
        });
        assert!(is_mapped);
        let removed = taker.unwrap().join().unwrap().unwrap();
        assert_eq!((removed.location.handle, removed.pages_lost), (HANDLE, 40));
        assert!(!window.is_attached(HANDLE));
        assert_eq!(world.read(0, 1), None);
    }
}
