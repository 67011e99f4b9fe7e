//! What the Steward knows of each donor: the session, the free memory, and the time of a refusal.
//!
//! The Steward asks each donor for its free memory every [`FREE_INTERVAL`], and every [`FREE_INTERVAL_FULL`] while no
//! donor has any, because writes wait for memory then. At most one question to a donor is under way.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use spillway_fabric::control::message::Message;
use spillway_fabric::site::Site;
use spillway_fabric::units::DonorId;

use super::{Link, Output, SessionNumber};
use crate::limits::{CONTROL_REPLY_DEADLINE, FREE_INTERVAL, FREE_INTERVAL_FULL, OFFER_KEPT_ROOM_SLABS, REFUSAL_PAUSE};
use crate::slab_map::slab_entry::DonorSlot;

/// A slab that a donor keeps for this borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number of the question that the donor answered.
    pub request: u32,
    /// The time until which the slab may be used.
    pub until: Instant,
}

/// A donor with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorView {
    /// The session.
    pub session: SessionNumber,
    /// The identity of the donor, independent of its address.
    pub identity: DonorId,
    /// Memory that the donor can lend: what it reported last, less what it lent since.
    pub free_bytes: u64,
    /// Slabs of this volume at the donor.
    pub slabs_held: u64,
    /// The location of the donor.
    pub site: Site,
    /// The donor refused a slab or did not answer, and gets no question for a slab until this time.
    pub refused_until: Option<Instant>,
    /// The session is open, but the donor is silent.
    pub is_silent: bool,
    /// The donor is being removed and gets no slab.
    pub is_leaving: bool,
    /// The donor sent too many wrong pages and gets no slab.
    pub is_distrusted: bool,
    /// An offer that no placement used. The next placement that draws this donor uses the offer without a question.
    offer: Option<Offer>,
    /// The time of the last question for free memory, or of the last report.
    asked: Instant,
    /// A slab found no memory that this donor could lend.
    is_needed: bool,
}

/// The donors with a session, by slot.
#[derive(Clone, Debug, Default)]
pub struct Donors {
    open: BTreeMap<DonorSlot, DonorView>,
    /// Donors that are being removed, with a session or without. True: the volume has reported that the donor is empty.
    leaving: BTreeMap<DonorSlot, bool>,
    /// Donors that are not trusted, with a session or without.
    distrusted: BTreeSet<DonorSlot>,
    next_request: u32,
    /// The last result of [`Donors::has_room`], which decides the interval of questions.
    is_room_known: bool,
    /// The time at which a donor was last told that a slab found no memory, and that donor.
    told_need: Option<(Instant, DonorSlot)>,
}

impl Donors {
    /// A session is open, and the donor has reported its free memory.
    pub fn up(&mut self, now: Instant, donor: DonorSlot, link: Link) {
        let Link { session, identity, free_bytes, slabs_held, site } = link;
        let (refused_until, is_silent, asked) = (None, false, now);
        let is_leaving = self.leaving.contains_key(&donor);
        let is_distrusted = self.is_distrusted(donor);
        let view = DonorView {
            session,
            identity,
            free_bytes,
            slabs_held,
            site,
            refused_until,
            is_silent,
            is_leaving,
            is_distrusted,
            offer: None,
            asked,
            is_needed: false,
        };
        self.open.insert(donor, view);
    }

    /// The session has ended.
    pub fn down(&mut self, donor: DonorSlot) {
        self.open.remove(&donor);
    }

    /// Marks a donor as being removed, or takes the mark away; false if nothing changes.
    pub fn set_leaving(&mut self, donor: DonorSlot, is_leaving: bool) -> bool {
        if self.leaving.contains_key(&donor) == is_leaving {
            return false;
        }
        if is_leaving {
            self.leaving.insert(donor, false);
        } else {
            self.leaving.remove(&donor);
        }
        if let Some(view) = self.open.get_mut(&donor) {
            view.is_leaving = is_leaving;
        }
        true
    }

