//! Slabs kept for borrowers that asked for room: none of them is refused the slab that it was offered.
//!
//! A borrower asks several donors and takes a slab of one. Without a reservation, others could be promised the same
//! memory in between. A reservation counts as taken until it is leased, declined, or [`RESERVATION_TIME`] old; it ends
//! with its session. The machine's own needs come first: when less can be lent than is kept, the newest reservations
//! end, and their borrowers are refused. No slab is made for one.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::time::Instant;

use spillway_fabric::control::message::Message;
use spillway_fabric::limits::{RESERVATION_TIME, SLABS_PER_SESSION_MAX};

use super::Lender;
use super::leases::SessionId;
use crate::limits::RESERVATIONS_PER_SESSION_MAX;

#[derive(Clone, Copy, Debug)]
struct Reservation {
    size_bytes: u64,
    until: Instant,
}

/// All reservations, by session and the number of the question.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    kept: BTreeMap<(SessionId, u32), Reservation>,
    bytes: u64,
}

impl Reservations {
    /// Bytes kept for all sessions.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes kept for one.
    pub(super) fn bytes_of(&self, session: SessionId) -> u64 {
        self.of(session).map(|(_, reservation)| reservation.size_bytes).sum()
    }

    fn of(&self, session: SessionId) -> impl Iterator<Item = (&(SessionId, u32), &Reservation)> {
        self.kept.range((session, 0)..=(session, u32::MAX))
    }

    /// Keeps a slab; false when one is kept for this question already.
    fn keep(&mut self, session: SessionId, request: u32, reservation: Reservation) -> bool {
        if self.kept.contains_key(&(session, request)) {
            return false;
        }
        self.kept.insert((session, request), reservation);
        self.bytes += reservation.size_bytes;
        true
    }

    /// Ends one. Whether there was one.
    pub(super) fn take(&mut self, session: SessionId, request: u32) -> bool {
        let Some(reservation) = self.kept.remove(&(session, request)) else { return false };
        assert!(self.bytes >= reservation.size_bytes, "the bytes are those of the reservations");
        self.bytes -= reservation.size_bytes;
        true
    }

    /// Ends those of a session.
    pub(super) fn close(&mut self, session: SessionId) {
        let of_session: Vec<_> = self.of(session).map(|(key, _)| *key).collect();
        of_session.into_iter().for_each(|(session, request)| assert!(self.take(session, request), "it was there"));
    }

    /// Ends those that are too old.
    pub(super) fn expire(&mut self, now: Instant) {
        let late = self.kept.iter().filter(|(_, reservation)| reservation.until <= now).map(|(key, _)| *key);
        let late: Vec<_> = late.collect();
        late.into_iter().for_each(|(session, request)| assert!(self.take(session, request), "it was there"));
    }

    /// When the next one is too old.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kept.values().map(|reservation| reservation.until).min()
    }

    /// Ends the newest ones until no more than so many bytes are kept.
    fn trim(&mut self, most_bytes: u64) {
        while self.bytes > most_bytes {
            let newest = self.kept.iter().max_by_key(|(key, reservation)| (reservation.until, **key));
            let (session, request) = *newest.expect("bytes are kept for reservations").0;
            assert!(self.take(session, request), "it was just found");
        }
    }
}

impl Lender {
    /// A borrower asks for room, and for a slab to be kept.
    pub(super) fn ask(&mut self, now: Instant, session: SessionId, request: u32) {
        let Some(open) = self.sessions.open.get(&session) else { return };
        let (machine, size_bytes) = (open.machine, open.slab_size_bytes);
        let free_bytes = self.free_for_bytes(machine).saturating_add(self.reservations.bytes_of(session));
        let kept = self.reservations.of(session).count();
        let has_place = kept < RESERVATIONS_PER_SESSION_MAX
            && self.leases.slabs_held(session) + kept < SLABS_PER_SESSION_MAX
            && self.free_for_bytes(machine) >= size_bytes;
        if self.free_to_lend_bytes() < size_bytes {
            self.note_need(now, machine, size_bytes);
        }
        let until = now + RESERVATION_TIME;
        let is_reserved = has_place && self.reservations.keep(session, request, Reservation { size_bytes, until });
        self.send(session, Message::Offered { request, free_bytes, is_reserved });
    }

    /// Ends reservations that the machine's memory, the quota or a drain leave no room for.
    pub(super) fn trim_reservations(&mut self) {
        let most_bytes = if self.is_draining { 0 } else { self.capacity.reservable_bytes(self.holdings()) };
        self.reservations.trim(most_bytes);
    }
}
