//! What the Steward knows of each donor: its session, its room, and when it refused.
//!
//! A donor is asked for its room from time to time ([`FREE_INTERVAL`]), more often while no donor has any
//! ([`FREE_INTERVAL_FULL`]): writes wait for memory then. One question is under way to each at a time.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use spillway_fabric::control::message::Message;
use spillway_fabric::site::Site;
use spillway_fabric::units::DonorId;

use super::{Link, Output, SessionNumber};
use crate::limits::{CONTROL_REPLY_DEADLINE, FREE_INTERVAL, FREE_INTERVAL_FULL, OFFER_KEPT_ROOM_SLABS, REFUSAL_PAUSE};
use crate::slab_map::slab_entry::DonorSlot;

/// A slab that a donor keeps for this borrower, by the number of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The question's.
    pub request: u32,
    /// It is used no later.
    pub until: Instant,
}

/// A donor with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorView {
    /// Its session.
    pub session: SessionNumber,
    /// Who it is, whatever its address.
    pub identity: DonorId,
    /// What it could lend when it last spoke of that, less what it lent since.
    pub free_bytes: u64,
    /// Slabs of this volume that it holds.
    pub slabs_held: u64,
    /// Where it stands.
    pub site: Site,
    /// It refused a slab, or did not answer, and is passed over until then.
    pub refused_until: Option<Instant>,
    /// Its session is open, but it says nothing.
    pub is_silent: bool,
    /// It is to be used no more, and gets no slab.
    pub is_leaving: bool,
    /// It sent too many pages that are not what was written; it gets no slab.
    pub is_distrusted: bool,
    /// An answer that no placement used: the next one that draws this donor need not ask.
    offer: Option<Offer>,
    /// When it was last asked for its room, or spoke of it.
    asked: Instant,
    /// A slab found no room that it could take.
    is_needed: bool,
}

/// The donors with a session, by slot.
#[derive(Clone, Debug, Default)]
pub struct Donors {
    open: BTreeMap<DonorSlot, DonorView>,
    /// Those that are to be used no more, with a session or without; and whether it was said that they are empty.
    leaving: BTreeMap<DonorSlot, bool>,
    /// Donors that are not trusted any more, whatever their session.
    distrusted: BTreeSet<DonorSlot>,
    next_request: u32,
    /// What [`Donors::has_room`] said last: decides how often donors are asked.
    is_room_known: bool,
    /// When a donor was told last that a slab found no room, and which one.
    told_need: Option<(Instant, DonorSlot)>,
}

impl Donors {
    /// A session was opened, and the donor has said what it could lend.
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

    /// The session is over.
    pub fn down(&mut self, donor: DonorSlot) {
        self.open.remove(&donor);
    }

    /// It is to be used no more, or may be used again; false when that is known already.
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

    /// Those that are to be used no more, and of which nothing was said yet.
    pub fn leaving(&self) -> Vec<DonorSlot> {
        self.leaving.iter().filter(|(_, is_told)| !**is_told).map(|(donor, _)| *donor).collect()
    }

    /// Whether it is to be used no more, and it was not said yet that it is empty.
    pub fn is_leaving_with_copies(&self, donor: DonorSlot) -> bool {
        self.leaving.get(&donor) == Some(&false)
    }

    /// It was said that it is empty.
    pub fn told_empty(&mut self, donor: DonorSlot) {
        if let Some(is_told) = self.leaving.get_mut(&donor) {
            *is_told = true;
        }
    }

    /// It is not trusted any more.
    pub fn distrust(&mut self, donor: DonorSlot) {
        self.distrusted.insert(donor);
        if let Some(view) = self.open.get_mut(&donor) {
            view.is_distrusted = true;
        }
    }

    /// It is another donor, of which nothing is known.
    pub fn trust(&mut self, donor: DonorSlot) {
        self.distrusted.remove(&donor);
        if let Some(view) = self.open.get_mut(&donor) {
            view.is_distrusted = false;
        }
    }

    /// Whether it is not trusted any more.
    pub fn is_distrusted(&self, donor: DonorSlot) -> bool {
        self.distrusted.contains(&donor)
    }

    /// Whether some donor is not trusted.
    pub fn has_distrusted(&self) -> bool {
        !self.distrusted.is_empty()
    }

