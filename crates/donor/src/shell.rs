//! What stands around the [`Lender`]: one lock over it and over what its outputs are carried out on.
//!
//! A thread that has an input takes the lock, has the Lender decide, and does at once what is quick: handles of
//! sessions change, messages are queued, a session is closed. What takes long is done by the same thread after the lock
//! is released: messages are sent, memory is freed, log lines are written. Slabs are made by the thread of the session
//! that waits, or by the [`housekeeper`](crate::housekeeper) if they are made ahead.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use spillway_fabric::control::message::{Message, Welcome};
use spillway_fabric::units::SlabHandle;
use spillway_fabric::wire::proof::{SessionName, session_name};

use crate::lender::leases::SessionId;
use crate::lender::{EndReason, Input, Lender, Make, Note, Output, SlabId};
use crate::session::{Ending, Session};
use crate::slab_memory::SlabMemory;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) lender: Lender,
    /// Of the control connections.
    pub(crate) sessions: BTreeMap<SessionId, Arc<Session>>,
    sessions_next: u64,
    /// Sessions by the names that their data connections show.
    names: HashMap<SessionName, SessionId>,
    /// The slabs that are made, lent or not.
    memory: HashMap<SlabId, Arc<SlabMemory>>,
    /// Slabs to make ahead of need.
    pub(crate) to_make: VecDeque<Make>,
    /// When the Lender wants to be asked again.
    pub(crate) wake_at: Option<Instant>,
    /// Slabs lent that are not locked in memory.
    pub(crate) slabs_unlocked: u64,
}

/// What is left to do when the lock is released.
#[derive(Default)]
#[must_use]
pub(crate) struct Rest {
    freed: Vec<Arc<SlabMemory>>,
    to_flush: Vec<Arc<Session>>,
    /// Sessions whose connections are to be ended.
    pub(crate) ended: Vec<SessionId>,
    /// Slabs that a session waits for.
    pub(crate) wanted: Vec<Make>,
    lines: Vec<(tracing::Level, String)>,
}

impl Rest {
    /// Sends, frees and writes.
    pub(crate) fn carry_out(&mut self) {
        for (level, line) in self.lines.drain(..) {
            match level {
                tracing::Level::WARN => tracing::warn!("{line}"),
                _ => tracing::info!("{line}"),
            }
        }
        self.to_flush.drain(..).for_each(|session| session.flush());
        self.freed.clear();
    }

    fn inform(&mut self, line: String) {
        self.lines.push((tracing::Level::INFO, line));
    }

    fn warn(&mut self, line: String) {
        self.lines.push((tracing::Level::WARN, line));
    }

    fn flush(&mut self, session: &Arc<Session>) {
        if self.to_flush.last().is_none_or(|last| last.id != session.id) {
            self.to_flush.push(Arc::clone(session));
        }
    }
}

impl Shell {
    pub(crate) fn new(lender: Lender) -> Self {
        Self {
            lender,
            sessions: BTreeMap::new(),
            sessions_next: 0,
            names: HashMap::new(),
            memory: HashMap::new(),
            to_make: VecDeque::new(),
            wake_at: None,
            slabs_unlocked: 0,
        }
    }

    /// A number for a new session.
    pub(crate) fn next_session(&mut self) -> SessionId {
        let id = SessionId(self.sessions_next);
        self.sessions_next += 1;
        id
    }

    /// From now on the Lender's outputs find `session`, and so do its data connections.
    pub(crate) fn enter(&mut self, session: Arc<Session>) {
        self.names.insert(session_name(&session.token), session.id);
        self.sessions.insert(session.id, session);
    }

    /// No output and no data connection finds `session` any more.
    pub(crate) fn leave(&mut self, session: &Session) {
        self.names.remove(&session_name(&session.token));
        self.sessions.remove(&session.id);
    }

    /// The session that data connections call `name`.
    pub(crate) fn find(&self, name: SessionName) -> Option<Arc<Session>> {
        self.names.get(&name).and_then(|id| self.sessions.get(id)).cloned()
    }

    /// A slab was made: keeps it for the Lender's decision about it.
    pub(crate) fn keep(&mut self, slab: SlabId, memory: SlabMemory) {
        let old = self.memory.insert(slab, Arc::new(memory));
        assert!(old.is_none(), "a slab is made once");
    }

