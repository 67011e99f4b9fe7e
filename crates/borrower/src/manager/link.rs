//! One donor's thread: opens a session, answers the donor, and cleans up when the session ends.
//!
//! A session on this host gets shared memory over the donor's UNIX socket, also when the donor was named by its TCP
//! address; any other, and every one if the user says so, gets one connection per I/O thread. When it ends, in this order: the
//! donor counts as disconnected (no new place is filled), I/O threads lose their queue pairs (requests in flight end), and
//! every place at the donor is emptied. Only then is the donor tried again: a donor that comes back is a new one, with new slabs. Slabs that it kept for a
//! process that died are taken over at the beginning of the first session of the next one ([`reunion`]).
//!
//! A donor that is silent while its connection is open is given up after two seconds, unless it has the only copy of some page: then
//! giving up would lose the page for certain, and it is waited for much longer ([`Patience`](spillway_fabric::patience::Patience)).

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use spillway_fabric::address::DonorAddress;
use spillway_fabric::control::host::boot_id;
use spillway_fabric::control::message::{Hello, Message, Welcome};
use spillway_fabric::control::silence::Silence;
use spillway_fabric::control::{ControlChannel, ControlError, ControlReceiver, ControlSender};
use spillway_fabric::limits::{
    HANDSHAKE_DEADLINE, HEARTBEAT_INTERVAL, SILENCE_DEADLINE, SLABS_PER_SESSION_MAX, SOLE_COPY_PATIENCE,
};
use spillway_fabric::queue_pair::QueuePair;
use spillway_fabric::shm::{ShmQueuePair, ShmWindow};
use spillway_fabric::tcp::TcpQueuePair;
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};

use super::Shared;
use super::activity;
use super::donors::{DonorEntry, Session};
use super::mapping::forget_donor;
use super::mover::Work;
use super::reunion::{self, HeldSlab};
use crate::device::transport::TransportChoice;
use crate::engine::lanes::LaneChange;
use crate::limits::{
    RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, SILENCE_NOTICED, SOLE_COPY_LOOK_INTERVAL, SOLE_COPY_PATIENCE_WITH_DISK,
};
use crate::state::records::DonorRecord;
use crate::volume::slab_entry::DonorSlot;

/// Why a session could not be opened, or ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody answers at the address; is the donor running?
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    /// The control channel failed: key, version, silence.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The donor wants no session.
    #[error("the donor rejected this borrower: {0}")]
    Rejected(String),
    /// It said something that makes no sense here.
    #[error("the donor spoke out of turn: {0}")]
    Protocol(String),
    /// A data connection or the window for shared memory could not be made.
    #[error("cannot make data connections: {0}")]
    Data(io::Error),
    /// The user wants nothing else.
    #[error("no shared memory with it: it runs on another host, or for another user; use --transport auto")]
    NoSharedMemory,
    /// The donor leaves.
    #[error("the donor said goodbye: {0}")]
    Goodbye(String),
}

/// An open control channel, and what the donor said.
struct Greeted {
    sender: ControlSender,
    receiver: ControlReceiver,
    welcome: Welcome,
    held: Vec<HeldSlab>,
}

/// The same, and how pages will travel.
struct Opened {
    sender: ControlSender,
    receiver: ControlReceiver,
    welcome: Welcome,
    held: Vec<HeldSlab>,
    transport: Transport,
}

impl Greeted {
    fn over(self, transport: Transport) -> Opened {
        let Self { sender, receiver, welcome, held } = self;
        Opened { sender, receiver, welcome, held, transport }
    }
}

/// How pages will travel.
enum Transport {
    Shm,
    Tcp(std::net::SocketAddr),
    /// As over TCP, through the UNIX socket of a donor on this host.
    Unix(PathBuf),
}