    /// It says nothing, or was heard again.
    pub fn silent(&mut self, donor: DonorSlot, is_silent: bool) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.is_silent = is_silent;
        }
    }

    /// Its open session.
    pub fn session(&self, donor: DonorSlot) -> Option<SessionNumber> {
        self.open.get(&donor).map(|view| view.session)
    }

    /// What is known of it, while it has a session.
    pub fn view(&self, donor: DonorSlot) -> Option<&DonorView> {
        self.open.get(&donor)
    }

    /// All that have a session.
    pub fn open(&self) -> impl Iterator<Item = (DonorSlot, &DonorView)> {
        self.open.iter().map(|(slot, view)| (*slot, view))
    }

    /// A number for a question, which comes back in its answer.
    pub fn number(&mut self) -> u32 {
        self.next_request = self.next_request.wrapping_add(1);
        self.next_request
    }

    /// It said how much it could lend.
    pub fn told_free(&mut self, now: Instant, donor: DonorSlot, free_bytes: u64) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.free_bytes = free_bytes;
            view.asked = now;
        }
    }

    /// The slab that it keeps for the next placement, if there is time to use it.
    pub fn take_offer(&mut self, now: Instant, donor: DonorSlot) -> Option<Offer> {
        self.open.get_mut(&donor)?.offer.take().filter(|offer| offer.until > now)
    }

    /// An offer was not used. It is kept for the next placement, where it takes nothing from others. What is not needed
    /// of it and the one before.
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

    /// It lent a slab.
    pub fn lent(&mut self, donor: DonorSlot, slab_size_bytes: u64) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.slabs_held += 1;
            view.free_bytes = view.free_bytes.saturating_sub(slab_size_bytes);
        }
    }

    /// It got a slab back.
    pub fn returned(&mut self, donor: DonorSlot) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.slabs_held = view.slabs_held.saturating_sub(1);
        }
    }

    /// It refused, or did not answer: passed over for a while.
    pub fn refuses(&mut self, now: Instant, donor: DonorSlot) {
        if let Some(view) = self.open.get_mut(&donor) {
            view.refused_until = Some(now + REFUSAL_PAUSE);
        }
    }

    /// A slab needs room that no donor has; `holders` cannot take it.
    pub fn need(&mut self, holders: &[DonorSlot]) {
        let identities: Vec<DonorId> =
            holders.iter().filter_map(|donor| self.view(*donor)).map(|it| it.identity).collect();
        for view in self.open.values_mut() {
            view.is_needed |= !identities.contains(&view.identity);
        }
    }

    /// Asks those for their room that were not asked for a while. A donor without room learns of a need by the question
    /// for a slab, which it cannot keep. One is told each time, as each may ask another machine for a slab.
    pub fn ask_free(&mut self, now: Instant, slab_size_bytes: u64, outputs: &mut Vec<Output>) {
        let interval = self.interval();
        let is_due = |view: &DonorView| now.saturating_duration_since(view.asked) >= interval && !view.is_refused(now);
        let may_tell = self.told_need.is_none_or(|(told, _)| now >= told + FREE_INTERVAL);
        let is_full = |view: &DonorView| view.is_needed && view.may_be_used() && view.free_bytes < slab_size_bytes;
        let full =
            self.open.iter().filter(|(_, view)| may_tell && is_due(view) && is_full(view)).map(|(donor, _)| *donor);
        let full: Vec<DonorSlot> = full.collect();
        // They take turns.
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

    /// When that is to be done next.
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

    /// Whether a donor may have room for a slab. Without a disk a write can only wait for a donor that says nothing for
    /// a moment, so that counts as room.
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
    /// Whether slabs may be put there: it is trusted, and does not leave.
    pub fn may_be_used(&self) -> bool {
        !self.is_leaving && !self.is_distrusted
    }

    /// Whether it refused a moment ago.
    pub fn is_refused(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| until > now)
    }
}

const _: () = assert!(FREE_INTERVAL_FULL.as_nanos() <= FREE_INTERVAL.as_nanos());
const _: () = assert!(CONTROL_REPLY_DEADLINE.as_nanos() <= FREE_INTERVAL.as_nanos(), "one question at a time");
