//! The donors of a device: what is known of each, and asking them for memory.
//!
//! One [`DonorEntry`] per address that was given; its place in the table is the donor's slot in slab entries. Its
//! link thread ([`super::link`]) makes and loses sessions; the manager and the mover call it through
//! [`DonorEntry::lease`] and the like, which wait for the answer for a bounded time.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_fabric::address::DonorAddress;
use spillway_fabric::control::ControlSender;
use spillway_fabric::control::message::Message;
use spillway_fabric::patience::Patience;
use spillway_fabric::shm::ShmWindow;
use spillway_fabric::units::{DonorId, SlabHandle};
use spillway_sys::memfd::Memfd;

use crate::limits::{CONTROL_REPLY_DEADLINE, LEASE_DEADLINE_PER_GIBIBYTE, REFUSAL_PAUSE};
use crate::slab_map::slab_entry::DonorSlot;
use crate::status::{DonorLatencyStatus, DonorLinkStatus};

/// A session with a donor.
pub struct Session {
    /// Who lends.
    pub donor: DonorId,
    /// Speaks on the control channel.
    pub sender: ControlSender,
    /// Where its slabs are mapped, on shared memory.
    pub window: Option<Arc<ShmWindow>>,
}

/// How far the link to a donor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Being tried for the first time.
    Connecting,
    /// A session is open.
    Connected,
    /// The session ended; being tried again.
    Lost,
}

struct Link {
    phase: Phase,
    session: Option<Arc<Session>>,
    donor: Option<DonorId>,
    transport: &'static str,
    free_bytes: u64,
    refused_until: Option<Instant>,
    last_error: String,
    is_refused_for_good: bool,
}

const GIBIBYTE: f64 = (1u64 << 30) as f64;

/// An answer to a call, with the descriptor that came along.
type Reply = (Message, Option<OwnedFd>);

/// One donor, see the module text.
pub struct DonorEntry {
    /// Its place in the table.
    pub slot: DonorSlot,
    /// Where it listens.
    pub address: DonorAddress,
    link: Mutex<Link>,
    calls: Mutex<HashMap<u32, SyncSender<Reply>>>,
    next_request: AtomicU32,
    slabs_held: AtomicU64,
    /// How long it is waited for when it says nothing.
    patience: Arc<Patience>,
}

/// Why a donor gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No session, or it ended; the link thread brings it back.
    #[error("the donor is not connected")]
    NotConnected,
    /// No answer in time; ask another donor.
    #[error("the donor did not answer in time")]
    Silent,
    /// It has nothing to lend; ask another donor.
    #[error("the donor refused: {0}")]
    Refused(String),
    /// What it sent makes no sense, or could not be mapped.
    #[error("the donor's slab cannot be used: {0}")]
    Unusable(String),
}

impl DonorEntry {
    /// A donor that was not reached yet.
    pub fn new(slot: DonorSlot, address: DonorAddress) -> Self {
        let link = Link {
            phase: Phase::Connecting,
            session: None,
            donor: None,
            transport: "",
            free_bytes: 0,
            refused_until: None,
            last_error: String::new(),
            is_refused_for_good: false,
        };
        Self {
            slot,
            address,
            link: Mutex::new(link),
            calls: Mutex::new(HashMap::new()),
            next_request: AtomicU32::new(1),
            slabs_held: AtomicU64::new(0),
            patience: Arc::default(),
        }
    }

    /// A session was opened, in which the donor holds so many slabs of this device already.
    pub fn connected(&self, session: Arc<Session>, transport: &'static str, free_bytes: u64, slabs_held: u64) {
        let mut link = self.link();
        link.donor = Some(session.donor);
        link.session = Some(session);
        link.phase = Phase::Connected;
        link.transport = transport;
        link.free_bytes = free_bytes;
        link.refused_until = None;
        link.last_error.clear();
        link.is_refused_for_good = false;
        drop(link);
        self.slabs_held.store(slabs_held, Ordering::SeqCst);
    }

    /// The session ended, or could not be opened; `is_final` if trying again does not help before an operator changes
    /// something.
    pub fn disconnected(&self, reason: String, is_final: bool) {
        let mut link = self.link();
        if link.phase == Phase::Connected {
            link.phase = Phase::Lost;
        }
        link.session = None;
        link.free_bytes = 0;
        link.last_error = reason;
        link.is_refused_for_good = is_final;
        drop(link);
        self.abandon_calls();
    }

