//! Writing: to every copy of the slab, and into the backlog of the disk.
//!
//! The writer owns its pages from before the first byte moves until their bits say what is true. A write is
//! acknowledged when at least one donor has it (the others are marked stale for these pages, and refilled by the
//! mover). When no donor has it, a disk copy saves it: the write is acknowledged once its pages are on disk. Without
//! one it is tried again at other donors until its deadline.
//!
//! From the first byte on until then the pages are marked `Writing`: should the process die, their copies may differ.
//! A write that finds the backlog full keeps its turn there by a ticket, until it gets in or ends.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_block::limits::REQUEST_PAGES_MAX;
use spillway_block::request::BlockError;
use spillway_fabric::queue_pair::{Operation, PostError, RequestError};
use spillway_fabric::units::PAGE_SIZE_BYTES;

use super::active::{Active, Context, Stage, Step};
use super::queue_pairs::{SubRequest, Target};
use crate::limits::{COPIES_MAX, MAPPING_WAIT};
use crate::settings::mapping::MappingPolicy;
use crate::slab_map::backlog::BacklogSlot;
use crate::slab_map::page_bits::Bit;
use crate::slab_map::{DiskCopy, Volume};

/// Starts the segment.
pub(super) fn start(active: &mut Active, context: &mut Context<'_>) -> Step {
    let volume = context.volume;
    let (first, count) = (active.segment.first, active.segment.count);
    if !volume.bits.try_acquire(first, count) {
        return Step::Park;
    }
    active.enter(volume);
    let waited = context.now.saturating_duration_since(active.segment_since);
    if context.queue_pairs.has_news() || (!active.settled && waited < MAPPING_WAIT) {
        return give_up(active, volume);
    }
    let mut targets = 0;
    for copy_index in 0..COPIES_MAX {
        let usable = active.usable(copy_index, context.queue_pairs);
        active.unposted[copy_index] = usable.is_some_and(|location| !volume.is_suspect(location.donor));
        targets += usize::from(active.unposted[copy_index]);
    }
    if targets == 0 {
        let on_demand = volume.mapping == MappingPolicy::OnDemand;
        if on_demand {
            volume.want(active.segment.slab);
        }
        if volume.disk.is_none() || (on_demand && volume.mapping_possible() && waited < MAPPING_WAIT) {
            return give_up(active, volume);
        }
    } else {
        volume.want_next(active.segment.slab);
    }
    volume.bits.set(Bit::Writing, first, count);
    if let Some(disk) = &volume.disk
        && !to_backlog(active, context, disk)
    {
        disk.backlog.hurry();
        return give_up(active, volume);
    }
    active.stage = Stage::Moving;
    advance(active, context)
}

/// Leaves everything as it was.
fn give_up(active: &mut Active, volume: &Volume) -> Step {
    volume.bits.clear(Bit::Writing, active.segment.first, active.segment.count);
    volume.bits.release(active.segment.first, active.segment.count);
    active.leave(volume);
    Step::Park
}

fn to_backlog(active: &mut Active, context: &Context<'_>, disk: &DiskCopy) -> bool {
    let (first, count) = (active.segment.first, active.segment.count);
    let source = active.buffer(context.pool, first, count).offset_bytes as usize;
    let slots = &mut [BacklogSlot(0); REQUEST_PAGES_MAX][..count as usize];
    if !disk.backlog.reserve(slots, &mut active.ticket) {
        return false;
    }
    for (index, slot) in slots.iter().enumerate() {
        let target = disk.pool.slot(slot.0 as usize).offset_bytes as usize;
        disk.pool.memory().copy_from(target, context.pool.memory(), source + index * PAGE_SIZE_BYTES, PAGE_SIZE_BYTES);
    }
    disk.backlog.publish(&context.volume.bits, first, slots, context.now);
    true
}

/// Posts what can be posted, and concludes when nothing is in flight any more.
pub(super) fn advance(active: &mut Active, context: &mut Context<'_>) -> Step {
    let (first, count) = (active.segment.first, active.segment.count);
    for copy_index in 0..COPIES_MAX {
        if !active.unposted[copy_index] {
            continue;
        }
        let location = active.locations[copy_index].expect("a write is posted to copies that exist");
        let sub_request = SubRequest {
            owner: active.slot,
            copy_index,
            target: Target::Donor(location.donor),
            priority: active.request.priority,
        };
        let remote = active.remote(context.volume.geometry, location, first);
        let buffer = active.buffer(context.pool, first, count);
        match context.queue_pairs.post(sub_request, Operation::Write, remote, buffer, context.now) {
            Ok(()) => active.outstanding += 1,
            Err(PostError::Busy) => continue,
            Err(PostError::Down) => active.excluded[copy_index] = Some(location),
        }
        active.unposted[copy_index] = false;
    }
    if active.outstanding > 0 || active.unposted.contains(&true) {
        return Step::Pending;
    }
    conclude(active, context.volume)
}

/// A sub-request of this segment ended.
pub(super) fn ended(active: &mut Active, sub_request: SubRequest, result: Result<(), RequestError>) {
    active.outstanding -= 1;
    match result {
        Ok(()) => active.succeeded[sub_request.copy_index] = true,
        Err(_) => active.excluded[sub_request.copy_index] = active.locations[sub_request.copy_index],
    }
}

fn conclude(active: &mut Active, volume: &Volume) -> Step {
    let (first, count) = (active.segment.first, active.segment.count);
    let bits = &volume.bits;
    let remote = active.succeeded.contains(&true);
    let somewhere = remote || volume.disk.is_some();
    if !somewhere {
        // The old content is overwritten nowhere completely; until a retry succeeds the pages have none.
        bits.set(Bit::Lost, first, count);
    }
    // What is true is set before what is not is cleared: a reader must not find nothing.
    (0..COPIES_MAX)
        .filter(|copy_index| active.succeeded[*copy_index])
        .for_each(|copy_index| bits.set(Bit::Copy(copy_index), first, count));
    (0..COPIES_MAX)
        .filter(|copy_index| !active.succeeded[*copy_index])
        .for_each(|copy_index| bits.clear(Bit::Copy(copy_index), first, count));
    if somewhere {
        bits.clear(Bit::Lost, first, count);
    }
    bits.clear(Bit::Writing, first, count);
    bits.release(first, count);
    active.leave(volume);
    match &volume.disk {
        _ if remote => Step::Finished(Ok(())),
        Some(disk) => {
            disk.backlog.hurry();
            active.stage = Stage::AwaitingDisk;
            Step::Pending
        }
        None => Step::Park,
    }
}

/// A write that only the disk can save: over when the disk has it.
pub(super) fn await_disk(active: &Active, volume: &Volume) -> Step {
    let (first, count) = (active.segment.first, active.segment.count);
    if volume.bits.any(Bit::Pending, first, count) {
        return Step::Pending;
    }
    let on_disk = volume.bits.all(Bit::Disk, first, count);
    // Another request may have written the pages again, to a donor: that write's result is the one that counts.
    let safe = on_disk || !volume.bits.any(Bit::Lost, first, count);
    Step::Finished(if safe { Ok(()) } else { Err(BlockError::NoSpace) })
}
