//! The borrower's end of a data connection.
//!
//! Three counters tell where every request stands: `answered <= sent <= posted`. Requests live in a ring, in the
//! order of their sequence, which is the order of sending and of the answers. A read that is posted goes ahead of
//! reads of lower classes of which nothing was sent. It passes no write and no discard, and these pass nothing: what
//! was posted first on a page is done first, also when its owner has given it up. What can arrive next is therefore
//! known: receives scatter the answers to the requests up to `sent` straight into their headers' places and their
//! buffers, several at a time; sends gather headers and payloads the same way. Both stop and resume at any byte.
//!
//! When anything is wrong (a lost peer, a missed deadline, an answer that does not fit) the socket is closed first,
//! so that nothing lands in a buffer any more. Then every request in flight completes as down. A write that was given
//! up may still reach the donor's memory: the slabs of a lost connection count as lost with it, and its session is
//! not resumed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use spillway_sys::mapping::Mapping;
use spillway_sys::vectored::{ReceiveList, SendList, Wait};

use super::handshake;
use crate::buffer_pool::BufferPool;
use crate::credit::Credits;
use crate::limits::{HANDSHAKE_DEADLINE, QUEUE_DEPTH_MAX, REQUEST_SIZE_BYTES_MAX};
use crate::patience::{DataPatience, Patience};
use crate::progress::Progress;
use crate::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};
use crate::units::{BufferRange, Priority, RemoteAddress, SlabHandle, Tag};
use crate::wire::SessionToken;
use crate::wire::data::{DataError, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader};

/// What the ring remembers of a request.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Request,
    /// Its data goes to the sink.
    is_abandoned: bool,
}

impl Pending {
    /// Bytes after the request's header.
    fn outgoing_bytes(&self) -> usize {
        if self.request.operation == Operation::Write { self.request.buffer.length_bytes as usize } else { 0 }
    }

    /// Bytes after the answer's header.
    fn incoming_bytes(&self) -> usize {
        if self.request.operation == Operation::Read { self.request.buffer.length_bytes as usize } else { 0 }
    }
}

/// One connection of one I/O thread to one donor, see the module text.
#[derive(Debug)]
pub struct TcpQueuePair {
    /// `None` once down.
    socket: Option<OwnedFd>,
    /// A send failed in `post`; the next `poll` takes the connection down.
    failed: bool,
    pool: Arc<BufferPool>,
    credits: Credits,
    pending: Box<[Pending]>,
    request_headers: Box<[[u8; REQUEST_HEADER_BYTES]]>,
    response_headers: Box<[[u8; RESPONSE_HEADER_BYTES]]>,
    posted: u64,
    sent: u64,
    answered: u64,
    /// Bytes of request `sent` that went.
    sent_bytes: usize,
    /// Bytes of the answer to request `answered` that came.
    received_bytes: usize,
    progress: Progress,
    patience: DataPatience,
    /// Where the data of abandoned reads goes.
    sink: Mapping,
}

/// Bytes of the sink: what comes for an abandoned read is received in pieces of it.
const SINK_BYTES: usize = 16 << 10;

impl TcpQueuePair {
    /// Opens a data connection of the session that has `token`, over a connected stream socket.
    /// A donor that stops answering is waited for as `patience` says.
    pub fn connect(
        stream: impl Into<OwnedFd>,
        token: &SessionToken,
        pool: Arc<BufferPool>,
        patience: Arc<Patience>,
    ) -> io::Result<Self> {
        Self::connect_until(stream, token, pool, patience, Instant::now() + HANDSHAKE_DEADLINE)
    }

