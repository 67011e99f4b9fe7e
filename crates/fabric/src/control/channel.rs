//! An open control channel: a sender that many threads may share, and a receiver that one thread owns.
//!
//! A message travels as a two-byte length and so many encrypted bytes. Each direction counts its messages, and the
//! count is the cipher's nonce, so a message that is lost, repeated or moved ends the channel. A channel that failed
//! once stays closed: half a message may have been sent.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use snow::StatelessTransportState;

use super::ControlError;
use super::codec;
use super::handshake::{self, Opening};
use super::message::Message;
use super::socket::Socket;
use crate::key::ClusterKey;
use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, HANDSHAKE_DEADLINE, SILENCE_DEADLINE};

/// Bytes of the length before each encrypted message.
const LENGTH_BYTES: usize = 2;

/// Bytes that encryption adds: the tag of ChaCha20-Poly1305.
const TAG_BYTES: usize = 16;

/// A channel whose handshake is done.
pub struct ControlChannel {
    sender: ControlSender,
    receiver: ControlReceiver,
}

/// The sending end; clones send on the same channel.
#[derive(Clone)]
pub struct ControlSender {
    shared: Arc<ChannelState>,
    /// The next message's number; `None` once the channel failed.
    next: Arc<Mutex<Option<u64>>>,
    /// How long a peer may not read.
    patience: Duration,
}

/// The receiving end.
pub struct ControlReceiver {
    shared: Arc<ChannelState>,
    next: u64,
    /// What came of the current message: its length, then its encrypted bytes. Kept between calls, so that a deadline
    /// in the middle of a message loses nothing.
    buffer: Vec<u8>,
    filled: usize,
    passed: Option<OwnedFd>,
}

struct ChannelState {
    socket: Socket,
    cipher: StatelessTransportState,
}

impl ControlChannel {
    /// The connecting side's handshake over a connected stream, within [`HANDSHAKE_DEADLINE`].
    pub fn connect(stream: impl Into<OwnedFd>, key: Option<&ClusterKey>) -> Result<Self, ControlError> {
        Self::connect_until(stream, key, Instant::now() + HANDSHAKE_DEADLINE)
    }

    /// The same, until `deadline`.
    pub fn connect_until(
        stream: impl Into<OwnedFd>,
        key: Option<&ClusterKey>,
        deadline: Instant,
    ) -> Result<Self, ControlError> {
        handshake::initiate(stream.into(), key, deadline).map(Self::new)
    }

    /// The accepting side's handshake, within the same deadline.
    pub fn accept(stream: impl Into<OwnedFd>, key: Option<&ClusterKey>) -> Result<Self, ControlError> {
        Self::accept_opened(Opening::receive(stream)?, key)
    }

    /// The accepting side's handshake on a connection whose preface was read.
    pub fn accept_opened(opening: Opening, key: Option<&ClusterKey>) -> Result<Self, ControlError> {
        opening.respond(key).map(Self::new)
    }

    fn new((socket, cipher): (Socket, StatelessTransportState)) -> Self {
        let shared = Arc::new(ChannelState { socket, cipher });
        let next = Arc::new(Mutex::new(Some(0)));
        let sender = ControlSender { shared: Arc::clone(&shared), next, patience: SILENCE_DEADLINE };
        let receiver = ControlReceiver { shared, next: 0, buffer: Vec::new(), filled: 0, passed: None };
        Self { sender, receiver }
    }

    /// Whether descriptors can be passed: a UNIX socket.
    pub fn passes_descriptors(&self) -> bool {
        self.sender.shared.socket.passes_descriptors()
    }

    /// The network address of this end; none of a UNIX socket.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.sender.shared.socket.local_address()
    }

    /// The two ends.
    pub fn split(self) -> (ControlSender, ControlReceiver) {
        (self.sender, self.receiver)
    }
}

impl ControlSender {
    /// The same end, which waits so long for a peer that does not read, in place of [`SILENCE_DEADLINE`].
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sends one message, `passed` with it (UNIX sockets only). Waits for a peer that does not read, but not for
    /// ever; a failure closes the channel.
    pub fn send(&self, message: &Message, passed: Option<BorrowedFd<'_>>) -> Result<(), ControlError> {
        let plain = codec::encode(message)?;
        let mut next = self.next.lock().expect("no thread panics while it sends");
        let number = next.take().ok_or(ControlError::Closed)?;
        let outcome = self.shared.send(number, &plain, passed, Instant::now() + self.patience);
        match outcome {
            Ok(()) => *next = Some(number + 1),
            Err(_) => self.shared.socket.shutdown(),
        }
        outcome
    }

