//! One stream socket that speaks the transmission phase of NBD: a [`BlockChannel`].
//!
//! Life of a request: `receive` decodes its header and takes a free slot, in which a write's data land -> the caller
//! works on the slot; then `complete` puts the answer into the queue -> `flush` (or the next `receive`) sends all
//! answers that wait, a read's pages straight from their slots -> the slot is free again. With every slot taken
//! nothing more is read, so a client that sends faster than it is served, or never reads its answers, waits in its
//! own socket.
//!
//! Up to [`NBD_AHEAD_BYTES`] are read ahead, so that one system call takes several requests, or one with its page;
//! the rest of longer data goes straight into the slot.
//!
//! Invariants: a slot is free, being filled, with the caller, or in the queue of answers, exactly one of them;
//! nothing here allocates after [`NbdChannel::new`]; a request that is not whole pages inside the device is refused,
//! never cut; a write whose client went away before its last byte is never seen by the caller.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use spillway_block::channel::{BlockChannel, Interest, Received};
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::Priority;
use spillway_sys::vectored::{ReceiveList, SendList, Wait};

use crate::limits::{NBD_AHEAD_BYTES, NBD_REQUEST_BYTES_MAX};
use crate::nbd::protocol::{NbdError, NbdRequest, REPLY_BYTES, REQUEST_BYTES, Verdict, judge, reply};

/// See the module text.
#[derive(Debug)]
pub struct NbdChannel {
    /// `None` once the connection has ended.
    socket: Option<OwnedFd>,
    size_bytes: u64,
    pool: Arc<BufferPool>,
    /// Which connection this is; answers to requests of earlier ones go nowhere.
    connection: u64,
    ahead: Ahead,
    phase: Phase,
    free: Vec<usize>,
    in_flight: Vec<Option<InFlight>>,
    /// Requests of this connection that are with the caller.
    pending: usize,
    /// Slots whose answers wait, in order.
    answers: VecDeque<usize>,
    answer: Vec<Answer>,
    /// Bytes of the first answer that are sent.
    sent_bytes: usize,
}

/// What the connection is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between requests, or within a header.
    Header,
    /// Receiving the data of a write.
    Filling { slot: usize, request: NbdRequest, received: usize },
    /// Throwing the data of a refused write away.
    Skipping { slot: usize, request: NbdRequest, error: NbdError, left: u64 },
    /// The client said goodbye: what it asked is still answered.
    Leaving,
}

/// What an answer needs to know of its request.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    connection: u64,
    cookie: [u8; 8],
    operation: BlockOperation,
    length_bytes: usize,
}

/// An answer in the queue: a reply, and so many bytes of its slot.
#[derive(Clone, Copy, Debug, Default)]
struct Answer {
    reply: [u8; REPLY_BYTES],
    data_bytes: usize,
}

/// How the connection went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// Bytes came.
    Some,
    /// None are there.
    Nothing,
    /// None will come.
    Closed,
}

impl NbdChannel {
    /// A channel with `slot_count` slots for a device of `size_bytes`, without a connection yet.
    pub fn new(slot_count: usize, size_bytes: u64) -> io::Result<Self> {
        Ok(Self {
            socket: None,
            size_bytes,
            pool: BufferPool::new(slot_count, NBD_REQUEST_BYTES_MAX)?,
            connection: 0,
            ahead: Ahead::new(),
            phase: Phase::Header,
            free: (0..slot_count).rev().collect(),
            in_flight: vec![None; slot_count],
            pending: 0,
            answers: VecDeque::with_capacity(slot_count),
            answer: vec![Answer::default(); slot_count],
            sent_bytes: 0,
        })
    }

    /// Takes a connection whose next byte is that of a request. The last one must have ended.
    pub fn connect(&mut self, socket: OwnedFd) {
        assert!(self.socket.is_none(), "a channel has one connection at a time");
        self.socket = Some(socket);
    }

    /// Bytes received before the first request belong to the process that greets the client.
    pub(super) fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Ends the connection. Requests with the caller go on, and their answers are dropped.
    pub fn disconnect(&mut self) {
        self.socket = None;
        self.connection += 1;
        self.pending = 0;
        self.sent_bytes = 0;
        self.ahead.clear();
        self.free.extend(self.answers.drain(..));
        if let Phase::Filling { slot, .. } | Phase::Skipping { slot, .. } = self.phase {
            self.free.push(slot);
        }
        self.phase = Phase::Header;
    }

