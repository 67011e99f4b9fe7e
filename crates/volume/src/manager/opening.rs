//! Opens a session with a donor: connects, says hello, and makes the queue pairs of all threads, before one deadline.
//!
//! A donor that keeps slabs of a process before this one ([`super::reunion`]) is given a handshake's time more for
//! handing them over: only a session that is resumed has them.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spillway_fabric::address::DonorAddress;
use spillway_fabric::control::host::boot_id;
use spillway_fabric::control::message::{Hello, Message, Welcome};
use spillway_fabric::control::{ControlChannel, ControlError, ControlReceiver, ControlSender};
use spillway_fabric::key_source::KeySource;
use spillway_fabric::limits::{
    CONNECT_DEADLINE, HANDSHAKE_DEADLINE, SILENCE_DEADLINE, SLABS_PER_SESSION_MAX, SOLE_COPY_PATIENCE,
};
use spillway_fabric::queue_pair::QueuePair;
use spillway_fabric::rdma::port::PooledPort;
use spillway_fabric::rdma::queue_pair::Parts;
use spillway_fabric::rdma::{Endpoint, RdmaQueuePair, RdmaUnavailable, RemoteSlabs};
use spillway_fabric::shm::{ShmQueuePair, ShmWindow};
use spillway_fabric::tcp::TcpQueuePair;
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};
use spillway_sys::verbs::Connection;

use super::ManagerState;
use super::dialing::{DialError, Resolver, dial_address, dial_tcp, dial_unix};
use super::donors::DonorEntry;
use super::link_error::LinkError;
use super::reach::{RdmaReach, Reach};
use super::reunion::HeldSlab;
use crate::engine::queue_pairs::QueuePairChange;
use crate::limits::EARLY_MESSAGES_MAX;
use crate::settings::transport::TransportChoice;

/// An open control channel, and what the donor said.
struct Greeted {
    sender: ControlSender,
    receiver: ControlReceiver,
    welcome: Welcome,
    held: Vec<HeldSlab>,
    /// What the donor said before it was listened to.
    early: Vec<Message>,
}

/// The same, and how pages will travel.
pub(super) struct Opened {
    pub(super) sender: ControlSender,
    pub(super) receiver: ControlReceiver,
    pub(super) welcome: Welcome,
    pub(super) held: Vec<HeldSlab>,
    pub(super) early: Vec<Message>,
    pub(super) transport: Transport,
    /// Why that one, where another was wished for; else empty.
    pub(super) reason: String,
}

impl Greeted {
    fn over(self, transport: Transport) -> Opened {
        let Self { sender, receiver, welcome, held, early } = self;
        Opened { sender, receiver, welcome, held, early, transport, reason: String::new() }
    }
}

/// How pages will travel.
pub(super) enum Transport {
    Shm,
    Tcp(SocketAddr),
    /// By RDMA, with a TCP connection to the address beside each queue pair.
    Rdma(SocketAddr, LocalRdma),
    /// As over TCP, through the UNIX socket of a donor on this host.
    Unix(PathBuf),
}

/// This host's end of RDMA: a port, and the buffers of all threads registered there.
pub(super) struct LocalRdma {
    port: Arc<PooledPort>,
    /// One for each thread, when the donor has answered.
    connections: VecDeque<Connection>,
}

impl Transport {
    /// As users are told.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Rdma(..) => "rdma",
            Self::Tcp(_) | Self::Unix(_) => "tcp",
        }
    }
}

/// One attempt to open a session.
pub(super) struct Attempt<'a> {
    shared: &'a ManagerState,
    donor: &'a DonorEntry,
    /// Of the session before, if the donor may hold slabs of it.
    resume: Option<SessionToken>,
    deadline: Instant,
}

impl<'a> Attempt<'a> {
    /// Its time begins now.
    pub(super) fn begin(shared: &'a ManagerState, donor: &'a DonorEntry) -> Self {
        let resume = shared.resumption.records.donor(donor.slot).map(|record| record.token);
        Self { shared, donor, resume, deadline: Instant::now() + CONNECT_DEADLINE }
    }