    /// Tells the peer that this is the end, waiting for `patience` at most. A peer that does not get it notices the
    /// closed socket.
    pub fn say_goodbye(&self, reason: &str, patience: Duration) {
        let _ = self.clone().with_patience(patience).send(&Message::Goodbye { reason: reason.to_owned() }, None);
    }

    /// Ends the channel in both directions; the receiver's waiting thread wakes up.
    pub fn close(&self) {
        self.shared.socket.shutdown();
    }
}

impl ControlReceiver {
    /// The next message, and the descriptor that came with it. [`ControlError::TimedOut`] when it was not there,
    /// whole, within `timeout` (call again); every other error is final.
    pub fn receive(&mut self, timeout: Duration) -> Result<(Message, Option<OwnedFd>), ControlError> {
        let deadline = Instant::now() + timeout;
        self.fill(LENGTH_BYTES, deadline)?;
        let length = usize::from(u16::from_le_bytes([self.buffer[0], self.buffer[1]]));
        if !(TAG_BYTES..=CONTROL_MESSAGE_BYTES_MAX + TAG_BYTES).contains(&length) {
            return Err(ControlError::Malformed("impossible length"));
        }
        self.fill(LENGTH_BYTES + length, deadline)?;
        let mut plain = vec![0; length];
        let plain_length = self
            .shared
            .cipher
            .read_message(self.next, &self.buffer[LENGTH_BYTES..], &mut plain)
            .map_err(|_| ControlError::Malformed("it was not encrypted by this channel's other end"))?;
        self.next += 1;
        self.buffer.clear();
        self.filled = 0;
        Ok((codec::decode(&plain[..plain_length])?, self.passed.take()))
    }

    /// Receives until the current message's first `length` bytes are there.
    fn fill(&mut self, length: usize, deadline: Instant) -> Result<(), ControlError> {
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
        while self.filled < length {
            let rest = &mut self.buffer[self.filled..length];
            self.filled += self.shared.socket.receive(rest, &mut self.passed, deadline)?;
        }
        Ok(())
    }
}

impl AsFd for ControlReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}

