//! Reading: each page from its proof if that is its content, else from the first copy that has it, then from the disk,
//! else zeroes.
//!
//! The order of looks matters. Copy indexes are read first (in [`Active::enter`]), page bits second: a copy's valid
//! bits are cleared before its index is used again, so that a valid bit is always of the copy that is there. When a
//! sub-request fails, the whole segment is read afresh without that location. Protected pages are compared with their
//! proofs when all of them are there (`verify`).
//!
//! A segment whose donors let it wait for too long ([`crate::slab_map::donor_latency`]) lets go of its sub-requests
//! and is read afresh from what else has its pages, if all of them are elsewhere too. What the slow donor still sends
//! is thrown away: the segment's buffer belongs to another request by then (`docs/decisions/slow-donors.md`).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_block::request::BlockError;
use spillway_fabric::queue_pair::{Operation, PostError, RequestError};
use spillway_fabric::units::{PAGE_SIZE_BYTES, RemoteAddress, SlabHandle};

use super::active::{Active, Context, Stage, Step};
use super::proving::Origin;
use super::queue_pairs::{SubRequest, Target};
use super::verify::{Verified, verify};
use crate::limits::COPIES_MAX;
use crate::slab_map::page_bits::{PageWord, WORD_PAGES};
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::slab_entry::Location;

/// Where a page is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Copy(usize),
    Disk,
    /// The proof is the content.
    Proof,
    Zeroes,
    /// A copy exists but cannot be reached now.
    Wait,
    /// No copy exists.
    Lost,
}

/// Starts the segment.
pub(super) fn start(active: &mut Active, context: &mut Context<'_>) -> Step {
    active.enter(context.volume);
    if context.queue_pairs.has_news() {
        active.leave(context.volume);
        return Step::Park;
    }
    active.stage = Stage::Moving;
    active.entered = context.now;
    advance(active, context)
}

/// Whether the segment's donors let it wait for too long, all of it can be had elsewhere, and its sub-requests were
/// let go.
fn is_taken_elsewhere(active: &mut Active, context: &mut Context<'_>) -> bool {
    let waited = context.now.saturating_duration_since(active.entered);
    if active.outstanding == 0 || waited < context.volume.latencies.read_patience() {
        return false;
    }
    let used = std::mem::take(&mut active.in_use);
    let late = active.late;
    for copy_index in (0..COPIES_MAX).filter(|copy_index| used[*copy_index]) {
        active.late[copy_index] = active.locations[copy_index];
    }
    let end = active.segment.first + active.segment.count;
    let has_others = active.segment.first.up_to(end).all(|page| {
        let word = context.volume.bits.word(page);
        match source_of(active, context, &word, 1 << (page.0 % 64)) {
            // Another slow donor, or a silent one, is no better.
            Source::Copy(copy_index) => {
                let location = active.usable(copy_index, context.queue_pairs);
                location.is_some_and(|location| !is_last_choice(active, context, copy_index, location))
            }
            Source::Disk | Source::Proof | Source::Zeroes => true,
            Source::Wait | Source::Lost => false,
        }
    });
    if !has_others || !context.queue_pairs.abandon(active.slot) {
        (active.in_use, active.late) = (used, late);
        // Others may have it later; looking at all pages is not for every poll.
        active.entered = context.now;
        return false;
    }
    for location in
        (0..COPIES_MAX).filter(|copy_index| used[*copy_index]).filter_map(|copy_index| active.locations[copy_index])
    {
        context.volume.latencies.taken_elsewhere(location.donor, context.now);
    }
    active.outstanding = 0;
    true
}

