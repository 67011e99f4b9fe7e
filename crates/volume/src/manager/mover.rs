//! The mover's thread: refills copies that miss pages, and moves slabs that a donor wants back.
//!
//! A recalled slab is moved to another donor, not dropped to disk. Only when no other donor has room does it fall
//! back to what else holds its pages: replicas, or the disk once the backlog brought every page there. A slab that
//! nothing else holds stays where it is, and the donor asks again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_fabric::units::{SlabHandle, SlabIndex};

use super::ManagerState;
use super::mapping::drop_covered_copy;
use super::refill::Refill;
use crate::limits::COPIES_MAX;
use crate::slab_map::slab_entry::{DonorSlot, Location};

/// Something for the mover to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Bring every copy of a slab up to date.
    Refill(SlabIndex),
    /// A donor wants a slab back.
    Recall(DonorSlot, SlabHandle),
}

/// What waits for the mover, each thing once.
#[derive(Debug, Default)]
pub struct WorkQueue {
    waiting: Mutex<VecDeque<Work>>,
    more: Condvar,
}

impl WorkQueue {
    /// Adds work, unless it waits already. Recalls pass refills: the donor's machine needs that memory.
    pub fn add(&self, work: Work) {
        let mut waiting = self.lock();
        if waiting.contains(&work) {
            return;
        }
        match work {
            Work::Recall(..) => waiting.push_front(work),
            Work::Refill(_) => waiting.push_back(work),
        }
        drop(waiting);
        self.more.notify_one();
    }

    /// Wakes the mover, to see that the device stops.
    pub fn wake(&self) {
        self.more.notify_all();
    }

    /// Things that wait.
    pub fn length(&self) -> usize {
        self.lock().len()
    }

    fn take(&self, patience: Duration) -> Option<Work> {
        let mut waiting = self.lock();
        if waiting.is_empty() {
            (waiting, _) = self.more.wait_timeout(waiting, patience).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Work>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Works until the device stops.
pub fn run(shared: &ManagerState, mut refill: Refill) {
    while !shared.is_stopping() {
        match shared.work.take(Duration::from_millis(100)) {
            Some(Work::Refill(slab)) => refill_slab(shared, &mut refill, slab),
            Some(Work::Recall(donor, handle)) => recall(shared, &mut refill, donor, handle),
            None => {}
        }
    }
}

fn refill_slab(shared: &ManagerState, refill: &mut Refill, slab: SlabIndex) {
    for (copy_index, location) in shared.volume.slab(slab).locations().into_iter().enumerate() {
        if let Some(location) = location {
            refill.fill(slab, copy_index, location);
        }
    }
}

fn recall(shared: &ManagerState, refill: &mut Refill, donor: DonorSlot, handle: SlabHandle) {
    let wanted = Location { donor, handle };
    let found = shared.volume.geometry.slabs().find_map(|slab| {
        let locations = shared.volume.slab(slab).locations();
        locations.iter().position(|location| *location == Some(wanted)).map(|copy_index| (slab, copy_index))
    });
    // Released meanwhile, or recalled twice.
    let Some((slab, copy_index)) = found else { return };
    let entry = shared.volume.slab(slab);
    entry.set_migrating(true);
    if let Some((new_place, location)) = shared.mapper.add_copy(shared, slab, Some(donor), COPIES_MAX) {
        refill.fill(slab, new_place, location);
    }
    if !drop_covered_copy(shared, slab, copy_index) {
        if let Some(disk) = &shared.volume.disk {
            disk.backlog.hurry();
        }
        tracing::warn!("slab {slab} cannot leave its donor yet: no other holds all its pages");
    }
    entry.set_migrating(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recalls_pass_refills_and_nothing_waits_twice() {
        let queue = WorkQueue::default();
        let recall = Work::Recall(DonorSlot(1), SlabHandle(2));
        for work in [Work::Refill(SlabIndex(1)), recall, Work::Refill(SlabIndex(1)), recall] {
            queue.add(work);
        }
        assert_eq!(queue.take(Duration::ZERO), Some(recall));
        assert_eq!(queue.take(Duration::ZERO), Some(Work::Refill(SlabIndex(1))));
        assert_eq!(queue.take(Duration::ZERO), None);
    }
}