    /// The next request of this connection.
    fn next_request(&mut self) -> io::Result<Received> {
        self.send_answers()?;
        loop {
            let moved = match self.phase {
                Phase::Header => match self.header()? {
                    Some(Received::Request(request)) => return Ok(Received::Request(request)),
                    Some(other) => return Ok(other),
                    None if self.phase == Phase::Header && self.ahead.length() < REQUEST_BYTES => self.fill_ahead()?,
                    None => Moved::Some,
                },
                Phase::Filling { slot, request, received } if received == request.length_bytes as usize => {
                    self.phase = Phase::Header;
                    return Ok(self.hand_over(slot, &request, BlockOperation::Write));
                }
                Phase::Filling { slot, request, received } => self.fill(slot, request, received)?,
                Phase::Skipping { slot, request, error, left: 0 } => {
                    self.phase = Phase::Header;
                    self.refuse(slot, request.cookie, error);
                    Moved::Some
                }
                Phase::Skipping { slot, request, error, left } => self.skip(slot, request, error, left)?,
                Phase::Leaving if self.pending == 0 && self.answers.is_empty() => Moved::Closed,
                Phase::Leaving => Moved::Nothing,
            };
            match moved {
                Moved::Some => {}
                Moved::Nothing => {
                    self.send_answers()?;
                    return Ok(Received::Nothing);
                }
                Moved::Closed => return Ok(Received::Closed),
            }
        }
    }

    /// Decodes a header, if one is there and a slot is free for it.
    fn header(&mut self) -> io::Result<Option<Received>> {
        let Some(&slot) = self.free.last() else {
            self.send_answers()?;
            return Ok(if self.free.is_empty() { Some(Received::Nothing) } else { None });
        };
        let Some(bytes) = self.ahead.take() else { return Ok(None) };
        let Ok(request) = NbdRequest::decode(&bytes) else { return Ok(Some(Received::Closed)) };
        self.phase = match judge(&request, self.size_bytes) {
            Verdict::Goodbye => Phase::Leaving,
            Verdict::HangUp => return Ok(Some(Received::Closed)),
            Verdict::Refuse(error, left) => Phase::Skipping { slot, request, error, left },
            Verdict::Serve(BlockOperation::Write) => Phase::Filling { slot, request, received: 0 },
            Verdict::Serve(operation) => {
                self.free.pop();
                return Ok(Some(self.hand_over(slot, &request, operation)));
            }
        };
        if self.phase != Phase::Leaving {
            self.free.pop();
        }
        Ok(None)
    }

    fn hand_over(&mut self, slot: usize, request: &NbdRequest, operation: BlockOperation) -> Received {
        let flush = operation == BlockOperation::Flush;
        let length_bytes = if flush { 0 } else { request.length_bytes as usize };
        let in_flight = InFlight { connection: self.connection, cookie: request.cookie, operation, length_bytes };
        let earlier = self.in_flight[slot].replace(in_flight);
        assert!(earlier.is_none(), "slot {slot} was free and held a request");
        self.pending += 1;
        Received::Request(BlockRequest {
            slot,
            operation,
            offset_bytes: if flush { 0 } else { request.offset_bytes },
            length_bytes: length_bytes as u64,
            priority: Priority::Demand,
        })
    }

    fn refuse(&mut self, slot: usize, cookie: [u8; 8], error: NbdError) {
        self.answer[slot] = Answer { reply: reply(cookie, Err(error)), data_bytes: 0 };
        self.answers.push_back(slot);
    }

    /// Receives headers, and whatever follows them.
    fn fill_ahead(&mut self) -> io::Result<Moved> {
        let Some(socket) = &self.socket else { return Ok(Moved::Closed) };
        self.ahead.receive(socket.as_fd())
    }

    /// Receives more of a write's data, and what follows it.
    fn fill(&mut self, slot: usize, request: NbdRequest, received: usize) -> io::Result<Moved> {
        let (buffer, wanted) = (self.pool.slot(slot).offset_bytes as usize, request.length_bytes as usize - received);
        let taken = self.ahead.take_into(wanted, |bytes| self.pool.memory().write(buffer + received, bytes));
        let count = if taken > 0 {
            taken
        } else {
            let Some(socket) = &self.socket else { return Ok(Moved::Closed) };
            let mut list = ReceiveList::new();
            list.push_memory(self.pool.memory(), buffer + received, wanted);
            list.push_bytes(self.ahead.room());
            let count = match moved(list.receive(socket.as_fd(), Wait::No))? {
                Ok(count) => count,
                Err(end) => return Ok(end),
            };
            self.ahead.received(count.saturating_sub(wanted));
            count.min(wanted)
        };
        self.phase = Phase::Filling { slot, request, received: received + count };
        Ok(Moved::Some)
    }

    /// Throws data of a refused write away; its slot is as good a place as any.
    fn skip(&mut self, slot: usize, request: NbdRequest, error: NbdError, left: u64) -> io::Result<Moved> {
        let buffer = self.pool.slot(slot);
        let wanted = left.min(u64::from(buffer.length_bytes)) as usize;
        let taken = self.ahead.take_into(wanted, |_| {});
        let count = if taken > 0 {
            taken
        } else {
            let Some(socket) = &self.socket else { return Ok(Moved::Closed) };
            let mut list = ReceiveList::new();
            list.push_memory(self.pool.memory(), buffer.offset_bytes as usize, wanted);
            match moved(list.receive(socket.as_fd(), Wait::No))? {
                Ok(count) => count,
                Err(end) => return Ok(end),
            }
        };
        self.phase = Phase::Skipping { slot, request, error, left: left - count as u64 };
        Ok(Moved::Some)
    }

