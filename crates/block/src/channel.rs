//! Where an I/O thread gets block requests from, whichever front end makes them (ublk, NBD, loop over FUSE).
//!
//! A [`BlockChannel`] belongs to one I/O thread. It owns a [`BufferPool`]; a request occupies one slot of it from
//! [`BlockChannel::receive`] to [`BlockChannel::complete`], and its data (to write, or read) lies at the start of
//! that slot. Nothing on this path blocks, allocates or logs: the thread serves page-outs of a machine without
//! memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use spillway_fabric::buffer_pool::BufferPool;

use crate::request::{BlockError, BlockRequest};

/// What a channel had to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request, now owned by the caller until it completes it.
    Request(BlockRequest),
    /// Nothing now; wait on [`BlockChannel::event`]. Also while every slot is taken.
    Nothing,
    /// The device is gone; no request will come any more.
    Closed,
}

/// What a channel waits for on its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Requests, unless every slot is taken.
    pub read: bool,
    /// Room for answers.
    pub write: bool,
}

/// One I/O thread's end of a front end, see the module text.
/// How an I/O thread uses one:
///
/// ```
/// use std::io;
///
/// use spillway_block::channel::{BlockChannel, Received};
/// use spillway_block::request::BlockError;
///
/// /// Answers requests with errors until the device is gone.
/// fn refuse_all(channel: &mut dyn BlockChannel) -> io::Result<()> {
///     loop {
///         match channel.receive()? {
///             Received::Request(request) => channel.complete(request.slot, Err(BlockError::InputOutput))?,
///             Received::Nothing => channel.flush()?,
///             Received::Closed => return Ok(()),
///         }
///     }
/// }
/// ```
pub trait BlockChannel: Send {
    /// The buffers of this channel's requests.
    fn pool(&self) -> &Arc<BufferPool>;

    /// Takes the next request, without blocking.
    fn receive(&mut self) -> io::Result<Received>;

    /// Answers the request in `slot` and frees the slot; the answer may wait until [`BlockChannel::flush`].
    fn complete(&mut self, slot: usize, result: Result<(), BlockError>) -> io::Result<()>;

    /// Sends answers that wait, as far as possible without blocking; `receive` does so too.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Becomes ready, for what [`BlockChannel::interest`] says, when `receive` may bring something. It stays the same
    /// as long as the channel is open.
    fn event(&self) -> BorrowedFd<'_>;

    /// What to wait for on the event now.
    fn interest(&self) -> Interest {
        Interest { read: true, write: false }
    }
}
