//! What the donor's threads share. Decisions are the [`Lender`](crate::lender::Lender)'s; threads bring it their
//! inputs here.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use spillway_fabric::control::message::Welcome;
use spillway_fabric::key_source::KeySource;
use spillway_fabric::plain_text::is_plain;
use spillway_fabric::site::Site;
use spillway_fabric::tcp::{Shares, Weights};
use spillway_fabric::units::DonorId;
use spillway_fabric::wire::proof::SessionName;
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};

use crate::connections::{Connections, Source};
use crate::door::Door;
use crate::handshake_rates::HandshakeRates;
use crate::lender::leases::SessionId;
use crate::lender::{Input, Lender, Make};
use crate::listen::Peer;
use crate::session::Session;
use crate::shell::{Rest, Shell};
use crate::slab_memory::SlabMemory;
use spillway_fabric::complaints::Complaints;

/// See the module text.
#[derive(Debug)]
pub(crate) struct DonorState {
    pub(crate) id: DonorId,
    pub(crate) key: Option<KeySource>,
    /// What every session is welcomed with; the rest is the Lender's to say.
    welcome: Welcome,
    /// The UNIX socket told to borrowers.
    pub(crate) unix_path: Option<PathBuf>,
    pub(crate) connections: Connections,
    rates: Mutex<HandshakeRates>,
    /// Where connections wait that came too often.
    pub(crate) door: Door,
    /// What each machine gets of the bandwidth over TCP.
    pub(crate) shares: Shares,
    stopping: AtomicBool,
    pub(crate) connections_refused: AtomicU64,
    /// Log lines that strangers cause.
    complaints: Mutex<Complaints>,
    shell: Mutex<Shell>,
    /// Signalled after each input: the housekeeper may have something to do, or a drain is over.
    changed: Condvar,
}

impl DonorState {
    pub(crate) fn new(
        id: DonorId,
        key: Option<KeySource>,
        host: [u8; 16],
        unix_path: Option<PathBuf>,
        site: Site,
        weights: Weights,
        lender: Lender,
    ) -> Self {
        Self {
            id,
            key,
            welcome: welcome(id, host, unix_path.as_deref(), site),
            unix_path,
            connections: Connections::default(),
            rates: Mutex::default(),
            door: Door::new(id.0 as u64),
            shares: Shares::new(weights),
            stopping: AtomicBool::new(false),
            connections_refused: AtomicU64::new(0),
            complaints: Mutex::default(),
            shell: Mutex::new(Shell::new(lender)),
            changed: Condvar::new(),
        }
    }

    /// Writes into the log what a stranger caused, or keeps it back for a while.
    pub(crate) fn complain(&self, text: &str) {
        let mut complaints = self.complaints.lock().expect("no thread panics while it complains");
        if let Some(line) = complaints.take(text, Instant::now()) {
            tracing::warn!("{line}");
        }
    }

    /// Whether a connection of `source` may begin a handshake now.
    pub(crate) fn admits(&self, source: Source) -> bool {
        self.rates.lock().expect("no thread panics with the rates locked").admit(source, Instant::now())
    }

    /// A connection came too often, and showed nothing.
    pub(crate) fn turn_away(&self, peer: &Peer) {
        self.connections_refused.fetch_add(1, Ordering::Relaxed);
        self.complain(&format!("{} is turned away: too many handshakes that proved nothing", peer.name));
    }

    /// A connection of `source` has proven itself.
    pub(crate) fn proved(&self, source: Source) {
        self.rates.lock().expect("no thread panics with the rates locked").proved(source, Instant::now());
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shell> {
        self.shell.lock().expect("no thread panics with the donor's state locked")
    }

    /// Waits until something changed, or for `timeout`.
    pub(crate) fn wait<'state>(
        &self,
        shell: MutexGuard<'state, Shell>,
        timeout: Duration,
    ) -> MutexGuard<'state, Shell> {
        self.changed.wait_timeout(shell, timeout).expect("no thread panics with the donor's state locked").0
    }

    /// Whether the donor stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The donor stops. Whether it did already.
    pub(crate) fn stop(&self) -> bool {
        let did = self.stopping.swap(true, Ordering::AcqRel);
        // A thread that looked before waits by now.
        drop(self.lock());
        self.changed.notify_all();
        self.door.close();
        did
    }

    /// Brings the Lender an input and carries out what it decides, except for making slabs: those that a session waits
    /// for are returned.
    pub(crate) fn feed(&self, input: Input) -> Vec<Make> {
        let rest = self.lock().feed(input, &self.welcome);
        self.finish(rest)
    }

    /// A new session, made by `make` for its number. The Lender hears of it next, or it [leaves](Self::leave).
    pub(crate) fn enter(&self, make: impl FnOnce(SessionId) -> Session) -> Arc<Session> {
        let mut shell = self.lock();
        let session = Arc::new(make(shell.next_session()));
        shell.enter(Arc::clone(&session));
        session
    }

    /// A session that the Lender has not heard of leaves.
    pub(crate) fn leave(&self, session: &Session) {
        self.lock().leave(session);
    }

    /// Makes a slab, calling `pause` now and then, and tells the Lender how it went.
    pub(crate) fn make(&self, make: Make, pause: impl Fn()) {
        let made = SlabMemory::prepare(make.size_bytes, pause);
        let mut shell = self.lock();
        let input = match made {
            Ok(memory) => {
                shell.keep(make.slab, memory);
                Input::Made { slab: make.slab }
            }
            Err(error) => Input::MakeFailed { slab: make.slab, reason: error.to_string() },
        };
        let rest = shell.feed(input, &self.welcome);
        drop(shell);
        let wanted = self.finish(rest);
        assert!(wanted.is_empty(), "only a borrower's request wants a slab at once");
    }

    fn finish(&self, mut rest: Rest) -> Vec<Make> {
        rest.ended.drain(..).for_each(|session| self.connections.end_session(session));
        rest.carry_out();
        self.changed.notify_all();
        rest.wanted
    }

    /// The session that data connections call `name`.
    pub(crate) fn find_session(&self, name: SessionName) -> Option<Arc<Session>> {
        self.lock().find(name)
    }
}

fn welcome(donor: DonorId, host: [u8; 16], unix_path: Option<&Path>, site: Site) -> Welcome {
    // A path that cannot be told as it is would lead borrowers elsewhere.
    let unix_path = unix_path.and_then(Path::to_str).filter(|path| is_plain(path)).unwrap_or_default().to_owned();
    let token = SessionToken([0; _]);
    Welcome {
        version: WIRE_VERSION,
        donor,
        token,
        free_bytes: 0,
        host,
        unix_path,
        data_port: 0,
        resume: token,
        site,
        held: 0,
    }
}
