//! Taking a copy of a slab away: its donor is lost, wants it back, or the slab is empty.
//!
//! In this order, so that no request uses the memory afterwards and no page is forgotten:
//! 1. the copy index is emptied: requests that pass the gate from now on do not see the copy;
//! 2. the gate is drained: requests that saw it have ended, and set no bit for it any more;
//! 3. page by page, as their owner: the copy's bits are cleared, and a page with no other copy is marked lost;
//! 4. the copy index forgets the copy. A process that dies before that finds it again.
//!
//! Until step 3 reached a page its bit says "valid" for an empty copy index; readers look at the copy index first and
//! wait.
//!
//! Every wait ends when the device does by a panic ([`spillway_block::device_failure`]): the thread that is waited
//! for is gone, and no thread reads these pages any more.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::units::SlabIndex;

use super::Volume;
use super::page_bits::Bit;
use super::page_index::PageIndex;
use super::slab_entry::{DonorSlot, Location};
use crate::limits::COPIES_MAX;
use crate::sync::yield_now;

/// What a removal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// What was in the copy index; the memory may be used for something else now.
    pub location: Location,
    /// Pages that have no copy left.
    pub pages_lost: u64,
}

/// How far the pages of a copy are covered by others; the worst page counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cover {
    /// Each page is.
    Whole,
    /// Each page is, or is in the backlog, which brings it to the disk.
    Coming,
    /// Some page is not.
    Partial,
}

impl Volume {
    /// Empties `copy_index` of `slab`, see the module text. `None` when it is empty already. The caller holds the
    /// assignment lock and is not inside the slab's gate; `pause` is called while it waits.
    pub fn remove_copy(&self, slab: SlabIndex, copy_index: usize, mut pause: impl FnMut()) -> Option<Removed> {
        let location = self.slab(slab).empty(copy_index)?;
        self.drain(slab, &mut pause, || true);
        Some(Removed { location, pages_lost: self.forget_copies(slab, copy_index, pause) })
    }

    /// As [`Volume::remove_copy`], but only when every page of the copy has another one; otherwise puts it back and
    /// says `None`. Looking after the drain is what makes it safe: a write that only this copy got has set its bit by
    /// then. Copies at donors that are not `alive` do not count, though their copy indexes may not be emptied yet. With
    /// an `others_min` above zero, so many donors must have each page; the disk does not count then.
    ///
    /// Where only pages that are on their way to the disk hold it up, they are waited for while `may_wait` says so.
    /// With the copy index empty no write reaches the copy. So their number only falls, also when a program writes to
    /// the slab all the time. Readers of these pages wait as long.
    pub fn remove_covered_copy(
        &self,
        slab: SlabIndex,
        copy_index: usize,
        others_min: usize,
        alive: &dyn Fn(DonorSlot) -> bool,
        may_wait: &dyn Fn() -> bool,
        mut pause: impl FnMut(),
    ) -> Option<Removed> {
        let entry = self.slab(slab);
        let locations = entry.locations();
        let location = entry.empty(copy_index)?;
        // The assignment lock is held: a request to a donor that says nothing may take as long as that is waited for.
        let all_answer = || locations.iter().flatten().all(|location| alive(location.donor));
        let is_drained = self.drain(slab, &mut pause, all_answer);
        loop {
            // Looked at twice: a page that a write takes from the disk to the backlog may seem to be in neither.
            let look = || self.cover(slab, copy_index, others_min, alive);
            match look().min(look()) {
                Cover::Whole if is_drained => break,
                Cover::Coming if is_drained && may_wait() && self.has_owners() => pause(),
                _ => {
                    entry.stay(copy_index);
                    return None;
                }
            }
        }
        Some(Removed { location, pages_lost: self.forget_copies(slab, copy_index, pause) })
    }

    /// Whether every page of the copy in `copy_index` has another copy, at a donor that is `alive` or on disk; or
    /// copies at `others_min` donors, if that is not zero.
    fn cover(&self, slab: SlabIndex, copy_index: usize, others_min: usize, alive: &dyn Fn(DonorSlot) -> bool) -> Cover {
        let locations = self.slab(slab).locations().map(|other| other.filter(|location| alive(location.donor)));
        let cover_of = |first| {
            // A page enters the backlog before its disk copy goes, and leaves it after it is there.
            let word = self.bits.word(first);
            let others = (0..COPIES_MAX).filter(|other| *other != copy_index && locations[*other].is_some());
            let elsewhere = if others_min == 0 {
                others.fold(word.disk, |all, other| all | word.copies[other])
            } else {
                held_often(others.map(|other| word.copies[other]), others_min)
            };
            let lacking = word.copies[copy_index] & !elsewhere;
            match lacking {
                0 => Cover::Whole,
                _ if others_min == 0 && lacking & !word.pending == 0 => Cover::Coming,
                _ => Cover::Partial,
            }
        };
        self.geometry.words(slab).map(cover_of).max().unwrap_or(Cover::Whole)
    }

