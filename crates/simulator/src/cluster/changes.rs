//! Borrowers take other donors: one is added, or removed while it holds slabs, or its removal is called off.
//!
//! As in the product, so many donors stay as there are promised copies, unless the disk has everything; and the slot of
//! a donor that is gone is used for the next one.

use spillway_volume::limits::DONORS_MAX;
use spillway_volume::slab_map::slab_entry::DonorSlot;
use spillway_volume::steward::Input;
use spillway_volume::steward::peer::Input as PeerInput;
use spillway_volume::steward::placement::Random;

use super::Cluster;
use crate::borrower::{Place, Slot};
use crate::events::Event;
use crate::settings::DELAY_MAX;

impl Cluster {
    /// A borrower changes its donors, if it runs.
    pub(crate) fn change_donors(&mut self, borrower: usize) {
        if !self.borrowers[borrower].is_alive {
            return;
        }
        match self.random.below(5) {
            0 | 1 => self.remove_donor(borrower),
            2 => self.call_off(borrower),
            _ => self.add_donor(borrower),
        }
    }

    pub(crate) fn slots_in(&self, borrower: usize, place: Place) -> Vec<usize> {
        let slots = self.borrowers[borrower].slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.place == place).map(|(slot, _)| slot).collect()
    }

    fn remove_donor(&mut self, borrower: usize) {
        let used = self.slots_in(borrower, Place::Used);
        let replicas = usize::from(self.settings.replicas);
        let is_disk_enough = self.settings.has_disk && replicas == 1;
        if used.is_empty() || (used.len() <= replicas && !is_disk_enough) {
            return;
        }
        self.report.removals += 1;
        let slot = used[self.random.below(used.len())];
        self.borrowers[borrower].slots[slot].place = Place::Leaving;
        self.feed_steward(borrower, Input::Removed { donor: DonorSlot(slot as u16) });
    }

    fn call_off(&mut self, borrower: usize) {
        let leaving = self.slots_in(borrower, Place::Leaving);
        if let Some(slot) = leaving.first().copied() {
            self.borrowers[borrower].slots[slot].place = Place::Used;
            self.feed_steward(borrower, Input::Added { donor: DonorSlot(slot as u16) });
        }
    }

    /// A machine that the borrower does not use, if it knows one, gets the first free slot.
    pub(crate) fn add_donor(&mut self, borrower: usize) {
        let slots = &self.borrowers[borrower].slots;
        let is_used = |machine: usize| slots.iter().any(|slot| slot.place != Place::Free && slot.machine == machine);
        let mut others = self.known_donors(borrower);
        others.retain(|machine| *machine != borrower && !is_used(*machine));
        let free = slots.iter().position(|slot| slot.place == Place::Free).unwrap_or(slots.len());
        if others.is_empty() || free >= DONORS_MAX {
            return;
        }
        self.report.additions += 1;
        let machine = others[self.random.below(others.len())];
        let slots = &mut self.borrowers[borrower].slots;
        match slots.get_mut(free) {
            Some(slot) => slot.take(machine),
            None => slots.push(Slot::new(machine)),
        }
        self.feed_steward(borrower, Input::Added { donor: DonorSlot(free as u16) });
        let pause = self.draw_up_to(DELAY_MAX);
        self.plan_in(pause, Event::Connect { borrower, slot: free });
    }

    /// The Steward says that nothing is left at a donor: its link is closed, and its slot is free.
    pub(crate) fn let_go(&mut self, borrower: usize, donor: DonorSlot) {
        let slot = usize::from(donor.0);
        assert!(self.borrowers[borrower].slots[slot].place == Place::Leaving, "only a removed donor is let go");
        assert!(self.borrowers[borrower].named_at(slot).is_empty(), "slabs are left at the donor");
        self.borrowers[borrower].slots[slot].place = Place::Free;
        self.feed_peer(borrower, slot, PeerInput::Dismissed);
        // Also one that is being opened.
        self.lose_session(borrower, slot);
    }

    /// Every borrower gets as many donors as it needs, and removals end by themselves.
    pub(crate) fn complete_donors(&mut self) {
        for borrower in 0..self.borrowers.len() {
            for _ in self.slots_in(borrower, Place::Used).len()..usize::from(self.settings.replicas) {
                self.add_donor(borrower);
            }
        }
    }

    /// When all has been well for long enough, no donor is still being removed.
    pub(crate) fn check_removals(&self, borrower: usize) {
        let leaving = self.slots_in(borrower, Place::Leaving);
        assert!(leaving.is_empty(), "borrower {borrower} does not get rid of its donors {leaving:?}");
    }
}
