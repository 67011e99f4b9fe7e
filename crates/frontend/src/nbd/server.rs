//! A disk for anything that speaks NBD: a server whose clients come and go.
//!
//! The server has a fixed number of channels, each with an I/O thread, buffers and queue pairs of its own, all made
//! before the first client comes. A channel without a client waits for one, holds its handshake, serves it until it
//! leaves, and waits for the next; clients beyond that number wait in the listening socket's queue. So nothing is
//! allocated for a client, and one that is slow, silent or malicious costs only the channel it sits on, and that only
//! for [`NBD_HANDSHAKE_DEADLINE`] unless it follows the protocol.
//!
//! Invariant: `Gate::clients` counts the channels that serve, and no client is served after the gate was closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use spillway_block::channel::{BlockChannel, Interest, Received};
use spillway_block::request::BlockError;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::event::EventFd;
use spillway_sys::vectored::{SendList, Wait};

use crate::front_end::{FrontEnd, FrontEndConfig, FrontEndError};
use crate::limits::{DETACH_RETRY_INTERVAL, NBD_HANDSHAKE_DEADLINE, SLOTS_PER_THREAD_MAX, THREADS_MAX};
use crate::nbd::channel::{Moved, NbdChannel};
use crate::nbd::handshake::{Answer, Export, Handshake, Progress};
use crate::nbd::listener::{Listener, NbdAddress};

/// Where to serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdListen {
    /// Where to listen.
    pub addresses: Vec<NbdAddress>,
    /// Also where other machines may connect, without any protection.
    pub exposed: bool,
}

/// The server; see the module text.
#[derive(Debug)]
pub struct NbdServer {
    shared: Arc<ServerState>,
}

#[derive(Debug)]
struct ServerState {
    export: Export,
    listeners: Vec<Listener>,
    gate: Gate,
    /// Signalled when the gate was closed.
    closing: EventFd,
}

/// Counts clients, until it is closed.
#[derive(Debug, Default)]
struct Gate {
    clients: AtomicUsize,
}

impl Gate {
    const CLOSED: usize = usize::MAX;

    fn enter(&self) -> bool {
        let enter = |clients| (clients != Self::CLOSED).then(|| clients + 1);
        self.clients.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).is_ok()
    }

    fn leave(&self) {
        let before = self.clients.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0 && before != Self::CLOSED, "whoever leaves had entered, and nobody closes on a client");
    }

    /// Closes unless clients are inside; how many are.
    fn close(&self) -> usize {
        match self.clients.compare_exchange(0, Self::CLOSED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) | Err(Self::CLOSED) => 0,
            Err(clients) => clients,
        }
    }

    fn is_closed(&self) -> bool {
        self.clients.load(Ordering::SeqCst) == Self::CLOSED
    }
}

impl NbdServer {
    /// Listens, and makes the channels. Clients are served as soon as the channels are.
    pub fn open(config: &FrontEndConfig, listen: &NbdListen) -> Result<(Self, Vec<NbdServerChannel>), FrontEndError> {
        check(config, listen)?;
        let listeners: Result<Vec<_>, _> =
            listen.addresses.iter().map(|address| Listener::open(address, listen.exposed)).collect();
        let shared = Arc::new(ServerState {
            export: Export { name: config.name.clone(), size_bytes: config.size_bytes },
            listeners: listeners?.into_iter().flatten().collect(),
            gate: Gate::default(),
            closing: EventFd::new().map_err(FrontEndError::system("cannot make an event"))?,
        });
        let channel = |_| NbdServerChannel::new(Arc::clone(&shared), config.slots_per_thread);
        let channels = (0..config.threads).map(channel).collect::<io::Result<Vec<_>>>();
        let channels = channels.map_err(FrontEndError::system("cannot make buffers for clients"))?;
        Ok((Self { shared }, channels))
    }

    /// Where clients find it, as they take it; several are separated by spaces.
    pub fn address(&self) -> Result<String, FrontEndError> {
        let addresses: io::Result<Vec<_>> = self.shared.listeners.iter().map(Listener::address).collect();
        Ok(addresses.map_err(FrontEndError::system("cannot tell the address"))?.join(" "))
    }
}

fn check(config: &FrontEndConfig, listen: &NbdListen) -> Result<(), FrontEndError> {
    let invalid = |text: String| Err(FrontEndError::Invalid(text));
    if listen.addresses.is_empty() {
        return invalid("nowhere to listen; name a place with --listen unix:/PATH".to_owned());
    }
    if config.size_bytes == 0 || !config.size_bytes.is_multiple_of(PAGE_SIZE_BYTES as u64) {
        return invalid(format!("a device of {} bytes is not whole pages of {PAGE_SIZE_BYTES}", config.size_bytes));
    }
    if !(1..=THREADS_MAX).contains(&config.threads) {
        return invalid(format!("{} connections; use 1 to {THREADS_MAX}", config.threads));
    }
    if !(1..=SLOTS_PER_THREAD_MAX).contains(&config.slots_per_thread) {
        return invalid(format!("{} slots per connection; use 1 to {SLOTS_PER_THREAD_MAX}", config.slots_per_thread));
    }
    Ok(())
}

