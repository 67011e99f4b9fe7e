//! The agent's place in its cluster: a datagram socket and two threads around [`Membership`], which decides.
//!
//! One thread receives and keeps the time; the other looks the seeds' names up, which may block. Both, and the
//! agent's main loop, give the membership its inputs under one lock and do what it says. Received datagrams come
//! before timers: after a pause, answers that wait in the socket count before their absence does.
//!
//! - [`role`]: the configuration. [`identity_file`]: what stays over restarts. [`addresses`]: names and sockets.
//! - [`warnings`]: what is wrong. `told`: how often the log is written to.

mod addresses;
mod identity_file;
pub(crate) mod role;
mod told;
mod warnings;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec};
use spillway_console::failure::Failure;
use spillway_device_process::storage;
use spillway_fabric::control::host::random_bytes;
use spillway_fabric::key::ClusterKey;
use spillway_fabric::key_source::KeySource;
use spillway_fabric::limits::{DATAGRAM_BYTES_MAX, RESOLVE_INTERVAL};
use spillway_fabric::membership::announcement::{Label, Profile};
use spillway_fabric::membership::identity::Identity;
use spillway_fabric::membership::{Discovery, Input, Membership, Output, Settings};
use spillway_fabric::wire::WIRE_VERSION;
use spillway_report::cluster::{ClusterReport, MemberReport};
use spillway_report::format::Format;
use tracing::Level;

use self::identity_file::IdentityFile;
use self::role::ClusterRole;
use self::told::Told;

/// Where a machine hears datagrams that lends nothing and was not told.
const LISTEN_DEFAULT: &str = "0.0.0.0:7070";
/// The same without a key.
const LISTEN_WITHOUT_KEY: &str = "127.0.0.1:7070";

/// How often the receiving thread looks whether it is to end, or was given another time to wake.
const TURN: Duration = Duration::from_millis(100);

/// Datagrams that are received before timers are looked at: more than a large cluster sends in one turn.
const DATAGRAMS_PER_TURN_MAX: usize = 256;

/// How often the key's file is looked at: a change of key waits so long.
const KEY_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A look-up that failed is tried again after so long.
const LOOK_UP_RETRY: Duration = Duration::from_secs(5);

/// What the donor of this machine tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Most that it lends.
    pub(crate) quota_bytes: u64,
    /// What it lends.
    pub(crate) lent_bytes: u64,
    /// What this machine uses of others.
    pub(crate) used_bytes: u64,
    /// Whether its donor is being drained, or empty after that.
    pub(crate) is_draining: bool,
}

struct State {
    membership: Membership,
    /// The key that the membership has.
    key: Option<ClusterKey>,
    identity: IdentityFile,
    wake: Option<Instant>,
    told: Told,
}

struct Shared {
    role: ClusterRole,
    /// Those of now.
    seeds: Mutex<Vec<String>>,
    socket: UdpSocket,
    /// None: datagrams are not sealed.
    key: Option<KeySource>,
    key_file: Option<PathBuf>,
    is_over: AtomicBool,
    state: Mutex<State>,
    profile: Profile,
}

/// This machine in its cluster.
pub(crate) struct ClusterService {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ClusterService {
    /// Joins. `donor` is where this machine's donor listens; `key` is the donor's or borrower's key file.
    pub(crate) fn start(role: &ClusterRole, donor: Option<SocketAddr>, key: Option<PathBuf>) -> Result<Self, Failure> {
        let (key, key_file) = load_key(role.key.clone().or(key).as_deref())?.unzip();
        let default = if key.is_some() { LISTEN_DEFAULT } else { LISTEN_WITHOUT_KEY };
        let listen = role.listen.clone().or_else(|| donor.map(|it| it.to_string()));
        let socket = addresses::bind(listen.as_deref().unwrap_or(default), key.is_some())?;
        if key.is_none() {
            tracing::warn!("cluster '{}' has no key: any program of this host can join it", role.name);
        }
        let (seeds, errors) = addresses::look_up(&role.seeds);
        errors.iter().for_each(|error| tracing::warn!("a seed cannot be looked up: {error}"));
        let during = |error: io::Error| Failure::during("starting the cluster's membership", error);
        let bound = socket.local_addr().map_err(during)?;
        let ways = (!role.seeds.is_empty()).then_some(&seeds[..]);
        let address = role.address.map_or_else(|| addresses::reachable_with_donor(bound, donor, ways), Ok)?;
        let path = role.identity.clone().unwrap_or_else(|| storage::backing_directory().join("machine.json"));
        let clock_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let identity = IdentityFile::begin(&path, clock_ms).map_err(Failure::failed)?;
        let profile = profile(role);
        let settings = Settings {
            discovery: role.discovery,
            identity: Identity::new(identity.machine(), identity.generation(), address),
            cluster: role.name.clone(),
            key: key.as_ref().map(KeySource::current),
            profile: profile.clone(),
            clock_ms,
            seed: u64::from_le_bytes(random_bytes().map_err(during)?),
            sender: random_bytes().map_err(during)?,
        };
        socket.set_nonblocking(true).map_err(during)?;
        let known = settings.key.clone();
        let membership = Membership::new(Instant::now(), settings);
        let state = Mutex::new(State { membership, key: known, identity, wake: None, told: Told::default() });
        let (role, named) = (role.clone(), Mutex::new(role.seeds.clone()));
        let is_over = AtomicBool::new(false);
        let shared = Arc::new(Shared { role, seeds: named, socket, key, key_file, is_over, state, profile });
        shared.give(Input::Join(seeds));
        let threads = vec![
            spawn("cluster", &shared, Shared::receive)?,
            spawn("cluster-names", &shared, move |shared| shared.look_names_up(!errors.is_empty()))?,
        ];
        Ok(Self { shared, threads })
    }

