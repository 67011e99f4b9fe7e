//! The donors of a device: the link to each, as far as it is there.
//!
//! One [`DonorEntry`] per address; its place in the [table](super::donor_table) is the donor's slot in slab entries. Its
//! link thread ([`super::link`]) makes and loses sessions. What a donor could lend, and what it is asked for, is
//! decided by the [`Steward`](crate::steward).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_fabric::address::DonorAddress;
use spillway_fabric::control::ControlSender;
use spillway_fabric::control::message::Message;
use spillway_fabric::patience::Patience;
use spillway_fabric::units::{DonorId, SlabHandle};

use super::reach::Reach;
use crate::slab_map::slab_entry::DonorSlot;
use crate::status::{DonorLatencyStatus, DonorLinkStatus};
use crate::steward::SessionNumber;
use crate::steward::donors::DonorView;

/// A session with a donor.
pub struct Session {
    /// Which of this donor's sessions.
    pub number: SessionNumber,
    /// Who lends.
    pub donor: DonorId,
    /// Speaks on the control channel.
    pub sender: ControlSender,
    /// How its slabs are reached.
    pub reach: Reach,
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
    transport_reason: String,
    last_error: String,
    is_refused_for_good: bool,
}

/// Whether a donor is to be used no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    Stays,
    /// Its slabs are brought away.
    Leaving,
    /// It has none any more: its link closes.
    Dismissed,
}

/// One donor, see the module text.
pub struct DonorEntry {
    /// Its place in the table.
    pub slot: DonorSlot,
    /// Where it listens.
    pub address: DonorAddress,
    link: Mutex<Link>,
    /// Counts the sessions of all donors.
    sessions: Arc<AtomicU64>,
    departure: Mutex<Departure>,
    /// How long it is waited for when it says nothing.
    patience: Arc<Patience>,
}

impl DonorEntry {
    /// A donor that was not reached yet.
    pub fn new(slot: DonorSlot, address: DonorAddress, sessions: Arc<AtomicU64>) -> Self {
        let link = Link {
            phase: Phase::Connecting,
            session: None,
            donor: None,
            transport: "",
            transport_reason: String::new(),
            last_error: String::new(),
            is_refused_for_good: false,
        };
        let departure = Mutex::new(Departure::Stays);
        Self { slot, address, link: Mutex::new(link), sessions, departure, patience: Arc::default() }
    }

    /// Whether it is to be used no more.
    pub fn is_leaving(&self) -> bool {
        *self.departure() != Departure::Stays
    }

    /// It is to be used no more, once its slabs were brought away.
    pub fn set_leaving(&self, is_leaving: bool) {
        *self.departure() = if is_leaving { Departure::Leaving } else { Departure::Stays };
    }

    /// It is used after all; false when it is too late for that.
    pub fn call_off(&self) -> bool {
        let mut departure = self.departure();
        if *departure == Departure::Leaving {
            *departure = Departure::Stays;
        }
        *departure == Departure::Stays
    }

    /// It has no slab, and gets none: its link closes, unless its removal was called off.
    pub fn dismiss(&self) {
        let mut departure = self.departure();
        if *departure == Departure::Leaving {
            *departure = Departure::Dismissed;
        }
    }

    /// Whether its link is to close for good.
    pub fn is_dismissed(&self) -> bool {
        *self.departure() == Departure::Dismissed
    }

    fn departure(&self) -> MutexGuard<'_, Departure> {
        self.departure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the session that is being opened.
    pub fn number_session(&self) -> SessionNumber {
        SessionNumber(self.sessions.fetch_add(1, Ordering::SeqCst))
    }

    /// A session was opened, over `transport` for this reason.
    pub fn connected(&self, session: Arc<Session>, transport: &'static str, reason: String) {
        let mut link = self.link();
        link.donor = Some(session.donor);
        link.session = Some(session);
        link.phase = Phase::Connected;
        link.transport = transport;
        link.transport_reason = reason;
        link.last_error.clear();
        link.is_refused_for_good = false;
    }

    /// The session ended, or could not be opened; `is_final` if trying again does not help before an operator changes
    /// something.
    pub fn disconnected(&self, reason: String, is_final: bool) {
        let mut link = self.link();
        if link.phase == Phase::Connected {
            link.phase = Phase::Lost;
        }
        link.session = None;
        link.last_error = reason;
        link.is_refused_for_good = is_final;
    }

