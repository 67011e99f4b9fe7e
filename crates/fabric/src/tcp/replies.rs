//! Answers on their way to the borrower.
//!
//! Answers leave in the order of the requests, as many as fit with one system call. A read's payload leaves straight
//! from the slab, so one call carries the payloads of one slab (its memory is held only during the call), with any
//! answers without slab memory among them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use spillway_sys::mapping::Mapping;
use spillway_sys::vectored::{SendList, Wait};

use super::slab_directory::SlabDirectory;
use super::traffic::Traffic;
use crate::limits::{QUEUE_DEPTH_MAX, REQUEST_SIZE_BYTES_MAX};
use crate::units::{RemoteAddress, SlabHandle};
use crate::wire::data::{RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader, Status};

/// What follows an answer's header.
#[derive(Clone, Copy, Debug)]
enum Payload {
    None,
    Slab(RemoteAddress),
    /// In place of a slab that is not lent, so that the layout of the stream does not depend on it.
    Zeroes,
}

#[derive(Debug)]
struct Reply {
    header: ResponseHeader,
    encoded: [u8; RESPONSE_HEADER_BYTES],
    payload: Payload,
}

impl Reply {
    fn new(header: ResponseHeader, payload: Payload) -> Self {
        Self { header, encoded: header.encode(), payload }
    }

    fn payload_bytes(&self) -> usize {
        self.header.payload_bytes as usize
    }

    fn total_bytes(&self) -> usize {
        RESPONSE_HEADER_BYTES + self.payload_bytes()
    }

    fn slab(&self) -> Option<SlabHandle> {
        if let Payload::Slab(remote) = self.payload { Some(remote.slab) } else { None }
    }

    fn lies_outside(&self, memory: Option<&Mapping>) -> bool {
        let Payload::Slab(remote) = self.payload else { return false };
        memory.is_none_or(|memory| remote.offset_bytes as usize + self.payload_bytes() > memory.length())
    }
}

/// How sending ended, and how many bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flushed {
    pub(super) end: FlushEnd,
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushEnd {
    AllSent,
    /// More waits for the socket.
    SocketFull,
    /// More waits for the next turn.
    TurnOver,
}

/// The answers not yet sent, at most [`QUEUE_DEPTH_MAX`].
#[derive(Debug)]
pub(super) struct Replies<'a> {
    traffic: &'a Traffic,
    waiting: VecDeque<Reply>,
    /// Bytes of the first one that went.
    sent_bytes: usize,
    /// As many zeroes as the longest payload; never written, so without memory behind it.
    zeroes: Mapping,
}