    /// Tells the others new figures, when there are some.
    pub(crate) fn tell(&self, figures: Figures) {
        let Figures { quota_bytes, lent_bytes, used_bytes, is_draining } = figures;
        let profile = Profile { quota_bytes, lent_bytes, used_bytes, is_draining, ..self.shared.profile.clone() };
        self.shared.give(Input::Profile(profile));
    }

    /// From here on these are the seeds. They are looked up at once, by a thread of its own: a resolver may hang.
    pub(crate) fn set_seeds(&self, seeds: Vec<String>) -> Result<(), Failure> {
        *self.shared.seeds() = seeds;
        spawn("cluster-seeds", &self.shared, Shared::take_new_seeds).map(drop)
    }

    /// What is known of the cluster.
    pub(crate) fn view(&self) -> ClusterReport {
        let shared = &self.shared;
        let state = shared.lock();
        let members: Vec<MemberReport> = state.membership.members().into_iter().map(MemberReport::from).collect();
        let mut warnings = warnings::warnings(&state.membership, &members);
        if shared.key_file.is_none() {
            warnings
                .push("there is no cluster key: any program of this host can join; name a key file with key".into());
        }
        let traffic = state.membership.counters();
        if traffic.refused_key > 0 {
            warnings.push(format!(
                "{} datagrams came from machines with another key or cluster name, or were changed on the way",
                traffic.refused_key
            ));
        }
        ClusterReport {
            format: Format::default(),
            name: shared.role.name.clone(),
            discovery: shared.role.discovery.to_string(),
            sealed: shared.key_file.is_some(),
            key_file: shared.key_file.clone(),
            key_ids: state.key.as_ref().map_or(Vec::new(), ClusterKey::ids),
            machine: state.identity.machine().to_string(),
            identity_file: state.identity.path().display().to_string(),
            members,
            warnings,
            traffic,
        }
    }