    /// Sends answers until none is left or the socket is full.
    fn send_answers(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        while !self.answers.is_empty() {
            let mut list = SendList::new();
            let mut skipped = self.sent_bytes;
            for &slot in &self.answers {
                if list.room() < 2 {
                    break;
                }
                let Answer { reply, data_bytes } = &self.answer[slot];
                list.push_bytes(&reply[skipped.min(REPLY_BYTES)..]);
                let data_skipped = skipped.saturating_sub(REPLY_BYTES);
                let offset = self.pool.slot(slot).offset_bytes as usize + data_skipped;
                list.push_memory(self.pool.memory(), offset, data_bytes - data_skipped);
                skipped = 0;
            }
            match list.send(socket.as_fd(), Wait::No) {
                Ok(count) => self.sent_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            while let Some(&slot) = self.answers.front()
                && self.sent_bytes >= REPLY_BYTES + self.answer[slot].data_bytes
            {
                self.sent_bytes -= REPLY_BYTES + self.answer[slot].data_bytes;
                self.answers.pop_front();
                self.free.push(slot);
            }
        }
        Ok(())
    }
}

impl BlockChannel for NbdChannel {
    fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    /// A client that breaks the connection, or the protocol, has closed it.
    fn receive(&mut self) -> io::Result<Received> {
        let received = match self.next_request() {
            Ok(received) => received,
            Err(error) if is_disconnection(&error) => Received::Closed,
            Err(error) => return Err(error),
        };
        if received == Received::Closed {
            self.disconnect();
        }
        Ok(received)
    }

    fn complete(&mut self, slot: usize, result: Result<(), BlockError>) -> io::Result<()> {
        let request = self.in_flight[slot].take().expect("a slot is completed once, by the caller that owns it");
        if request.connection != self.connection || self.socket.is_none() {
            self.free.push(slot);
            return Ok(());
        }
        self.pending -= 1;
        let with_data = request.operation == BlockOperation::Read && result.is_ok();
        let data_bytes = if with_data { request.length_bytes } else { 0 };
        self.answer[slot] = Answer { reply: reply(request.cookie, result.map_err(NbdError::from)), data_bytes };
        self.answers.push_back(slot);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_answers()
    }

    fn interest(&self) -> Interest {
        let reads = !self.free.is_empty() || matches!(self.phase, Phase::Filling { .. } | Phase::Skipping { .. });
        Interest { read: reads && self.phase != Phase::Leaving, write: !self.answers.is_empty() }
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("a channel that is waited for has a connection").as_fd()
    }
}

/// What a peer does to a connection, as opposed to what is wrong with us.
fn is_disconnection(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | HostUnreachable | NetworkUnreachable
    )
}

/// The bytes that came, or what there is instead.
fn moved(result: io::Result<usize>) -> io::Result<Result<usize, Moved>> {
    match result {
        Ok(0) => Ok(Err(Moved::Closed)),
        Ok(count) => Ok(Ok(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Err(Moved::Nothing)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Err(Moved::Some)),
        Err(error) if is_disconnection(&error) => Ok(Err(Moved::Closed)),
        Err(error) => Err(error),
    }
}

/// Bytes received and not yet understood.
#[derive(Debug)]
pub(super) struct Ahead {
    bytes: Box<[u8; NBD_AHEAD_BYTES]>,
    start: usize,
    end: usize,
}

impl Ahead {
    fn new() -> Self {
        Self { bytes: Box::new([0; NBD_AHEAD_BYTES]), start: 0, end: 0 }
    }

    /// Forgets what is there.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    fn length(&self) -> usize {
        self.end - self.start
    }

    /// What is there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `count` bytes are dealt with.
    pub(super) fn consume(&mut self, count: usize) {
        assert!(count <= self.length(), "only what is there is consumed");
        self.start += count;
    }

    /// A request's header, once all of it is there.
    fn take(&mut self) -> Option<[u8; REQUEST_BYTES]> {
        let header = self.bytes().first_chunk().copied()?;
        self.consume(REQUEST_BYTES);
        Some(header)
    }

    /// Gives up to `wanted` bytes to `target`; how many.
    fn take_into(&mut self, wanted: usize, target: impl FnOnce(&[u8])) -> usize {
        let count = wanted.min(self.length());
        target(&self.bytes()[..count]);
        self.consume(count);
        count
    }

    /// Where more may be received.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.bytes[self.end..]
    }

    fn received(&mut self, count: usize) {
        self.end += count;
    }

    /// Receives what fits.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<Moved> {
        let mut list = ReceiveList::new();
        list.push_bytes(self.room());
        match moved(list.receive(socket, Wait::No))? {
            Ok(count) => {
                self.received(count);
                Ok(Moved::Some)
            }
            Err(end) => Ok(end),
        }
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
