//! Programs and evictors that say hello to the pager, over a UNIX socket that keeps messages apart.
//!
//! What connects is any process that can reach the address, so [`Visitor::peer`], which the kernel vouches for, must
//! be a process of the run before its hello is believed.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use spillway_sys::call_notices::Probe;
#[cfg(target_arch = "x86_64")]
use spillway_sys::datagram_filter;

use crate::protocol::{
    ADDRESS_BYTES_MAX, Hello, MESSAGE_BYTES, MESSAGE_WORDS, Mismatch, NOTES_SUFFIX, PROBE_FLAGS, PROBE_STACK, Ready,
    TOKEN_WORD, VERSION, Welcome, Words, probe_answer,
};

/// Programs that may wait to be accepted: a parallel build starts many at once.
const BACKLOG: i32 = 128;

/// Why a visitor was not understood.
#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    /// It said nothing.
    #[error("a program connected and said nothing; it may be stopped")]
    TimedOut,
    /// It went away.
    #[error("a program ended while it started")]
    Closed,
    /// It is not ours.
    #[error("the process that connected is no stub of this program; check which program uses {variable}", variable = crate::protocol::ADDRESS_VARIABLE)]
    NotOurs,
    /// It is of another version.
    #[error(
        "the program's stub speaks version {0} and this pager version {VERSION}; start the program with the same build"
    )]
    Version(u32),
    /// The socket failed.
    #[error("the socket that programs connect to failed: {0}")]
    Io(#[from] io::Error),
}

impl From<Mismatch> for GreetingError {
    fn from(mismatch: Mismatch) -> Self {
        match mismatch {
            Mismatch::NotOurs => Self::NotOurs,
            Mismatch::Version(version) => Self::Version(version),
        }
    }
}

/// Where a pager is: a path, or `@` and an abstract name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    text: String,
}

impl Address {
    /// Takes `text` as an address.
    pub fn parse(text: &str) -> io::Result<Self> {
        let has_name = !text.trim_start_matches('@').is_empty();
        if !has_name || text.len() > ADDRESS_BYTES_MAX || text.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "'{text}' is no address of a socket: 1 to {ADDRESS_BYTES_MAX} bytes are; use a shorter directory"
                ),
            ));
        }
        Ok(Self { text: text.to_owned() })
    }

    /// As it stands in the environment.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// The call by which programs find out that this pager is asked about their forks.
    #[cfg(target_arch = "x86_64")]
    pub fn fork_probe(&self) -> Probe {
        Probe { flags: PROBE_FLAGS, stack: PROBE_STACK, answer: probe_answer(self.as_bytes()) }
    }

    fn socket_address(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self.text.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            None => SocketAddrUnix::new(self.text.as_str())?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Where programs connect to. Readable when a process waits.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Listens at `address`. A path is made by this, and removed by the owner of its directory.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let socket = new_socket()?;
        net::bind(&socket, &address.socket_address()?)?;
        net::listen(&socket, BACKLOG)?;
        Ok(Self { socket })
    }

    /// The next visitor; `None` when no thread waits.
    pub fn accept(&self) -> io::Result<Option<Visitor>> {
        match net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let peer = Peer::from(net::sockopt::socket_peercred(&socket)?);
                Ok(Some(Visitor { socket, peer }))
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Where programs say hello that wait for no answer. Readable when there is a hello.
#[derive(Debug)]
pub struct Notes {
    socket: OwnedFd,
}

impl Notes {
    /// Listens beside `address`, which is a path. What does not look like a hello with this token is thrown away by the
    /// kernel: it neither wakes this process nor takes a place from one that waits.
    pub fn bind(address: &Address, token: u64) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        net::sockopt::set_socket_passcred(&socket, true)?;
        datagram_filter::admit_only(&socket, MESSAGE_BYTES as u32, TOKEN_WORD as u32 * 8, token)?;
        net::bind(&socket, &Address::parse(&format!("{address}{NOTES_SUFFIX}"))?.socket_address()?)?;
        Ok(Self { socket })
    }

    /// The next hello, and the userfaultfd that came along; `None` when there is none.
    pub fn next(&self) -> io::Result<Option<Note>> {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let Received { length, peer, passed } = match receive_now(&self.socket, &mut bytes) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let hello = match length {
            MESSAGE_BYTES => Hello::decode(&words(&bytes[..MESSAGE_BYTES])).map_err(GreetingError::from),
            _ => Err(GreetingError::NotOurs),
        };
        Ok(Some(Note { peer, hello, passed }))
    }
}

impl AsFd for Notes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The hello of a program that does not wait for an answer.
#[derive(Debug)]
pub struct Note {
    /// Who it is of.
    pub peer: Peer,
    /// What it says.
    pub hello: Result<Hello, GreetingError>,
    /// The userfaultfd.
    pub passed: Option<OwnedFd>,
}

