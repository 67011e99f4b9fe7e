//! The borrower's requests: READ and WRITE over a reliable connection, discards over the TCP connection beside it.
//!
//! The table of lent slabs decides what is not lent, without a question to the donor. A slab without a key is read and
//! written over TCP too.
//!
//! When the connection breaks (a link was down, packets were not acknowledged), requests in flight stay, and another
//! connection is made ([`super::repair`]) while the donor is waited for ([`Patience`]). So it is when a connection
//! reports nothing at all for [`REQUEST_DEADLINE`] and the donor is waited for longer. A request that the donor's
//! device refuses is an error of ours or of the donor's: the queue pair is down at once. So it is when the TCP
//! connection ends.
//!
//! The device moves bytes although no thread polls. So buffers are given back only when the connection is reset: before
//! requests end as down, before others take their place, and when the caller polls no more ([`QueuePair::halt`]). While
//! the device refuses the reset, requests wait, and it is tried again with each poll. A write that was given up may
//! still reach the donor's memory, as over TCP.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use spillway_sys::verbs::connection::COMPLETIONS_PER_POLL;
use spillway_sys::verbs::{Connection, Ended, OneSided, Region};

use super::port::{PooledPort, RdmaUnavailable};
use super::remote_slabs::RemoteSlabs;
use super::repair::Repair;
use crate::buffer_pool::BufferPool;
use crate::credit::Credits;
use crate::limits::{QUEUE_DEPTH_MAX, REQUEST_DEADLINE, REQUEST_SIZE_BYTES_MAX};
use crate::patience::{DataPatience, Patience};
use crate::progress::Progress;
use crate::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};
use crate::tcp::TcpQueuePair;

/// The donor's device refused the key or the range (`IBV_WC_REM_ACCESS_ERR`, `IBV_WC_REM_INV_REQ_ERR`,
/// `IBV_WC_LOC_PROT_ERR`): another connection would be refused as well.
const REFUSED: [u32; 3] = [10, 9, 4];

/// The request was cut off with its connection (`IBV_WC_WR_FLUSH_ERR`).
const CUT_OFF: u32 = 5;

/// How many of these completions to look at. A connection breaks by a request that failed, and those after it are cut
/// off. Where none failed before the first that was cut off, the one before it may have: soft-RoCE calls some of them
/// successes (`docs/rdma.md`). So that one counts as not ended, and is posted again.
fn trusted(ended: &[Ended]) -> usize {
    match ended.iter().position(|one| one.status != 0) {
        Some(first) if first > 0 && ended[first].status == CUT_OFF => first - 1,
        _ => ended.len(),
    }
}

/// How the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Works,
    /// Another one is being made; requests wait.
    Broken,
    Down,
}

/// One I/O thread's way to the slabs of a donor, see the module text.
#[derive(Debug)]
pub struct RdmaQueuePair {
    // Dropped before the region.
    connection: Connection,
    state: State,
    /// The device has been reset since the last request, so it touches no buffer.
    is_reset: bool,
    region: Arc<Region>,
    slabs: Arc<RemoteSlabs>,
    tcp: TcpQueuePair,
    /// The TCP connection has to be looked at although it owes nothing: it may have been closed.
    looks_at_tcp: bool,
    credits: Credits,
    /// What is in flight by RDMA; a request's number is its place.
    pending: Box<[Option<Request>]>,
    free: Vec<u16>,
    /// Refused here.
    refused: VecDeque<Completion>,
    /// Taken when the event was armed.
    early: [Ended; COMPLETIONS_PER_POLL],
    early_count: usize,
    progress: Progress,
    /// The same since the connection was made.
    connection_progress: Progress,
    patience: DataPatience,
    repair: Arc<Repair>,
}

/// What a queue pair is made of.
#[derive(Debug)]
pub struct Parts {
    /// Our port, where `pool` is registered.
    pub port: Arc<PooledPort>,
    /// The buffers.
    pub pool: Arc<BufferPool>,
    /// The session's table.
    pub slabs: Arc<RemoteSlabs>,
    /// A connection of the same session, with the same pool.
    pub tcp: TcpQueuePair,
    /// How long the donor is waited for.
    pub patience: Arc<Patience>,
}