    fn forget_copies(&self, slab: SlabIndex, copy_index: usize, mut pause: impl FnMut()) -> u64 {
        let mut pages_lost = 0;
        for first in self.geometry.words(slab) {
            if !self.acquire(first, 64, &mut pause) {
                break;
            }
            pages_lost += self.forget_copy(first, copy_index);
            self.bits.release(first, 64);
        }
        self.slab(slab).gone(copy_index);
        pages_lost
    }

    /// Waits until no thread uses the copies that were in `slab` so far. False when that cannot be known any more, or
    /// is not worth the wait.
    fn drain(&self, slab: SlabIndex, pause: &mut impl FnMut(), is_worth: impl Fn() -> bool) -> bool {
        self.slab(slab).gate.drain_while(|| {
            pause();
            self.has_owners() && is_worth()
        })
    }

    /// Waits to own pages. False when their owner is gone for good.
    fn acquire(&self, first: PageIndex, count: u64, pause: &mut impl FnMut()) -> bool {
        while !self.bits.try_acquire(first, count) {
            if !self.has_owners() {
                return false;
            }
            yield_now();
            pause();
        }
        true
    }

    /// Clears the bits of `copy_index` for the 64 owned pages from `first` on, and marks what is lost by it.
    pub(super) fn forget_copy(&self, first: PageIndex, copy_index: usize) -> u64 {
        let word = self.bits.word(first);
        let mut rest = word;
        rest.copies[copy_index] = 0;
        let lost = word.copies[copy_index] & !rest.stored();
        // Lost before the copy's bit goes: a reader must find one of them.
        for page in (0..64).filter(|page| lost & (1 << page) != 0) {
            self.bits.set(Bit::Lost, first + page, 1);
        }
        self.bits.clear(Bit::Copy(copy_index), first, 64);
        u64::from(lost.count_ones())
    }

    /// A page's write to the disk failed and no newer content is on its way: lost, unless a donor has it.
    pub fn disk_write_failed(&self, page: PageIndex, mut pause: impl FnMut()) {
        if !self.acquire(page, 1, &mut pause) {
            return;
        }
        let disk = self.disk.as_ref().expect("only a volume with a disk copy writes to it");
        disk.backlog.settle_failure(&self.bits, page);
        self.bits.release(page, 1);
    }
}