    /// Connects and says hello, over the UNIX socket if the donor is on this host. Slabs of a session before are
    /// asked for over the connection that will be used, so one whose transport is not known yet is opened only to
    /// learn it.
    pub(super) fn open(&mut self, resolver: &mut Resolver) -> Result<Opened, LinkError> {
        match &self.donor.address {
            DonorAddress::Unix(_) if self.shared.transport == TransportChoice::Rdma => {
                Err(LinkError::NoRdma(RdmaUnavailable::NoNetwork.to_string()))
            }
            DonorAddress::Unix(path) if self.shared.transport == TransportChoice::Tcp => {
                Ok(self.greet(dial_unix(path)?, (false, false), self.resume)?.over(Transport::Unix(path.clone())))
            }
            DonorAddress::Unix(path) => self.open_unix(path),
            DonorAddress::Tcp(text) => self.open_tcp(resolver, text),
        }
    }

    fn open_tcp(&mut self, resolver: &mut Resolver, text: &str) -> Result<Opened, LinkError> {
        let (stream, mut peer) = dial_tcp(resolver, text, self.deadline)?;
        let begun = Instant::now();
        let rdma = self.find_rdma(&stream);
        // Devices took their time, and the donor may have heard nothing for too long.
        let stream = if begun.elapsed() > HANDSHAKE_DEADLINE / 4 {
            self.deadline = self.deadline.max(Instant::now() + CONNECT_DEADLINE);
            dial_address(peer, self.deadline)?
        } else {
            stream
        };
        if let (TransportChoice::Rdma, Err(reason)) = (self.shared.transport, &rdma) {
            return Err(LinkError::NoRdma(reason.clone()));
        }
        let first = self.greet(stream.into(), (false, rdma.is_ok()), None)?;
        let here = boot_id().is_ok_and(|host| host == first.welcome.host);
        let may_share = matches!(self.shared.transport, TransportChoice::Auto | TransportChoice::Shm);
        if here && !first.welcome.unix_path.is_empty() && may_share {
            match self.open_unix(Path::new(&first.welcome.unix_path)) {
                Ok(opened) if opened.welcome.donor == first.welcome.donor => return Ok(opened),
                Ok(_) => tracing::info!("{} is another donor than {text}", first.welcome.unix_path),
                Err(error) => tracing::info!("no shared memory with {text}: {error}"),
            }
        }
        if self.shared.transport == TransportChoice::Shm {
            return Err(LinkError::NoSharedMemory);
        }
        let mut greeted = match self.resume {
            None => first,
            Some(_) => self.greet(dial_address(peer, self.deadline)?.into(), (false, rdma.is_ok()), self.resume)?,
        };
        if greeted.welcome.data_port != 0 {
            peer.set_port(greeted.welcome.data_port);
        }
        let connected = match rdma {
            Ok(local) => self.connect_rdma(&mut greeted, &local)?.map(|connections| (local, connections)),
            Err(reason) => Err(reason),
        };
        match connected {
            Ok((local, connections)) => {
                let local = LocalRdma { connections: connections.into(), ..local };
                Ok(greeted.over(Transport::Rdma(peer, local)))
            }
            Err(reason) if self.shared.transport == TransportChoice::Rdma => Err(LinkError::NoRdma(reason)),
            Err(reason) => Ok(Opened { reason, ..greeted.over(Transport::Tcp(peer)) }),
        }
    }

    /// This host's end of RDMA on the network of `stream`; or why there is none, in words.
    fn find_rdma(&self, stream: &TcpStream) -> Result<LocalRdma, String> {
        match self.shared.transport {
            TransportChoice::Auto | TransportChoice::Rdma => {}
            // Asked for, so there is nothing to explain.
            TransportChoice::Shm | TransportChoice::Tcp => return Err(String::new()),
        }
        let address = stream.local_addr().map_err(|error| error.to_string())?.ip();
        let pools = self.shared.queue_pairs.iter().map(|holder| &holder.pool);
        let found = self.shared.rdma_ports.find(address, pools);
        found.map(|port| LocalRdma { port, connections: VecDeque::new() }).map_err(|error| error.to_string())
    }