    /// A thread that waits for an answer learns now that none comes. The session has ended: later calls fail by
    /// themselves.
    pub fn abandon_calls(&self) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// How long it is waited for; its data connections look at it too.
    pub fn patience(&self) -> &Arc<Patience> {
        &self.patience
    }

    /// The open session.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.link().session.clone()
    }

    /// How far the link is.
    pub fn phase(&self) -> Phase {
        self.link().phase
    }

    /// Why the last attempt at a session failed, and whether another one cannot help; `None` before the first one has
    /// ended, and while a session is open.
    pub fn refusal(&self) -> Option<(String, bool)> {
        let link = self.link();
        let is_tried = link.session.is_none() && !link.last_error.is_empty();
        is_tried.then(|| (link.last_error.clone(), link.is_refused_for_good))
    }

    /// Hands an answer to the thread that asked.
    pub fn answer(&self, request: u32, message: Message, descriptor: Option<OwnedFd>) {
        // Sent under the lock: a caller that gives up removes its call first, and then looks once more.
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = calls.remove(&request) {
            let _ = caller.try_send((message, descriptor));
            return;
        }
        drop(calls);
        if let Message::Leased { slab, .. } = message {
            self.release(slab);
        }
    }

    /// Asks for the donor's free memory.
    pub fn query(&self) -> Result<u64, CallError> {
        match self.call(CONTROL_REPLY_DEADLINE, |request| Message::Query { request })?.0 {
            Message::Free { free_bytes, .. } => {
                self.link().free_bytes = free_bytes;
                Ok(free_bytes)
            }
            other => Err(CallError::Unusable(format!("it answered {other:?}"))),
        }
    }

    /// Borrows a slab of `slab_size_bytes`, ready for use.
    pub fn lease(&self, slab_size_bytes: u64) -> Result<SlabHandle, CallError> {
        let deadline = CONTROL_REPLY_DEADLINE + LEASE_DEADLINE_PER_GIBIBYTE.mul_f64(slab_size_bytes as f64 / GIBIBYTE);
        let (message, descriptor) = self.call(deadline, |request| Message::Lease { request })?;
        match message {
            Message::Leased { slab, .. } => {
                if let Err(error) = self.attach(slab, descriptor) {
                    self.release(slab);
                    return Err(error);
                }
                self.slabs_held.fetch_add(1, Ordering::SeqCst);
                let mut link = self.link();
                link.free_bytes = link.free_bytes.saturating_sub(slab_size_bytes);
                Ok(slab)
            }
            Message::Refused { reason, .. } => {
                let mut link = self.link();
                link.refused_until = Some(Instant::now() + REFUSAL_PAUSE);
                link.last_error.clone_from(&reason);
                Err(CallError::Refused(reason))
            }
            other => Err(CallError::Unusable(format!("it answered {other:?}"))),
        }
    }

    fn attach(&self, slab: SlabHandle, descriptor: Option<OwnedFd>) -> Result<(), CallError> {
        let session = self.session().ok_or(CallError::NotConnected)?;
        let Some(window) = &session.window else { return Ok(()) };
        let unusable = |error: std::io::Error| CallError::Unusable(error.to_string());
        let descriptor = descriptor.ok_or_else(|| CallError::Unusable("no memory came along".to_owned()))?;
        let memory = Memfd::open(descriptor).map_err(unusable)?;
        window.attach(slab, &memory).map_err(unusable)
    }

    /// Gives back a slab that [`DonorEntry::lease`] returned; no request uses it any more.
    pub fn give_back(&self, slab: SlabHandle) {
        if let Some(window) = self.session().and_then(|session| session.window.clone())
            && let Err(error) = window.detach(slab)
        {
            tracing::warn!("slab {slab} of {} stays mapped: {error}", self.address);
        }
        self.slabs_held.fetch_sub(1, Ordering::SeqCst);
        self.release(slab);
    }

    /// Gives back a slab that was never used in this session.
    pub fn return_unused(&self, slab: SlabHandle) {
        self.release(slab);
    }

    fn release(&self, slab: SlabHandle) {
        if let Some(session) = self.session() {
            // A failed send means the session is ending, which returns every slab.
            let _ = session.sender.send(&Message::Release { slab }, None);
        }
    }

    fn call(&self, deadline: Duration, message: impl FnOnce(u32) -> Message) -> Result<Reply, CallError> {
        let session = self.session().ok_or(CallError::NotConnected)?;
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (answer, waiting) = sync_channel(1);
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).insert(request, answer);
        let sent = session.sender.send(&message(request), None);
        let reply = match sent {
            Ok(()) => waiting.recv_timeout(deadline).map_err(|error| match error {
                RecvTimeoutError::Timeout => CallError::Silent,
                RecvTimeoutError::Disconnected => CallError::NotConnected,
            }),
            Err(_) => Err(CallError::NotConnected),
        };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&request);
        // An answer that came between the deadline and the removal is as good as one in time.
        let reply = reply.or_else(|error| waiting.try_recv().map_err(|_| error));
        if matches!(reply, Err(CallError::Silent)) {
            self.link().refused_until = Some(Instant::now() + REFUSAL_PAUSE);
        }
        reply
    }

    /// Slabs of this device at the donor.
    pub fn slabs_held(&self) -> u64 {
        self.slabs_held.load(Ordering::SeqCst)
    }

    /// What it could lend, and whether it refused a moment ago.
    pub fn room(&self, now: Instant) -> Option<(u64, bool)> {
        let link = self.link();
        link.session.as_ref()?;
        Some((link.free_bytes, link.refused_until.is_some_and(|until| until > now)))
    }

    /// What users are told, but for how fast it answers.
    pub fn status(&self) -> DonorLinkStatus {
        let link = self.link();
        let state = match link.phase {
            Phase::Connecting => "connecting",
            Phase::Connected => "connected",
            Phase::Lost => "lost",
        };
        DonorLinkStatus {
            address: self.address.to_string(),
            donor: link.donor.map(|donor| donor.to_string()).unwrap_or_default(),
            state: state.to_owned(),
            transport: link.transport.to_owned(),
            slabs: if link.session.is_some() { self.slabs_held() } else { 0 },
            free_bytes: link.free_bytes,
            last_error: link.last_error.clone(),
            latency: DonorLatencyStatus::default(),
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use spillway_fabric::control::{ControlChannel, ControlReceiver};

    use super::*;

    const SLAB: u64 = 1 << 20;

    /// A donor entry with an open session, whose other end the test answers by `donor`.
    fn connect(
        donor: impl FnOnce(ControlSender, ControlReceiver) + Send + 'static,
    ) -> (Arc<DonorEntry>, JoinHandle<()>, JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let donor = std::thread::spawn(move || {
            let (sender, receiver) = ControlChannel::accept(theirs, None).unwrap().split();
            donor(sender, receiver);
        });
        let (sender, mut receiver) = ControlChannel::connect(ours, None).unwrap().split();
        let entry = Arc::new(DonorEntry::new(DonorSlot(0), "unix:/test".parse().unwrap()));
        let window = Some(ShmWindow::new(SLAB, 16).unwrap());
        entry.connected(Arc::new(Session { donor: DonorId(1), sender, window }), "shm", 4 * SLAB, 0);
        let link = Arc::clone(&entry);
        let link = std::thread::spawn(move || {
            while let Ok((message, descriptor)) = receiver.receive(Duration::from_secs(60)) {
                match message {
                    Message::Free { request, .. }
                    | Message::Leased { request, .. }
                    | Message::Refused { request, .. } => link.answer(request, message, descriptor),
                    _ => {}
                }
            }
            link.disconnected("the test is over".to_owned(), false);
        });
        (entry, donor, link)
    }

    fn end(entry: &DonorEntry, threads: [JoinHandle<()>; 2]) {
        // The donor of the test may have left already.
        if let Some(session) = entry.session() {
            session.sender.close();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_leased_slab_is_mapped_and_given_back() {
        let (entry, donor, link) = connect(|sender, mut receiver| {
            let memory = Memfd::create("test", SLAB).unwrap();
            while let Ok((message, _)) = receiver.receive(Duration::from_secs(60)) {
                match message {
                    Message::Lease { request } => {
                        let leased = Message::Leased { request, slab: SlabHandle(3) };
                        sender.send(&leased, Some(memory.as_fd())).unwrap();
                    }
                    Message::Release { slab } => {
                        assert_eq!(slab, SlabHandle(3));
                        return;
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        assert_eq!(entry.lease(SLAB), Ok(SlabHandle(3)));
        assert_eq!((entry.slabs_held(), entry.room(Instant::now())), (1, Some((3 * SLAB, false))));
        let window = entry.session().unwrap().window.clone().unwrap();
        assert!(window.is_attached(SlabHandle(3)));
        entry.give_back(SlabHandle(3));
        assert!(!window.is_attached(SlabHandle(3)));
        end(&entry, [donor, link]);
        assert_eq!(entry.phase(), Phase::Lost);
        assert_eq!(entry.status().last_error, "the test is over");
    }

    #[test]
    fn refusals_silence_and_nonsense_are_told_apart() {
        let (entry, donor, link) = connect(|sender, mut receiver| {
            let mut answers = 0;
            while let Ok((message, _)) = receiver.receive(Duration::from_secs(60)) {
                let Message::Lease { request } = message else { continue };
                answers += 1;
                match answers {
                    1 => {
                        sender
                            .send(&Message::Refused { request, full: true, reason: "full".to_owned() }, None)
                            .unwrap();
                    }
                    2 => sender.send(&Message::Leased { request, slab: SlabHandle(0) }, None).unwrap(),
                    _ => {}
                }
            }
        });
        assert_eq!(entry.lease(SLAB), Err(CallError::Refused("full".to_owned())));
        assert_eq!(entry.room(Instant::now()).map(|(_, refused)| refused), Some(true), "not asked again at once");
        assert!(matches!(entry.lease(SLAB), Err(CallError::Unusable(_))), "no memory came along");
        assert_eq!(entry.lease(SLAB), Err(CallError::Silent));
        assert_eq!(entry.slabs_held(), 0);
        end(&entry, [donor, link]);
        assert_eq!(entry.lease(SLAB), Err(CallError::NotConnected));
    }

    #[test]
    fn a_goodbye_ends_what_is_being_waited_for() {
        let (heard, asked) = std::sync::mpsc::channel();
        let (entry, donor, link) = connect(move |_sender, mut receiver| {
            while let Ok((message, _)) = receiver.receive(Duration::from_secs(60)) {
                heard.send(message).unwrap();
            }
        });
        let asking = Arc::clone(&entry);
        // A lease of so large a slab would be waited for over a minute.
        let asking = std::thread::spawn(move || asking.lease(8 << 30));
        assert!(matches!(asked.recv_timeout(Duration::from_secs(60)), Ok(Message::Lease { .. })));
        crate::manager::link::say_goodbye_to_all(std::slice::from_ref(&*entry));
        assert_eq!(asking.join().unwrap(), Err(CallError::NotConnected));
        assert!(matches!(asked.recv_timeout(Duration::from_secs(60)), Ok(Message::Goodbye { .. })));
        assert_eq!(entry.lease(SLAB), Err(CallError::NotConnected), "and nothing is asked any more");
        donor.join().unwrap();
        link.join().unwrap();
    }

    #[test]
    fn a_slab_that_comes_after_its_caller_gave_up_is_released() {
        let (released, waiting) = std::sync::mpsc::channel();
        let (entry, donor, link) = connect(move |sender, mut receiver| {
            let mut late = None;
            while let Ok((message, _)) = receiver.receive(Duration::from_secs(60)) {
                match message {
                    Message::Lease { request } => late = Some(request),
                    Message::Query { request } => {
                        let leased = Message::Leased { request: late.take().unwrap(), slab: SlabHandle(5) };
                        sender.send(&leased, None).unwrap();
                        sender.send(&Message::Free { request, free_bytes: 7, slabs_held: 0 }, None).unwrap();
                    }
                    Message::Release { slab } => released.send(slab).unwrap(),
                    _ => {}
                }
            }
        });
        assert_eq!(entry.lease(SLAB), Err(CallError::Silent));
        assert_eq!(entry.query(), Ok(7));
        assert_eq!(waiting.recv_timeout(Duration::from_secs(60)), Ok(SlabHandle(5)));
        end(&entry, [donor, link]);
    }
}
