//! Donors that are to be used no more: their slabs are moved to others, or to the disk, before their links are closed.
//!
//! A donor that leaves is drawn by no placement. Each of its copies is brought away as a recalled one is
//! ([`super::moving`]), but only when the promised copies are elsewhere. New copies cannot appear there, but those that
//! were being put in place when it was removed; so every look asks again for what is still there. A donor without a
//! session has nothing: its link empties the copy indexes that name it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use spillway_fabric::units::SlabIndex;

use super::moving::Reason;
use super::pages::Pages;
use super::{Output, Steward};
use crate::slab_map::slab_entry::DonorSlot;

impl Steward {
    /// `donor` is to be used no more.
    pub(super) fn leave(&mut self, donor: DonorSlot) {
        if !self.donors.set_leaving(donor, true) {
            return;
        }
        for lease in self.placing.pass_over(donor) {
            self.donors.returned(donor);
            self.outputs.push(Output::GiveBack { lease });
        }
    }

    /// `donor` may be used: another one in a slot that is free, or the one that was to be used no more. Distrust of the
    /// last donor of a slot is not that of the next one.
    pub(super) fn remain(&mut self, donor: DonorSlot) {
        if !self.donors.is_leaving_with_copies(donor) {
            self.donors.trust(donor);
        }
        if !self.donors.set_leaving(donor, false) {
            return;
        }
        for slab in self.moving.call_off(donor) {
            self.outputs.push(Output::Migrating { slab, is_migrating: false });
        }
    }

    /// Brings away what donors that leave still have, and says which have nothing.
    pub(super) fn clear_leaving(&mut self, pages: &dyn Pages) {
        for donor in self.donors.leaving() {
            let has_session = self.donors.session(donor).is_some();
            let mut is_empty = true;
            for slab in (0..pages.slab_count()).map(SlabIndex) {
                let there = pages.locations(slab).into_iter().flatten().filter(|location| location.donor == donor);
                for location in there {
                    is_empty = false;
                    if has_session {
                        self.bring_away(slab, location, Reason::Removal);
                    }
                }
            }
            if is_empty && !self.placing.has_lease_of(donor) && !self.moving.is_leaving_from(donor) {
                self.donors.told_empty(donor);
                self.outputs.push(Output::Empty { donor });
            }
        }
    }
}