impl FrontEnd for NbdServer {
    fn attach(&mut self) -> Result<PathBuf, FrontEndError> {
        Ok(self.address()?.into())
    }

    fn detach(&mut self, deadline: Duration) -> Result<(), FrontEndError> {
        let started = Instant::now();
        loop {
            match self.shared.gate.close() {
                0 => break,
                clients if started.elapsed() >= deadline => {
                    return Err(FrontEndError::Busy(format!(
                        "{clients} client(s) are connected to {}; end them and try again",
                        self.address()?
                    )));
                }
                _ => std::thread::sleep(DETACH_RETRY_INTERVAL),
            }
        }
        self.shared.listeners.iter().for_each(Listener::close);
        self.shared.closing.signal();
        Ok(())
    }
}

/// One place for a client; see the module text.
#[derive(Debug)]
pub struct NbdServerChannel {
    shared: Arc<ServerState>,
    channel: NbdChannel,
    stage: Stage,
    /// Whether the gate counts this channel's client: from before it learns that it is served.
    is_inside: bool,
    /// What is to be said in the handshake.
    answer: Answer,
    /// Watches the gate, the handshake's deadline, and either the listeners or the client.
    watched: OwnedFd,
    watches: Watches,
    deadline: OwnedFd,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Greeting { socket: OwnedFd, handshake: Handshake, last: Option<Last> },
    Serving,
}

/// What comes after the last answer of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Transmission,
    HangUp,
}

/// What `watched` watches besides the gate and the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watches {
    Nothing,
    Listeners,
    Client(Interest),
}

impl NbdServerChannel {
    fn new(shared: Arc<ServerState>, slot_count: usize) -> io::Result<Self> {
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let deadline = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        for source in [shared.closing.as_fd(), deadline.as_fd()] {
            epoll::add(&watched, source, EventData::new_u64(0), EventFlags::IN)?;
        }
        let channel = NbdChannel::new(slot_count, shared.export.size_bytes)?;
        let (stage, answer) = (Stage::Waiting, Answer::new());
        let is_inside = false;
        let mut this = Self { shared, channel, stage, is_inside, answer, watched, watches: Watches::Nothing, deadline };
        this.watch()?;
        Ok(this)
    }

    /// Makes `watched` watch what this stage waits for.
    fn watch(&mut self) -> io::Result<()> {
        let wanted = match &self.stage {
            Stage::Waiting => Watches::Listeners,
            Stage::Greeting { .. } => {
                let write = !self.answer.bytes().is_empty();
                Watches::Client(Interest { read: !write, write })
            }
            Stage::Serving => Watches::Client(self.channel.interest()),
        };
        if wanted == self.watches {
            return Ok(());
        }
        self.watch_no_listeners()?;
        match wanted {
            Watches::Listeners => {
                for listener in &self.shared.listeners {
                    let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
                    epoll::add(&self.watched, listener, EventData::new_u64(0), flags)?;
                }
            }
            Watches::Client(interest) => {
                let mut flags = EventFlags::empty();
                flags.set(EventFlags::IN, interest.read);
                flags.set(EventFlags::OUT, interest.write);
                let socket = match &self.stage {
                    Stage::Greeting { socket, .. } => socket.as_fd(),
                    _ => self.channel.event(),
                };
                if let Watches::Client(_) = self.watches {
                    epoll::modify(&self.watched, socket, EventData::new_u64(0), flags)?;
                } else {
                    epoll::add(&self.watched, socket, EventData::new_u64(0), flags)?;
                }
            }
            Watches::Nothing => {}
        }
        self.watches = wanted;
        Ok(())
    }

    /// The client is gone, and its descriptor with it.
    fn wait_for_client(&mut self) -> io::Result<()> {
        self.stage = Stage::Waiting;
        if std::mem::take(&mut self.is_inside) {
            self.shared.gate.leave();
        }
        self.watches = Watches::Nothing;
        self.channel.ahead().clear();
        self.set_deadline(Duration::ZERO)
    }

