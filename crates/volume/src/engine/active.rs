//! One block request on its way through the engine.
//!
//! A request is served one segment at a time: the part of it that lies in one slab. A segment that cannot go on (a
//! page is being changed by another thread, no donor yet, the backlog is full) is parked: it owns no page, is inside
//! no gate, and is started afresh at the next look. So a parked request can hold nothing up.

use std::time::Instant;

use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{BufferRange, PAGE_SIZE_BYTES, Priority, RemoteAddress, SlabIndex};

use super::bandwidth::Toll;
use super::proving::Proving;
use super::queue_pairs::QueuePairSet;
use super::segment::Segment;
use crate::limits::COPIES_MAX;
use crate::slab_map::admission::Ticket;
use crate::slab_map::gate::Pass;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::slab_entry::{CopyLocations, Location};
use crate::slab_map::{Geometry, Volume};

/// What a step of a request needs from its surroundings.
pub(super) struct Context<'a> {
    pub(super) volume: &'a Volume,
    pub(super) queue_pairs: &'a mut QueuePairSet,
    pub(super) pool: &'a BufferPool,
    /// Unless pages are plain.
    pub(super) proving: Option<&'a mut Proving>,
    pub(super) now: Instant,
}

/// What a request is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No request in this slot.
    Free,
    /// Waits to be started.
    Parked,
    /// Inside the gate, sub-requests in flight or about to be posted.
    Moving,
    /// Its pages are in the backlog only; waits until they are on disk.
    AwaitingDisk,
}

/// How a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Goes on later.
    Pending,
    /// Start afresh at the next look.
    Park,
    /// Over.
    Finished(Result<(), BlockError>),
}

/// The state of one request slot.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) slot: usize,
    pub(super) request: BlockRequest,
    /// Counts the requests of its engine.
    pub(super) number: u64,
    pub(super) arrived: Instant,
    /// Whether the volume's bandwidth lets it begin.
    pub(super) toll: Toll,
    pub(super) stage: Stage,
    pub(super) segment: Segment,
    pub(super) segment_since: Instant,
    pub(super) pass: Option<Pass>,
    pub(super) locations: CopyLocations,
    /// Whether `locations` are all that the manager is about to put there.
    pub(super) settled: bool,
    /// Locations that failed this segment; not tried again.
    pub(super) excluded: CopyLocations,
    /// Locations that let this segment wait for too long: read from only if nothing else has the page.
    pub(super) late: CopyLocations,
    /// When the segment was started, or nothing else was found to have its pages (reads).
    pub(super) entered: Instant,
    /// The copy indexes that sub-requests in flight read from (reads).
    pub(super) in_use: [bool; COPIES_MAX],
    /// The disk failed this segment.
    pub(super) disk_excluded: bool,
    /// Sub-requests in flight.
    pub(super) outstanding: u32,
    /// Some sub-request failed.
    pub(super) failed: bool,
    /// A page cannot be read at all.
    pub(super) error: Option<BlockError>,
    /// The first page not posted (reads).
    pub(super) next_page: PageIndex,
    /// A page's only source is out of reach now (reads).
    pub(super) must_wait: bool,
    /// It found no credit while it had no sub-request in flight (reads).
    pub(super) awaits_credit: bool,
    /// Copy indexes whose sub-request is not posted (writes, discards); the last is the disk.
    pub(super) unposted: [bool; COPIES_MAX + 1],
    /// The page from which on the segment is not posted, by copy index (writes).
    pub(super) unposted_from: [PageIndex; COPIES_MAX],
    /// The bytes to send of the segment are made, with its proofs (writes).
    pub(super) is_protected: bool,
    /// Copy indexes that have the new content, as far as is known (writes).
    pub(super) succeeded: [bool; COPIES_MAX],
    /// Pages that came from the disk.
    pub(super) disk_pages: u64,
    /// Its turn at a backlog that had no room for the segment (writes).
    pub(super) ticket: Option<Ticket>,
}

impl Active {
    pub(super) fn free(slot: usize, now: Instant) -> Self {
        let (operation, priority) = (BlockOperation::Flush, Priority::Demand);
        let request = BlockRequest { slot, operation, offset_bytes: 0, length_bytes: 0, priority };
        Self {
            slot,
            request,
            number: 0,
            arrived: now,
            toll: Toll::Paid,
            stage: Stage::Free,
            segment: Segment { slab: SlabIndex(0), first: PageIndex(0), count: 0, buffer_offset_bytes: 0 },
            segment_since: now,
            pass: None,
            locations: [None; COPIES_MAX],
            settled: true,
            excluded: [None; COPIES_MAX],
            late: [None; COPIES_MAX],
            entered: now,
            in_use: [false; COPIES_MAX],
            disk_excluded: false,
            outstanding: 0,
            failed: false,
            error: None,
            next_page: PageIndex(0),
            must_wait: false,
            awaits_credit: false,
            unposted: [false; COPIES_MAX + 1],
            unposted_from: [PageIndex(0); COPIES_MAX],
            is_protected: false,
            succeeded: [false; COPIES_MAX],
            disk_pages: 0,
            ticket: None,
        }
    }

