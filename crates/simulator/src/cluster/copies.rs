//! What a borrower's threads do with copies: the manager's puts leases in place, the mover fills and drops.

use spillway_fabric::control::message::Message;
use spillway_fabric::units::SlabIndex;
use spillway_volume::limits::COPIES_MAX;
use spillway_volume::manager::decisions::MoveJob;
use spillway_volume::slab_map::slab_entry::Location;
use spillway_volume::steward::Input;

use super::Cluster;
use crate::links::Reach;

impl Cluster {
    pub(crate) fn place(&mut self, borrower: usize) {
        let Some(job) = self.borrowers[borrower].places.pop_front() else { return };
        let mut copy_indexes = Vec::new();
        for lease in &job.leases {
            let slot = &self.borrowers[borrower].slots[usize::from(lease.location.donor.0)];
            let session = slot.link.and_then(|link| self.links[&link].at_borrower);
            let mut slabs = self.borrowers[borrower].volume.slabs.borrow_mut();
            let slab = &mut slabs[job.slab.0 as usize];
            let copies = slab.locations.iter().flatten().count();
            let place = slab.locations.iter().position(Option::is_none);
            let place = place.filter(|_| copies < job.copies_max && session == Some(lease.session));
            if let Some(copy_index) = place {
                let is_there = slab.locations.iter().flatten().any(|other| other.donor == lease.location.donor);
                assert!(!is_there, "no machine has a slab twice");
                slab.locations[copy_index] = Some(lease.location);
                slab.valid[copy_index] = false;
            }
            copy_indexes.push(place);
        }
        let since = self.borrowers[borrower].wanted_since.remove(&job.slab);
        if let Some(since) = since.filter(|_| copy_indexes.iter().any(Option::is_some)) {
            self.mapping_times.push(self.time - since);
        }
        self.feed_steward(borrower, Input::Placed { slab: job.slab, copy_indexes });
        if since.is_some() && self.is_filled_only {
            // The program was in the middle of its write.
            self.fill_next(borrower);
        }
    }

    pub(crate) fn moved(&mut self, borrower: usize, job: MoveJob) {
        match job {
            MoveJob::Fill(slab, copies) => {
                for (copy_index, location) in copies {
                    self.fill(borrower, slab, copy_index, location);
                }
                self.feed_steward(borrower, Input::Filled { slab });
            }
            MoveJob::Drop(slab, location, others_min) => {
                let is_gone = self.drop_covered(borrower, slab, location, others_min);
                if is_gone {
                    self.tell_donor(borrower, location.donor, Message::Release { slab: location.handle });
                }
                self.feed_steward(borrower, Input::Dropped { slab, location, is_gone });
            }
        }
    }

    /// Copies a slab from a valid copy within reach, or from the disk.
    fn fill(&mut self, borrower: usize, slab: SlabIndex, copy_index: usize, location: Location) {
        let index = slab.0 as usize;
        let state = self.borrowers[borrower].volume.slabs.borrow()[index].clone();
        let is_there = state.locations[copy_index] == Some(location) && !state.valid[copy_index];
        if !is_there || !state.is_stored || self.reach(borrower, location) != Reach::Open {
            return;
        }
        let sources = (0..COPIES_MAX).filter(|at| state.valid[*at]).filter_map(|at| state.locations[at]);
        let source = sources.into_iter().find(|source| self.reach(borrower, *source) == Reach::Open);
        match source {
            Some(source) => self.check_copy(borrower, index, source, state.version),
            None if state.is_on_disk => {}
            None => return,
        }
        self.write_copy(borrower, index, location, state.version);
        self.report.fills += 1;
        let replicas = usize::from(self.settings.replicas);
        let slab = &mut self.borrowers[borrower].volume.slabs.borrow_mut()[index];
        slab.valid[copy_index] = true;
        if slab.valid_copies() >= replicas {
            slab.lost_since_whole = 0;
        }
    }

    fn drop_covered(&mut self, borrower: usize, slab: SlabIndex, location: Location, others_min: usize) -> bool {
        let state = self.borrowers[borrower].volume.slabs.borrow()[slab.0 as usize].clone();
        let Some(copy_index) = state.copy_index(location) else { return false };
        let is_other = |at: &usize| {
            let other = state.locations[*at].filter(|_| *at != copy_index && state.valid[*at]);
            other.is_some_and(|other| self.reach(borrower, other) == Reach::Open)
        };
        let others = (0..COPIES_MAX).filter(is_other).count();
        let is_elsewhere = if others_min == 0 { state.is_on_disk || others > 0 } else { others >= others_min };
        if self.reach(borrower, location) != Reach::Open || (state.valid[copy_index] && !is_elsewhere) {
            return false;
        }
        let replicas = usize::from(self.settings.replicas);
        let entry = &mut self.borrowers[borrower].volume.slabs.borrow_mut()[slab.0 as usize];
        if entry.remove(copy_index) && entry.valid_copies() < replicas {
            // Given to a donor that wants its memory, as no other has any: one copy less to lose.
            entry.lost_since_whole += 1;
        }
        true
    }
}
