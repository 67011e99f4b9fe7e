//! A running donor.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use spillway_fabric::control::host::{boot_id, random_bytes};
use spillway_fabric::limits::SILENCE_DEADLINE;
use spillway_fabric::rdma::LentRegions;
use spillway_fabric::tcp::{Shares, Traffic, Weights};
use spillway_fabric::units::DonorId;

use crate::config::{DonorConfig, DonorError, ListenAddress};
use crate::donor_state::DonorState;
use crate::host_memory;
use crate::housekeeper;
use crate::lender::{Input, Lender, LenderConfig};
use crate::limits::{SAMPLE_INTERVAL, SLABS_PREPARED_MAX, STOP_DEADLINE};
use crate::listen::Listener;
use crate::server::{accept_connections, watch_door};
use crate::session::Session;
use crate::status::{Counters, DonorStatus, SessionStatus};

/// Lends this machine's memory until it is stopped or dropped.
#[derive(Debug)]
pub struct Donor {
    shared: Arc<DonorState>,
    listeners: Vec<Arc<Listener>>,
    threads: Vec<JoinHandle<()>>,
}

impl Donor {
    /// Starts listening and preparing slabs. Either everything works or nothing is left behind.
    pub fn start(config: DonorConfig) -> Result<Self, DonorError> {
        Self::start_confined(config, || {})
    }

    /// The same. `confine` is called on this thread once all sockets listen: what it takes from the thread, the donor's
    /// threads do not have either, as they start afterwards.
    pub fn start_confined(config: DonorConfig, confine: impl FnOnce()) -> Result<Self, DonorError> {
        let sample = host_memory::sample()?;
        config.check(sample)?;
        let listeners = listen(&config)?;
        let unix_path = listeners.iter().find_map(|listener| listener.unix_path()).map(Path::to_owned);
        let lender = Lender::new(lender_config(&config)?, sample);
        let id = DonorId(u128::from_le_bytes(random_bytes()?));
        let shared =
            Arc::new(DonorState::new(id, config.key, boot_id()?, unix_path, config.site, config.weights, lender));
        let mut donor = Self { shared, listeners, threads: Vec::new() };
        confine();
        // On a failure, dropping `donor` stops what was started.
        donor.start_threads()?;
        let addresses = donor.status().addresses.join(", ");
        tracing::info!("donor {id} lends up to {} bytes at {addresses}", config.memory_bytes);
        Ok(donor)
    }

    fn start_threads(&mut self) -> Result<(), DonorError> {
        let shared = Arc::clone(&self.shared);
        self.threads.push(spawn("donor-keeper", move || housekeeper::run(&shared))?);
        let shared = Arc::clone(&self.shared);
        self.threads.push(spawn("donor-door", move || watch_door(&shared))?);
        for listener in &self.listeners {
            let (shared, listener) = (Arc::clone(&self.shared), Arc::clone(listener));
            self.threads.push(spawn("donor-listener", move || accept_connections(&shared, &listener))?);
        }
        Ok(())
    }

    /// Who lends; another one after each start.
    pub fn id(&self) -> DonorId {
        self.shared.id
    }

