//! The one block request path: what every front end (loop over FUSE, later ublk and NBD) hands to an I/O thread.
//!
//! A [`BlockChannel`] belongs to one I/O thread. It owns a [`BufferPool`]; a request occupies one slot of it from
//! [`BlockChannel::receive`] to [`BlockChannel::complete`], and its data (to write, or read) lies at the start of that slot.
//! Nothing on this path blocks, allocates or logs: the thread serves page-outs of a machine without memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use spillway_fabric::buffer_pool::BufferPool;

/// What the kernel asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOperation {
    /// Fill the slot's buffer from the device.
    Read,
    /// Store the slot's buffer on the device.
    Write,
    /// The range's content is not needed any more and reads as zeroes.
    Discard,
    /// Everything acknowledged before must survive what the volume promises to survive.
    Flush,
}

/// One request; offsets and lengths are whole pages (the device's logical block is a page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The buffer pool slot it occupies, which also names it.
    pub slot: usize,
    /// What to do.
    pub operation: BlockOperation,
    /// Bytes from the start of the device.
    pub offset_bytes: u64,
    /// Bytes; at most the slot's size, except for a discard. 0 for a flush.
    pub length_bytes: u64,
}

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

/// How a request failed, as the kernel is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The page's every copy is lost, or the medium failed (`EIO`).
    #[error("input/output error")]
    InputOutput,
    /// There is no room to store the page (`ENOSPC`).
    #[error("no space left for the page")]
    NoSpace,
    /// The request does not lie inside the device, or is not whole pages (`EINVAL`).
    #[error("invalid request")]
    Invalid,
    /// No copy could be reached before the deadline (`ETIMEDOUT`).
    #[error("timed out")]
    TimedOut,
}

impl BlockError {
    /// The errno that front ends answer with.
    pub fn errno(self) -> i32 {
        let errno = match self {
            Self::InputOutput => rustix::io::Errno::IO,
            Self::NoSpace => rustix::io::Errno::NOSPC,
            Self::Invalid => rustix::io::Errno::INVAL,
            Self::TimedOut => rustix::io::Errno::TIMEDOUT,
        };
        errno.raw_os_error()
    }
}

/// One I/O thread's end of a front end, see the module text.
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

    /// Becomes ready, for what [`BlockChannel::interest`] says, when `receive` may bring something. It stays the same as long as the
    /// channel is open.
    fn event(&self) -> BorrowedFd<'_>;

    /// What to wait for on the event now.
    fn interest(&self) -> Interest {
        Interest { read: true, write: false }
    }
}
