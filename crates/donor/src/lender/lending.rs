//! Lending a slab and taking it back: what a borrower asks for, and what came of making slabs.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::Instant;

use spillway_fabric::control::message::Message;
use spillway_fabric::units::SlabHandle;

use super::leases::{Lease, LeaseError, SessionId};
use super::{EndReason, Lender, Make, Note, Output, SlabId};

/// A slab that is being made; its memory counts as taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    size_bytes: u64,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// For a later lease.
    Ahead,
    /// For this one, asked for by that request.
    For(Lease, u32),
    /// For none any more: its session has ended.
    Nothing,
}

impl Making {
    pub(super) fn ahead(size_bytes: u64) -> Self {
        Self { size_bytes, purpose: Purpose::Ahead }
    }

    pub(super) fn is_ahead(&self) -> bool {
        matches!(self.purpose, Purpose::Ahead)
    }
}

/// Why a slab is not lent.
struct Refusal {
    /// Whether another donor should be asked.
    full: bool,
    reason: String,
}

impl From<LeaseError> for Refusal {
    fn from(error: LeaseError) -> Self {
        Self { full: error == LeaseError::SessionFull, reason: error.to_string() }
    }
}

impl Lender {
    /// The borrower of `session` said something.
    pub(super) fn hear(&mut self, now: Instant, session: SessionId, message: Message) {
        if !self.is_expected(session) {
            return;
        }
        match message {
            Message::Query { request } => {
                let free_bytes = self.sessions.open.get(&session).map_or(0, |open| self.free_for_bytes(open.machine));
                let slabs_held = self.leases.slabs_held(session) as u32;
                self.send(session, Message::Free { request, free_bytes, slabs_held });
            }
            Message::Ask { request } => self.ask(now, session, request),
            Message::Decline { request } => drop(self.reservations.take(session, request)),
            Message::Lease { request } => self.lease(now, session, request),
            Message::Release { slab } => self.release(now, Lease { session, slab }),
            Message::Activity { request, values } => {
                if let Some(eviction) = &mut self.eviction {
                    eviction.answer(request, session, &values);
                }
            }
            Message::Ping => self.send(session, Message::Pong),
            // The thread of the control channel has answered the other.
            Message::Pong | Message::RdmaConnect { .. } => {}
            Message::Goodbye { reason } => self.end(now, session, EndReason::Goodbye(reason)),
            _ => self.end(now, session, EndReason::Protocol),
        }
    }

    fn lease(&mut self, now: Instant, session: SessionId, request: u32) {
        // What was kept for it is there now.
        let was_kept = self.reservations.take(session, request);
        if let Err(Refusal { full, reason }) = self.try_lease(now, session, request, was_kept) {
            self.counters.leases_refused += 1;
            self.send(session, Message::Refused { request, full, reason });
        }
    }

    /// Lends a slab that was made ahead, or has one made.
    fn try_lease(&mut self, now: Instant, session: SessionId, request: u32, was_kept: bool) -> Result<(), Refusal> {
        let full = |reason: &str| Refusal { full: true, reason: reason.to_owned() };
        let open = self.sessions.open.get(&session).ok_or(LeaseError::NoSession)?;
        let (size_bytes, machine) = (open.slab_size_bytes, open.machine);
        if self.is_draining {
            return Err(full("the donor is being drained"));
        }
        if self.free_to_lend_bytes() < size_bytes {
            self.note_need(now, machine, size_bytes);
            return Err(full("the donor has no memory left to lend"));
        }
        if !was_kept && self.free_for_bytes(machine) < size_bytes {
            return Err(full(if self.machine_limit_bytes.is_some() {
                "the donor lends no more to one machine"
            } else {
                "the donor lends no more to one machine while others ask for their share"
            }));
        }
        self.needs.met(machine, size_bytes);
        let slab = self.prepared.peek(size_bytes).unwrap_or(SlabId(self.slabs_next));
        let handle = self.leases.book(session, slab)?;
        let lease = Lease { session, slab: handle };
        if self.prepared.take(size_bytes).is_some() {
            self.lend(lease, slab, request);
            return Ok(());
        }
        self.counters.leases_unprepared += 1;
        let named = self.start_making(Making { size_bytes, purpose: Purpose::For(lease, request) });
        assert!(named == slab, "the slab that was booked is the one that is made");
        self.outputs.push(Output::Make(Make { slab, size_bytes, wanted_by: Some(session) }));
        Ok(())
    }

    /// A slab is about to be made. What to call it.
    pub(super) fn start_making(&mut self, making: Making) -> SlabId {
        let slab = SlabId(self.slabs_next);
        self.slabs_next += 1;
        self.capacity.taken(making.size_bytes);
        self.making.insert(slab, making);
        slab
    }

    fn lend(&mut self, lease: Lease, slab: SlabId, request: u32) {
        self.leases.lend(lease);
        self.counters.leases_granted += 1;
        self.outputs.push(Output::Attach { slab, session: lease.session, handle: lease.slab });
        self.send(lease.session, Message::Leased { request, slab: lease.slab, key: None });
    }

    pub(super) fn made(&mut self, slab: SlabId) {
        let Some(Making { size_bytes, purpose }) = self.making.remove(&slab) else { return };
        match purpose {
            Purpose::Ahead => self.prepared.put(slab, size_bytes),
            Purpose::For(lease, request) => self.lend(lease, slab, request),
            Purpose::Nothing => self.free(slab, size_bytes),
        }
    }

    pub(super) fn make_failed(&mut self, slab: SlabId, reason: &str) {
        let Some(Making { size_bytes, purpose }) = self.making.remove(&slab) else { return };
        self.capacity.returned(size_bytes);
        self.outputs.push(Output::Note(Note::MakeFailed { size_bytes, reason: reason.to_owned() }));
        match purpose {
            Purpose::Ahead => self.is_exhausted = true,
            Purpose::For(lease, request) => {
                assert!(self.leases.cancel(lease), "a booked lease waits for its slab");
                self.counters.leases_refused += 1;
                let reason = format!("the donor cannot make a slab: {reason}");
                self.send(lease.session, Message::Refused { request, full: true, reason });
            }
            Purpose::Nothing => {}
        }
    }

    fn release(&mut self, now: Instant, lease: Lease) {
        let Ok((slab, size_bytes)) = self.leases.release(lease) else {
            return self.end(now, lease.session, EndReason::Protocol);
        };
        self.detach(lease.session, lease.slab);
        self.free(slab, size_bytes);
        self.send(lease.session, Message::Released { slab: lease.slab });
    }

    fn detach(&mut self, session: SessionId, handle: SlabHandle) {
        self.outputs.push(Output::Detach { session, handle });
    }

    /// Leases of `session` whose slabs are still being made come to nothing: its borrower never hears of them.
    pub(super) fn cancel_booked(&mut self, session: SessionId) {
        for making in self.making.values_mut() {
            if let Purpose::For(lease, _) = making.purpose
                && lease.session == session
            {
                assert!(self.leases.cancel(lease), "a booked lease waits for its slab");
                making.purpose = Purpose::Nothing;
            }
        }
    }

    /// All slabs of `session` go back to the machine.
    pub(super) fn free_all(&mut self, session: SessionId) {
        let (slabs, size_bytes) = self.leases.close(session);
        slabs.into_iter().for_each(|slab| self.free(slab, size_bytes));
    }
}