/// Posts what can be posted, and concludes when nothing is in flight any more.
pub(super) fn advance(active: &mut Active, context: &mut Context<'_>) -> Step {
    if is_taken_elsewhere(active, context) {
        active.leave(context.volume);
        return Step::Park;
    }
    let end = active.segment.first + active.segment.count;
    while active.next_page < end && !active.must_wait && active.error.is_none() {
        let (source, count) = next_run(active, context, end);
        match post_run(active, context, source, count) {
            Ok(()) => active.next_page += count,
            Err(PostError::Busy) if active.outstanding > 0 => return Step::Pending,
            // Without a sub-request of ours in flight, those of others hold the credits: looks again when one ends.
            Err(PostError::Busy) => (active.must_wait, active.awaits_credit) = (true, true),
            Err(PostError::Down) => exclude(active, source),
        }
    }
    conclude(active, context)
}

/// A sub-request of this segment ended.
pub(super) fn ended(active: &mut Active, sub_request: SubRequest, result: Result<(), RequestError>) {
    active.outstanding -= 1;
    if result.is_err() {
        active.failed = true;
        let source =
            if sub_request.target == Target::Disk { Source::Disk } else { Source::Copy(sub_request.copy_index) };
        exclude(active, source);
    }
}

fn exclude(active: &mut Active, source: Source) {
    match source {
        Source::Copy(copy_index) => active.excluded[copy_index] = active.locations[copy_index],
        _ => active.disk_excluded = true,
    }
}

fn conclude(active: &mut Active, context: &mut Context<'_>) -> Step {
    if active.outstanding > 0 {
        return Step::Pending;
    }
    let is_read = active.error.is_none() && !active.failed && !active.must_wait;
    let verified = if is_read { verify(active, context) } else { Verified::Right };
    active.leave(context.volume);
    match (active.error, verified) {
        (Some(error), _) => Step::Finished(Err(error)),
        (None, Verified::Wrong) => Step::Finished(Err(BlockError::InputOutput)),
        (None, Verified::Right) if is_read => Step::Finished(Ok(())),
        (None, Verified::Right | Verified::Again) => Step::Park,
    }
}

/// The source of the next page, and how many pages in a row share it.
fn next_run(active: &Active, context: &mut Context<'_>, end: PageIndex) -> (Source, u64) {
    let mut word_first = u64::MAX;
    let mut word = PageWord::default();
    let mut run: Option<Source> = None;
    for page in active.next_page.up_to(end) {
        if word_first != page.0 / 64 {
            word_first = page.0 / 64;
            // Proofs before bits: see `PageProofs`.
            note_proofs(active, context, page, end);
            word = context.volume.bits.word(page);
        }
        let source = source_of(active, context, &word, 1 << (page.0 % 64));
        let source = source_by_proof(active, context, page, source);
        match run {
            None => run = Some(source),
            Some(first) if first != source => return (first, page - active.next_page),
            Some(_) => {}
        }
    }
    (run.unwrap_or(Source::Zeroes), end - active.next_page)
}

/// Notes the proofs of pages from `page` on that share its word of page bits.
fn note_proofs(active: &Active, context: &mut Context<'_>, page: PageIndex, end: PageIndex) {
    let (Some(proofs), Some(proving)) = (&context.volume.proofs, context.proving.as_deref_mut()) else { return };
    let word_end = PageIndex((page.0 / WORD_PAGES + 1) * WORD_PAGES);
    for page in page.up_to(end.min(word_end)) {
        proving.note(active.slot, &active.segment, page, proofs.load(page), Origin::Here);
    }
}

/// The source of a page by its proof, and by its bits if that does not say it.
fn source_by_proof(active: &Active, context: &Context<'_>, page: PageIndex, source: Source) -> Source {
    let (Some(proofs), Some(proving)) = (&context.volume.proofs, context.proving.as_deref()) else { return source };
    let noted = proving.noted(active.slot, &active.segment, page).0;
    match source {
        _ if proofs.protection().fill_of(page, noted).is_some() => Source::Proof,
        // Its copies went when it became one word over and over.
        Source::Zeroes if proofs.load(page) != noted => Source::Wait,
        other => other,
    }
}

