//! Discarding: the pages are forgotten here, and freed at donors and on disk, so that freed swap returns to its
//! lenders.
//!
//! The bits are cleared first: from then on the pages read as zeroes, whatever happens to the messages that free
//! memory. Such a message that fails costs memory until the slab is given back, never a wrong byte.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::queue_pair::{Operation, PostError};
use spillway_fabric::units::{BufferRange, PAGE_SIZE_BYTES, Priority, RemoteAddress, SlabHandle};

use super::active::{Active, Context, Stage, Step};
use super::queue_pairs::{SubRequest, Target};
use crate::limits::COPIES_MAX;
use crate::slab_map::page_bits::Bit;

/// Shorter holes in the backing file cost more than they give back: 256 KiB.
const DISK_DISCARD_PAGES_MIN: u64 = 64;

/// The index of the disk among the sub-requests of a discard.
const DISK: usize = COPIES_MAX;

/// Starts the segment.
pub(super) fn start(active: &mut Active, context: &mut Context<'_>) -> Step {
    let volume = context.volume;
    let (first, count) = (active.segment.first, active.segment.count);
    if !volume.bits.try_acquire(first, count) {
        return Step::Park;
    }
    if volume.is_in_doubt(first, count) {
        volume.bits.release(first, count);
        return Step::Park;
    }
    active.enter(volume);
    for copy_index in 0..COPIES_MAX {
        let stored = volume.bits.any(Bit::Copy(copy_index), first, count);
        active.unposted[copy_index] = stored && active.usable(copy_index, context.queue_pairs).is_some();
        volume.bits.clear(Bit::Copy(copy_index), first, count);
    }
    if let Some(disk) = &volume.disk {
        active.unposted[DISK] =
            !volume.keeps_disk_blocks && count >= DISK_DISCARD_PAGES_MIN && volume.bits.any(Bit::Disk, first, count);
        disk.backlog.discard(&volume.bits, first, count);
    }
    volume.bits.clear(Bit::Lost, first, count);
    if let Some(proofs) = &volume.proofs {
        proofs.clear(first, count);
    }
    active.stage = Stage::Moving;
    advance(active, context)
}

/// Posts what can be posted, and concludes when nothing is in flight any more.
pub(super) fn advance(active: &mut Active, context: &mut Context<'_>) -> Step {
    let (first, count) = (active.segment.first, active.segment.count);
    let length_bytes = (count * PAGE_SIZE_BYTES as u64) as u32;
    let buffer = BufferRange { offset_bytes: 0, length_bytes };
    for copy_index in 0..=DISK {
        if !active.unposted[copy_index] {
            continue;
        }
        let (target, slab) = if copy_index == DISK {
            (Target::Disk, SlabHandle(active.segment.slab.0))
        } else {
            let location = active.locations[copy_index].expect("a discard is posted to copies that exist");
            (Target::Donor(location.donor), location.handle)
        };
        let remote = RemoteAddress { slab, offset_bytes: context.volume.geometry.offset_in_slab_bytes(first) };
        let sub_request = SubRequest { owner: active.slot, copy_index, target, priority: Priority::WriteBack };
        match context.queue_pairs.post(sub_request, Operation::Discard, remote, buffer, context.now) {
            Ok(()) => active.outstanding += 1,
            Err(PostError::Busy) => continue,
            Err(PostError::Down) => {}
        }
        active.unposted[copy_index] = false;
    }
    if active.outstanding > 0 || active.unposted.contains(&true) {
        return Step::Pending;
    }
    context.volume.bits.release(first, count);
    active.leave(context.volume);
    Step::Finished(Ok(()))
}

/// A sub-request of this segment ended, one way or the other.
pub(super) fn ended(active: &mut Active) {
    active.outstanding -= 1;
}