    /// Has the Lender decide about `input`, and does what is quick. `welcome` has what only the donor knows.
    pub(crate) fn feed(&mut self, input: Input, welcome: &Welcome) -> Rest {
        let mut rest = Rest::default();
        for output in self.lender.on(Instant::now(), input) {
            self.apply(output, welcome, &mut rest);
        }
        rest
    }

    fn apply(&mut self, output: Output, welcome: &Welcome, rest: &mut Rest) {
        match output {
            Output::Welcome { session, free_bytes, resume, held } => {
                let Some(session) = self.sessions.get(&session) else { return };
                let connected = if held > 0 { "is back" } else { "is connected" };
                let Session { volume, peer, borrower, token, .. } = &**session;
                rest.inform(format!("volume {volume} of {peer} {connected}, borrower {borrower}"));
                let welcome = Welcome { token: *token, free_bytes, resume, held, ..welcome.clone() };
                self.send(session.id, Message::Welcome(welcome), rest);
            }
            Output::Reject { session, reason } => {
                self.send(session, Message::Rejected { reason: reason.clone() }, rest);
                self.forget(session, Ending::Rejected(reason));
            }
            Output::Send { session, message } => self.send(session, message, rest),
            Output::End { session, reason } => self.end(session, reason, rest),
            Output::Make(make) if make.wanted_by.is_some() => rest.wanted.push(make),
            Output::Make(make) => self.to_make.push_back(make),
            Output::Attach { slab, session, handle } => self.attach(slab, session, handle),
            Output::Detach { session, handle } => {
                if let Some(session) = self.sessions.get(&session) {
                    session.slabs.remove(handle);
                }
            }
            Output::Free { slab } => rest.freed.extend(self.memory.remove(&slab)),
            Output::WakeAt(wake_at) => self.wake_at = wake_at,
            Output::Note(note) => rest.warn(note_text(&note)),
        }
    }

    fn attach(&self, slab: SlabId, session: SessionId, handle: SlabHandle) {
        let memory = self.memory.get(&slab).expect("a slab is made before it is lent");
        if let Some(session) = self.sessions.get(&session) {
            session.slabs.insert(handle, Arc::clone(memory));
        }
    }

    fn send(&mut self, session: SessionId, message: Message, rest: &mut Rest) {
        let Some(session) = self.sessions.get(&session).cloned() else { return };
        match &message {
            Message::Recall { slabs, .. } => {
                rest.inform(format!("{} slabs of volume {} are recalled", slabs.len(), session.volume));
            }
            Message::Leased { slab, .. } => self.note_unlocked(&session, *slab, rest),
            _ => {}
        }
        session.outbox.push(message);
        rest.flush(&session);
    }

    fn note_unlocked(&mut self, session: &Session, slab: SlabHandle, rest: &mut Rest) {
        if session.slabs.find(slab).is_none_or(|memory| memory.is_locked()) {
            return;
        }
        self.slabs_unlocked += 1;
        if self.slabs_unlocked == 1 {
            let advice = "run as root, or raise `ulimit -l`";
            rest.warn(format!("slabs cannot be locked in memory, so this machine may swap them out; {advice}"));
        }
    }

    fn end(&mut self, session: SessionId, reason: EndReason, rest: &mut Rest) {
        rest.ended.push(session);
        if let Some(session) = self.forget(session, Ending::Ended(reason)) {
            session.end();
            session.slabs.clear();
        }
    }

    /// The Lender names this session no more.
    fn forget(&mut self, session: SessionId, ending: Ending) -> Option<Arc<Session>> {
        let session = self.sessions.get(&session).cloned()?;
        self.leave(&session);
        // It ends once.
        let _ = session.ending.set(ending);
        Some(session)
    }
}

fn note_text(note: &Note) -> String {
    match note {
        Note::Overdue(count) => format!("{count} recalled slabs are overdue; asking for them again"),
        Note::NotBack(volume) => format!("volume {volume} did not come back: its slabs are taken back"),
        Note::MakeFailed { size_bytes, reason } => format!("a slab of {size_bytes} bytes cannot be made: {reason}"),
    }
}