/// The process at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The process, in this process's PID namespace; 0 for one outside of it.
    pub process: u32,
    /// Its user, as this process sees it.
    pub user: u32,
}

impl From<net::UCred> for Peer {
    fn from(peer: net::UCred) -> Self {
        Self { process: peer.pid.as_raw_nonzero().get().unsigned_abs(), user: peer.uid.as_raw() }
    }
}

/// What came in one message.
struct Received {
    length: usize,
    /// Who sent it, where the socket is told (`SO_PASSCRED`).
    peer: Peer,
    passed: Option<OwnedFd>,
}

fn receive_now(socket: &OwnedFd, bytes: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = Received { length: message.bytes, peer: Peer::default(), passed: None };
    for part in ancillary.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(descriptors) => {
                descriptors.for_each(|descriptor| received.passed = Some(descriptor));
            }
            RecvAncillaryMessage::ScmCredentials(who) => received.peer = Peer::from(who),
            _ => {}
        }
    }
    Ok(received)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A program or an evictor that connected.
#[derive(Debug)]
pub struct Visitor {
    socket: OwnedFd,
    peer: Peer,
}

impl AsFd for Visitor {
    /// Readable when it says something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Visitor {
    /// Connects to a pager, as stubs do; for programs that speak the protocol themselves, and for tests.
    pub fn connect(address: &Address) -> io::Result<Self> {
        let socket = new_socket()?;
        net::connect(&socket, &address.socket_address()?)?;
        let peer = Peer { process: std::process::id(), user: rustix::process::geteuid().as_raw() };
        Ok(Self { socket, peer })
    }

    /// One whose socket was taken from its process, which is known.
    pub fn from_socket(socket: OwnedFd, peer: Peer) -> Self {
        Self { socket, peer }
    }

    /// Who it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The process, in this process's PID namespace. The kernel vouches for it.
    pub fn process(&self) -> u32 {
        self.peer.process
    }

    /// Its hello, and the userfaultfd that came along.
    pub fn hello(&self, deadline: Instant) -> Result<(Hello, Option<OwnedFd>), GreetingError> {
        let (words, descriptor) = self.receive(deadline)?;
        Ok((Hello::decode(&words)?, descriptor))
    }

    /// Answers a hello; `passed` is the head's file for a program; for an evictor the userfaultfd, and with another
    /// welcome its seat's file.
    pub fn welcome(&self, welcome: &Welcome, passed: Option<BorrowedFd<'_>>) -> Result<(), GreetingError> {
        self.send(&welcome.encode(), passed)
    }

    /// The program's last word.
    pub fn ready(&self, deadline: Instant) -> Result<Ready, GreetingError> {
        Ok(self.ready_with_descriptor(deadline)?.0)
    }

    /// As [`Visitor::ready`], with the descriptor that comes along after
    /// [`Verdict::PageTellingForks`](crate::protocol::Verdict).
    pub fn ready_with_descriptor(&self, deadline: Instant) -> Result<(Ready, Option<OwnedFd>), GreetingError> {
        let (words, descriptor) = self.receive(deadline)?;
        Ok((Ready::decode(&words)?, descriptor))
    }

    /// Sends a message; it always fits into an empty socket.
    pub fn send(&self, words: &Words, passed: Option<BorrowedFd<'_>>) -> Result<(), GreetingError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !passed.as_slice().is_empty() {
            assert!(
                ancillary.push(SendAncillaryMessage::ScmRights(passed.as_slice())),
                "the space holds one descriptor"
            );
        }
        match net::sendmsg(
            &self.socket,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(GreetingError::Closed),
            Err(errno) => Err(GreetingError::Io(errno.into())),
        }
    }

    /// Receives a message and the descriptor that came along.
    pub fn receive(&self, deadline: Instant) -> Result<(Words, Option<OwnedFd>), GreetingError> {
        // One byte more than a message, so that a longer one is noticed.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        loop {
            match receive_now(&self.socket, &mut bytes) {
                Ok(Received { length: 0, .. }) | Err(Errno::CONNRESET | Errno::PIPE) => {
                    return Err(GreetingError::Closed);
                }
                Ok(Received { length: MESSAGE_BYTES, passed, .. }) => {
                    return Ok((words(&bytes[..MESSAGE_BYTES]), passed));
                }
                Ok(_) => return Err(GreetingError::NotOurs),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(deadline)?,
                Err(errno) => return Err(GreetingError::Io(errno.into())),
            }
        }
    }

    fn wait(&self, deadline: Instant) -> Result<(), GreetingError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Err(GreetingError::TimedOut);
        }
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(GreetingError::Io(errno.into())),
        }
    }
}

