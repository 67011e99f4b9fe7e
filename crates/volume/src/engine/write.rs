//! Writing: to every copy of the slab, and into the backlog of the disk.
//!
//! The writer owns its pages from before the first byte moves until their bits say what is true. A write is
//! acknowledged when at least one donor has it (the others are marked stale for these pages, and refilled by the
//! mover). When no donor has it, a disk copy saves it: the write is acknowledged once its pages are on disk. Without
//! one it is tried again at other donors until its deadline.
//!
//! The bytes to send for protected pages are made first (`sealing`); pages that are noted in their proof do not leave
//! at all, and the others go in runs.
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
use super::sealing::{self, next_stored_run, outgoing};
use crate::limits::{COPIES_MAX, MAPPING_WAIT};
use crate::protection::PageProof;
use crate::settings::mapping::MappingPolicy;
use crate::slab_map::backlog::{BacklogSlot, NewProofs};
use crate::slab_map::page_bits::Bit;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::{DiskCopy, Volume};

/// Starts the segment.
pub(super) fn start(active: &mut Active, context: &mut Context<'_>) -> Step {
    let volume = context.volume;
    let (first, count) = (active.segment.first, active.segment.count);
    sealing::protect(active, context);
    if !volume.bits.try_acquire(first, count) {
        return Step::Park;
    }
    if volume.is_in_doubt(first, count) {
        // The mover finds out what a dead process left of them.
        volume.bits.release(first, count);
        return Step::Park;
    }
    active.enter(volume);
    if next_stored_run(active, context.proving.as_deref(), first).is_none() {
        volume.bits.set(Bit::Writing, first, count);
        active.stage = Stage::Moving;
        return conclude(active, context);
    }
    let waited = context.now.saturating_duration_since(active.segment_since);
    if context.queue_pairs.has_news() || (!active.settled && waited < MAPPING_WAIT) {
        return give_up(active, volume);
    }
    let mut targets = 0;
    for copy_index in 0..COPIES_MAX {
        let usable = active.usable(copy_index, context.queue_pairs);
        active.unposted[copy_index] = usable.is_some_and(|location| !volume.is_suspect(location.donor));
        active.succeeded[copy_index] = active.unposted[copy_index];
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
    if let Some(disk) = &volume.disk {
        if !to_backlog(active, context, disk) {
            disk.backlog.hurry();
            return give_up(active, volume);
        }
    } else {
        if let (Some(proofs), Some(proving)) = (&volume.proofs, context.proving.as_deref_mut())
            && !proving.intend(active.slot, &active.segment, proofs)
        {
            return give_up(active, volume);
        }
        volume.bits.set(Bit::Writing, first, count);
    }
    active.stage = Stage::Moving;
    advance(active, context)
}

/// Leaves everything as it was.
fn give_up(active: &mut Active, volume: &Volume) -> Step {
    volume.bits.release(active.segment.first, active.segment.count);
    active.leave(volume);
    Step::Park
}

/// Hands the segment to the backlog, and marks it as being written before that counts. False without room.
fn to_backlog(active: &mut Active, context: &Context<'_>, disk: &DiskCopy) -> bool {
    let (volume, proving) = (context.volume, context.proving.as_deref());
    let slots = &mut [BacklogSlot(0); REQUEST_PAGES_MAX];
    let slots = &mut slots[..stored_pages(active, context) as usize];
    if !disk.backlog.reserve(slots, &mut active.ticket) {
        return false;
    }
    volume.bits.set(Bit::Writing, active.segment.first, active.segment.count);
    let (mut from, mut rest) = (active.segment.first, &slots[..]);
    while let Some((first, count)) = next_stored_run(active, proving, from) {
        let (run, others) = rest.split_at(count as usize);
        copy_to_backlog(active, context, disk, first, run);
        let new = &mut [PageProof::NONE; REQUEST_PAGES_MAX][..count as usize];
        let proven = volume.proofs.as_ref().zip(proving).map(|(proofs, proving)| {
            proving.proofs(active.slot, &active.segment, first, new);
            NewProofs { proofs, writer: proving.writer, new }
        });
        disk.backlog.publish_proven(&volume.bits, first, run, proven, context.now);
        (from, rest) = (first + count, others);
    }
    true
}

fn copy_to_backlog(active: &Active, context: &Context<'_>, disk: &DiskCopy, first: PageIndex, slots: &[BacklogSlot]) {
    let source = outgoing(active, context.pool, is_sealing(context.volume), first, slots.len() as u64).offset_bytes;
    for (index, slot) in slots.iter().enumerate() {
        let target = disk.pool.slot(slot.0 as usize).offset_bytes as usize;
        let source = source as usize + index * PAGE_SIZE_BYTES;
        disk.pool.memory().copy_from(target, context.pool.memory(), source, PAGE_SIZE_BYTES);
    }
}

fn is_sealing(volume: &Volume) -> bool {
    volume.proofs.as_ref().is_some_and(|proofs| proofs.protection().is_sealing())
}

/// Pages of the segment that go out.
fn stored_pages(active: &Active, context: &Context<'_>) -> u64 {
    let (mut from, mut pages) = (active.segment.first, 0);
    while let Some((first, count)) = next_stored_run(active, context.proving.as_deref(), from) {
        pages += count;
        from = first + count;
    }
    pages
}

/// Posts what can be posted, and concludes when nothing is in flight any more.
pub(super) fn advance(active: &mut Active, context: &mut Context<'_>) -> Step {
    for copy_index in 0..COPIES_MAX {
        while active.unposted[copy_index] {
            let from = active.unposted_from[copy_index];
            let Some((first, count)) = next_stored_run(active, context.proving.as_deref(), from) else {
                active.unposted[copy_index] = false;
                break;
            };
            match post_run(active, context, copy_index, first, count) {
                Ok(()) => {
                    active.outstanding += 1;
                    active.unposted_from[copy_index] = first + count;
                }
                Err(PostError::Busy) => break,
                Err(PostError::Down) => fail(active, copy_index),
            }
        }
    }
    if active.outstanding > 0 || active.unposted.contains(&true) {
        return Step::Pending;
    }
    conclude(active, context)
}

fn post_run(
    active: &Active,
    context: &mut Context<'_>,
    copy_index: usize,
    first: PageIndex,
    count: u64,
) -> Result<(), PostError> {
    let location = active.locations[copy_index].expect("a write is posted to copies that exist");
    let (target, priority) = (Target::Donor(location.donor), active.request.priority);
    let sub_request = SubRequest { owner: active.slot, copy_index, target, priority };
    let remote = active.remote(context.volume.geometry, location, first);
    let buffer = outgoing(active, context.pool, is_sealing(context.volume), first, count);
    context.queue_pairs.post(sub_request, Operation::Write, remote, buffer, context.now)
}

/// The copy in `copy_index` does not get all of the segment.
fn fail(active: &mut Active, copy_index: usize) {
    active.excluded[copy_index] = active.locations[copy_index];
    active.succeeded[copy_index] = false;
    active.unposted[copy_index] = false;
}

/// A sub-request of this segment ended.
pub(super) fn ended(active: &mut Active, sub_request: SubRequest, result: Result<(), RequestError>) {
    active.outstanding -= 1;
    if result.is_err() {
        fail(active, sub_request.copy_index);
    }
}

fn conclude(active: &mut Active, context: &mut Context<'_>) -> Step {
    let volume = context.volume;
    let mut from = active.segment.first;
    while let Some((first, count)) = next_stored_run(active, context.proving.as_deref(), from) {
        conclude_run(active, context, first, count);
        from = first + count;
    }
    let is_sent = from > active.segment.first;
    sealing::keep_same_filled(active, context);
    let (first, count) = (active.segment.first, active.segment.count);
    volume.bits.clear(Bit::Writing, first, count);
    if let (Some(proofs), Some(proving)) = (&volume.proofs, context.proving.as_deref_mut()) {
        proving.forget_intents(active.slot, &active.segment, proofs);
    }
    volume.bits.release(first, count);
    active.leave(volume);
    match &volume.disk {
        _ if !is_sent || active.succeeded.contains(&true) => Step::Finished(Ok(())),
        Some(disk) => {
            disk.backlog.hurry();
            active.stage = Stage::AwaitingDisk;
            Step::Pending
        }
        None => Step::Park,
    }
}

/// Says what is true of pages that were sent.
fn conclude_run(active: &Active, context: &Context<'_>, first: PageIndex, count: u64) {
    let bits = &context.volume.bits;
    let remote = active.succeeded.contains(&true);
    let somewhere = remote || context.volume.disk.is_some();
    if !somewhere {
        // The old content is overwritten nowhere completely; until a retry succeeds the pages have none.
        bits.set(Bit::Lost, first, count);
    }
    // What is true is set before what is not is cleared: a reader must not find nothing.
    (0..COPIES_MAX)
        .filter(|copy_index| active.succeeded[*copy_index])
        .for_each(|copy_index| bits.set(Bit::Copy(copy_index), first, count));
    if context.volume.disk.is_none() {
        sealing::change_proofs(active, context, first, count, remote);
    }
    (0..COPIES_MAX)
        .filter(|copy_index| !active.succeeded[*copy_index])
        .for_each(|copy_index| bits.clear(Bit::Copy(copy_index), first, count));
    if somewhere {
        bits.clear(Bit::Lost, first, count);
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