impl RdmaQueuePair {
    /// A queue pair over `connection`, which is connected and was made by the port of `parts`.
    pub fn new(connection: Connection, parts: Parts) -> Result<Self, RdmaUnavailable> {
        let region = parts.port.region(&parts.pool)?;
        let repair = Repair::new(parts.port.port().clone()).map_err(RdmaUnavailable::System)?;
        repair.watch(&connection).map_err(RdmaUnavailable::System)?;
        if let Some(socket) = parts.tcp.event() {
            epoll::add(repair.events(), socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
                .map_err(|error| RdmaUnavailable::System(error.into()))?;
        }
        Ok(Self {
            connection,
            state: State::Works,
            is_reset: false,
            region,
            slabs: parts.slabs,
            tcp: parts.tcp,
            looks_at_tcp: false,
            credits: Credits::new(),
            pending: vec![None; QUEUE_DEPTH_MAX].into(),
            free: (0..QUEUE_DEPTH_MAX as u16).rev().collect(),
            refused: VecDeque::with_capacity(QUEUE_DEPTH_MAX),
            early: [Ended::default(); COMPLETIONS_PER_POLL],
            early_count: 0,
            progress: Progress::new(Instant::now()),
            connection_progress: Progress::new(Instant::now()),
            patience: DataPatience::new(parts.patience),
            repair: Arc::new(repair),
        })
    }

    /// How the control thread repairs it.
    pub fn repair(&self) -> &Arc<Repair> {
        &self.repair
    }

    fn in_flight_by_rdma(&self) -> usize {
        QUEUE_DEPTH_MAX - self.free.len()
    }

    /// Hands the request at `place` to the device.
    fn hand_over(&mut self, place: usize) -> io::Result<()> {
        let request = self.pending[place].expect("it was just put there");
        let Ok(Some(key)) = self.slabs.key(request.remote, request.buffer.length_bytes) else {
            // Given back while the connection was broken; its owner does not wait for it, and the device would refuse.
            return Err(io::ErrorKind::NotFound.into());
        };
        let operation = if request.operation == Operation::Read { OneSided::Read } else { OneSided::Write };
        self.connection.post(
            operation,
            place as u64,
            (&self.region, request.buffer.offset_bytes as usize, request.buffer.length_bytes),
            (key, request.remote.offset_bytes.into()),
        )
    }

    fn post_by_rdma(&mut self, request: Request, now: Instant) {
        if self.in_flight_by_rdma() == 0 {
            self.progress.became_busy(now);
            self.connection_progress.became_busy(now);
        }
        let place = self.free.pop().expect("there are as many places as credits").into();
        self.pending[place] = Some(request);
        if self.state == State::Works && self.hand_over(place).is_err() {
            self.break_off();
        }
    }

    /// Makes the device let go of all buffers; whether it did.
    fn reset(&mut self) -> bool {
        self.is_reset = self.is_reset || self.connection.reset().is_ok();
        self.is_reset
    }

    /// The connection is of no use any more, and another one is asked for.
    fn break_off(&mut self) {
        self.state = State::Broken;
        self.early_count = 0;
        self.reset();
        self.repair.want();
    }

    /// Takes the new connection, if it is there, and posts everything again: reads and whole pages written twice do no
    /// harm, as no other request for them was taken meanwhile.
    fn mend(&mut self, now: Instant) {
        if self.reset() && self.repair.adopt(&mut self.connection) {
            (self.state, self.is_reset) = (State::Works, false);
            self.connection_progress.became_busy(now);
            for place in 0..QUEUE_DEPTH_MAX {
                if self.pending[place].is_some() && self.hand_over(place).is_err() {
                    return self.break_off();
                }
            }
        }
    }

    fn end(&mut self, ended: &Ended, now: Instant, complete: &mut dyn FnMut(Completion)) {
        let place = ended.number as usize;
        let request = self.pending[place].take().expect("a request ends once");
        self.free.push(place as u16);
        self.progress.answered(now);
        self.connection_progress.answered(now);
        self.credits.give_back();
        complete(Completion { tag: request.tag, result: Ok(()) });
    }

    /// Takes completions. False if a request failed.
    fn take_ended(&mut self, now: Instant, count: &mut usize, complete: &mut dyn FnMut(Completion)) -> Outcome {
        loop {
            let mut ended = self.early;
            let mut came = std::mem::take(&mut self.early_count);
            let was_early = came > 0;
            if !was_early {
                came = match self.connection.poll(&mut ended) {
                    Ok(came) => came,
                    Err(_) => return Outcome::Broke,
                };
            }
            let trusted = trusted(&ended[..came]);
            for one in &ended[..trusted] {
                match one.status {
                    0 => {
                        self.end(one, now, complete);
                        *count += 1;
                    }
                    status if REFUSED.contains(&status) => return Outcome::Refused,
                    _ => return Outcome::Broke,
                }
            }
            if trusted < came {
                return Outcome::Broke;
            }
            if came < COMPLETIONS_PER_POLL && !was_early {
                return Outcome::Fine;
            }
        }
    }

    /// Nothing of this queue pair touches a buffer from here on; then every request in flight ends. None ends while the
    /// device does not let go: a later poll tries again.
    fn take_down(&mut self, complete: &mut dyn FnMut(Completion)) -> usize {
        if !self.halt() {
            return 0;
        }
        self.patience.tell(false);
        let mut ended = self.refused.len();
        for completion in self.refused.drain(..) {
            complete(completion);
        }
        for (place, pending) in self.pending.iter_mut().enumerate() {
            if let Some(request) = pending.take() {
                self.free.push(place as u16);
                ended += 1;
                complete(Completion { tag: request.tag, result: Err(RequestError::Down) });
            }
        }
        ended += self.tcp.take_down(complete);
        (0..ended).for_each(|_| self.credits.give_back());
        ended
    }

    fn poll_tcp(&mut self, now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        if self.tcp.in_flight() == 0 && !std::mem::take(&mut self.looks_at_tcp) {
            return 0;
        }
        let credits = &mut self.credits;
        self.tcp.poll(now, &mut |completion| {
            credits.give_back();
            complete(completion);
        })
    }
}

/// What became of a look at the completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Fine,
    Broke,
    Refused,
}