    /// Donors that are being removed and were not yet reported as empty.
    pub fn leaving(&self) -> Vec<DonorSlot> {
        self.leaving.iter().filter(|(_, is_told)| !**is_told).map(|(donor, _)| *donor).collect()
    }

    /// Whether the donor is being removed and was not yet reported as empty.
    pub fn is_leaving_with_copies(&self, donor: DonorSlot) -> bool {
        self.leaving.get(&donor) == Some(&false)
    }

    /// The volume has reported that the donor is empty.
    pub fn told_empty(&mut self, donor: DonorSlot) {
        if let Some(is_told) = self.leaving.get_mut(&donor) {
            *is_told = true;
        }
    }

    /// Takes the trust in a donor away.
    pub fn distrust(&mut self, donor: DonorSlot) {
        self.distrusted.insert(donor);
        if let Some(view) = self.open.get_mut(&donor) {
            view.is_distrusted = true;
        }
    }

    /// Another donor stands at this slot, of which nothing is known.
    pub fn trust(&mut self, donor: DonorSlot) {
        self.distrusted.remove(&donor);
        if let Some(view) = self.open.get_mut(&donor) {
            view.is_distrusted = false;
        }
    }

    /// Whether the donor is not trusted.
    pub fn is_distrusted(&self, donor: DonorSlot) -> bool {
        self.distrusted.contains(&donor)
    }

    /// Whether some donor is not trusted.
    pub fn has_distrusted(&self) -> bool {
        !self.distrusted.is_empty()
    }