    /// Starts the handshake's clock; zero stops it.
    fn set_deadline(&self, after: Duration) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() };
        let timer = Itimerspec { it_interval: zero, it_value: value };
        rustix::time::timerfd_settime(&self.deadline, TimerfdTimerFlags::empty(), &timer)?;
        Ok(())
    }

    /// Takes a client that waits. One that cannot be taken (no descriptor is left, the server is closing) waits on.
    fn accept(&mut self) -> io::Result<Moved> {
        let client = self.shared.listeners.iter().find_map(|listener| listener.accept().unwrap_or(None));
        let Some(socket) = client else { return Ok(Moved::Nothing) };
        let handshake = Handshake::begin(&mut self.answer);
        self.set_deadline(NBD_HANDSHAKE_DEADLINE)?;
        self.watch_no_listeners()?;
        self.stage = Stage::Greeting { socket, handshake, last: None };
        Ok(Moved::Some)
    }

    fn watch_no_listeners(&mut self) -> io::Result<()> {
        if self.watches == Watches::Listeners {
            for listener in &self.shared.listeners {
                epoll::delete(&self.watched, listener)?;
            }
            self.watches = Watches::Nothing;
        }
        Ok(())
    }

    /// Takes the handshake one step on.
    fn greet(&mut self) -> io::Result<Moved> {
        let Stage::Greeting { socket, handshake, last } = &mut self.stage else { return Ok(Moved::Some) };
        let answer = &mut self.answer;
        if !answer.bytes().is_empty() {
            let mut list = SendList::new();
            list.push_bytes(answer.bytes());
            return match list.send(socket.as_fd(), Wait::No) {
                Ok(count) => {
                    answer.sent(count);
                    Ok(Moved::Some)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Moved::Nothing),
                Err(_) => Ok(Moved::Closed),
            };
        }
        match last {
            Some(Last::HangUp) => return Ok(Moved::Closed),
            Some(Last::Transmission) => return self.serve(),
            None => {}
        }
        let ahead = self.channel.ahead();
        match handshake.advance(ahead.bytes(), &self.shared.export, answer) {
            Progress::Incomplete => return ahead.receive(socket.as_fd()),
            Progress::Consumed(count) => ahead.consume(count),
            Progress::Transmission(_) if !self.shared.gate.enter() => return Ok(Moved::Closed),
            Progress::Transmission(count) => {
                self.is_inside = true;
                ahead.consume(count);
                *last = Some(Last::Transmission);
            }
            Progress::Over => *last = Some(Last::HangUp),
        }
        Ok(Moved::Some)
    }

    /// The handshake is over: requests follow.
    fn serve(&mut self) -> io::Result<Moved> {
        if let Stage::Greeting { socket, .. } = std::mem::replace(&mut self.stage, Stage::Serving) {
            self.channel.connect(socket);
        }
        self.set_deadline(Duration::ZERO)?;
        Ok(Moved::Some)
    }

    fn is_overdue(&self) -> bool {
        rustix::io::read(&self.deadline, &mut [0; 8]).is_ok()
    }
}

impl BlockChannel for NbdServerChannel {
    fn pool(&self) -> &Arc<BufferPool> {
        self.channel.pool()
    }

    /// Closed once the server is; a client's end concerns only the client.
    fn receive(&mut self) -> io::Result<Received> {
        loop {
            let moved = match self.stage {
                Stage::Waiting if self.shared.gate.is_closed() => return Ok(Received::Closed),
                Stage::Waiting => self.accept()?,
                Stage::Greeting { .. } if self.is_overdue() || self.shared.gate.is_closed() => Moved::Closed,
                Stage::Greeting { .. } => self.greet()?,
                Stage::Serving => match self.channel.receive() {
                    Ok(Received::Request(request)) => return Ok(Received::Request(request)),
                    Ok(Received::Nothing) => Moved::Nothing,
                    Ok(Received::Closed) | Err(_) => {
                        self.channel.disconnect();
                        Moved::Closed
                    }
                },
            };
            match moved {
                Moved::Some => {}
                Moved::Nothing => {
                    self.watch()?;
                    return Ok(Received::Nothing);
                }
                Moved::Closed => self.wait_for_client()?,
            }
        }
    }

    fn complete(&mut self, slot: usize, result: Result<(), BlockError>) -> io::Result<()> {
        self.channel.complete(slot, result)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.channel.flush()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_closed_when_it_is_empty_and_then_lets_none_in() {
        let gate = Gate::default();
        assert!(gate.enter() && gate.enter());
        assert_eq!(gate.close(), 2);
        gate.leave();
        assert_eq!(gate.close(), 1);
        assert!(!gate.is_closed() && gate.enter());
        gate.leave();
        gate.leave();
        assert_eq!((gate.close(), gate.close()), (0, 0));
        assert!(gate.is_closed() && !gate.enter());
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let good = FrontEndConfig {
            name: "server".to_owned(),
            size_bytes: 1 << 20,
            threads: 1,
            slots_per_thread: 1,
            recoverable: false,
            answer_deadline: Duration::from_secs(12),
            directory: PathBuf::new(),
        };
        let listen = NbdListen { addresses: vec![NbdAddress::Tcp("127.0.0.1:0".to_owned())], exposed: false };
        for bad in [
            FrontEndConfig { size_bytes: 0, ..good.clone() },
            FrontEndConfig { size_bytes: 4097, ..good.clone() },
            FrontEndConfig { threads: 0, ..good.clone() },
            FrontEndConfig { threads: THREADS_MAX + 1, ..good.clone() },
            FrontEndConfig { slots_per_thread: 0, ..good.clone() },
        ] {
            assert!(matches!(NbdServer::open(&bad, &listen), Err(FrontEndError::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(NbdServer::open(&good, &NbdListen::default()), Err(FrontEndError::Invalid(_))));
        let (mut server, mut channels) = NbdServer::open(&good, &listen).unwrap();
        assert!(server.attach().unwrap().to_string_lossy().starts_with("nbd://127.0.0.1:"));
        assert_eq!(channels[0].receive().unwrap(), Received::Nothing);
        server.detach(Duration::ZERO).unwrap();
        assert_eq!(channels[0].receive().unwrap(), Received::Closed);
    }
}