fn words(bytes: &[u8]) -> Words {
    let mut words = [0; MESSAGE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{HelloKind, Verdict};

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_note_comes_with_its_sender_and_a_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::parse(directory.path().join("pager").to_str().unwrap()).unwrap();
        let notes = Notes::bind(&address, HELLO.token).unwrap();
        assert!(notes.next().unwrap().is_none());
        let sender = net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        net::connect(&sender, &SocketAddrUnix::new(format!("{address}{NOTES_SUFFIX}")).unwrap()).unwrap();
        let sender = Visitor { socket: sender, peer: Peer::default() };
        let file = std::fs::File::open("/dev/null").unwrap();
        sender.send(&HELLO.encode(), Some(file.as_fd())).unwrap();
        rustix::io::write(&sender.socket, b"GET / HTTP/1.0").unwrap();
        let note = notes.next().unwrap().expect("it was sent");
        assert_eq!((note.peer.process, note.hello.unwrap()), (std::process::id(), HELLO));
        assert_eq!(note.peer.user, rustix::process::geteuid().as_raw());
        assert!(note.passed.is_some());
        sender.send(&Hello { token: HELLO.token ^ 1 << 63, ..HELLO }.encode(), Some(file.as_fd())).unwrap();
        assert!(notes.next().unwrap().is_none(), "strangers are not heard");
        let mut other = HELLO.encode();
        other[0] = 0;
        sender.send(&other, None).unwrap();
        let other = notes.next().unwrap().expect("it has the token");
        assert!(matches!(other.hello, Err(GreetingError::NotOurs)) && other.passed.is_none());
    }

    fn meet(name: &str) -> (Visitor, Visitor) {
        let address = Address::parse(&format!("@spillway-{name}-{}", std::process::id())).unwrap();
        let listener = Listener::bind(&address).unwrap();
        assert!(listener.accept().unwrap().is_none(), "nobody is there yet");
        let program = Visitor::connect(&address).unwrap();
        let pager_side = listener.accept().unwrap().expect("the program waits");
        (program, pager_side)
    }

    const HELLO: Hello = Hello {
        kind: HelloKind::Program,
        process: 1,
        attempt: 0,
        status: 0,
        token: 7,
        start_evictor: 4096,
        library_start: 0,
        library_end: 8192,
        cell: 0,
        head: 0,
    };

    #[test]
    fn a_greeting_passes_descriptors_both_ways() {
        let (program, pager) = meet("greeting");
        assert_eq!(pager.process(), std::process::id(), "the kernel says who it is");
        let file = std::fs::File::open("/dev/null").unwrap();
        program.send(&HELLO.encode(), Some(file.as_fd())).unwrap();
        let (hello, passed) = pager.hello(far()).unwrap();
        assert_eq!(hello, HELLO);
        assert!(passed.is_some());
        let welcome = Welcome { verdict: Verdict::Page, evictor: None };
        pager.welcome(&welcome, None).unwrap();
        let (words, passed) = program.receive(far()).unwrap();
        assert_eq!(Welcome::decode(&words).unwrap(), welcome);
        assert!(passed.is_none());
        program.send(&Ready { head: 4096, status: 0 }.encode(), None).unwrap();
        assert_eq!(pager.ready(far()).unwrap(), Ready { head: 4096, status: 0 });
    }

    #[test]
    fn silence_strangers_and_endings_are_told_apart() {
        let (program, pager) = meet("strangers");
        assert!(matches!(pager.hello(Instant::now()), Err(GreetingError::TimedOut)));
        rustix::io::write(&program.socket, b"GET / HTTP/1.0").unwrap();
        assert!(matches!(pager.hello(far()), Err(GreetingError::NotOurs)));
        let mut words = HELLO.encode();
        words[1] = 99;
        program.send(&words, None).unwrap();
        assert!(matches!(pager.hello(far()), Err(GreetingError::Version(99))));
        drop(program);
        assert!(matches!(pager.hello(far()), Err(GreetingError::Closed)));
    }

    #[test]
    fn addresses_that_no_socket_can_have_are_refused() {
        for text in ["", "@", "a\0b", &"x".repeat(ADDRESS_BYTES_MAX + 1)] {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Address::parse("/run/x").unwrap().to_string(), "/run/x");
        let answers = ["/run/x", "/run/y", "@run/x"].map(|text| Address::parse(text).unwrap().fork_probe().answer);
        assert!(answers[0] != answers[1] && answers[0] != answers[2], "pagers are told apart by it");
        assert!(answers.iter().all(|answer| answer >> 63 == 0), "none is an error");
        let missing = Address::parse("/nowhere/at/all").unwrap();
        assert!(Visitor::connect(&missing).is_err());
    }
}
