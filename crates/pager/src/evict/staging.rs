//! The write-back pool: slots of 32 pages that evictors copy victims to, and that are written to the volume from there.
//!
//! A page that was written stays *staged* until its pool slot is needed again, the oldest first: a fault on it costs
//! no network. A slot that was never used takes no memory; so those that were are used again first, once there are
//! enough of them ([`Staging::keep`]).
//!
//! Invariants: a run is free, with an evictor, being written, or written; the pages of a run lie at neighbouring
//! slots of the volume in the same order; a slot of the volume names a pool page as its staging place only while that
//! page holds its content.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::VecDeque;

use crate::limits::GROUP_PAGES;
use crate::page_table::volume_pages::{PoolPage, VolumePage, VolumePageRun, VolumePages};

/// A slot of the pool, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u32);

impl RunId {
    /// Its page number `index`.
    pub fn page(self, index: usize) -> PoolPage {
        PoolPage(self.0 * GROUP_PAGES as u32 + index as u32)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    WithEvictor(VolumePageRun),
    Writing(VolumePageRun),
    Written(VolumePageRun),
}

/// See the module text.
#[derive(Debug)]
pub struct Staging {
    runs: Vec<State>,
    free: Vec<RunId>,
    /// Written runs, the oldest first.
    written: VecDeque<RunId>,
    /// Pages of each slot that were ever used, and their sum.
    used: Vec<u32>,
    used_pages: u32,
    /// See [`Staging::keep`].
    kept_pages: u32,
}

impl Staging {
    /// `count` free pool slots.
    pub fn new(count: usize) -> Self {
        let ids = (0..count as u32).map(RunId);
        Self {
            runs: vec![State::Free; count],
            // The first slots are the first to be used.
            free: ids.rev().collect(),
            written: VecDeque::with_capacity(count),
            used: vec![0; count],
            used_pages: 0,
            kept_pages: u32::MAX,
        }
    }

    /// Pages stay staged in slots of so many pages in all, and in more only if there are more to be written at a time.
    pub fn keep(&mut self, pages: u32) {
        self.kept_pages = pages;
    }

    /// Pages of the pool that were ever used.
    pub fn used_pages(&self) -> u32 {
        self.used_pages
    }

    /// Pool slots that can be had now.
    pub fn available(&self) -> usize {
        self.free.len() + self.written.len()
    }

    /// Takes a pool slot for pages that go to `slots`; what was staged in it is not any more.
    pub fn take(&mut self, run: VolumePageRun, slots: &mut VolumePages) -> Option<RunId> {
        assert!((1..=GROUP_PAGES as u32).contains(&run.count), "a run has room for its pages");
        // What is given back unfilled lies on top, and was used before.
        let is_fresh = self.free.last().is_some_and(|id| self.used[id.0 as usize] == 0);
        let spared = if is_fresh && self.used_pages >= self.kept_pages { self.reuse(slots) } else { None };
        let id = spared.or_else(|| self.free.pop()).or_else(|| self.reuse(slots))?;
        let used = &mut self.used[id.0 as usize];
        self.used_pages += run.count.saturating_sub(*used);
        *used = run.count.max(*used);
        self.runs[id.0 as usize] = State::WithEvictor(run);
        Some(id)
    }

    fn reuse(&mut self, slots: &mut VolumePages) -> Option<RunId> {
        let id = self.written.pop_front()?;
        let State::Written(run) = self.runs[id.0 as usize] else { unreachable!("listed as written") };
        for (index, slot) in run.slots().enumerate() {
            slots.unstage(slot, id.page(index));
        }
        Some(id)
    }

    /// The evictor gave page `index` of `id` its content: `slot` is referred to, staged here and to be written.
    pub fn filled(&mut self, id: RunId, index: usize, slots: &mut VolumePages) -> VolumePage {
        let State::WithEvictor(run) = self.runs[id.0 as usize] else { unreachable!("an evictor fills only its runs") };
        let slot = run.slots().nth(index).expect("a page of the run");
        slots.stage(slot, id.page(index));
        slot
    }

    /// The evictor is done with `id`; pages that it did not fill are given back. What is to be written now, if
    /// anything.
    pub fn evictor_ended(&mut self, id: RunId, slots: &mut VolumePages) -> Option<VolumePageRun> {
        let State::WithEvictor(run) = self.runs[id.0 as usize] else { unreachable!("an evictor ends only its runs") };
        let is_filled =
            |index: usize, slot: VolumePage, slots: &VolumePages| slots.staged(slot) == Some(id.page(index));
        let used = run.slots().enumerate().filter(|(index, slot)| is_filled(*index, *slot, slots));
        let Some(count) = used.map(|(index, _)| index as u32 + 1).last() else {
            run.slots().for_each(|slot| slots.give_back(slot));
            self.runs[id.0 as usize] = State::Free;
            self.free.push(id);
            return None;
        };
        for (index, slot) in run.slots().enumerate() {
            if index as u32 >= count {
                slots.give_back(slot);
                continue;
            }
            slots.begin_write(slot);
            // A hole is written like the rest and goes afterwards.
            if !is_filled(index, slot, slots) {
                slots.release(slot);
            }
        }
        let run = VolumePageRun { first: run.first, count };
        self.runs[id.0 as usize] = State::Writing(run);
        Some(run)
    }

