//! Opens a session with a donor: connects, says hello, and makes the queue pairs of all threads, before one deadline.
//!
//! A donor that keeps slabs of a process before this one ([`super::reunion`]) is given a handshake's time more for
//! handing them over: only a session that is resumed has them.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_fabric::address::DonorAddress;
use spillway_fabric::control::host::boot_id;
use spillway_fabric::control::message::{Hello, Message, Welcome};
use spillway_fabric::control::{ControlChannel, ControlError, ControlReceiver, ControlSender};
use spillway_fabric::limits::{
    CONNECT_DEADLINE, HANDSHAKE_DEADLINE, SILENCE_DEADLINE, SLABS_PER_SESSION_MAX, SOLE_COPY_PATIENCE,
};
use spillway_fabric::queue_pair::QueuePair;
use spillway_fabric::shm::{ShmQueuePair, ShmWindow};
use spillway_fabric::tcp::TcpQueuePair;
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};

use super::ManagerState;
use super::dialing::{DialError, Resolver, dial_address, dial_tcp, dial_unix};
use super::donors::DonorEntry;
use super::link_error::LinkError;
use super::reunion::HeldSlab;
use crate::engine::queue_pairs::QueuePairChange;
use crate::settings::transport::TransportChoice;

/// An open control channel, and what the donor said.
struct Greeted {
    sender: ControlSender,
    receiver: ControlReceiver,
    welcome: Welcome,
    held: Vec<HeldSlab>,
}

/// The same, and how pages will travel.
pub(super) struct Opened {
    pub(super) sender: ControlSender,
    pub(super) receiver: ControlReceiver,
    pub(super) welcome: Welcome,
    pub(super) held: Vec<HeldSlab>,
    pub(super) transport: Transport,
}

impl Greeted {
    fn over(self, transport: Transport) -> Opened {
        let Self { sender, receiver, welcome, held } = self;
        Opened { sender, receiver, welcome, held, transport }
    }
}

/// How pages will travel.
pub(super) enum Transport {
    Shm,
    Tcp(std::net::SocketAddr),
    /// As over TCP, through the UNIX socket of a donor on this host.
    Unix(PathBuf),
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
            DonorAddress::Unix(path) if self.shared.transport == TransportChoice::Tcp => {
                Ok(self.greet(dial_unix(path)?, false, self.resume)?.over(Transport::Unix(path.clone())))
            }
            DonorAddress::Unix(path) => self.open_unix(path),
            DonorAddress::Tcp(text) => self.open_tcp(resolver, text),
        }
    }

    fn open_tcp(&mut self, resolver: &mut Resolver, text: &str) -> Result<Opened, LinkError> {
        let (stream, mut peer) = dial_tcp(resolver, text, self.deadline)?;
        let first = self.greet(stream.into(), false, None)?;
        let here = boot_id().is_ok_and(|host| host == first.welcome.host);
        if here && !first.welcome.unix_path.is_empty() && self.shared.transport != TransportChoice::Tcp {
            match self.open_unix(Path::new(&first.welcome.unix_path)) {
                Ok(opened) if opened.welcome.donor == first.welcome.donor => return Ok(opened),
                Ok(_) => tracing::info!("{} is another donor than {text}", first.welcome.unix_path),
                Err(error) => tracing::info!("no shared memory with {text}: {error}"),
            }
        }
        if self.shared.transport == TransportChoice::Shm {
            return Err(LinkError::NoSharedMemory);
        }
        let greeted = match self.resume {
            None => first,
            Some(_) => self.greet(dial_address(peer, self.deadline)?.into(), false, self.resume)?,
        };
        if greeted.welcome.data_port != 0 {
            peer.set_port(greeted.welcome.data_port);
        }
        Ok(greeted.over(Transport::Tcp(peer)))
    }

    fn open_unix(&mut self, path: &Path) -> Result<Opened, LinkError> {
        Ok(self.greet(dial_unix(path)?, true, self.resume)?.over(Transport::Shm))
    }

    fn greet(
        &mut self,
        stream: OwnedFd,
        wants_shared_memory: bool,
        resume: Option<SessionToken>,
    ) -> Result<Greeted, LinkError> {
        let shared = self.shared;
        let channel = ControlChannel::connect_until(stream, shared.key.as_ref(), self.deadline);
        let (sender, mut receiver) = channel.map_err(silence_in_handshake)?.split();
        let hello = Hello {
            version: WIRE_VERSION,
            borrower: shared.borrower,
            volume: shared.name.clone(),
            slab_size_bytes: shared.volume.geometry.slab_size_bytes(),
            wants_shared_memory,
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
                Ok(Greeted { sender, receiver, welcome, held })
            }
            Message::Rejected { reason } => Err(LinkError::Rejected(reason)),
            other => Err(LinkError::Protocol(format!("{other:?} instead of a welcome"))),
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Gives every thread a queue pair to the donor. They see it before any copy index at the donor is filled.
    pub(super) fn install_queue_pairs(
        &self,
        opened: &Opened,
        window: Option<&Arc<ShmWindow>>,
    ) -> Result<(), LinkError> {
        let mut queue_pairs: Vec<Box<dyn QueuePair>> = Vec::with_capacity(self.shared.queue_pairs.len());
        for holder in &self.shared.queue_pairs {
            let (pool, patience) = (Arc::clone(&holder.pool), Arc::clone(self.donor.patience()));
            let over_stream = |stream: OwnedFd| {
                TcpQueuePair::connect_until(stream, &opened.welcome.token, pool.clone(), patience, self.deadline)
                    .map_err(LinkError::Data)
            };
            queue_pairs.push(match (window, &opened.transport) {
                (Some(window), _) => Box::new(ShmQueuePair::new(Arc::clone(window), pool)),
                (None, Transport::Tcp(address)) => {
                    let stream = dial_address(*address, self.deadline).map_err(LinkError::DataUnreachable)?;
                    Box::new(over_stream(stream.into())?)
                }
                (None, Transport::Unix(path)) => {
                    Box::new(over_stream(dial_unix(path).map_err(LinkError::DataUnreachable)?)?)
                }
                (None, Transport::Shm) => unreachable!("shared memory has a window"),
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
            (Message::Held { slab }, memory) => held.push(HeldSlab { slab, memory }),
            (other, _) => return Err(LinkError::Protocol(format!("{other:?} instead of a slab that it held"))),
        }
    }
    Ok(held)
}