/// Keeps the donor in `slot` connected until the device stops.
pub fn run(shared: &Shared, slot: usize) {
    let donor = &shared.donors[slot];
    let mut pause = RECONNECT_PAUSE_MIN;
    while !shared.is_stopping() {
        match session(shared, donor) {
            Ok(()) => return,
            // Our own goodbye ended it, and the volume goes with the device.
            Err(_) if shared.is_stopping() => return,
            Err(error) => {
                let was_connected = donor.session().is_some();
                clean_up(shared, donor, &error);
                pause = if was_connected { RECONNECT_PAUSE_MIN } else { (pause * 2).min(RECONNECT_PAUSE_MAX) };
            }
        }
        let until = Instant::now() + pause;
        while Instant::now() < until && !shared.is_stopping() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Makes the link thread of `donor` give its session up.
pub fn reset(donor: &DonorEntry, reason: &str) {
    if let Some(session) = donor.session() {
        tracing::warn!("the session with {} ends: {reason}", donor.address);
        session.sender.close();
    }
}

/// Ends the sessions with all of `donors` for good; they take their slabs back. At once, so that those that do not read what
/// they are sent cost one deadline together.
pub fn say_goodbye_to_all(donors: &[DonorEntry]) {
    std::thread::scope(|scope| {
        for donor in donors {
            let thread = std::thread::Builder::new().name("goodbye".to_owned());
            if thread.spawn_scoped(scope, || say_goodbye(donor)).is_err() {
                say_goodbye(donor);
            }
        }
    });
}

fn say_goodbye(donor: &DonorEntry) {
    if let Some(session) = donor.session() {
        // A donor that does not hear it notices the closed socket.
        let _ = session
            .sender
            .clone()
            .with_patience(SILENCE_DEADLINE)
            .send(&Message::Goodbye { reason: "the device stops".to_owned() }, None);
        session.sender.close();
    }
    donor.abandon_calls();
}

/// Whether `donor`, which said nothing for so long, is still waited for: soon not any more, unless pages would be lost with it.
fn is_waited_for(shared: &Shared, donor: &DonorEntry, silence: Duration) -> bool {
    if silence < SILENCE_NOTICED {
        return true;
    }
    shared.volume.set_silent(donor.slot, true);
    let is_sole = look_for_sole_copies(shared, donor);
    if is_sole && silence == SILENCE_DEADLINE {
        let most = donor.patience().silence().as_secs();
        tracing::warn!(
            "donor {} is silent; it has the only copy of some pages and is waited for up to {most} s",
            donor.address
        );
    }
    silence < donor.patience().silence()
}

/// Looks whether pages would be lost with `donor`, and sets how long it is waited for.
fn look_for_sole_copies(shared: &Shared, donor: &DonorEntry) -> bool {
    let within_reach = |other: DonorSlot| shared.is_within_reach(other);
    // While it is heard pages come, and where they have no second copy nobody looks again before it is silent.
    let may_become_sole = !shared.volume.is_silent(donor.slot) && !shared.volume.keeps_several_copies();
    let is_sole = may_become_sole || shared.volume.depends_on(donor.slot, &within_reach);
    let longest = if shared.volume.redundancy.disk { SOLE_COPY_PATIENCE_WITH_DISK } else { SOLE_COPY_PATIENCE };
    donor.patience().wait_for_sole_copies(is_sole.then_some(longest));
    if shared.is_stopping() {
        // Whoever stops the device may have looked before this was set.
        donor.patience().wait_for_sole_copies(None);
    }
    is_sole
}

/// One session from its beginning to its end; `Ok` when the device stops.
fn session(shared: &Shared, donor: &DonorEntry) -> Result<(), LinkError> {
    let opened = open(shared, donor)?;
    let window = match opened.transport {
        Transport::Shm => {
            let size_bytes = shared.volume.geometry.slab_size_bytes();
            Some(ShmWindow::new(size_bytes, SLABS_PER_SESSION_MAX).map_err(LinkError::Data)?)
        }
        Transport::Tcp(_) | Transport::Unix(_) => None,
    };
    shared.volume.set_silent(donor.slot, false);
    look_for_sole_copies(shared, donor);
    let held = reunion::take_held(shared, donor.slot, &opened.held, window.as_deref());
    install_queue_pairs(shared, donor, &opened, window.as_ref()).map_err(LinkError::Data)?;
    let record = DonorRecord { donor: opened.welcome.donor, token: opened.welcome.resume };
    shared.ties.records.set_donor(donor.slot, &record);
    let sender = opened.sender.with_patience(donor.patience().silence());
    let session = Arc::new(Session { donor: opened.welcome.donor, sender, window: window.clone() });
    let transport = if window.is_some() { "shm" } else { "tcp" };
    tracing::info!("donor {} at {} is connected over {transport}", session.donor, donor.address);
    shared.volume.begin_session(donor.slot);
    donor.connected(Arc::clone(&session), transport, opened.welcome.free_bytes, held.kept);
    // Leased by a process that died before it put them to use.
    held.unused.into_iter().for_each(|slab| donor.return_unused(slab));
    shared.volume.set_mapping_possible(true);
    let mut receiver = opened.receiver;
    let mut silence = Silence::default();
    let mut look_again: Option<Instant> = None;
    while !shared.is_stopping() {
        // Its data connections may still be silent when the control channel speaks again, and have counted for as long.
        if look_again.take_if(|at| Instant::now() >= *at).is_some() && look_for_sole_copies(shared, donor) {
            look_again = Some(Instant::now() + SOLE_COPY_LOOK_INTERVAL);
        }
        match receiver.receive(HEARTBEAT_INTERVAL) {
            Ok((message, descriptor)) => {
                silence.is_broken();
                if shared.volume.is_silent(donor.slot) {
                    shared.volume.set_silent(donor.slot, false);
                    look_again = Some(Instant::now() + SOLE_COPY_LOOK_INTERVAL);
                }
                handle(shared, donor, &session, message, descriptor)?;
            }
            Err(ControlError::TimedOut) => {
                silence.lasts();
                if !is_waited_for(shared, donor, silence.observed()) {
                    return Err(ControlError::TimedOut.into());
                }
                session.sender.send(&Message::Ping, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn handle(
    shared: &Shared,
    donor: &DonorEntry,
    session: &Session,
    message: Message,
    descriptor: Option<OwnedFd>,
) -> Result<(), LinkError> {
    match message {
        Message::Free { request, .. } | Message::Leased { request, .. } | Message::Refused { request, .. } => {
            donor.answer(request, message, descriptor);
        }
        Message::Recall { slabs, .. } => {
            slabs.into_iter().for_each(|slab| shared.work.add(Work::Recall(donor.slot, slab)));
        }
        Message::ActivityQuery { request, slabs } => {
            let values = activity::of_slabs(&shared.volume, donor.slot, slabs);
            session.sender.send(&Message::Activity { request, values }, None)?;
        }
        Message::Ping => session.sender.send(&Message::Pong, None)?,
        Message::Pong | Message::Released { .. } => {}
        Message::Goodbye { reason } => return Err(LinkError::Goodbye(reason)),
        other => return Err(LinkError::Protocol(format!("{other:?}"))),
    }
    Ok(())
}

/// Connects and says hello, over the UNIX socket if the donor is on this host. Slabs of a session before are asked for over
/// the connection that will be used, so one whose transport is not known yet is opened only to learn it.
fn open(shared: &Shared, donor: &DonorEntry) -> Result<Opened, LinkError> {
    let resume = shared.ties.records.donor(donor.slot).map(|record| record.token);
    match &donor.address {
        DonorAddress::Unix(path) if shared.transport == TransportChoice::Tcp => {
            let stream = connect_unix(path).map_err(LinkError::Unreachable)?;
            Ok(greet(shared, stream, false, resume)?.over(Transport::Unix(path.clone())))
        }
        DonorAddress::Unix(path) => open_unix(shared, path, resume),
        DonorAddress::Tcp(text) => {
            let (stream, mut peer) = connect_tcp(text).map_err(LinkError::Unreachable)?;
            let first = greet(shared, stream.into(), false, None)?;
            let here = boot_id().is_ok_and(|host| host == first.welcome.host);
            if here && !first.welcome.unix_path.is_empty() && shared.transport != TransportChoice::Tcp {
                match open_unix(shared, Path::new(&first.welcome.unix_path), resume) {
                    Ok(opened) if opened.welcome.donor == first.welcome.donor => return Ok(opened),
                    Ok(_) => tracing::info!("{} is another donor than {text}", first.welcome.unix_path),
                    Err(error) => tracing::info!("no shared memory with {text}: {error}"),
                }
            }
            if shared.transport == TransportChoice::Shm {
                return Err(LinkError::NoSharedMemory);
            }
            let greeted = match resume {
                None => first,
                Some(_) => {
                    let (stream, _) = connect_tcp(text).map_err(LinkError::Unreachable)?;
                    greet(shared, stream.into(), false, resume)?
                }
            };
            if greeted.welcome.data_port != 0 {
                peer.set_port(greeted.welcome.data_port);
            }
            Ok(greeted.over(Transport::Tcp(peer)))
        }
    }
}

fn open_unix(shared: &Shared, path: &Path, resume: Option<SessionToken>) -> Result<Opened, LinkError> {
    let stream = connect_unix(path).map_err(LinkError::Unreachable)?;
    Ok(greet(shared, stream, true, resume)?.over(Transport::Shm))
}

/// Connects without waiting: a stopped donor whose queue of connections is full would keep this thread for ever.
fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

fn connect_tcp(text: &str) -> io::Result<(TcpStream, std::net::SocketAddr)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("'{text}' has no address"));
    for address in text.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, HANDSHAKE_DEADLINE) {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn greet(
    shared: &Shared,
    stream: OwnedFd,
    wants_shared_memory: bool,
    resume: Option<SessionToken>,
) -> Result<Greeted, LinkError> {
    let (sender, mut receiver) = ControlChannel::connect(stream, shared.key.as_ref())?.split();
    let hello = Hello {
        version: WIRE_VERSION,
        borrower: shared.borrower,
        volume: shared.name.clone(),
        slab_size_bytes: shared.volume.geometry.slab_size_bytes(),
        wants_shared_memory,
        linger_seconds: shared.ties.linger.as_secs() as u16,
        patience_seconds: donors_patience(shared).as_secs() as u16,
        resume,
    };
    sender.send(&Message::Hello(hello), None)?;
    match receiver.receive(HANDSHAKE_DEADLINE)?.0 {
        Message::Welcome(welcome) => {
            let held = receive_held(&mut receiver, welcome.held)?;
            Ok(Greeted { sender, receiver, welcome, held })
        }
        Message::Rejected { reason } => Err(LinkError::Rejected(reason)),
        other => Err(LinkError::Protocol(format!("{other:?} instead of a welcome"))),
    }
}

/// How long donors are to wait for this process when it says nothing: all of them stop hearing it at the same moment, so other donors'
/// copies do not help.
fn donors_patience(shared: &Shared) -> Duration {
    if shared.volume.redundancy.disk { SILENCE_DEADLINE } else { SOLE_COPY_PATIENCE }
}

/// The slabs that the donor has kept, as it said so many.
fn receive_held(receiver: &mut ControlReceiver, count: u32) -> Result<Vec<HeldSlab>, LinkError> {
    if count as usize > SLABS_PER_SESSION_MAX {
        return Err(LinkError::Protocol(format!("{count} slabs were held, more than a session may")));
    }
    let mut held = Vec::new();
    for _ in 0..count {
        match receiver.receive(HANDSHAKE_DEADLINE)? {
            (Message::Held { slab }, memory) => held.push(HeldSlab { slab, memory }),
            (other, _) => return Err(LinkError::Protocol(format!("{other:?} instead of a slab that it held"))),
        }
    }
    Ok(held)
}

/// Gives every lane a queue pair to the donor. They see it before any place at the donor is filled.
fn install_queue_pairs(
    shared: &Shared,
    donor: &DonorEntry,
    opened: &Opened,
    window: Option<&Arc<ShmWindow>>,
) -> io::Result<()> {
    let mut queue_pairs: Vec<Box<dyn QueuePair>> = Vec::with_capacity(shared.lanes.len());
    for lane in &shared.lanes {
        let (pool, patience) = (Arc::clone(&lane.pool), Arc::clone(donor.patience()));
        queue_pairs.push(match (window, &opened.transport) {
            (Some(window), _) => Box::new(ShmQueuePair::new(Arc::clone(window), pool)),
            (None, Transport::Tcp(address)) => {
                let stream = TcpStream::connect_timeout(address, HANDSHAKE_DEADLINE)?;
                Box::new(TcpQueuePair::connect(stream, &opened.welcome.token, pool, patience)?)
            }
            (None, Transport::Unix(path)) => {
                Box::new(TcpQueuePair::connect(connect_unix(path)?, &opened.welcome.token, pool, patience)?)
            }
            (None, Transport::Shm) => unreachable!("shared memory has a window"),
        });
    }
    for (lane, queue_pair) in shared.lanes.iter().zip(queue_pairs) {
        lane.mailbox.leave(LaneChange { donor: donor.slot, queue_pair: Some(queue_pair) });
    }
    Ok(())
}

fn clean_up(shared: &Shared, donor: &DonorEntry, error: &LinkError) {
    let session = donor.session();
    donor.disconnected(error.to_string());
    let Some(session) = session else {
        tracing::debug!("donor {}: {error}", donor.address);
        if Instant::now() >= shared.reunion_until {
            // It does not keep what a process before this one had there.
            forget_donor(shared, donor.slot);
        }
        return;
    };
    session.sender.close();
    for lane in &shared.lanes {
        lane.mailbox.leave(LaneChange { donor: donor.slot, queue_pair: None });
    }
    let pages_lost = forget_donor(shared, donor.slot);
    if let Some(window) = &session.window {
        window.close();
    }
    if pages_lost > 0 {
        tracing::error!("donor {} is lost ({error}), and {pages_lost} pages with it", donor.address);
    } else {
        tracing::warn!("donor {} is lost ({error}); every page has another copy", donor.address);
    }
    shared.volume.manager_event.signal();
}
