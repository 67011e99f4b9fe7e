//! The bytes that are sent for the pages of a write, and what proves them; and the moment at which the proofs change.
//!
//! A page that is one word over and over does not leave: its proof is its content. The others are sealed, in the
//! request's buffer or in the buffer's twin, or get a checksum. That happens once for each segment, also if the
//! segment is started again.
//!
//! With a disk copy the proofs change when the backlog takes the contents, so that the two never differ, not even in
//! a process that dies. Without one they change when the donors have answered
//! (`docs/decisions/page-state.md`).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::BufferRange;

use super::active::{Active, Context};
use super::proving::{Origin, Proving};
use crate::limits::COPIES_MAX;
use crate::protection::PageProof;
use crate::slab_map::page_bits::Bit;
use crate::slab_map::page_index::PageIndex;

/// Makes the bytes to send of the segment.
pub(super) fn protect(active: &mut Active, context: &mut Context<'_>) {
    let (Some(proofs), Some(proving)) = (&context.volume.proofs, context.proving.as_deref_mut()) else { return };
    if std::mem::replace(&mut active.is_protected, true) {
        return;
    }
    let protection = proofs.protection();
    for page in active.segment.first.up_to(active.segment.first + active.segment.count) {
        let source = active.buffer(context.pool, page, 1).offset_bytes as usize;
        context.pool.memory().read(source, &mut *proving.bytes);
        let (proof, origin) = match protection.same(page, &proving.bytes) {
            Some(proof) => (proof, Origin::Here),
            None => (protection.protect(page, &mut proving.bytes), Origin::Copy(0)),
        };
        if protection.is_sealing() && origin != Origin::Here {
            let target = outgoing(active, context.pool, true, page, 1).offset_bytes as usize;
            context.pool.memory().write(target, &*proving.bytes);
        }
        proving.note(active.slot, &active.segment, page, proof, origin);
    }
}

/// The owned pages `[first, first + count)`, which went to donors alone, have their new content, or none.
pub(super) fn change_proofs(active: &Active, context: &Context<'_>, first: PageIndex, count: u64, is_stored: bool) {
    let (Some(proofs), Some(proving)) = (&context.volume.proofs, context.proving.as_deref()) else { return };
    for page in first.up_to(first + count) {
        let proof = if is_stored { proving.noted(active.slot, &active.segment, page).0 } else { PageProof::NONE };
        proofs.set(proving.writer, page, proof);
    }
}

/// The owned pages of the segment that are one word over and over have their new content, and no copy any more.
pub(super) fn keep_same_filled(active: &Active, context: &Context<'_>) {
    let volume = context.volume;
    let (Some(proofs), Some(proving)) = (&volume.proofs, context.proving.as_deref()) else { return };
    let mut from = active.segment.first;
    while let Some((first, count)) = next_same_run(active, proving, from) {
        change_proofs(active, context, first, count, true);
        if let Some(disk) = &volume.disk {
            disk.backlog.discard(&volume.bits, first, count);
        }
        (0..COPIES_MAX).for_each(|copy_index| volume.bits.clear(Bit::Copy(copy_index), first, count));
        volume.bits.clear(Bit::Lost, first, count);
        proofs.count_same_filled(count);
        from = first + count;
    }
}

/// The pages of a written segment that go out, in runs: the first from `from` on, and how many.
pub(super) fn next_stored_run(active: &Active, proving: Option<&Proving>, from: PageIndex) -> Option<(PageIndex, u64)> {
    let end = active.segment.first + active.segment.count;
    let Some(proving) = proving else { return (from < end).then(|| (from, end - from)) };
    let is_stored = |page: &PageIndex| proving.noted(active.slot, &active.segment, *page).1 != Origin::Here;
    let first = from.up_to(end).find(is_stored)?;
    let count = first.up_to(end).take_while(is_stored).count() as u64;
    Some((first, count))
}

/// The same for pages whose proof is their content.
fn next_same_run(active: &Active, proving: &Proving, from: PageIndex) -> Option<(PageIndex, u64)> {
    let end = active.segment.first + active.segment.count;
    let is_same = |page: &PageIndex| proving.noted(active.slot, &active.segment, *page).1 == Origin::Here;
    let first = from.up_to(end).find(is_same)?;
    let count = first.up_to(end).take_while(is_same).count() as u64;
    Some((first, count))
}

/// The bytes to send for the `count` pages from `page` on of a written segment: its buffer, or the buffer's twin.
pub(super) fn outgoing(
    active: &Active,
    pool: &BufferPool,
    is_sealing: bool,
    page: PageIndex,
    count: u64,
) -> BufferRange {
    let buffer = active.buffer(pool, page, count);
    match pool.twin(active.slot) {
        Some(twin) if is_sealing => {
            let offset_bytes = buffer.offset_bytes - pool.slot(active.slot).offset_bytes;
            twin.part(offset_bytes as usize, buffer.length_bytes as usize)
        }
        _ => buffer,
    }
}
