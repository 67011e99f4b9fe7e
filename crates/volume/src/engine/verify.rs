//! Whether what came back is what was written: the pages of a read, before it is answered.
//!
//! The proof of a page is loaded before its bits are, and both before the page is asked for. When the bytes do not fit
//! the proof, either the page is being written, or the source sent something else. The reader tells the two apart as
//! the owner of the page: nothing changes it then, so a proof and a bit that are as they were mean that the source is
//! at fault. If the page has another copy, its bit at this source is cleared, and the read starts again. If it has
//! none, the read fails.
//!
//! A page whose write a dead process did not end keeps its `Writing` mark until the mover has found out which content
//! donors hold ([`crate::manager::refill`]). Its readers wait, and no donor is blamed.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::units::PAGE_SIZE_BYTES;

use super::active::{Active, Context};
use super::proving::Origin;
use crate::protection::PageProof;
use crate::slab_map::Volume;
use crate::slab_map::page_bits::Bit;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::slab_entry::DonorSlot;

/// What the pages of a read are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verified {
    /// What was written.
    Right,
    /// Not what was written; there is more to be had.
    Again,
    /// Not what was written, and nothing else has some page.
    Wrong,
}

/// Compares every page of the segment that came from elsewhere, and makes contents of them.
pub(super) fn verify(active: &Active, context: &mut Context<'_>) -> Verified {
    let volume = context.volume;
    let (Some(proofs), Some(proving)) = (&volume.proofs, context.proving.as_deref_mut()) else {
        return Verified::Right;
    };
    let memory = context.pool.memory();
    let mut verified = Verified::Right;
    for page in active.segment.first.up_to(active.segment.first + active.segment.count) {
        let (proof, origin) = proving.noted(active.slot, &active.segment, page);
        if origin == Origin::Here {
            continue;
        }
        let offset = active.buffer(context.pool, page, 1).offset_bytes as usize;
        memory.read(offset, &mut *proving.bytes);
        if !proofs.protection().restore(page, &proving.bytes, proof, &mut proving.content) {
            verified = verified.max(judge(active, volume, page, proof, origin));
        } else if proofs.protection().is_sealing() {
            memory.write(offset, &*proving.content);
        }
    }
    verified
}

/// Whose fault it is that the bytes of `page` do not fit `proof`.
fn judge(active: &Active, volume: &Volume, page: PageIndex, proof: PageProof, origin: Origin) -> Verified {
    // The owner of the page is changing it, or looks at a copy of it.
    if !volume.bits.try_acquire(page, 1) {
        return Verified::Again;
    }
    let (bit, donor, is_there) = match origin {
        Origin::Copy(copy_index) => {
            let (seen, entry) = (active.locations[copy_index], volume.slab(active.segment.slab));
            (Bit::Copy(copy_index), seen.map(|location| location.donor), entry.locations()[copy_index] == seen)
        }
        Origin::Disk | Origin::Here => (Bit::Disk, None, true),
    };
    let verdict = if is_there { refuse(volume, page, proof, bit, donor) } else { Verified::Again };
    volume.bits.release(page, 1);
    verdict
}

/// The owned `page` came from `donor`, or from the disk, as something that `proof` is not of.
pub(super) fn refuse(
    volume: &Volume,
    page: PageIndex,
    proof: PageProof,
    bit: Bit,
    donor: Option<DonorSlot>,
) -> Verified {
    let bits = &volume.bits;
    let is_changed = volume.proofs.as_ref().is_some_and(|proofs| proofs.load(page) != proof);
    if is_changed || !bits.any(bit, page, 1) {
        return Verified::Again;
    }
    let is_in_doubt = bits.any(Bit::Writing, page, 1);
    if is_in_doubt {
        // Until the mover has found out what a dead process left of it, the page is waited for.
        return Verified::Again;
    }
    volume.report_wrong_page(donor, page);
    let has_other = bits.word(page).stored_besides(bit) & (1 << (page.0 % 64)) != 0;
    let is_given_up = donor.is_some_and(|donor| volume.trust.is_distrusted(donor));
    if !has_other && is_given_up {
        // Its slab can leave that donor then.
        bits.set(Bit::Lost, page, 1);
    }
    if has_other || is_given_up {
        bits.clear(bit, page, 1);
    }
    if has_other { Verified::Again } else { Verified::Wrong }
}

const _: () = assert!(PAGE_SIZE_BYTES.is_multiple_of(8), "a page is whole words");
