//! The transport trait: what every way to a donor looks like to an I/O thread.
//!
//! The shape is that of RDMA verbs: one-sided READ and WRITE between a registered buffer and a remote slab, posted
//! with a tag, completed in any order. Nothing blocks and nothing allocates after the queue pair was made. A queue
//! pair belongs to one thread at a time (`Send`, not `Sync`).
//!
//! Life of a request: `post` takes a credit (or says `Busy`) -> the transport moves the bytes -> `poll` yields
//! exactly one [`Completion`] with the request's tag. It comes at the latest when the connection made no progress for
//! as long as its donor is waited for ([`Patience`](crate::patience::Patience)). Until then the buffer belongs to the
//! transport; after it, the transport never touches the buffer again. When a connection fails, every request in
//! flight completes with an error and every later `post` says `Down`.
//!
//! A caller that stops polling with requests in flight gets no completion, so the buffers stay the transport's. It has
//! them back by [`QueuePair::halt`]: an RDMA device moves bytes although no thread polls.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use spillway_sys::mapping::Mapping;

use crate::units::{BufferRange, Priority, RemoteAddress, Tag};

/// What to do with a range of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copy from the slab into the buffer.
    Read,
    /// Copy from the buffer to the slab.
    Write,
    /// Free the range's pages at the donor; they read as zeroes afterwards. The buffer gives the length only.
    Discard,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Where at the donor.
    pub remote: RemoteAddress,
    /// The registered buffer; whole pages. For a discard only its length counts (it may exceed the pool).
    pub buffer: BufferRange,
    /// Comes back in the completion.
    pub tag: Tag,
    /// Class for credits.
    pub priority: Priority,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No credit of this class is free; poll and try again.
    #[error("no credit is free")]
    Busy,
    /// The connection is lost; this queue pair takes nothing any more.
    #[error("the connection to the donor is lost")]
    Down,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The donor does not lend this slab (any more), or the range lies outside it.
    #[error("the donor does not lend this slab")]
    NotLent,
    /// The connection was lost, or the donor stopped answering; the range may or may not have been written.
    #[error("the connection to the donor was lost")]
    Down,
    /// The medium failed (a file's I/O error); the queue pair goes on.
    #[error("input or output error {0}")]
    Medium(i32),
}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag.
    pub tag: Tag,
    /// Its result.
    pub result: Result<(), RequestError>,
}

/// One connection of one I/O thread to one donor, see the module text.
/// ```
/// use std::os::fd::BorrowedFd;
/// use std::time::Instant;
///
/// use spillway_fabric::queue_pair::{Completion, PostError, QueuePair, Request, RequestError};
///
/// /// A connection whose donor is gone: every request ends, and none is answered.
/// #[derive(Default)]
/// struct Lost(Vec<Request>);
///
/// impl QueuePair for Lost {
///     fn post(&mut self, request: Request, _now: Instant) -> Result<(), PostError> {
///         self.0.push(request);
///         Ok(())
///     }
///
///     fn poll(&mut self, _now: Instant, complete: &mut dyn FnMut(Completion)) -> usize {
///         let ended = self.0.len();
///         self.0.drain(..).for_each(|request| {
///             complete(Completion { tag: request.tag, result: Err(RequestError::Down) });
///         });
///         ended
///     }
///
///     fn in_flight(&self) -> usize {
///         self.0.len()
///     }
///
///     fn event(&self) -> Option<BorrowedFd<'_>> {
///         None
///     }
///
///     fn is_down(&self) -> bool {
///         true
///     }
///
///     fn halt(&mut self) -> bool {
///         true
///     }
/// }
///
/// assert_eq!(Lost::default().poll(Instant::now(), &mut |_| unreachable!("nothing was posted")), 0);
/// ```
pub trait QueuePair: Send {
    /// Hands a request over. It may start at once or at the next [`QueuePair::poll`].
    fn post(&mut self, request: Request, now: Instant) -> Result<(), PostError>;

    /// Moves bytes as far as possible without blocking, and calls `complete` for each request that ended. `now` judges
    /// deadlines. Returns how many ended.
    fn poll(&mut self, now: Instant, complete: &mut dyn FnMut(Completion)) -> usize;

    /// Whether [`QueuePair::abandon`] lets go of reads that are in flight. An RDMA device writes to a buffer until the
    /// read has ended.
    fn can_abandon(&self) -> bool {
        false
    }

    /// Asks for the event with the next completion, before the thread sleeps: a thread that spins never pays for it.
    /// True: something came meanwhile, or cannot be waited for, and the thread polls in place of sleeping.
    fn arm(&mut self) -> bool {
        false
    }

    /// Lets go of the buffer of a read that was posted: what comes for it is thrown away, and its completion comes
    /// all the same. False where that cannot be done, and then nothing has changed.
    fn abandon(&mut self, _tag: Tag) -> bool {
        false
    }

    /// Requests posted and not completed.
    fn in_flight(&self) -> usize;

    /// A descriptor to wait on (with epoll, level-triggered, for reading; also for writing while
    /// [`QueuePair::wants_write`]). `None`: requests complete by polling alone (shared memory).
    fn event(&self) -> Option<BorrowedFd<'_>>;

    /// Whether unsent bytes wait for the descriptor to become writable.
    fn wants_write(&self) -> bool {
        false
    }

    /// Whether the connection is lost.
    fn is_down(&self) -> bool;

    /// Ends the use of every buffer of requests in flight, for a caller that polls no more: from here on a read brings
    /// nothing, and a write sends nothing. What was sent may still arrive. False if that cannot be done now: the
    /// buffers stay the transport's, and the caller tries again.
    ///
    /// Without a default: a transport that forgot it would let late bytes into buffers of other requests.
    fn halt(&mut self) -> bool;

    /// Where the `length_bytes` at `remote` lie, if this side has them mapped: they can be read there without a
    /// request. A process that reads them keeps the slab from being detached meanwhile.
    fn mapped(&self, _remote: RemoteAddress, _length_bytes: usize) -> Option<(&Mapping, usize)> {
        None
    }
}
