//! Every recall ends in its bound, which is checked after every step.
//!
//! What bounds a recall depends on what its borrower can do:
//! - *It can leave*: another donor has room, or the disk or another donor has the pages. It has to be over
//!   `LEAVES_WITHIN` (`recall_watch`) after that became so.
//! - *No way out*: nothing else holds the pages, and no donor has room. The borrower's user has to be told within the
//!   same time. The slab then stays: no page is given up for a donor's comfort.
//! - *Out of reach*: donor and borrower do not hear each other. The session is over `SILENT_FOR` later, and the slab
//!   with it.
//!
//! A recall that is withdrawn, as a drain is undone, is over.
//!
//! The situation is looked at every [`WATCH_INTERVAL`]; one that has changed begins a new bound.

use std::time::Duration;

use spillway_donor::lender::leases::SessionId;
use spillway_fabric::units::{SlabHandle, SlabIndex};
use spillway_volume::limits::COPIES_MAX;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};

use super::Cluster;
use crate::borrower::Place;
use crate::events::Event;
use crate::links::Reach;
use crate::recall_watch::{Recalled, Situation, Watched};
use crate::volume::Slab;

/// See the module text.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// A donor with less room than this many slabs may be full when the borrower asks it.
const ROOM_SLABS_MIN: u64 = 2;

impl Cluster {
    /// A donor asks for slabs.
    pub(crate) fn note_recalls(&mut self, machine: usize, session: SessionId, slabs: &[SlabHandle]) {
        for handle in slabs {
            let key = (machine, session, *handle);
            if !self.recalls.watched.contains_key(&key) {
                self.report.recalls += 1;
                let situation = self.situation(key);
                let watched = Watched { situation, since: self.time, asked: self.time, is_told: false };
                self.recalls.watched.insert(key, watched);
            }
        }
    }

    /// A donor lends again, and these slabs may stay.
    pub(crate) fn note_withdrawn(&mut self, machine: usize, session: SessionId, slabs: &[SlabHandle]) {
        for handle in slabs {
            let watched = self.recalls.watched.remove(&(machine, session, *handle));
            assert!(watched.is_some(), "only what was asked for is withdrawn");
            self.report.withdrawn += 1;
        }
    }

    /// A lease has ended.
    pub(crate) fn note_returned(&mut self, machine: usize, session: SessionId, handle: SlabHandle) {
        if let Some(watched) = self.recalls.watched.remove(&(machine, session, handle)) {
            self.note_longest(&watched);
            self.recall_times.push(self.time - watched.asked);
        }
    }

    fn note_longest(&mut self, watched: &Watched) {
        if watched.situation == Situation::CanLeave {
            self.report.recall_longest = self.report.recall_longest.max(self.time - watched.since);
        }
    }

    /// A Steward tells that a recalled slab cannot leave.
    pub(crate) fn note_stuck(&mut self, borrower: usize, slab: SlabIndex, donor: DonorSlot) {
        self.report.stuck += 1;
        let slot = &self.borrowers[borrower].slots[usize::from(donor.0)];
        let Some(link) = slot.link.and_then(|link| self.links.get(&link)) else { return };
        let locations = self.borrowers[borrower].volume.slabs.borrow()[slab.0 as usize].locations;
        let here = locations.into_iter().flatten().find(|location| location.donor == donor);
        let (Some(session), Some(location)) = (link.at_donor, here) else { return };
        if let Some(watched) = self.recalls.watched.get_mut(&(link.machine, session, location.handle)) {
            watched.is_told = true;
        }
    }

    /// Looks at every recall, and at slabs that have too few copies; the next look follows.
    pub(crate) fn watch(&mut self) {
        self.plan_in(WATCH_INTERVAL, Event::Watch);
        self.look_at_recalls();
        self.watch_shortages();
    }

    /// No bound has passed.
    pub(crate) fn check_recalls(&mut self) {
        if self.recalls.due.is_some_and(|due| due < self.time) {
            self.look_at_recalls();
            let late = self.recalls.watched.iter().find(|(_, recall)| recall.due().is_some_and(|due| due < self.time));
            assert!(
                late.is_none(),
                "a recall has passed its bound: {late:?}, {:?}",
                late.map(|late| self.owner(*late.0))
            );
        }
    }