impl<'a> Replies<'a> {
    pub(super) fn new(traffic: &'a Traffic) -> io::Result<Self> {
        Ok(Self {
            traffic,
            waiting: VecDeque::with_capacity(QUEUE_DEPTH_MAX),
            sent_bytes: 0,
            zeroes: Mapping::anonymous(REQUEST_SIZE_BYTES_MAX)?,
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() == QUEUE_DEPTH_MAX
    }

    /// Answers a write or a discard.
    pub(super) fn push_status(&mut self, request: &RequestHeader, status: Status) {
        let header = ResponseHeader { sequence: request.sequence, status, payload_bytes: 0 };
        self.push(Reply::new(header, Payload::None));
    }

    /// Answers a read; whether its slab is lent is seen when it is sent.
    pub(super) fn push_read(&mut self, request: &RequestHeader) {
        let header =
            ResponseHeader { sequence: request.sequence, status: Status::Done, payload_bytes: request.length_bytes };
        self.push(Reply::new(header, Payload::Slab(request.remote)));
    }

    fn push(&mut self, reply: Reply) {
        assert!(!self.is_full(), "requests are taken only while there is room for their answers");
        self.waiting.push_back(reply);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends as much as the socket takes, and no more once that comes to `bytes_max`.
    pub(super) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        slabs: &dyn SlabDirectory,
        bytes_max: usize,
    ) -> io::Result<Flushed> {
        let mut bytes = 0;
        while !self.waiting.is_empty() {
            if bytes >= bytes_max {
                return Ok(Flushed { end: FlushEnd::TurnOver, bytes });
            }
            match self.send_run(socket, slabs, bytes_max - bytes) {
                Ok(count) => {
                    self.note_sent(count);
                    bytes += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Flushed { end: FlushEnd::SocketFull, bytes });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Flushed { end: FlushEnd::AllSent, bytes })
    }

    /// How many answers one system call sends: up to the second slab among them, and to `bytes_max`.
    fn run_length(&self, slab: Option<SlabHandle>, bytes_max: usize) -> usize {
        let mut bytes = 0_usize;
        let fits = move |reply: &&Reply| {
            let fits = bytes < bytes_max;
            bytes += reply.total_bytes();
            fits && (reply.slab().is_none() || reply.slab() == slab)
        };
        self.waiting.iter().take_while(fits).count()
    }

    /// One system call for the first answers.
    fn send_run(&mut self, socket: BorrowedFd<'_>, slabs: &dyn SlabDirectory, bytes_max: usize) -> io::Result<usize> {
        let slab = self.waiting.iter().find_map(Reply::slab);
        let run = self.run_length(slab, bytes_max);
        let Some(slab) = slab else { return self.send_with(run, None, socket) };
        let mut sent = None;
        slabs.with_slab(slab, &mut |memory| sent = Some(self.send_with(run, Some(memory), socket)));
        sent.unwrap_or_else(|| self.send_with(run, None, socket))
    }

    /// Sends the first `run` answers, whose slab (if any) is `memory`.
    fn send_with(&mut self, run: usize, memory: Option<&Mapping>, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.refuse_outside(run, memory)?;
        let mut list = SendList::new();
        let mut skip = self.sent_bytes;
        for reply in self.waiting.iter().take(run) {
            if list.room() < 2 {
                break;
            }
            list.push_bytes(&reply.encoded[skip.min(RESPONSE_HEADER_BYTES)..]);
            let gone = skip.saturating_sub(RESPONSE_HEADER_BYTES);
            let left = reply.payload_bytes() - gone;
            match (reply.payload, memory) {
                (Payload::Slab(remote), Some(memory)) => {
                    list.push_memory(memory, remote.offset_bytes as usize + gone, left);
                }
                (Payload::Zeroes, _) => list.push_memory(&self.zeroes, gone, left),
                _ => {}
            }
            skip = 0;
        }
        list.send(socket, Wait::No)
    }

    /// Turns reads that cannot be served into refusals. One that is already on its way cannot be taken back: what
    /// follows would be taken for its payload, so the connection ends.
    fn refuse_outside(&mut self, run: usize, memory: Option<&Mapping>) -> io::Result<()> {
        let started = self.sent_bytes > 0;
        for (index, reply) in self.waiting.iter_mut().enumerate().take(run) {
            if !reply.lies_outside(memory) {
                continue;
            }
            if index == 0 && started {
                return Err(io::Error::other("a slab was taken away while it was being read; its connection ends"));
            }
            let header = ResponseHeader { status: Status::NotLent, ..reply.header };
            *reply = Reply::new(header, Payload::Zeroes);
        }
        Ok(())
    }

    fn note_sent(&mut self, count: usize) {
        self.sent_bytes += count;
        while let Some(first) = self.waiting.front() {
            if self.sent_bytes < first.total_bytes() {
                return;
            }
            self.sent_bytes -= first.total_bytes();
            if first.slab().is_some() {
                self.traffic.note_read(first.payload_bytes());
            }
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::queue_pair::Operation;
    use crate::units::PAGE_SIZE_BYTES;

    const SLAB_PAGES: u32 = 512;

    /// Slabs 0 and 1, full of ones and twos; the second can be taken back.
    struct TwoSlabs {
        memory: [Mapping; 2],
        second_is_lent: AtomicBool,
    }

    impl TwoSlabs {
        fn new() -> Self {
            let length = SLAB_PAGES as usize * PAGE_SIZE_BYTES;
            let memory = [1, 2].map(|byte| {
                let memory = Mapping::anonymous(length).unwrap();
                memory.write(0, &vec![byte; length]);
                memory
            });
            Self { memory, second_is_lent: AtomicBool::new(true) }
        }
    }

    impl SlabDirectory for TwoSlabs {
        fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool {
            let lent = slab.0 == 0 || (slab.0 == 1 && self.second_is_lent.load(Ordering::Relaxed));
            if lent {
                use_memory(&self.memory[slab.0 as usize]);
            }
            lent
        }
    }

    fn read(sequence: u32, slab: u32, pages: u32) -> RequestHeader {
        let remote = RemoteAddress { slab: SlabHandle(slab), offset_bytes: 0 };
        RequestHeader { operation: Operation::Read, sequence, remote, length_bytes: pages * PAGE_SIZE_BYTES as u32 }
    }

    fn flush(replies: &mut Replies<'_>, donor: &UnixStream, slabs: &TwoSlabs) -> FlushEnd {
        replies.flush(donor.as_fd(), slabs, usize::MAX).unwrap().end
    }

    /// The next answer on `stream`, and the byte that its payload is full of.
    fn receive(stream: &mut UnixStream) -> (ResponseHeader, Option<u8>) {
        let mut header = [0; RESPONSE_HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let header = ResponseHeader::decode(&header).unwrap();
        let mut payload = vec![0; header.payload_bytes as usize];
        stream.read_exact(&mut payload).unwrap();
        assert!(payload.windows(2).all(|pair| pair[0] == pair[1]), "one slab's bytes only");
        (header, payload.first().copied())
    }

    #[test]
    fn answers_leave_in_the_order_of_the_requests_whatever_slab_they_come_from() {
        let (slabs, traffic) = (TwoSlabs::new(), Traffic::default());
        let mut replies = Replies::new(&traffic).unwrap();
        let (donor, mut borrower) = UnixStream::pair().unwrap();
        replies.push_read(&read(0, 0, 1));
        replies.push_status(&read(1, 0, 1), Status::Failed(5));
        replies.push_read(&read(2, 1, 2));
        replies.push_read(&read(3, 7, 1));
        replies.push_read(&read(4, 0, 1));
        assert_eq!(flush(&mut replies, &donor, &slabs), FlushEnd::AllSent);
        let answers: Vec<_> = (0..5).map(|_| receive(&mut borrower)).collect();
        assert!(answers.iter().zip(0..).all(|((header, _), sequence)| header.sequence == sequence));
        let bytes: Vec<_> = answers.iter().map(|(header, byte)| (header.status, *byte)).collect();
        let (done, refused) = (Status::Done, Status::NotLent);
        let expected =
            [(done, Some(1)), (Status::Failed(5), None), (done, Some(2)), (refused, Some(0)), (done, Some(1))];
        assert_eq!(bytes, expected, "a refused read has zeroes in its payload's place");
        assert_eq!(traffic.read_bytes(), 4 * PAGE_SIZE_BYTES as u64);
    }

    #[test]
    fn a_turn_ends_with_the_answer_that_fills_it() {
        let (slabs, traffic) = (TwoSlabs::new(), Traffic::default());
        let mut replies = Replies::new(&traffic).unwrap();
        let (donor, mut borrower) = UnixStream::pair().unwrap();
        (0..5).for_each(|sequence| replies.push_read(&read(sequence, 0, 2)));
        let answer_bytes = 2 * PAGE_SIZE_BYTES + RESPONSE_HEADER_BYTES;
        let mut turn = |bytes_max| replies.flush(donor.as_fd(), &slabs, bytes_max).unwrap();
        assert_eq!(turn(1), Flushed { end: FlushEnd::TurnOver, bytes: answer_bytes });
        assert_eq!(turn(answer_bytes + 1), Flushed { end: FlushEnd::TurnOver, bytes: 2 * answer_bytes });
        assert_eq!(turn(2 * answer_bytes), Flushed { end: FlushEnd::AllSent, bytes: 2 * answer_bytes });
        assert!((0..5).all(|sequence| receive(&mut borrower).0.sequence == sequence));
    }

    #[test]
    fn a_full_socket_cuts_an_answer_anywhere_and_it_goes_on_there() {
        let (slabs, traffic) = (TwoSlabs::new(), Traffic::default());
        let mut replies = Replies::new(&traffic).unwrap();
        let (donor, mut borrower) = UnixStream::pair().unwrap();
        let count = 40;
        (0..count).for_each(|sequence| replies.push_read(&read(sequence, sequence % 2, 64)));
        assert_eq!(flush(&mut replies, &donor, &slabs), FlushEnd::SocketFull, "more than a socket takes");
        let reader = std::thread::spawn(move || (0..count).map(|_| receive(&mut borrower)).collect::<Vec<_>>());
        while flush(&mut replies, &donor, &slabs) != FlushEnd::AllSent {
            std::thread::yield_now();
        }
        for ((header, byte), sequence) in reader.join().unwrap().into_iter().zip(0..) {
            assert_eq!((header.sequence, byte), (sequence, Some(1 + (sequence % 2) as u8)));
        }
    }

    #[test]
    fn a_slab_taken_back_before_its_answer_began_is_refused_and_one_begun_ends_the_connection() {
        let (slabs, traffic) = (TwoSlabs::new(), Traffic::default());
        let (donor, mut borrower) = UnixStream::pair().unwrap();
        let mut replies = Replies::new(&traffic).unwrap();
        replies.push_read(&read(0, 1, 1));
        slabs.second_is_lent.store(false, Ordering::Relaxed);
        assert_eq!(flush(&mut replies, &donor, &slabs), FlushEnd::AllSent);
        assert_eq!(receive(&mut borrower).0.status, Status::NotLent);
        slabs.second_is_lent.store(true, Ordering::Relaxed);
        // The first of these is cut off inside, since no process receives.
        (1..9).for_each(|sequence| replies.push_read(&read(sequence, 1, 256)));
        assert_eq!(flush(&mut replies, &donor, &slabs), FlushEnd::SocketFull);
        assert!(replies.sent_bytes > 0);
        slabs.second_is_lent.store(false, Ordering::Relaxed);
        let result = replies.flush(donor.as_fd(), &slabs, usize::MAX);
        assert!(result.is_err(), "the rest of it cannot be made up");
    }
}