    /// The first network address listened at.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.listeners.iter().find_map(|listener| listener.tcp_address())
    }

    /// The UNIX socket listened at.
    pub fn unix_path(&self) -> Option<&Path> {
        self.shared.unix_path.as_deref()
    }

    /// The donor's state now.
    pub fn status(&self) -> DonorStatus {
        let address = |listener: &Arc<Listener>| match (listener.tcp_address(), listener.unix_path()) {
            (Some(address), _) => Some(address.to_string()),
            (None, path) => path.map(|path| format!("unix:{}", path.display())),
        };
        let addresses = self.listeners.iter().filter_map(address).collect();
        let shell = self.shared.lock();
        let lender = &shell.lender;
        let (holdings, capacity) = (lender.holdings(), lender.capacity());
        let sessions = lender.open_sessions().filter_map(|id| shell.sessions.get(&id));
        DonorStatus {
            id: self.shared.id.to_string(),
            addresses,
            quota_bytes: capacity.quota_bytes(),
            lent_bytes: holdings.lent_bytes,
            prepared_bytes: holdings.prepared_bytes,
            headroom_bytes: capacity.headroom_bytes(),
            available_bytes: capacity.available_bytes(),
            free_to_lend_bytes: lender.free_to_lend_bytes(),
            draining: lender.is_draining(),
            sessions_lingering: lender.lingering_count() as u64,
            sessions: sessions.map(|session| session_status(lender, session, &self.shared.shares)).collect(),
            recalls: lender.recalls(),
            counters: Counters {
                connections_refused: self.shared.connections_refused.load(Ordering::Relaxed),
                slabs_unlocked: shell.slabs_unlocked,
                ..lender.counters()
            },
        }
    }

    /// Changes the quota. What is lent beyond it is asked back.
    pub fn set_memory(&self, bytes: u64) {
        self.shared.feed(Input::Quota { bytes });
    }

    /// Changes what stays available for the machine's own programs. What is missing of it is asked back.
    pub fn set_headroom(&self, bytes: u64) {
        self.shared.feed(Input::Headroom { bytes });
    }

    /// Changes how much the volumes of one machine may hold. What they hold beyond it stays theirs.
    pub fn set_machine_limit(&self, bytes: Option<u64>) {
        self.shared.feed(Input::MachineLimit { bytes });
    }

    /// Changes what machines get of the bandwidth over TCP, in relation to each other.
    pub fn set_weights(&self, weights: Weights) {
        self.shared.shares.set_weights(weights);
    }

    /// A machine that is behind its share is waited for at least so long; for tests, see [`Shares::set_patience`].
    pub fn set_share_patience(&self, patience: Duration) {
        self.shared.shares.set_patience(patience);
    }

    /// Lends nothing any more, asks for everything back, and waits for it at most `timeout`. Slabs that are not back
    /// then stay lent, and are asked for again and again.
    pub fn drain(&self, timeout: Duration) -> Result<(), DonorError> {
        let deadline = Instant::now() + timeout;
        self.shared.feed(Input::Drain);
        let mut shell = self.shared.lock();
        while shell.lender.slabs_lent() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DonorError::DrainIncomplete { slabs: shell.lender.slabs_lent() as u64 });
            }
            shell = self.shared.wait(shell, left.min(SAMPLE_INTERVAL));
        }
        Ok(())
    }

    /// Says goodbye to all borrowers and ends. What they did not give back is lost to them: drain first.
    pub fn stop(mut self) {
        self.halt();
    }

    fn halt(&mut self) {
        if self.shared.stop() {
            return;
        }
        let sessions: Vec<Arc<Session>> = self.shared.lock().sessions.values().cloned().collect();
        say_goodbye_to_all(&sessions);
        self.listeners.iter().for_each(|listener| listener.close());
        self.shared.connections.end_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the donor had panicked");
            }
        }
        if !self.shared.connections.wait_empty(STOP_DEADLINE) {
            tracing::error!("some connections of the donor did not end in time");
        }
        // Closes the sockets and removes the UNIX socket's file.
        self.listeners.clear();
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        self.halt();
    }
}

/// Borrowers that do not read what they are sent cost one deadline together. No thread is started for it: a process at
/// its limit of memory could not.
fn say_goodbye_to_all(sessions: &[Arc<Session>]) {
    let end = Instant::now() + SILENCE_DEADLINE;
    for session in sessions {
        session.say_goodbye("the donor stops", end.saturating_duration_since(Instant::now()));
        session.end();
    }
}

fn listen(config: &DonorConfig) -> Result<Vec<Arc<Listener>>, DonorError> {
    let has_key = config.key.is_some();
    let mut listeners = Vec::new();
    if let Some(path) = &config.unix_path {
        listeners.push(Listener::unix(path, has_key)?);
    }
    for address in &config.listen {
        match address {
            ListenAddress::Tcp(text) => listeners.extend(Listener::tcp(text, has_key)?),
            ListenAddress::Unix(path) => listeners.push(Listener::unix(path, has_key)?),
        }
    }
    Ok(listeners.into_iter().map(Arc::new).collect())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, DonorError> {
    Ok(thread::Builder::new().name(name.to_owned()).spawn(run)?)
}

fn lender_config(config: &DonorConfig) -> Result<LenderConfig, DonorError> {
    Ok(LenderConfig {
        quota_bytes: config.memory_bytes,
        headroom_bytes: config.headroom_bytes,
        machine_limit_bytes: config.machine_limit_bytes,
        prepared_count: config.slab_prepared_count.min(SLABS_PREPARED_MAX),
        slab_size_hint_bytes: config.slab_size_hint_bytes,
        seed: u64::from_le_bytes(random_bytes()?),
    })
}

fn session_status(lender: &Lender, session: &Session, shares: &Shares) -> SessionStatus {
    let slabs = lender.slabs_held(session.id);
    let by_rdma = session.regions().is_some_and(LentRegions::is_connected);
    let counted = (!session.shares_memory && !by_rdma).then_some(&session.traffic);
    let transport = match (session.shares_memory, by_rdma) {
        (true, _) => "shm",
        (false, true) => "rdma",
        (false, false) => "tcp",
    };
    SessionStatus {
        borrower: session.borrower.to_string(),
        volume: session.volume.clone(),
        peer: session.peer.clone(),
        transport: transport.to_owned(),
        slabs,
        lent_bytes: slabs as u64 * session.slab_size_bytes,
        read_bytes: counted.map(Traffic::read_bytes),
        written_bytes: counted.map(Traffic::written_bytes),
        weight: counted.map(|_| shares.weight_of(session.address)),
    }
}
