//! What the donor's threads share: one lock over every decision, held briefly and never while memory is made or a
//! peer is waited for.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use spillway_fabric::key::ClusterKey;
use spillway_fabric::units::{BorrowerId, DonorId, SlabHandle};
use spillway_fabric::wire::SessionToken;
use spillway_fabric::wire::proof::{SessionName, session_name};
use spillway_sys::memfd::Memfd;

use crate::capacity::{Capacity, Holdings};
use crate::complaints::Complaints;
use crate::connections::Connections;
use crate::eviction::Eviction;
use crate::leases::{Lease, LeaseBook, LeaseError, SessionId};
use crate::limits::{RESUME_DEADLINE, SESSIONS_MAX};
use crate::preparation;
use crate::session::Session;
use crate::slab_memory::{PreparedSlabs, SlabMemory};
use crate::status::Counters;

/// See the module text.
#[derive(Debug)]
pub(crate) struct DonorState {
    pub(crate) id: DonorId,
    pub(crate) key: Option<ClusterKey>,
    /// This host's boot id.
    pub(crate) host: [u8; 16],
    /// The UNIX socket told to borrowers.
    pub(crate) unix_path: Option<PathBuf>,
    pub(crate) connections: Connections,
    pub(crate) stopping: AtomicBool,
    pub(crate) connections_refused: AtomicU64,
    /// Log lines that strangers cause.
    complaints: Mutex<Complaints>,
    state: Mutex<State>,
    /// Signalled when the housekeeper has something to do, or someone waits for leases to return.
    changed: Condvar,
}

/// Everything decisions are made from.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) capacity: Capacity,
    pub(crate) leases: LeaseBook,
    pub(crate) prepared: PreparedSlabs,
    pub(crate) sessions: BTreeMap<SessionId, Arc<Session>>,
    /// Sessions that ended without a goodbye, and whose slabs are kept for their borrowers to come back.
    pub(crate) lingering: BTreeMap<SessionId, Lingering>,
    /// Sessions by the names that their data connections show.
    pub(crate) names: HashMap<SessionName, SessionId>,
    pub(crate) sessions_next: u64,
    pub(crate) eviction: Option<Eviction>,
    pub(crate) evictions_next: u32,
    pub(crate) draining: bool,
    /// What prepared slabs are made like while there is no session: the size of the newest one.
    pub(crate) slab_size_bytes: u64,
    pub(crate) counters: Counters,
}

/// A session whose borrower may come back.
#[derive(Debug)]
pub(crate) struct Lingering {
    session: Arc<Session>,
    until: Instant,
}

/// Why a slab was not lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Whether another donor should be asked.
    pub(crate) full: bool,
    /// For people.
    pub(crate) reason: String,
}

impl State {
    pub(crate) fn new(capacity: Capacity, slab_size_bytes: u64) -> Self {
        Self {
            capacity,
            leases: LeaseBook::default(),
            prepared: PreparedSlabs::default(),
            sessions: BTreeMap::new(),
            lingering: BTreeMap::new(),
            names: HashMap::new(),
            sessions_next: 0,
            eviction: None,
            evictions_next: 0,
            draining: false,
            slab_size_bytes,
            counters: Counters::default(),
        }
    }

    pub(crate) fn holdings(&self) -> Holdings {
        Holdings {
            lent_bytes: self.leases.lent_bytes(),
            recalled_bytes: self.leases.recalled_bytes(),
            prepared_bytes: self.prepared.bytes(),
        }
    }

    pub(crate) fn free_to_lend_bytes(&self) -> u64 {
        if self.draining { 0 } else { self.capacity.lendable_bytes(self.holdings()) }
    }

    /// The sizes of slabs to make ahead.
    pub(crate) fn sizes_in_use(&self) -> Vec<u64> {
        let used = self.sessions.values().rev().map(|session| session.slab_size_bytes);
        preparation::sizes(used, self.slab_size_bytes)
    }