impl QueuePair for RdmaQueuePair {
    fn post(&mut self, request: Request, now: Instant) -> Result<(), PostError> {
        if self.is_down() {
            return Err(PostError::Down);
        }
        let length = request.buffer.length_bytes;
        assert!(
            request.operation == Operation::Discard || length as usize <= REQUEST_SIZE_BYTES_MAX,
            "a request is too long"
        );
        if !self.credits.take(request.priority) {
            return Err(PostError::Busy);
        }
        match self.slabs.key(request.remote, length) {
            Err(error) => self.refused.push_back(Completion { tag: request.tag, result: Err(error) }),
            Ok(Some(_)) if request.operation != Operation::Discard => self.post_by_rdma(request, now),
            Ok(_) => {
                let posted = self.tcp.post(request, now);
                if posted.is_err() {
                    // It has as many credits as this queue pair, so it is down.
                    self.credits.give_back();
                }
                return posted;
            }
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
        if self.state == State::Down {
            return 0;
        }
        let mut ended = self.refused.len();
        for completion in self.refused.drain(..) {
            self.credits.give_back();
            complete(completion);
        }
        ended += self.poll_tcp(now, complete);
        if self.tcp.is_down() || self.slabs.is_closed() {
            return ended + self.take_down(complete);
        }
        if self.state == State::Broken {
            self.mend(now);
        }
        if self.state == State::Works && self.in_flight_by_rdma() > 0 {
            match self.take_ended(now, &mut ended, complete) {
                Outcome::Fine => {}
                Outcome::Broke => self.break_off(),
                Outcome::Refused => return ended + self.take_down(complete),
            }
        }
        let waits = self.in_flight_by_rdma() > 0;
        let is_overdue = waits && self.progress.is_overdue(now, self.patience.request());
        self.patience.tell(waits && self.progress.is_stalled());
        if is_overdue || self.state == State::Broken && self.repair.has_failed() {
            ended += self.take_down(complete);
        } else if waits && self.state == State::Works && self.connection_progress.is_overdue(now, REQUEST_DEADLINE) {
            self.break_off();
        }
        ended
    }

    fn arm(&mut self) -> bool {
        if self.state == State::Down {
            return false;
        }
        self.looks_at_tcp = true;
        if self.state == State::Broken && !self.is_reset {
            return true;
        }
        if self.state == State::Broken || self.in_flight_by_rdma() == 0 {
            return self.tcp.wants_write() || !self.refused.is_empty();
        }
        // A device that cannot be armed or polled shows that at the next poll.
        let came = self.connection.arm().and_then(|()| self.connection.poll(&mut self.early));
        self.early_count = came.as_ref().copied().unwrap_or(0);
        came.is_err() || self.early_count > 0 || self.tcp.wants_write() || !self.refused.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.credits.held()
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        (self.state != State::Down).then(|| self.repair.events().as_fd())
    }

    fn is_down(&self) -> bool {
        self.state == State::Down || self.tcp.is_down() || self.slabs.is_closed()
    }

    fn halt(&mut self) -> bool {
        if self.reset() {
            self.state = State::Down;
        } else if self.state == State::Works {
            self.break_off();
        }
        self.is_reset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_right_before_what_was_cut_off_is_not_believed() {
        let of = |statuses: &[u32]| -> usize {
            let ended: Vec<Ended> = statuses.iter().map(|status| Ended { number: 0, status: *status }).collect();
            trusted(&ended)
        };
        assert_eq!([of(&[]), of(&[0, 0]), of(&[0, 0, CUT_OFF, CUT_OFF]), of(&[0, CUT_OFF])], [0, 2, 1, 0]);
        assert_eq!(of(&[CUT_OFF, CUT_OFF]), 2, "there is nothing before it here");
        for status in [4, 9, 10, 12] {
            assert_eq!(of(&[0, status, CUT_OFF]), 3, "it failed, and those before it did not");
        }
    }
}