    /// It lends no slab, with these words.
    pub fn refused(&self, reason: &str) {
        reason.clone_into(&mut self.link().last_error);
    }

    /// How long it is waited for; its data connections look at it too.
    pub fn patience(&self) -> &Arc<Patience> {
        &self.patience
    }

    /// The open session.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.link().session.clone()
    }

    /// The open session, if it is still this one.
    pub fn session_numbered(&self, number: SessionNumber) -> Option<Arc<Session>> {
        self.session().filter(|session| session.number == number)
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

    /// What users are told, but for how fast it answers and how true. `view` is what the Steward knows of it.
    pub fn status(&self, view: Option<&DonorView>) -> DonorLinkStatus {
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
            transport_reason: link.transport_reason.clone(),
            slabs_by_tcp: link.session.as_ref().map_or(0, |session| session.reach.slabs_by_tcp()),
            slabs: view.map_or(0, |view| view.slabs_held),
            free_bytes: view.map_or(0, |view| view.free_bytes),
            zone: view.map_or_else(String::new, |view| view.site.zone.as_str().to_owned()),
            rack: view.map_or_else(String::new, |view| view.site.rack.as_str().to_owned()),
            last_error: link.last_error.clone(),
            is_leaving: self.is_leaving(),
            wrong_pages: 0,
            is_distrusted: false,
            latency: DonorLatencyStatus::default(),
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Gives back a slab that was [attached](Reach::attach); no request uses it any more.
    pub fn give_back(&self, slab: SlabHandle) {
        if let Err(error) = self.reach.detach(slab) {
            tracing::warn!("slab {slab} of donor {} stays mapped: {error}", self.donor);
        }
        self.release(slab);
    }

    /// Gives back a slab that was never used in this session.
    pub fn release(&self, slab: SlabHandle) {
        // A failed send means the session is ending, which returns every slab.
        let _ = self.sender.send(&Message::Release { slab }, None);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use spillway_fabric::control::{ControlChannel, ControlReceiver};
    use spillway_fabric::shm::ShmWindow;
    use spillway_sys::memfd::Memfd;

    use super::*;

    const SLAB: u64 = 1 << 20;

    fn session() -> (Session, ControlReceiver) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let donor = std::thread::spawn(move || ControlChannel::accept(theirs, None).unwrap().split());
        let sender = ControlChannel::connect(ours, None).unwrap().split().0;
        let reach = Reach::Window(ShmWindow::new(SLAB, 16).unwrap());
        let session = Session { number: SessionNumber(0), donor: DonorId(1), sender, reach };
        (session, donor.join().unwrap().1)
    }

    #[test]
    fn a_lent_slab_is_mapped_and_given_back() {
        let (session, mut donor) = session();
        let memory = Memfd::create("test", SLAB).unwrap();
        let descriptor = std::os::fd::AsFd::as_fd(&memory).try_clone_to_owned().unwrap();
        session.reach.attach(SlabHandle(3), Some(descriptor), None).unwrap();
        let Reach::Window(window) = &session.reach else { panic!("it is on this host") };
        assert!(window.is_attached(SlabHandle(3)));
        session.give_back(SlabHandle(3));
        assert!(!window.is_attached(SlabHandle(3)));
        let heard = donor.receive(Duration::from_secs(60)).unwrap().0;
        assert_eq!(heard, Message::Release { slab: SlabHandle(3) });
    }

    #[test]
    fn a_slab_without_its_memory_cannot_be_used_on_this_host() {
        let (session, _donor) = session();
        let error = session.reach.attach(SlabHandle(0), None, None).unwrap_err();
        assert!(error.to_string().contains("no memory came along"), "{error}");
    }

    #[test]
    fn a_session_is_told_from_the_next_one() {
        let entry = DonorEntry::new(DonorSlot(0), "unix:/test".parse().unwrap(), Arc::default());
        let numbers = [entry.number_session(), entry.number_session()];
        let (mut session, _donor) = session();
        session.number = numbers[1];
        entry.connected(Arc::new(session), "shm", String::new());
        assert!(entry.session_numbered(numbers[0]).is_none() && entry.session_numbered(numbers[1]).is_some());
        entry.disconnected("the test is over".to_owned(), false);
        assert!(entry.session_numbered(numbers[1]).is_none());
        assert_eq!((entry.phase(), entry.status(None).last_error.as_str()), (Phase::Lost, "the test is over"));
    }
}