    /// What `id` is being written to.
    pub fn writing(&self, id: RunId) -> Option<VolumePageRun> {
        if let State::Writing(run) = self.runs[id.0 as usize] { Some(run) } else { None }
    }

    /// `id` was written: its pages are copies, and may be replaced.
    pub fn written(&mut self, id: RunId, slots: &mut VolumePages) {
        let State::Writing(run) = self.runs[id.0 as usize] else { unreachable!("only what is being written ends") };
        run.slots().for_each(|slot| slots.end_write(slot));
        self.runs[id.0 as usize] = State::Written(run);
        self.written.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(slots: &mut VolumePages, staging: &mut Staging, filled: &[usize]) -> (RunId, VolumePageRun) {
        let run = slots.take(4).unwrap();
        let id = staging.take(run, slots).unwrap();
        for index in filled {
            staging.filled(id, *index, slots);
        }
        (id, run)
    }

    #[test]
    fn a_page_stays_staged_until_its_pool_slot_is_needed() {
        let (mut slots, mut staging) = (VolumePages::new(64), Staging::new(1));
        let (id, run) = staged(&mut slots, &mut staging, &[0, 1, 2, 3]);
        assert_eq!(staging.evictor_ended(id, &mut slots), Some(run));
        assert_eq!(staging.available(), 0, "not while it is written");
        let other = slots.take(1).unwrap();
        assert_eq!(staging.take(other, &mut slots), None);
        staging.written(id, &mut slots);
        assert_eq!(slots.staged(VolumePage(2)), Some(id.page(2)));
        assert_eq!(staging.take(other, &mut slots), Some(id));
        assert_eq!(slots.staged(VolumePage(2)), None);
        assert_eq!(slots.references(VolumePage(2)), 1, "it is in its slot");
    }

    #[test]
    fn slots_that_were_used_are_used_again_once_enough_is_kept() {
        let (mut slots, mut staging) = (VolumePages::new(256), Staging::new(4));
        staging.keep(8);
        let mut write = |staging: &mut Staging| {
            let (id, run) = staged(&mut slots, staging, &[0, 1, 2, 3]);
            assert_eq!(staging.evictor_ended(id, &mut slots), Some(run));
            staging.written(id, &mut slots);
            id
        };
        let ids = [(); 6].map(|()| write(&mut staging));
        assert_eq!(ids.map(|id| id.0), [0, 1, 0, 1, 0, 1]);
        assert_eq!(staging.used_pages(), 8);
        let run = slots.take(32).unwrap();
        assert_eq!(staging.take(run, &mut slots), Some(RunId(0)));
        assert_eq!(staging.used_pages(), 4 + 32, "a longer run");
        let under_way = [(); 3].map(|()| staging.take(slots.take(4).unwrap(), &mut slots).map(|id| id.0));
        assert_eq!(under_way, [Some(1), Some(2), Some(3)], "nothing else is left to be used again");
        assert_eq!((staging.used_pages(), staging.available()), (4 + 32 + 8, 0));
    }

    #[test]
    fn holes_are_written_and_go_and_what_lies_behind_the_last_page_is_not_written() {
        let (mut slots, mut staging) = (VolumePages::new(64), Staging::new(2));
        let (id, run) = staged(&mut slots, &mut staging, &[0, 2]);
        assert_eq!(staging.evictor_ended(id, &mut slots), Some(VolumePageRun { count: 3, ..run }));
        assert_eq!(slots.take(1).unwrap().first, VolumePage(3), "given back");
        assert_eq!(slots.take(1).unwrap().first, VolumePage(4), "the hole is being written");
        staging.written(id, &mut slots);
        assert_eq!(slots.take(1).unwrap().first, VolumePage(1));
    }

    #[test]
    fn a_run_that_nothing_came_to_is_free_at_once() {
        let (mut slots, mut staging) = (VolumePages::new(4), Staging::new(1));
        let (id, _) = staged(&mut slots, &mut staging, &[]);
        assert_eq!(staging.evictor_ended(id, &mut slots), None);
        assert_eq!((slots.free(), staging.available()), (4, 1));
    }

    #[test]
    fn a_page_given_up_while_it_is_written_is_not_staged_any_more() {
        let (mut slots, mut staging) = (VolumePages::new(4), Staging::new(1));
        let (id, _) = staged(&mut slots, &mut staging, &[0, 1, 2, 3]);
        staging.evictor_ended(id, &mut slots);
        slots.release(VolumePage(1));
        assert_eq!(slots.staged(VolumePage(1)), None);
        assert!(slots.take(1).is_none());
        staging.written(id, &mut slots);
        // The slot has another owner when the pool slot is used again.
        let again = slots.take(1).unwrap();
        slots.stage(again.first, PoolPage(77));
        let other = VolumePages::new(1).take(1).unwrap();
        staging.take(other, &mut slots).unwrap();
        assert_eq!(slots.staged(again.first), Some(PoolPage(77)));
    }
}