    fn look_at_recalls(&mut self) {
        let keys: Vec<Recalled> = self.recalls.watched.keys().copied().collect();
        for key in keys {
            let (machine, session, handle) = key;
            let situation = self.situation(key);
            let Some(mut watched) = self.recalls.watched.remove(&key) else { continue };
            if watched.situation != situation {
                self.note_longest(&watched);
                (watched.situation, watched.since) = (situation, self.time);
            }
            // A session that is over needs no word for each of its leases.
            if self.machines[machine].handles.contains_key(&(session, handle)) {
                self.recalls.watched.insert(key, watched);
            }
        }
        self.recalls.due = self.recalls.watched.values().filter_map(Watched::due).min();
    }

    /// The borrower of a leased slab, its slot of the donor, and the slab, once that is placed.
    fn owner(&self, (machine, session, handle): Recalled) -> Option<(usize, usize, Option<SlabIndex>)> {
        let id = *self.machines[machine].sessions.get(&session)?;
        let link = self.links.get(&id).filter(|link| self.borrowers[link.borrower].uses(link.slot, id))?;
        let named = self.borrowers[link.borrower].named_at(link.slot).into_iter();
        let slab = named.filter(|(_, other)| *other == handle).map(|(slab, _)| slab).next();
        Some((link.borrower, link.slot, slab))
    }

    fn situation(&self, recalled: Recalled) -> Situation {
        let Some((borrower, slot, slab)) = self.owner(recalled) else { return Situation::OutOfReach };
        let location = Location { donor: DonorSlot(slot as u16), handle: recalled.2 };
        let is_alive = self.borrowers[borrower].is_alive;
        if !is_alive || !self.is_usable(borrower, slot) {
            return Situation::OutOfReach;
        }
        // A slab that is just being placed is given back or placed.
        if slab.is_none_or(|slab| self.can_leave(borrower, slab, location)) {
            Situation::CanLeave
        } else {
            Situation::NoWayOut
        }
    }

    /// Whether both ends of a session are open, and nothing is between them.
    pub(crate) fn is_usable(&self, borrower: usize, slot: usize) -> bool {
        let link = self.borrowers[borrower].slots[slot].link.and_then(|link| self.links.get(&link));
        link.is_some_and(|link| link.at_borrower.is_some() && link.reach(self.is_cut(link)) == Reach::Open)
    }

    fn can_leave(&self, borrower: usize, slab: SlabIndex, location: Location) -> bool {
        let slabs = self.borrowers[borrower].volume.slabs.borrow();
        let slab = &slabs[slab.0 as usize];
        let is_needed = slab.copy_index(location).is_some_and(|copy| slab.is_stored && slab.valid[copy]);
        let others = (0..COPIES_MAX).filter(|copy| slab.valid[*copy]).filter_map(|copy| slab.locations[copy]);
        let is_elsewhere =
            others.filter(|other| *other != location).any(|other| self.reach(borrower, other) == Reach::Open);
        if !is_needed || slab.is_on_disk || is_elsewhere {
            return true;
        }
        self.has_room_elsewhere(borrower, slab)
    }

    /// Whether a donor that the borrower uses, and that has no copy of the slab, has room for one.
    pub(crate) fn has_room_elsewhere(&self, borrower: usize, slab: &Slab) -> bool {
        let copies = slab.locations.iter().flatten().count();
        let holds = |slot: usize| slab.locations.iter().flatten().any(|other| usize::from(other.donor.0) == slot);
        let mut slots = (0..).zip(&self.borrowers[borrower].slots);
        copies < COPIES_MAX
            && slots.any(|(slot, donor)| {
                donor.place == Place::Used
                    && !holds(slot)
                    && self.is_usable(borrower, slot)
                    && self.machines[donor.machine].room_bytes(borrower)
                        >= ROOM_SLABS_MIN * self.settings.slab_size_bytes
            })
    }
}