    /// Books a slab for `session`, and finds its memory if it is prepared. Memory still to be made counts as taken.
    fn book(&mut self, session: SessionId, size_bytes: u64) -> Result<(SlabHandle, Option<SlabMemory>), Refusal> {
        let full = |reason: &str| Refusal { full: true, reason: reason.to_owned() };
        if self.draining {
            return Err(full("the donor is being drained"));
        }
        if self.free_to_lend_bytes() < size_bytes {
            return Err(full("the donor has no memory left to lend"));
        }
        let handle = self.leases.lease(session).map_err(Refusal::from)?;
        let memory = self.prepared.take(size_bytes);
        if memory.is_none() {
            self.capacity.taken(size_bytes);
            self.counters.leases_unprepared += 1;
        }
        Ok((handle, memory))
    }
}

impl From<LeaseError> for Refusal {
    fn from(error: LeaseError) -> Self {
        Self { full: error == LeaseError::SessionFull, reason: error.to_string() }
    }
}

impl DonorState {
    /// Writes into the log what a stranger caused, or keeps it back for a while.
    pub(crate) fn complain(&self, text: &str) {
        let mut complaints = self.complaints.lock().expect("no thread panics while it complains");
        if let Some(line) = complaints.take(text, Instant::now()) {
            tracing::warn!("{line}");
        }
    }

    pub(crate) fn new(
        id: DonorId,
        key: Option<ClusterKey>,
        host: [u8; 16],
        unix_path: Option<PathBuf>,
        state: State,
    ) -> Self {
        Self {
            id,
            key,
            host,
            unix_path,
            connections: Connections::default(),
            stopping: AtomicBool::new(false),
            connections_refused: AtomicU64::new(0),
            complaints: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the donor's state locked")
    }

    /// Waits until something changed, or for `timeout`.
    pub(crate) fn wait<'state>(
        &self,
        state: MutexGuard<'state, State>,
        timeout: std::time::Duration,
    ) -> MutexGuard<'state, State> {
        self.changed.wait_timeout(state, timeout).expect("no thread panics with the donor's state locked").0
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A new session, made by `make` for its id; an error says why there is none.
    pub(crate) fn open_session(&self, make: impl FnOnce(SessionId) -> Session) -> Result<Arc<Session>, String> {
        let mut state = self.lock();
        if state.sessions.len() >= SESSIONS_MAX {
            return Err(format!("the donor serves {SESSIONS_MAX} borrowers already"));
        }
        if state.draining {
            return Err("the donor is being drained".to_owned());
        }
        let id = SessionId(state.sessions_next);
        state.sessions_next += 1;
        let session = Arc::new(make(id));
        state.leases.open(id, session.slab_size_bytes);
        state.slab_size_bytes = session.slab_size_bytes;
        state.names.insert(session_name(&session.token), id);
        state.sessions.insert(id, Arc::clone(&session));
        state.counters.sessions_opened += 1;
        self.notify();
        Ok(session)
    }

    /// The session ends, and its connections close. Its slabs come back at once, unless it `may_resume` and asked for
    /// that: then they are kept for as long as it asked.
    pub(crate) fn close_session(&self, session: &Arc<Session>, may_resume: bool) {
        session.end();
        let mut state = self.lock();
        let lingers = may_resume && !session.linger.is_zero() && state.leases.slabs_held(session.id) > 0;
        if lingers {
            let lingering = Lingering { session: Arc::clone(session), until: Instant::now() + session.linger };
            state.lingering.insert(session.id, lingering);
        } else {
            let returned_bytes = state.leases.close(session.id);
            state.capacity.returned(returned_bytes);
        }
        state.names.remove(&session_name(&session.token));
        state.sessions.remove(&session.id);
        drop(state);
        self.connections.end_session(session.id);
        if !lingers {
            session.slabs.clear();
        }
        self.notify();
    }

    /// Takes back the slabs of borrowers that did not come back in time.
    pub(crate) fn expire_lingering(&self, now: Instant) {
        let mut state = self.lock();
        let expired: Vec<SessionId> =
            state.lingering.iter().filter(|(_, lingering)| lingering.until <= now).map(|(id, _)| *id).collect();
        if expired.is_empty() {
            return;
        }
        let mut gone = Vec::new();
        for id in expired {
            gone.extend(state.lingering.remove(&id));
            let returned_bytes = state.leases.close(id);
            state.capacity.returned(returned_bytes);
        }
        drop(state);
        for Lingering { session, .. } in gone {
            tracing::warn!("volume {} of {} did not come back: its slabs are taken back", session.volume, session.peer);
            session.slabs.clear();
        }
        self.notify();
    }