    /// Takes a request over; it starts parked.
    pub(super) fn accept(&mut self, request: BlockRequest, number: u64, geometry: Geometry, now: Instant) {
        assert!(self.stage == Stage::Free, "a request slot is used by one request at a time");
        *self = Self::free(self.slot, now);
        self.request = request;
        self.number = number;
        self.stage = Stage::Parked;
        self.segment = segment_at(&request, geometry, 0);
    }

    /// A request of lower classes, by when it has its turn: by class, then the oldest first. `None` for one that a
    /// thread waits for, and for none.
    pub(super) fn turn(&self) -> Option<(Priority, u64)> {
        let has_turn = self.stage != Stage::Free && self.request.priority != Priority::Demand;
        has_turn.then_some((self.request.priority, self.number))
    }

    /// Moves to the next segment; false when there is none.
    pub(super) fn next_segment(&mut self, geometry: Geometry, now: Instant) -> bool {
        let done_bytes = self.segment.buffer_offset_bytes + self.segment.count * PAGE_SIZE_BYTES as u64;
        if done_bytes >= self.request.length_bytes {
            return false;
        }
        self.segment = segment_at(&self.request, geometry, done_bytes);
        self.segment_since = now;
        self.excluded = [None; COPIES_MAX];
        self.late = [None; COPIES_MAX];
        self.disk_excluded = false;
        self.is_protected = false;
        true
    }

    /// Passes the segment's gate and reads where its copies are.
    pub(super) fn enter(&mut self, volume: &Volume) {
        assert!(self.pass.is_none() && self.outstanding == 0, "a segment enters once");
        let entry = volume.slab(self.segment.slab);
        self.pass = Some(entry.gate.enter());
        (self.locations, self.settled) = entry.settled_places();
        // The next copy at an empty index may have the name of the one that failed.
        for (excluded, copy_index) in self.excluded.iter_mut().zip(&self.locations) {
            if copy_index.is_none() {
                *excluded = None;
            }
        }
        self.failed = false;
        self.in_use = [false; COPIES_MAX];
        self.error = None;
        self.must_wait = false;
        self.awaits_credit = false;
        self.next_page = self.segment.first;
        self.unposted = [false; COPIES_MAX + 1];
        self.unposted_from = [self.segment.first; COPIES_MAX];
        self.succeeded = [false; COPIES_MAX];
        self.disk_pages = 0;
    }

    /// Leaves the segment's gate.
    pub(super) fn leave(&mut self, volume: &Volume) {
        assert!(self.outstanding == 0, "sub-requests in flight use the slab's copies");
        let pass = self.pass.take().expect("a segment leaves the gate that it entered");
        volume.slab(self.segment.slab).gate.leave(pass);
    }

    /// The copy in `copy_index`, unless it failed this segment before or cannot be reached.
    pub(super) fn usable(&self, copy_index: usize, queue_pairs: &QueuePairSet) -> Option<Location> {
        let location = self.locations[copy_index]?;
        (self.excluded[copy_index] != Some(location) && queue_pairs.is_usable(location.donor)).then_some(location)
    }

    /// Where page `page` of the segment lies in the slot's buffer, for `count` pages.
    pub(super) fn buffer(&self, pool: &BufferPool, page: PageIndex, count: u64) -> BufferRange {
        let offset = self.segment.buffer_offset_bytes + (page - self.segment.first) * PAGE_SIZE_BYTES as u64;
        pool.slot(self.slot).part(offset as usize, count as usize * PAGE_SIZE_BYTES)
    }

    /// Where page `page` of the segment lies in the copy at `location`.
    pub(super) fn remote(&self, geometry: Geometry, location: Location, page: PageIndex) -> RemoteAddress {
        RemoteAddress { slab: location.handle, offset_bytes: geometry.offset_in_slab_bytes(page) }
    }
}

/// The segment of `request` that starts `done_bytes` into it.
fn segment_at(request: &BlockRequest, geometry: Geometry, done_bytes: u64) -> Segment {
    let first = PageIndex::at_offset(request.offset_bytes + done_bytes);
    let left = (request.length_bytes - done_bytes) / PAGE_SIZE_BYTES as u64;
    let slab = geometry.slab_of(first.min(PageIndex(geometry.page_count() - 1)));
    let count = left.min(geometry.pages(slab).end.0.saturating_sub(first.0));
    Segment { slab, first, count, buffer_offset_bytes: done_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segments_cover_a_request_once_and_stay_in_their_slab(first in 0u64..1000, count in 1u64..1024) {
            let geometry = Geometry { slab_pages: 256, slab_count: 8 };
            let page = PAGE_SIZE_BYTES as u64;
            let request = BlockRequest {
                slot: 0,
                operation: BlockOperation::Discard,
                offset_bytes: first * page,
                length_bytes: count * page,
                priority: Priority::Demand,
            };
            let now = Instant::now();
            let mut active = Active::free(0, now);
            active.accept(request, 0, geometry, now);
            let mut next = PageIndex(first);
            loop {
                let segment = active.segment;
                prop_assert_eq!(segment.first, next);
                prop_assert_eq!(segment.buffer_offset_bytes, (next - PageIndex(first)) * page);
                let pages = geometry.pages(segment.slab);
                prop_assert!(segment.count > 0 && pages.contains(&next) && next + segment.count <= pages.end);
                next += segment.count;
                if !active.next_segment(geometry, now) { break }
            }
            prop_assert_eq!(next, PageIndex(first + count));
        }
    }
}
