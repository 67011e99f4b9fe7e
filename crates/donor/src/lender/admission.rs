//! How sessions begin and end.
//!
//! A session that shows the secret of another one of the same borrower resumes it. If that one is still open it is
//! ended first: its borrower knows better. The new one is welcomed when no connection of the old one is left, so that
//! no late write of the old process reaches a slab of the new one. It waits at most [`RESUME_DEADLINE`]; then it starts
//! with nothing, and the old one lingers on.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::Instant;

use spillway_fabric::control::message::Message;
use spillway_fabric::wire::SessionToken;

use super::leases::SessionId;
use super::sessions::{Lingering, Session, Waiting, refusal};
use super::{EndReason, Lender, Note, Opening, Output};
use crate::limits::{PATIENCE_MAX, RESUME_DEADLINE, SESSIONS_MAX};

impl EndReason {
    /// Whether the borrower may have died, and come back.
    fn is_sudden(&self) -> bool {
        matches!(self, Self::Silence(_) | Self::Replaced | Self::Lost)
    }
}

impl Lender {
    /// A borrower wants a session.
    pub(super) fn open(&mut self, now: Instant, opening: Opening) {
        let id = opening.session;
        if let Some(reason) = refusal(&opening) {
            return self.outputs.push(Output::Reject { session: id, reason });
        }
        let shown = opening.hello.resume;
        let session = Session::new(opening.machine, opening.hello, opening.resume);
        match shown {
            Some(shown) => self.resume(now, id, session, shown, now + RESUME_DEADLINE),
            None => self.open_fresh(id, session),
        }
    }

    fn open_fresh(&mut self, id: SessionId, session: Session) {
        if self.sessions.open.len() >= SESSIONS_MAX {
            let reason = format!("the donor serves {SESSIONS_MAX} borrowers already");
            return self.outputs.push(Output::Reject { session: id, reason });
        }
        if self.is_draining {
            let reason = "the donor is being drained".to_owned();
            return self.outputs.push(Output::Reject { session: id, reason });
        }
        self.leases.open(id, session.slab_size_bytes);
        self.slab_size_hint_bytes = session.slab_size_bytes;
        self.counters.sessions_opened += 1;
        self.welcome(id, session, 0);
    }

    fn welcome(&mut self, id: SessionId, session: Session, held: u32) {
        let (free_bytes, resume) = (self.free_for_bytes(session.machine), session.resume);
        self.outputs.push(Output::Welcome { session: id, free_bytes, resume, held });
        let old = self.sessions.open.insert(id, session);
        assert!(old.is_none(), "session ids are not used twice");
    }

    /// Opens a session with the slabs of the one whose secret was `shown`, now or when nothing of that is left.
    fn resume(&mut self, now: Instant, id: SessionId, session: Session, shown: SessionToken, until: Instant) {
        if let Some(open) = self.sessions.find_open(session.borrower, shown) {
            self.end(now, open, EndReason::Replaced);
        }
        match self.sessions.find_lingering(session.borrower, shown) {
            Some((old, lingering)) if lingering.session.slab_size_bytes == session.slab_size_bytes => {
                if lingering.is_gone {
                    self.take_over(old, id, session);
                } else {
                    self.sessions.waiting.insert(id, Waiting { session, old, shown, until });
                }
            }
            _ => self.open_fresh(id, session),
        }
    }

    fn take_over(&mut self, old: SessionId, id: SessionId, session: Session) {
        let lingering = self.sessions.lingering.remove(&old).expect("a session that is taken over lingers");
        // The same secret for all sessions in a row: a borrower that dies before it wrote a new one down has the old.
        let session = Session { resume: lingering.session.resume, ..session };
        let held = self.leases.adopt(old, id);
        self.counters.sessions_resumed += 1;
        for (handle, slab) in &held {
            self.outputs.push(Output::Attach { slab: *slab, session: id, handle: *handle });
        }
        self.welcome(id, session, held.len() as u32);
        for (slab, _) in held {
            self.send(id, Message::Held { slab, key: None });
        }
    }

    /// Whether `session` may say something now; it is not silent then. One that speaks before its welcome is ended.
    pub(super) fn is_expected(&mut self, session: SessionId) -> bool {
        if self.sessions.waiting.remove(&session).is_some() {
            self.outputs.push(Output::End { session, reason: EndReason::Protocol });
        }
        let Some(open) = self.sessions.open.get_mut(&session) else { return false };
        open.silence.is_broken();
        open.is_stopped = false;
        true
    }

    /// The borrower of `session` said nothing for one more heartbeat interval.
    pub(super) fn miss(&mut self, now: Instant, session: SessionId) {
        let Some(open) = self.sessions.open.get_mut(&session) else { return };
        open.silence.lasts();
        let silent_for = open.silence.observed();
        if open.patience.is_some_and(|patience| silent_for >= patience) {
            return self.end(now, session, EndReason::Silence(silent_for));
        }
        // A borrower that reads nothing for so long finds enough when it goes on, and more would fill its socket.
        open.is_stopped = silent_for >= PATIENCE_MAX;
        if !open.is_stopped {
            self.send(session, Message::Ping);
        }
    }

    /// The control connection of `session` ended.
    pub(super) fn lose(&mut self, now: Instant, session: SessionId) {
        if self.sessions.waiting.remove(&session).is_some() {
            self.outputs.push(Output::End { session, reason: EndReason::Lost });
        } else if self.sessions.open.contains_key(&session) {
            self.end(now, session, EndReason::Lost);
        }
    }

    /// An open session ends. Its slabs come back at once, unless its borrower may come back and asked for that.
    pub(super) fn end(&mut self, now: Instant, id: SessionId, reason: EndReason) {
        let session = self.sessions.open.remove(&id).expect("only an open session ends");
        self.cancel_booked(id);
        self.reservations.close(id);
        let lingers = reason.is_sudden() && !session.linger.is_zero() && self.leases.slabs_held(id) > 0;
        self.outputs.push(Output::End { session: id, reason });
        if lingers {
            let until = now + session.linger;
            self.sessions.lingering.insert(id, Lingering { session, until, is_gone: false });
        } else {
            self.free_all(id);
        }
    }

    /// No connection of `session` is left.
    pub(super) fn vacate(&mut self, now: Instant, session: SessionId) {
        if let Some(lingering) = self.sessions.lingering.get_mut(&session) {
            lingering.is_gone = true;
            self.readmit(now, session);
        }
    }

    /// Sessions that wait for `old` try again.
    fn readmit(&mut self, now: Instant, old: SessionId) {
        for (id, waiting) in self.sessions.waiting.extract_if(.., |_, waiting| waiting.old == old).collect::<Vec<_>>() {
            self.resume(now, id, waiting.session, waiting.shown, waiting.until);
        }
    }

    /// Takes back the slabs of borrowers that did not come back in time, and lets no session wait too long.
    pub(super) fn expire_sessions(&mut self, now: Instant) {
        if self.sessions.due().is_none_or(|due| due > now) {
            return;
        }
        let late = self.sessions.waiting.extract_if(.., |_, waiting| waiting.until <= now).collect::<Vec<_>>();
        for (id, waiting) in late {
            self.open_fresh(id, waiting.session);
        }
        let late = self.sessions.lingering.extract_if(.., |_, lingering| lingering.until <= now).collect::<Vec<_>>();
        for (id, lingering) in late {
            self.outputs.push(Output::Note(Note::NotBack(lingering.session.volume)));
            self.free_all(id);
            self.readmit(now, id);
        }
    }
}