    /// Finds the session of `borrower` that `token` resumes, if it has one. One that is open is ended first: its
    /// borrower knows better. Nothing of the old session reaches a slab any more when this returns.
    pub(crate) fn find_resumable(&self, borrower: BorrowerId, token: &SessionToken) -> Option<SessionId> {
        let deadline = Instant::now() + RESUME_DEADLINE;
        let is_it = |session: &Session| session.borrower == borrower && session.resume == *token;
        let id = loop {
            let state = self.lock();
            let open = state.sessions.values().find(|session| is_it(session)).cloned();
            let Some(open) = open else {
                break state.lingering.values().find(|lingering| is_it(&lingering.session))?.session.id;
            };
            if Instant::now() >= deadline {
                return None;
            }
            drop(state);
            open.end();
            drop(self.wait(self.lock(), RESUME_DEADLINE / 100));
        };
        self.connections.wait_session_gone(id, deadline).then_some(id)
    }

    /// Opens a session anew, made by `make` for the id that it had, with the slabs that it had. `None` when they were
    /// taken back meanwhile, or are of another size.
    pub(crate) fn resume_session(
        &self,
        id: SessionId,
        make: impl FnOnce(SessionId) -> Session,
    ) -> Option<Arc<Session>> {
        let session = Arc::new(make(id));
        let mut state = self.lock();
        if state.lingering.get(&id)?.session.slab_size_bytes != session.slab_size_bytes {
            return None;
        }
        let old = state.lingering.remove(&id)?.session;
        session.slabs.adopt(&old.slabs);
        state.names.insert(session_name(&session.token), id);
        state.sessions.insert(id, Arc::clone(&session));
        state.counters.sessions_resumed += 1;
        Some(session)
    }

    /// The session that data connections call `name`.
    pub(crate) fn find_session(&self, name: SessionName) -> Option<Arc<Session>> {
        let state = self.lock();
        state.names.get(&name).and_then(|id| state.sessions.get(id)).cloned()
    }

    /// Lends a slab to `session`; with the file to pass if it maps slabs itself.
    pub(crate) fn lend(&self, session: &Session) -> Result<(SlabHandle, Option<Memfd>), Refusal> {
        let booked = self.lock().book(session.id, session.slab_size_bytes);
        let outcome = booked.and_then(|(handle, memory)| self.fill(session, handle, memory));
        let mut state = self.lock();
        match &outcome {
            Ok(_) => state.counters.leases_granted += 1,
            Err(_) => state.counters.leases_refused += 1,
        }
        drop(state);
        // A prepared slab is to be replaced.
        self.notify();
        outcome
    }

    /// Puts memory behind a booked handle.
    fn fill(
        &self,
        session: &Session,
        handle: SlabHandle,
        memory: Option<SlabMemory>,
    ) -> Result<(SlabHandle, Option<Memfd>), Refusal> {
        let memory = memory.map_or_else(|| SlabMemory::prepare(session.slab_size_bytes, || {}), Ok);
        let lent = memory.and_then(|memory| {
            let file = if session.shares_memory { Some(memory.file()?) } else { None };
            self.note_unlocked(&memory);
            session.slabs.insert(handle, memory);
            Ok(file)
        });
        lent.map(|file| (handle, file)).map_err(|error| {
            tracing::warn!("a slab of {} bytes cannot be made: {error}", session.slab_size_bytes);
            // The session's thread is the one that runs this, so the lease is still there.
            let _ = self.take_back(session, handle);
            Refusal { full: true, reason: format!("the donor cannot make a slab: {error}") }
        })
    }

    fn note_unlocked(&self, memory: &SlabMemory) {
        if memory.is_locked() {
            return;
        }
        let mut state = self.lock();
        state.counters.slabs_unlocked += 1;
        if state.counters.slabs_unlocked == 1 {
            tracing::warn!(
                "slabs cannot be locked in memory, so this machine may swap them out; run as root, or raise `ulimit -l`"
            );
        }
    }

    /// `session` releases a slab.
    pub(crate) fn take_back(&self, session: &Session, slab: SlabHandle) -> Result<(), LeaseError> {
        let mut state = self.lock();
        state.leases.release(Lease { session: session.id, slab })?;
        state.capacity.returned(session.slab_size_bytes);
        drop(state);
        session.slabs.remove(slab);
        self.notify();
        Ok(())
    }
}