fn source_of(active: &Active, context: &Context<'_>, word: &PageWord, mask: u64) -> Source {
    let valid = |copy_index: &usize| word.copies[*copy_index] & mask != 0;
    let usable = |copy_index: &usize| active.usable(*copy_index, context.queue_pairs);
    let mut silent = None;
    for copy_index in (0..COPIES_MAX).filter(valid) {
        match usable(&copy_index) {
            Some(location) if is_last_choice(active, context, copy_index, location) => {
                silent = silent.or(Some(copy_index));
            }
            Some(_) => return Source::Copy(copy_index),
            None => {}
        }
    }
    if word.disk & mask != 0 && !active.disk_excluded {
        return Source::Disk;
    }
    if let Some(copy_index) = silent {
        return Source::Copy(copy_index);
    }
    if word.pending & mask != 0 || (0..COPIES_MAX).any(|copy_index| valid(&copy_index)) {
        return Source::Wait;
    }
    if word.lost & mask != 0 || word.disk & mask != 0 {
        return Source::Lost;
    }
    Source::Zeroes
}

/// Whether the copy in `copy_index` is read only if nothing else has the page.
fn is_last_choice(active: &Active, context: &Context<'_>, copy_index: usize, location: Location) -> bool {
    context.volume.is_silent(location.donor)
        || context.volume.trust.is_distrusted(location.donor)
        || active.late[copy_index] == Some(location)
        || context.volume.latencies.is_avoided(location.donor, context.now)
}

fn post_run(active: &mut Active, context: &mut Context<'_>, source: Source, count: u64) -> Result<(), PostError> {
    let geometry = context.volume.geometry;
    let page = active.next_page;
    let buffer = active.buffer(context.pool, page, count);
    let (target, copy_index, remote) = match source {
        Source::Copy(copy_index) => {
            let location = active.usable(copy_index, context.queue_pairs).ok_or(PostError::Down)?;
            (Target::Donor(location.donor), copy_index, active.remote(geometry, location, page))
        }
        Source::Disk => {
            let slab = SlabHandle(active.segment.slab.0);
            let remote = RemoteAddress { slab, offset_bytes: geometry.offset_in_slab_bytes(page) };
            (Target::Disk, 0, remote)
        }
        Source::Proof => {
            fill(active, context, count);
            return Ok(());
        }
        Source::Zeroes => {
            context.pool.memory().zero(buffer.offset_bytes as usize, count as usize * PAGE_SIZE_BYTES);
            return Ok(());
        }
        Source::Wait => {
            if let Some(disk) = &context.volume.disk {
                disk.backlog.hurry();
            }
            active.must_wait = true;
            return Ok(());
        }
        Source::Lost => {
            active.error = Some(BlockError::InputOutput);
            return Ok(());
        }
    };
    let sub_request = SubRequest { owner: active.slot, copy_index, target, priority: active.request.priority };
    context.queue_pairs.post(sub_request, Operation::Read, remote, buffer, context.now)?;
    active.outstanding += 1;
    if let Some(proving) = context.proving.as_deref_mut() {
        let origin = if target == Target::Disk { Origin::Disk } else { Origin::Copy(copy_index) };
        for page in page.up_to(page + count) {
            let proof = proving.noted(active.slot, &active.segment, page).0;
            proving.note(active.slot, &active.segment, page, proof, origin);
        }
    }
    if matches!(target, Target::Donor(_)) {
        active.in_use[copy_index] = true;
    }
    if target == Target::Disk {
        active.disk_pages += count;
    }
    Ok(())
}

/// Fills `count` pages from the next one on, each with the word that its proof says.
fn fill(active: &Active, context: &mut Context<'_>, count: u64) {
    let (Some(proofs), Some(proving)) = (&context.volume.proofs, context.proving.as_deref_mut()) else { return };
    for page in active.next_page.up_to(active.next_page + count) {
        let proof = proving.noted(active.slot, &active.segment, page).0;
        let word = proofs.protection().fill_of(page, proof).expect("the source of the page is its proof");
        proving.content.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word.to_ne_bytes()));
        let target = active.buffer(context.pool, page, 1).offset_bytes as usize;
        context.pool.memory().write(target, &*proving.content);
    }
}
