//! The donor's end of a data connection: a thread that carries out requests until the connection ends.
//!
//! One turn takes everything that has arrived, answers it with as few system calls as possible, and receives more.
//! While answers are stuck because the borrower's side is full, requests are still taken until the answers fill their
//! queue; then only sending is waited for. The borrower never stops receiving, so the two cannot wait for each other.
//!
//! While several machines move pages, a turn waits until the machine's [`Share`] allows it, and sends a bounded part of
//! the answers. A connection has work while it has answers to send or is inside a write.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::net::sockopt;
use spillway_sys::vectored::Wait;

use super::handshake;
use super::intake::Intake;
use super::replies::{FlushEnd, Flushed, Replies};
use super::shares::{Allowance, Share};
use super::slab_directory::SlabDirectory;
use super::traffic::Traffic;
use crate::completion::{HybridWait, Step};
use crate::limits::{SOCKET_BUFFER_BYTES, STOP_CHECK_INTERVAL};

/// Serves a data connection that was [admitted](super::Greeting::admit), until the borrower closes it or `stop` is
/// set; its machine gets its `share`. A broken or lost connection is an error; its socket is closed in any case.
pub fn serve(
    stream: impl Into<OwnedFd>,
    slabs: &dyn SlabDirectory,
    traffic: &Traffic,
    share: Share<'_>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let socket = stream.into();
    handshake::tune(socket.as_fd())?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(STOP_CHECK_INTERVAL))?;
    let (intake, replies) = (Intake::new(traffic), Replies::new(traffic)?);
    let mut connection = Connection {
        socket,
        slabs,
        intake,
        replies,
        share,
        in_flight_bytes: SOCKET_BUFFER_BYTES,
        wait: HybridWait::new(),
    };
    while !stop.load(Ordering::Relaxed) {
        if connection.turn()? == Turn::Closed {
            return connection.closed();
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Continue,
    Closed,
}

struct Connection<'a> {
    socket: OwnedFd,
    slabs: &'a dyn SlabDirectory,
    intake: Intake<'a>,
    replies: Replies<'a>,
    share: Share<'a>,
    /// What the kernel was told to keep at most of what is sent.
    in_flight_bytes: usize,
    wait: HybridWait,
}

impl Connection<'_> {
    fn turn(&mut self) -> io::Result<Turn> {
        self.intake.digest(self.slabs, &mut self.replies)?;
        if !self.has_work() {
            // It may have had some for as long as its answers were full.
            self.share.moved(0, false);
            return self.receive_spinning();
        }
        let Some(allowance) = self.share.ask() else { return Ok(Turn::Continue) };
        self.bound_in_flight(allowance);
        let was_full = self.replies.is_full();
        let Flushed { end, bytes } = self.replies.flush(self.socket.as_fd(), self.slabs, allowance.bytes)?;
        let has_work = self.has_work() || was_full;
        self.share.moved(bytes, has_work);
        match (end, was_full) {
            // Staging may hold more requests.
            (FlushEnd::AllSent, true) | (FlushEnd::TurnOver, _) => Ok(Turn::Continue),
            (FlushEnd::AllSent, false) if has_work => self.receive_now_or_wait(PollFlags::IN),
            (FlushEnd::AllSent, false) => self.receive_spinning(),
            (FlushEnd::SocketFull, _) if self.replies.is_full() || was_full => {
                handshake::wait_ready(self.socket.as_fd(), PollFlags::OUT, STOP_CHECK_INTERVAL)?;
                Ok(Turn::Continue)
            }
            (FlushEnd::SocketFull, _) => self.receive_now_or_wait(PollFlags::IN | PollFlags::OUT),
        }
    }

    /// Answers to send, or a write whose payload is to be taken.
    fn has_work(&self) -> bool {
        !self.replies.is_empty() || self.intake.is_inside_write()
    }

    /// Has the kernel keep at most so much of what this connection sends.
    fn bound_in_flight(&mut self, allowance: Allowance) {
        if allowance.in_flight_bytes != self.in_flight_bytes {
            self.in_flight_bytes = allowance.in_flight_bytes;
            handshake::bound_in_flight(self.socket.as_fd(), allowance.in_flight_bytes);
        }
    }

    /// Receives what is there; if nothing is, waits for `flags`.
    fn receive_now_or_wait(&mut self, flags: PollFlags) -> io::Result<Turn> {
        if let Some(turn) = self.receive(Wait::No)? {
            return Ok(turn);
        }
        handshake::wait_ready(self.socket.as_fd(), flags, STOP_CHECK_INTERVAL)?;
        Ok(Turn::Continue)
    }

    /// Nothing to send and nothing begun: spins while a burst lasts, then sleeps in the receive itself.
    fn receive_spinning(&mut self) -> io::Result<Turn> {
        let mut step = self.wait.begin(Instant::now());
        while step == Step::Spin {
            if let Some(turn) = self.receive(Wait::No)? {
                self.wait.arrived(Instant::now());
                return Ok(turn);
            }
            step = self.wait.next(Instant::now());
        }
        Ok(self.receive(Wait::ForSome)?.unwrap_or(Turn::Continue))
    }

    /// One receive; `None` when nothing was there.
    fn receive(&mut self, wait: Wait) -> io::Result<Option<Turn>> {
        match self.intake.receive(self.socket.as_fd(), self.slabs, wait) {
            Ok(0) => Ok(Some(Turn::Closed)),
            Ok(bytes) => {
                // Requests alone are no work; a page that is written is.
                self.share.moved(bytes, true);
                Ok(Some(Turn::Continue))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some(Turn::Continue)),
            Err(error) => Err(error),
        }
    }

    /// The borrower closed: cleanly only between two requests.
    fn closed(&self) -> io::Result<()> {
        if self.intake.is_between_requests() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the borrower's connection ended inside a request"))
    }
}