    /// Says goodbye.
    pub(crate) fn end(self) {
        self.shared.give(Input::Leave);
        self.shared.is_over.store(true, Ordering::Release);
        for thread in self.threads {
            thread.thread().unpark();
            // A look-up may hang as long as the resolver wants; the process does not wait for it.
            if thread.thread().name() == Some("cluster") && thread.join().is_err() {
                tracing::warn!("the cluster's thread ended by a panic");
            }
        }
    }
}

/// The key and its file; none without one.
fn load_key(named: Option<&Path>) -> Result<Option<(KeySource, PathBuf)>, Failure> {
    let Some(path) = storage::key_file(named) else { return Ok(None) };
    let key = if named.is_some() { KeySource::load(&path) } else { KeySource::load_or_create(&path) };
    Ok(Some((key.map_err(Failure::failed)?, path)))
}

fn profile(role: &ClusterRole) -> Profile {
    Profile {
        name: Label::from_foreign(&rustix::system::uname().nodename().to_string_lossy()),
        zone: role.zone.clone(),
        rack: role.rack.clone(),
        release: Label::from_foreign(env!("CARGO_PKG_VERSION")),
        wire_version: WIRE_VERSION,
        ..Profile::default()
    }
}

fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) + Send + 'static,
) -> Result<JoinHandle<()>, Failure> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared));
    thread.map_err(|error| Failure::during("starting a thread", error))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the membership an input and does what it says.
    fn give(&self, input: Input<'_>) {
        let mut state = self.lock();
        for output in state.membership.on(Instant::now(), input) {
            self.act(&mut state, output);
        }
    }

    fn act(&self, state: &mut State, output: Output) {
        match output {
            // A datagram that cannot be sent is one that is lost.
            Output::Send { to, bytes } => drop(self.socket.send_to(&bytes, to)),
            Output::WakeAt(at) => state.wake = Some(at),
            Output::Renewed(generation) => {
                state.told.say("the cluster had taken this machine for dead; it is back", Level::WARN);
                if let Err(error) = state.identity.renew(generation) {
                    tracing::warn!("{error}");
                }
            }
            told => self.tell_of(state, &told),
        }
    }

    /// What people should know. Other machines cause it, so it is told at a pace.
    fn tell_of(&self, state: &mut State, output: &Output) {
        let (level, line) = match output {
            Output::Up(address) => (Level::INFO, format!("{address} is in cluster '{}'", self.role.name)),
            Output::Down(address) => (Level::INFO, format!("{address} is in cluster '{}' no more", self.role.name)),
            Output::Twins { machine, addresses } => {
                let file = state.identity.path().display();
                let line = format!(
                    "the machines at {addresses:?} have the same identity {machine}; remove {file} on all but one of \
                     them, and start their agents again"
                );
                (Level::WARN, line)
            }
            Output::SameAddress(machine) => (
                Level::WARN,
                format!("machine {machine} says that it has this machine's address; see [cluster] address"),
            ),
            Output::Send { .. } | Output::WakeAt(_) | Output::Renewed(_) => return,
        };
        state.told.say(&line, level);
    }

    /// Gives the membership the key that the file has now, if it is another one.
    fn follow_key(&self) {
        let Some(key) = self.key.as_ref().map(KeySource::current) else { return };
        let is_known = self.lock().key.as_ref() == Some(&key);
        if !is_known {
            self.give(Input::Key(key.clone()));
            self.lock().key = Some(key);
        }
    }

    fn seeds(&self) -> MutexGuard<'_, Vec<String>> {
        self.seeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn receive(&self) {
        let mut next_look = Instant::now();
        while !self.is_over() {
            self.wait();
            if Instant::now() >= next_look {
                next_look = Instant::now() + KEY_LOOK_INTERVAL;
                self.follow_key();
            }
            let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
            for _ in 0..DATAGRAMS_PER_TURN_MAX {
                // An error is one of an earlier datagram (its port was closed), or that there is no further one.
                let Ok((length, _)) = self.socket.recv_from(&mut buffer) else { break };
                self.give(Input::Datagram(&buffer[..length]));
            }
            let is_due = self.lock().wake.take_if(|at| *at <= Instant::now()).is_some();
            if is_due {
                self.give(Input::Timer);
            }
        }
    }

    /// Until a datagram comes, or it is time.
    fn wait(&self) {
        let now = Instant::now();
        let wait = self.lock().wake.map_or(TURN, |at| at.saturating_duration_since(now)).min(TURN);
        let timeout = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() };
        let mut ready = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        // An interruption by a signal is one turn more.
        let _ = rustix::event::poll(&mut ready, Some(&timeout));
    }

    /// Looks the names up again and again. A list is done when all of it could be looked up.
    fn look_names_up(&self, mut has_failed: bool) {
        while !self.is_over() && (has_failed || self.role.discovery != Discovery::Static) {
            std::thread::park_timeout(if has_failed { LOOK_UP_RETRY } else { RESOLVE_INTERVAL });
            if self.is_over() {
                return;
            }
            let errors = self.look_up_once();
            if !errors.is_empty() && !has_failed {
                tracing::warn!("seeds cannot be looked up, so those known before stay: {}", errors.join("; "));
            }
            has_failed = !errors.is_empty();
        }
    }

    /// Tries until all can be looked up, or there are other ones.
    fn take_new_seeds(&self) {
        let seeds = self.seeds().clone();
        loop {
            let errors = self.look_up_once();
            if errors.is_empty() {
                return;
            }
            tracing::warn!("seeds cannot be looked up, so those known before stay: {}", errors.join("; "));
            std::thread::park_timeout(LOOK_UP_RETRY);
            if self.is_over() || *self.seeds() != seeds {
                return;
            }
        }
    }

    /// The seeds are taken if all of them can be looked up; what went wrong.
    fn look_up_once(&self) -> Vec<String> {
        let seeds = self.seeds().clone();
        let (found, errors) = addresses::look_up(&seeds);
        if errors.is_empty() {
            self.give(Input::Join(found));
        }
        errors
    }
}