/// The pages that at least `times_min` of `copies` have; that is positive.
fn held_often(copies: impl Iterator<Item = u64>, times_min: usize) -> u64 {
    // At index `n`: the pages that more than `n` copies have.
    let mut counts = [0; COPIES_MAX];
    for copy in copies {
        for index in (1..COPIES_MAX).rev() {
            counts[index] |= counts[index - 1] & copy;
        }
        counts[0] |= copy;
    }
    counts.get(times_min - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use spillway_fabric::units::SlabHandle;

    use super::*;
    use crate::settings::redundancy::Redundancy;
    use crate::slab_map::Geometry;

    const SLAB: SlabIndex = SlabIndex(0);

    fn volume() -> Volume {
        let volume = Volume::new(Geometry { slab_pages: 256, slab_count: 1 }, Redundancy::NONE, None).unwrap();
        volume.slab(SLAB).fill(0, Location { donor: DonorSlot(0), handle: SlabHandle(0) });
        volume.bits.set(Bit::Copy(0), PageIndex(0), 256);
        volume
    }

    /// Without an end to the wait, each of these would hang: the looks are counted, and a later one fails the test.
    fn ends_by_device_failure(volume: &Volume) -> impl FnMut() + use<'_> {
        let mut looks = 0;
        move || {
            looks += 1;
            assert!(looks < 5, "still waiting for a thread that is gone");
            volume.device_failure.come(&"a panic");
        }
    }

    #[test]
    fn pages_are_counted_by_how_many_copies_have_them() {
        let copies = [0b1111, 0b0110, 0b0011];
        let held = |times_min| held_often(copies.into_iter(), times_min);
        assert_eq!((held(1), held(2), held(3), held(4)), (0b1111, 0b0111, 0b0010, 0));
        assert_eq!(held_often(std::iter::empty(), 1), 0);
        assert_eq!(held(COPIES_MAX + 1), 0);
    }

    #[test]
    fn a_copy_leaves_only_when_as_many_others_are_complete_as_were_promised() {
        let volume = volume();
        for copy_index in 1..3 {
            volume.slab(SLAB).fill(copy_index, Location { donor: DonorSlot(copy_index as u16), handle: SlabHandle(0) });
            volume.bits.set(Bit::Copy(copy_index), PageIndex(0), 256);
        }
        volume.bits.clear(Bit::Copy(2), PageIndex(77), 1);
        assert_eq!(volume.remove_covered_copy(SLAB, 0, 2, &|_| true, &|| false, || {}), None);
        assert!(volume.slab(SLAB).locations()[0].is_some(), "it stays");
        volume.bits.set(Bit::Copy(2), PageIndex(77), 1);
        assert_eq!(volume.remove_covered_copy(SLAB, 0, 2, &|donor| donor != DonorSlot(2), &|| false, || {}), None);
        let removed = volume.remove_covered_copy(SLAB, 0, 2, &|_| true, &|| false, || {}).unwrap();
        assert_eq!((removed.location.donor, removed.pages_lost), (DonorSlot(0), 0));
    }

    #[test]
    fn pages_on_their_way_to_the_disk_are_waited_for_with_the_copy_out_of_sight() {
        let volume = volume();
        volume.bits.set(Bit::Disk, PageIndex(0), 200);
        volume.bits.set(Bit::Pending, PageIndex(200), 56);
        assert_eq!(volume.remove_covered_copy(SLAB, 0, 0, &|_| true, &|| false, || {}), None, "the time is up");
        assert!(volume.slab(SLAB).locations()[0].is_some(), "it stays");
        let mut page = 200;
        let removed = volume.remove_covered_copy(SLAB, 0, 0, &|_| true, &|| true, || {
            assert!(volume.slab(SLAB).locations()[0].is_none(), "a write would reach it");
            assert!(page < 256, "still waiting for what is on the disk");
            volume.bits.set(Bit::Disk, PageIndex(page), 1);
            volume.bits.clear(Bit::Pending, PageIndex(page), 1);
            page += 1;
        });
        assert_eq!(removed.map(|removed| (removed.pages_lost, page)), Some((0, 256)));
    }

    #[test]
    fn a_page_that_is_on_no_way_to_the_disk_is_not_waited_for() {
        let volume = volume();
        volume.bits.set(Bit::Pending, PageIndex(0), 255);
        let pause = || panic!("it would wait for ever");
        assert_eq!(volume.remove_covered_copy(SLAB, 0, 0, &|_| true, &|| true, pause), None);
        volume.bits.set(Bit::Pending, PageIndex(255), 1);
        let pause = || panic!("the disk does not count for a promise of copies at donors");
        assert_eq!(volume.remove_covered_copy(SLAB, 0, 1, &|_| true, &|| true, pause), None);
    }

    #[test]
    fn no_thread_waits_at_the_gate_for_a_thread_that_panicked_inside() {
        let volume = volume();
        let _inside = volume.slab(SLAB).gate.enter();
        let removed = volume.remove_copy(SLAB, 0, ends_by_device_failure(&volume));
        assert!(removed.is_some() && volume.slab(SLAB).is_unmapped());
    }

    #[test]
    fn a_copy_is_not_said_to_be_covered_when_its_users_are_unknown() {
        let volume = volume();
        volume.bits.clear(Bit::Copy(0), PageIndex(0), 256);
        let _inside = volume.slab(SLAB).gate.enter();
        assert_eq!(volume.remove_covered_copy(SLAB, 0, 0, &|_| true, &|| false, ends_by_device_failure(&volume)), None);
        assert!(!volume.slab(SLAB).is_unmapped());
    }

    #[test]
    fn no_thread_waits_for_a_silent_donor_to_give_a_copy_back() {
        let volume = volume();
        volume.slab(SLAB).fill(1, Location { donor: DonorSlot(1), handle: SlabHandle(0) });
        volume.bits.set(Bit::Copy(1), PageIndex(0), 256);
        let _inside = volume.slab(SLAB).gate.enter();
        let silent = std::sync::atomic::AtomicBool::new(false);
        let mut looks = 0;
        let answers = |donor: DonorSlot| donor != DonorSlot(1) || !silent.load(std::sync::atomic::Ordering::SeqCst);
        let removed = volume.remove_covered_copy(SLAB, 0, 0, &answers, &|| false, || {
            looks += 1;
            assert!(looks < 5, "still waiting for a donor that says nothing");
            silent.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        assert!(removed.is_none() && volume.slab(SLAB).locations()[0].is_some(), "the copy stays");
    }

    #[test]
    fn no_thread_waits_for_an_engine_that_was_dropped_with_requests_under_way() {
        let volume = volume();
        let _inside = volume.slab(SLAB).gate.enter();
        let mut looks = 0;
        let removed = volume.remove_covered_copy(SLAB, 0, 0, &|_| true, &|| false, || {
            looks += 1;
            assert!(looks < 5, "still waiting for an engine that is gone");
            volume.abandon();
        });
        assert!(removed.is_none() && !volume.slab(SLAB).is_unmapped());
    }

    #[test]
    fn no_thread_waits_for_pages_of_a_thread_that_panicked() {
        let volume = volume();
        assert!(volume.bits.try_acquire(PageIndex(100), 1));
        let removed = volume.remove_copy(SLAB, 0, ends_by_device_failure(&volume)).unwrap();
        assert_eq!(removed.pages_lost, 64, "the pages before it");
        volume.disk_write_failed(PageIndex(100), || panic!("it has come already"));
    }
}
