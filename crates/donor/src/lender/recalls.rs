//! When slabs are asked back: to drain, under pressure, for machines in need, and again when a borrower is late.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::time::Instant;

use spillway_fabric::control::message::Message;
use spillway_fabric::limits::SLABS_PER_MESSAGE_MAX;
use spillway_fabric::units::SlabHandle;

use super::eviction::Eviction;
use super::leases::{Cause, Lease, SessionId};
use super::{Lender, Note, Output};
use crate::limits::RECALL_DEADLINE;

impl Lender {
    /// Asks for what is overdue, for what an eviction has chosen, and starts the next one.
    pub(super) fn plan_recalls(&mut self, now: Instant) {
        let mut wanted = self.leases.take_overdue(now, RECALL_DEADLINE);
        if !wanted.is_empty() {
            self.outputs.push(Output::Note(Note::Overdue(wanted.len())));
        }
        if self.is_draining {
            self.eviction = None;
            let all = self.leases.recallable().into_iter().map(|(lease, _)| lease).collect();
            wanted.extend(self.note_recalled(all, Cause::Drain, now));
        } else if let Some(eviction) = self.eviction.take_if(|eviction| eviction.is_ready(now)) {
            wanted.extend(self.note_recalled(eviction.choose(), Cause::Shortage, now));
        }
        for (session, slabs) in by_session(&wanted) {
            let deadline_ms = RECALL_DEADLINE.as_millis() as u32;
            self.tell_of(session, &slabs, |slabs| Message::Recall { slabs, deadline_ms });
        }
        if self.eviction.is_none() && !self.is_draining {
            self.start_eviction(now);
        }
    }

    /// Lends again. Borrowers may keep what was asked back for the drain; what the machine is short of it asks for
    /// anew.
    pub(super) fn undrain(&mut self) {
        self.is_draining = false;
        for (session, slabs) in by_session(&self.leases.withdraw_drained()) {
            self.tell_of(session, &slabs, |slabs| Message::RecallWithdrawn { slabs });
        }
    }

    fn start_eviction(&mut self, now: Instant) {
        let shortage_bytes = self.capacity.shortage_bytes(self.holdings());
        let (wanted_bytes, lent) =
            if shortage_bytes > 0 { (shortage_bytes, self.leases.recallable()) } else { self.wanted_for_needs() };
        if wanted_bytes == 0 {
            return;
        }
        let request = self.evictions_next;
        let (percent, random) = (self.eviction_sample_percent, &mut self.random);
        let Some(eviction) = Eviction::start(request, wanted_bytes, percent, lent, now, random) else { return };
        self.evictions_next = request.wrapping_add(1);
        for (session, slabs) in eviction.questions() {
            self.tell_of(session, &slabs, |slabs| Message::ActivityQuery { request, slabs });
        }
        self.eviction = Some(eviction);
    }

    /// Notes that these are asked back; those that were not already.
    fn note_recalled(&mut self, leases: Vec<Lease>, cause: Cause, now: Instant) -> Vec<Lease> {
        leases.into_iter().filter(|lease| self.leases.recall(*lease, cause, now + RECALL_DEADLINE)).collect()
    }

    /// Says something of slabs to a session that is open and not stopped.
    fn tell_of(&mut self, session: SessionId, slabs: &[SlabHandle], message: impl Fn(Vec<SlabHandle>) -> Message) {
        if self.sessions.open.get(&session).is_none_or(|open| open.is_stopped) {
            return;
        }
        for part in slabs.chunks(SLABS_PER_MESSAGE_MAX) {
            self.send(session, message(part.to_vec()));
        }
    }
}

fn by_session(leases: &[Lease]) -> BTreeMap<SessionId, Vec<SlabHandle>> {
    let mut slabs: BTreeMap<SessionId, Vec<SlabHandle>> = BTreeMap::new();
    for lease in leases {
        slabs.entry(lease.session).or_default().push(lease.slab);
    }
    slabs
}