    /// The same; the handshake ends by `deadline`.
    pub fn connect_until(
        stream: impl Into<OwnedFd>,
        token: &SessionToken,
        pool: Arc<BufferPool>,
        patience: Arc<Patience>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let socket = stream.into();
        handshake::tune(socket.as_fd())?;
        handshake::introduce_until(&socket, token, deadline)?;
        // A connection that is given up takes what it has not sent with it. A UNIX socket has no such setting.
        let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        let request = Request {
            operation: Operation::Discard,
            remote: RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 },
            buffer: BufferRange { offset_bytes: 0, length_bytes: 0 },
            tag: Tag(0),
            priority: Priority::Demand,
        };
        let nothing = Pending { request, is_abandoned: false };
        let sink = Mapping::anonymous(SINK_BYTES)?;
        // Present from now on, like all that pages need on their way.
        sink.zero(0, SINK_BYTES);
        Ok(Self {
            socket: Some(socket),
            failed: false,
            pool,
            credits: Credits::new(),
            pending: vec![nothing; QUEUE_DEPTH_MAX].into(),
            request_headers: vec![[0; REQUEST_HEADER_BYTES]; QUEUE_DEPTH_MAX].into(),
            response_headers: vec![[0; RESPONSE_HEADER_BYTES]; QUEUE_DEPTH_MAX].into(),
            posted: 0,
            sent: 0,
            answered: 0,
            sent_bytes: 0,
            received_bytes: 0,
            progress: Progress::new(Instant::now()),
            patience: DataPatience::new(patience),
            sink,
        })
    }

    /// Puts the request behind those that were sent, those that are as urgent, and those that change pages.
    fn enqueue(&mut self, request: Request) {
        let unsent = self.sent + u64::from(self.sent_bytes > 0);
        let mut sequence = self.posted;
        while sequence > unsent {
            let before = self.pending[place_of(sequence - 1)];
            let are_reads = request.operation == Operation::Read && before.request.operation == Operation::Read;
            if !are_reads || before.request.priority <= request.priority {
                break;
            }
            self.put(sequence, before);
            sequence -= 1;
        }
        self.put(sequence, Pending { request, is_abandoned: false });
        self.posted += 1;
    }

    fn put(&mut self, sequence: u64, pending: Pending) {
        let Request { operation, remote, buffer, .. } = pending.request;
        let header = RequestHeader { operation, sequence: sequence as u32, remote, length_bytes: buffer.length_bytes };
        self.request_headers[place_of(sequence)] = header.encode();
        self.pending[place_of(sequence)] = pending;
    }

    /// Sends until everything went or the socket is full.
    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.posted {
            match self.send_some() {
                Ok(count) => self.note_sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_some(&self) -> io::Result<usize> {
        let mut list = SendList::new();
        let mut skip = self.sent_bytes;
        for sequence in self.sent..self.posted {
            if list.room() < 2 {
                break;
            }
            let place = place_of(sequence);
            list.push_bytes(&self.request_headers[place][skip.min(REQUEST_HEADER_BYTES)..]);
            let gone = skip.saturating_sub(REQUEST_HEADER_BYTES);
            let pending = &self.pending[place];
            if pending.outgoing_bytes() > 0 {
                let offset = pending.request.buffer.offset_bytes as usize;
                list.push_memory(self.pool.memory(), offset + gone, pending.outgoing_bytes() - gone);
            }
            skip = 0;
        }
        list.send(connected(self.socket.as_ref())?, Wait::No)
    }

    fn note_sent(&mut self, count: usize) {
        self.sent_bytes += count;
        while self.sent < self.posted {
            let total = REQUEST_HEADER_BYTES + self.pending[place_of(self.sent)].outgoing_bytes();
            if self.sent_bytes < total {
                return;
            }
            self.sent_bytes -= total;
            self.sent += 1;
        }
        assert_eq!(self.sent_bytes, 0, "more was sent than posted");
    }

    /// Receives until nothing is expected or nothing is there.
    fn receive(&mut self, now: Instant, complete: &mut dyn FnMut(Completion)) -> io::Result<()> {
        loop {
            match self.receive_some() {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, wanted)) => {
                    self.progress.received(count, now);
                    self.note_received(count, now, complete)?;
                    if count < wanted || self.answered == self.sent {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes that came and bytes that there was room for. Where nothing is expected, one byte is asked for all the
    /// same: that is how a closed connection shows.
    fn receive_some(&mut self) -> io::Result<(usize, usize)> {
        let mut unexpected = [0];
        let mut list = ReceiveList::new();
        let mut skip = self.received_bytes;
        let (before, from) = self.response_headers.split_at_mut(place_of(self.answered));
        let headers = from.iter_mut().chain(before);
        for (sequence, header) in (self.answered..self.sent).zip(headers) {
            if list.room() < 2 {
                break;
            }
            list.push_bytes(&mut header[skip.min(RESPONSE_HEADER_BYTES)..]);
            let come = skip.saturating_sub(RESPONSE_HEADER_BYTES);
            let pending = &self.pending[place_of(sequence)];
            let incoming_bytes = pending.incoming_bytes() - come;
            if pending.is_abandoned {
                list.push_memory(&self.sink, 0, incoming_bytes.min(SINK_BYTES));
                if incoming_bytes > SINK_BYTES {
                    break;
                }
            } else if incoming_bytes > 0 {
                let offset = pending.request.buffer.offset_bytes as usize;
                list.push_memory(self.pool.memory(), offset + come, incoming_bytes);
            }
            skip = 0;
        }
        if list.length() == 0 {
            list.push_bytes(&mut unexpected);
        }
        let wanted = list.length();
        Ok((list.receive(connected(self.socket.as_ref())?, Wait::No)?, wanted))
    }

    fn note_received(&mut self, count: usize, now: Instant, complete: &mut dyn FnMut(Completion)) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            if self.answered == self.sent {
                return Err(broken());
            }
            let pending = self.pending[place_of(self.answered)];
            let total = RESPONSE_HEADER_BYTES + pending.incoming_bytes();
            let taken = left.min(total - self.received_bytes);
            left -= taken;
            self.received_bytes += taken;
            if self.received_bytes < RESPONSE_HEADER_BYTES {
                break;
            }
            let result = self.check_answer(&pending).map_err(|_| broken())?;
            if self.received_bytes == total {
                self.received_bytes = 0;
                self.answered += 1;
                self.progress.answered(now);
                self.credits.give_back();
                complete(Completion { tag: pending.request.tag, result });
            }
        }
        Ok(())
    }

    fn check_answer(&self, pending: &Pending) -> Result<Result<(), RequestError>, DataError> {
        let header = ResponseHeader::decode(&self.response_headers[place_of(self.answered)])?;
        if header.sequence != self.answered as u32 || header.payload_bytes as usize != pending.incoming_bytes() {
            return Err(DataError::Sequence);
        }
        Ok(header.status.result())
    }

    fn missed_deadline(&mut self, now: Instant) -> bool {
        let owes = self.answered < self.posted;
        let is_overdue = owes && self.progress.is_overdue(now, self.patience.request());
        self.patience.tell(owes && self.progress.is_stalled());
        is_overdue
    }

    /// Closes the socket, then ends every request in flight.
    pub(crate) fn take_down(&mut self, complete: &mut dyn FnMut(Completion)) -> usize {
        self.socket = None;
        self.patience.tell(false);
        let ended = (self.posted - self.answered) as usize;
        while self.answered < self.posted {
            let tag = self.pending[place_of(self.answered)].request.tag;
            self.answered += 1;
            self.credits.give_back();
            complete(Completion { tag, result: Err(RequestError::Down) });
        }
        self.sent = self.posted;
        ended
    }
}

impl QueuePair for TcpQueuePair {
    fn post(&mut self, request: Request, now: Instant) -> Result<(), PostError> {
        if self.is_down() {
            return Err(PostError::Down);
        }
        let length = request.buffer.length_bytes as usize;
        assert!(request.operation == Operation::Discard || length <= REQUEST_SIZE_BYTES_MAX, "a request is too long");
        if !self.credits.take(request.priority) {
            return Err(PostError::Busy);
        }
        let idle = self.answered == self.posted;
        if idle {
            self.progress.became_busy(now);
        }
        self.enqueue(request);
        // A lone request goes at once; the ones that follow it go together with the next poll.
        if idle {
            self.failed = self.flush().is_err();
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        if self.socket.is_none() {
            return 0;
        }
        if self.failed || self.flush().is_err() {
            return self.take_down(complete);
        }
        // Counted outside `receive`, which may complete some before it fails.
        let mut ended = 0;
        let outcome = self.receive(now, &mut |completion| {
            ended += 1;
            complete(completion);
        });
        if outcome.is_err() || self.missed_deadline(now) {
            ended += self.take_down(complete);
        }
        ended
    }

    fn can_abandon(&self) -> bool {
        true
    }

    fn abandon(&mut self, tag: Tag) -> bool {
        let is_it = |pending: &Pending| pending.request.tag == tag && pending.request.operation == Operation::Read;
        let place = (self.answered..self.posted).map(place_of).find(|place| is_it(&self.pending[*place]));
        if let Some(place) = place {
            // Only `poll` receives, so the buffer is not written to from here on.
            self.pending[place].is_abandoned = true;
        }
        place.is_some()
    }

    fn in_flight(&self) -> usize {
        self.credits.held()
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Also while the socket has room, so that a caller that sleeps instead of polling is woken to send the rest.
    fn wants_write(&self) -> bool {
        self.sent < self.posted
    }

    fn is_down(&self) -> bool {
        self.failed || self.socket.is_none()
    }

    /// Only `post` and `poll` send and receive.
    fn halt(&mut self) -> bool {
        true
    }
}

fn place_of(sequence: u64) -> usize {
    (sequence % QUEUE_DEPTH_MAX as u64) as usize
}

fn connected(socket: Option<&OwnedFd>) -> io::Result<BorrowedFd<'_>> {
    socket.map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// Without an allocation, since it is found on the page path; the connection goes down, and that is all its owner sees.
fn broken() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::super::Greeting;
    use super::*;
    use crate::units::{PAGE_SIZE_BYTES, Priority, RemoteAddress, SlabHandle};
    use crate::wire::data::Status;
    use crate::wire::foreign::PREFACE_BYTES;

    const TOKEN: SessionToken = SessionToken([3; 32]);
    const COUNT: usize = 4;

    /// Answers `COUNT` discards, and returns their sequences.
    fn donor(mut stream: UnixStream) -> Vec<u32> {
        stream.read_exact(&mut [0; PREFACE_BYTES]).unwrap();
        let deadline = Instant::now() + HANDSHAKE_DEADLINE;
        Greeting::receive(&stream, deadline).and_then(|greeting| greeting.admit(&stream, &TOKEN, deadline)).unwrap();
        let answer_one = |_| {
            let mut bytes = [0; REQUEST_HEADER_BYTES];
            stream.read_exact(&mut bytes).unwrap();
            let sequence = RequestHeader::decode(&bytes).unwrap().sequence;
            let answer = ResponseHeader { sequence, status: Status::Done, payload_bytes: 0 };
            stream.write_all(&answer.encode()).unwrap();
            sequence
        };
        (0..COUNT).map(answer_one).collect()
    }

    #[test]
    fn sequences_wrap_after_four_billion_requests() {
        let (borrower, peer) = UnixStream::pair().unwrap();
        let donor = std::thread::spawn(|| donor(peer));
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let mut pair = TcpQueuePair::connect(borrower, &TOKEN, pool, Arc::default()).unwrap();
        let start = u64::from(u32::MAX) - 1;
        (pair.posted, pair.sent, pair.answered) = (start, start, start);
        let now = Instant::now();
        for tag in 0..COUNT as u32 {
            let request = Request {
                operation: Operation::Discard,
                remote: RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 },
                buffer: BufferRange { offset_bytes: 0, length_bytes: PAGE_SIZE_BYTES as u32 },
                tag: Tag(tag),
                priority: Priority::Demand,
            };
            pair.post(request, now).unwrap();
        }
        let mut ended = Vec::new();
        while ended.len() < COUNT {
            pair.poll(now, &mut |completion| ended.push(completion));
        }
        assert!(ended.iter().all(|ended| ended.result == Ok(())), "{ended:?}");
        assert_eq!(donor.join().unwrap(), [u32::MAX - 1, u32::MAX, 0, 1]);
    }
}