impl ChannelState {
    fn send(
        &self,
        number: u64,
        plain: &[u8],
        passed: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> Result<(), ControlError> {
        if passed.is_some() && !self.socket.passes_descriptors() {
            return Err(ControlError::Malformed("descriptors travel on UNIX sockets only"));
        }
        let mut frame = vec![0; LENGTH_BYTES + plain.len() + TAG_BYTES];
        let length = self
            .cipher
            .write_message(number, plain, &mut frame[LENGTH_BYTES..])
            .map_err(|_| ControlError::Malformed("the message does not fit"))?;
        frame[..LENGTH_BYTES].copy_from_slice(&(length as u16).to_le_bytes());
        self.socket.send(&frame, passed, deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::units::SlabHandle;

    const LATER: Duration = Duration::from_secs(60);

    fn meet(one: impl Into<OwnedFd> + Send + 'static, other: impl Into<OwnedFd>) -> (ControlChannel, ControlChannel) {
        let accepting = thread::spawn(move || ControlChannel::accept(one, None).unwrap());
        let connected = ControlChannel::connect(other, None).unwrap();
        (connected, accepting.join().unwrap())
    }

    fn unix_pair() -> (ControlChannel, ControlChannel) {
        let (one, other) = UnixStream::pair().unwrap();
        meet(one, other)
    }

    #[test]
    fn messages_pass_both_ways_over_tcp_and_descriptors_do_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (one, other) = meet(listener.accept().unwrap().0, stream);
        assert!(!one.passes_descriptors());
        let ((one_sender, mut one_receiver), (other_sender, mut other_receiver)) = (one.split(), other.split());
        for request in 0..100 {
            one_sender.send(&Message::Lease { request }, None).unwrap();
            assert_eq!(other_receiver.receive(LATER).unwrap().0, Message::Lease { request });
            other_sender.send(&Message::Leased { request, slab: SlabHandle(request), key: None }, None).unwrap();
            let leased = Message::Leased { request, slab: SlabHandle(request), key: None };
            assert_eq!(one_receiver.receive(LATER).unwrap().0, leased);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(one_sender.send(&Message::Ping, Some(null.as_fd())).is_err());
    }

    #[test]
    fn a_descriptor_arrives_with_its_own_message() {
        let (one, other) = unix_pair();
        let ((sender, _keep), (_other_sender, mut receiver)) = (one.split(), other.split());
        let null = std::fs::File::open("/dev/null").unwrap();
        for request in 0..10 {
            let passed = (request % 3 == 1).then_some(null.as_fd());
            sender.send(&Message::Query { request }, passed).unwrap();
        }
        for request in 0..10 {
            let (message, passed) = receiver.receive(LATER).unwrap();
            assert_eq!(message, Message::Query { request });
            assert_eq!(passed.is_some(), request % 3 == 1);
        }
    }

    #[test]
    fn a_deadline_within_a_message_loses_nothing() {
        let (one, other) = unix_pair();
        let ((sender, _keep), (_other_sender, mut receiver)) = (one.split(), other.split());
        let plain = codec::encode(&Message::Query { request: 5 }).unwrap();
        let mut frame = vec![0; LENGTH_BYTES + plain.len() + TAG_BYTES];
        let length = sender.shared.cipher.write_message(0, &plain, &mut frame[LENGTH_BYTES..]).unwrap();
        frame[..LENGTH_BYTES].copy_from_slice(&(length as u16).to_le_bytes());
        for byte in frame {
            assert!(matches!(receiver.receive(Duration::ZERO), Err(ControlError::TimedOut)));
            sender.shared.socket.send(&[byte], None, Instant::now() + LATER).unwrap();
        }
        assert_eq!(receiver.receive(LATER).unwrap().0, Message::Query { request: 5 });
    }

    #[test]
    fn repeated_and_foreign_bytes_end_the_channel() {
        let (one, other) = unix_pair();
        let ((sender, _keep), (_other_sender, mut receiver)) = (one.split(), other.split());
        let plain = codec::encode(&Message::Ping).unwrap();
        for _ in 0..2 {
            sender.shared.send(0, &plain, None, Instant::now() + LATER).unwrap();
        }
        assert_eq!(receiver.receive(LATER).unwrap().0, Message::Ping);
        assert!(matches!(receiver.receive(LATER), Err(ControlError::Malformed(_))));
        for frame in [&[0u8, 0][..], &[0xff, 0xff], &[17, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]]
        {
            let (one, other) = unix_pair();
            one.sender.shared.socket.send(frame, None, Instant::now() + LATER).unwrap();
            let (_other_sender, mut receiver) = other.split();
            assert!(matches!(receiver.receive(LATER), Err(ControlError::Malformed(_))));
        }
    }

    #[test]
    fn closing_wakes_the_receiver_at_both_ends_and_stops_senders() {
        let (one, other) = unix_pair();
        let ((sender, mut receiver), (other_sender, mut other_receiver)) = (one.split(), other.split());
        let waiting = thread::spawn(move || receiver.receive(LATER).map(drop));
        sender.close();
        assert!(matches!(waiting.join().unwrap(), Err(ControlError::Closed)));
        assert!(matches!(other_receiver.receive(LATER), Err(ControlError::Closed)));
        assert!(other_sender.send(&Message::Ping, None).is_err());
        assert!(matches!(other_sender.send(&Message::Ping, None), Err(ControlError::Closed)));
    }

    #[test]
    fn threads_that_share_a_sender_do_not_mix_their_messages() {
        let (one, other) = unix_pair();
        let ((sender, _keep), (_other_sender, mut receiver)) = (one.split(), other.split());
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let sender = sender.clone();
                let send = move |slab| {
                    sender.send(&Message::Leased { request: thread, slab: SlabHandle(slab), key: None }, None)
                };
                thread::spawn(move || (0..200).try_for_each(send))
            })
            .collect();
        let mut next = [0; 4];
        for _ in 0..800 {
            let (Message::Leased { request, slab, .. }, None) = receiver.receive(LATER).unwrap() else {
                panic!("only leased messages were sent");
            };
            assert_eq!(slab.0, next[request as usize]);
            next[request as usize] += 1;
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    }
}