    /// How the slabs of the session will be reached.
    pub(super) fn reach(&self, opened: &Opened) -> Result<Reach, LinkError> {
        let size_bytes = self.shared.volume.geometry.slab_size_bytes();
        Ok(match opened.transport {
            Transport::Shm => {
                Reach::Window(ShmWindow::new(size_bytes, SLABS_PER_SESSION_MAX).map_err(LinkError::Data)?)
            }
            Transport::Rdma(..) => Reach::Rdma(RdmaReach {
                slabs: RemoteSlabs::new(size_bytes),
                needs_keys: self.shared.transport == TransportChoice::Rdma,
                repairs: Mutex::default(),
            }),
            Transport::Tcp(_) | Transport::Unix(_) => Reach::Socket,
        })
    }

    fn open_unix(&mut self, path: &Path) -> Result<Opened, LinkError> {
        Ok(self.greet(dial_unix(path)?, (true, false), self.resume)?.over(Transport::Shm))
    }

    fn greet(
        &mut self,
        stream: OwnedFd,
        (wants_shared_memory, wants_rdma): (bool, bool),
        resume: Option<SessionToken>,
    ) -> Result<Greeted, LinkError> {
        let shared = self.shared;
        let key = shared.key.as_ref().map(KeySource::current);
        let channel = ControlChannel::connect_until(stream, key.as_ref(), self.deadline);
        let (sender, mut receiver) = channel.map_err(silence_in_handshake)?.split();
        let hello = Hello {
            version: WIRE_VERSION,
            borrower: shared.borrower,
            volume: shared.name.clone(),
            slab_size_bytes: shared.volume.geometry.slab_size_bytes(),
            wants_shared_memory,
            wants_rdma,
            linger_seconds: shared.resumption.linger.as_secs() as u16,
            patience_seconds: donors_patience(shared).as_secs() as u16,
            resume,
        };
        sender.send(&Message::Hello(hello), None)?;
        if resume.is_some() {
            self.deadline = self.deadline.max(Instant::now() + HANDSHAKE_DEADLINE);
        }
        match receiver.receive(self.left()).map_err(silence_in_handshake)?.0 {
            Message::Welcome(welcome) => {
                let held = receive_held(&mut receiver, welcome.held)?;
                Ok(Greeted { sender, receiver, welcome, held, early: Vec::new() })
            }
            Message::Rejected { reason } => Err(LinkError::Rejected(reason)),
            other => Err(LinkError::Protocol(format!("{other:?} instead of a welcome"))),
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Connects a queue pair for each thread over the control channel; why not, in words, if the donor refuses.
    fn connect_rdma(
        &mut self,
        greeted: &mut Greeted,
        local: &LocalRdma,
    ) -> Result<Result<Vec<Connection>, String>, LinkError> {
        self.deadline = self.deadline.max(Instant::now() + HANDSHAKE_DEADLINE);
        let mut connections = Vec::new();
        for place in 0..self.shared.queue_pairs.len() as u32 {
            let ours = match local.port.port().connection() {
                Ok(ours) => ours,
                Err(error) => {
                    self.shared.rdma_ports.forget(&local.port);
                    return Ok(Err(format!("no RDMA queue pair can be made: {error}")));
                }
            };
            greeted.sender.send(&Message::RdmaConnect { place, endpoint: ours.endpoint }, None)?;
            let theirs = match self.hear_endpoint(greeted, place)? {
                Ok(theirs) => theirs,
                Err(reason) => return Ok(Err(format!("the donor has no RDMA for this borrower: {reason}"))),
            };
            match ours.connect(&theirs, false) {
                Ok(connection) => connections.push(connection),
                Err(error) => return Ok(Err(format!("the RDMA queue pairs cannot be connected: {error}"))),
            }
        }
        // Devices took their time, which is none of the data connections' that follow.
        self.deadline = self.deadline.max(Instant::now() + HANDSHAKE_DEADLINE);
        Ok(Ok(connections))
    }

    /// The donor's answer for queue pair `place`.
    fn hear_endpoint(&self, greeted: &mut Greeted, place: u32) -> Result<Result<Endpoint, String>, LinkError> {
        loop {
            match greeted.receiver.receive(self.left()).map_err(silence_in_handshake)?.0 {
                Message::RdmaConnected { place: answered, endpoint } if answered == place => return Ok(Ok(endpoint)),
                Message::RdmaRefused { place: answered, reason } if answered == place => return Ok(Err(reason)),
                Message::Ping => greeted.sender.send(&Message::Pong, None)?,
                message if greeted.early.len() < EARLY_MESSAGES_MAX => greeted.early.push(message),
                other => return Err(LinkError::Protocol(format!("{other:?} instead of a queue pair"))),
            }
        }
    }

    /// Gives every thread a queue pair to the donor. They see it before any copy index at the donor is filled.
    pub(super) fn install_queue_pairs(&self, opened: &mut Opened, reach: &Reach) -> Result<(), LinkError> {
        let mut queue_pairs: Vec<Box<dyn QueuePair>> = Vec::with_capacity(self.shared.queue_pairs.len());
        let token = opened.welcome.token;
        for holder in &self.shared.queue_pairs {
            let (pool, patience) = (Arc::clone(&holder.pool), Arc::clone(self.donor.patience()));
            let over_stream = |stream: OwnedFd| {
                TcpQueuePair::connect_until(stream, &token, pool.clone(), Arc::clone(&patience), self.deadline)
                    .map_err(LinkError::Data)
            };
            let over_tcp = |address: SocketAddr| {
                let stream = dial_address(address, self.deadline).map_err(LinkError::DataUnreachable)?;
                over_stream(stream.into())
            };
            queue_pairs.push(match (reach, &mut opened.transport) {
                (Reach::Window(window), _) => Box::new(ShmQueuePair::new(Arc::clone(window), pool)),
                (_, Transport::Tcp(address)) => Box::new(over_tcp(*address)?),
                (_, Transport::Unix(path)) => {
                    Box::new(over_stream(dial_unix(path).map_err(LinkError::DataUnreachable)?)?)
                }
                (Reach::Rdma(rdma), Transport::Rdma(address, local)) => {
                    let tcp = over_tcp(*address)?;
                    let connection = local.connections.pop_front().expect("one was connected for each thread");
                    let (port, slabs) = (Arc::clone(&local.port), Arc::clone(&rdma.slabs));
                    let queue_pair = RdmaQueuePair::new(connection, Parts { port, pool, slabs, tcp, patience });
                    let queue_pair = queue_pair.map_err(|error| LinkError::NoRdma(error.to_string()))?;
                    rdma.add_repair(Arc::clone(queue_pair.repair()));
                    Box::new(queue_pair)
                }
                (_, Transport::Shm | Transport::Rdma(..)) => unreachable!("the reach is made for the transport"),
            });
        }
        for (holder, queue_pair) in self.shared.queue_pairs.iter().zip(queue_pairs) {
            let queue_pair = Some(self.shared.wrapper.wrap(queue_pair));
            holder.mailbox.leave(QueuePairChange { donor: self.donor.slot, queue_pair });
        }
        Ok(())
    }
}

impl From<DialError> for LinkError {
    fn from(error: DialError) -> Self {
        Self::Unreachable(error)
    }
}

/// A peer that took the connection and then said nothing needs another explanation than a donor that falls silent.
fn silence_in_handshake(error: ControlError) -> LinkError {
    match error {
        ControlError::TimedOut => LinkError::Speechless,
        other => other.into(),
    }
}

/// How long donors are to wait for this process when it says nothing: all of them stop hearing it at the same moment,
/// so other donors' copies do not help.
fn donors_patience(shared: &ManagerState) -> Duration {
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
            (Message::Held { slab, key }, memory) => held.push(HeldSlab { slab, memory, key }),
            (other, _) => return Err(LinkError::Protocol(format!("{other:?} instead of a slab that it held"))),
        }
    }
    Ok(held)
}