    /// The donor is silent, or has answered again.
    pub fn silent(&mut self, donor: DonorSlot, is_silent: bool) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.is_silent = is_silent;
        }
    }

    /// The open session of a donor.
    pub fn session(&self, donor: DonorSlot) -> Option<SessionNumber> {
        self.open.get(&donor).map(|view| view.session)
    }

    /// What is known of a donor with a session.
    pub fn view(&self, donor: DonorSlot) -> Option<&DonorView> {
        self.open.get(&donor)
    }

    /// All donors with a session.
    pub fn open(&self) -> impl Iterator<Item = (DonorSlot, &DonorView)> {
        self.open.iter().map(|(slot, view)| (*slot, view))
    }

    /// A new number for a question; the answer carries the same number.
    pub fn number(&mut self) -> u32 {
        self.next_request = self.next_request.wrapping_add(1);
        self.next_request
    }

    /// The donor has reported its free memory.
    pub fn told_free(&mut self, now: Instant, donor: DonorSlot, free_bytes: u64) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.free_bytes = free_bytes;
            view.asked = now;
        }
    }

    /// The slab that the donor keeps for the next placement, if there is time to use the slab.
    pub fn take_offer(&mut self, now: Instant, donor: DonorSlot) -> Option<Offer> {
        self.open.get_mut(&donor)?.offer.take().filter(|offer| offer.until > now)
    }

    /// Keeps an unused offer for the next placement, if the offer takes nothing from other borrowers. Returns offers
    /// that are not needed, of this one and the one before.
    pub fn keep_offer(&mut self, donor: DonorSlot, offer: Offer, slab_size_bytes: u64) -> Option<Offer> {
        let Some(view) = self.open.get_mut(&donor) else { return Some(offer) };
        let is_tight = view.free_bytes < (OFFER_KEPT_ROOM_SLABS + 1) * slab_size_bytes;
        if is_tight || !view.may_be_used() {
            return Some(offer);
        }
        match view.offer {
            Some(kept) if kept.until >= offer.until => Some(offer),
            _ => view.offer.replace(offer),
        }
    }

    /// The donor has lent a slab.
    pub fn lent(&mut self, donor: DonorSlot, slab_size_bytes: u64) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.slabs_held += 1;
            view.free_bytes = view.free_bytes.saturating_sub(slab_size_bytes);
        }
    }

    /// The donor has a slab back.
    pub fn returned(&mut self, donor: DonorSlot) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.slabs_held = view.slabs_held.saturating_sub(1);
        }
    }

    /// The donor refused or did not answer, and gets no question for a slab for a while.
    pub fn refuses(&mut self, now: Instant, donor: DonorSlot) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.refused_until = Some(now + REFUSAL_PAUSE);
        }
    }

    /// A slab needs memory that no donor has; `holders` cannot take the slab.
    pub fn need(&mut self, holders: &[DonorSlot]) {
        let identities: Vec<DonorId> =
            holders.iter().filter_map(|donor| self.view(*donor)).map(|it| it.identity).collect();
        for view in self.open.values_mut() {
            view.is_needed |= !identities.contains(&view.identity);
        }
    }

    /// The donors to ask for their free memory now. A donor without memory learns of a need by the question for a slab,
    /// which the donor cannot keep. One donor is told each time, because each may ask another machine for a slab.
    pub fn ask_free(&mut self, now: Instant, slab_size_bytes: u64, outputs: &mut Vec<Output>) {
        let interval = self.interval();
        let is_due = |view: &DonorView| now.saturating_duration_since(view.asked) >= interval && !view.is_refused(now);
        let may_tell = self.told_need.is_none_or(|(told, _)| now >= told + FREE_INTERVAL);
        let is_full = |view: &DonorView| view.is_needed && view.may_be_used() && view.free_bytes < slab_size_bytes;
        let full =
            self.open.iter().filter(|(_, view)| may_tell && is_due(view) && is_full(view)).map(|(donor, _)| *donor);
        let full: Vec<DonorSlot> = full.collect();
        // Donors take turns.
        let is_next = |donor: &&DonorSlot| self.told_need.is_some_and(|(_, last)| last < **donor);
        let told = full.iter().find(is_next).or(full.first()).copied();
        for (donor, view) in self.open.iter_mut().filter(|(_, view)| is_due(view)) {
            view.asked = now;
            self.next_request = self.next_request.wrapping_add(1);
            let request = self.next_request;
            let message = if told == Some(*donor) { Message::Ask { request } } else { Message::Query { request } };
            outputs.push(Output::Send { donor: *donor, session: view.session, message });
        }
        if let Some(donor) = told {
            self.told_need = Some((now, donor));
            self.open.values_mut().for_each(|view| view.is_needed = false);
        }
    }

    /// The time of the next question.
    pub fn due(&self) -> Option<Instant> {
        let next = |view: &DonorView| {
            let due = view.asked + self.interval();
            view.refused_until.map_or(due, |until| due.max(until))
        };
        self.open.values().map(next).min()
    }

    fn interval(&self) -> std::time::Duration {
        if self.is_room_known { FREE_INTERVAL } else { FREE_INTERVAL_FULL }
    }

    /// Whether a donor may have memory for a slab. A silent donor counts: without a disk, a write can only wait for the
    /// silent donor.
    pub fn has_room(&mut self, now: Instant, slab_size_bytes: u64, has_disk: bool) -> bool {
        let may_lend = |view: &DonorView| {
            let is_waited_for = !has_disk && view.is_silent;
            view.may_be_used() && view.free_bytes >= slab_size_bytes && (!view.is_refused(now) || is_waited_for)
        };
        self.is_room_known = self.open.values().any(may_lend);
        self.is_room_known
    }
}

impl DonorView {
    /// Whether the donor may get slabs: it is trusted and is not being removed.
    pub fn may_be_used(&self) -> bool {
        !self.is_leaving && !self.is_distrusted
    }

    /// Whether the donor refused a moment ago.
    pub fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| until > now)
    }
}

const _: () = assert!(FREE_INTERVAL_FULL.as_nanos() <= FREE_INTERVAL.as_nanos());
const _: () = assert!(CONTROL_REPLY_DEADLINE.as_nanos() <= FREE_INTERVAL.as_nanos(), "one question at a time");
