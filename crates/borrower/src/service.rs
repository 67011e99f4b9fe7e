//! What answers block requests: the engine of a volume, or memory of this process as a yardstick.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::block::{BlockError, BlockRequest};

/// Called with the slot and result of each request that ended.
pub type Completed<'a> = &'a mut dyn FnMut(usize, Result<(), BlockError>);

/// What a service waits for; the strongest need comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// For requests only.
    Nothing,
    /// For one of its events.
    Event,
    /// For an event, or for a short time to pass.
    Retry,
    /// For nothing: poll it again at once.
    Poll,
}

/// Serves requests that an I/O thread hands over. Never blocks, never allocates.
pub trait BlockService: Send {
    /// Takes a request; its slot was free.
    fn submit(&mut self, request: BlockRequest, now: Instant);

    /// Moves everything as far as it goes, tells `completed` what ended, and says what it waits for.
    fn poll(&mut self, now: Instant, completed: Completed<'_>) -> Waiting;

    /// Descriptors to wait on, and whether each waits to write.
    fn for_each_event<'a>(&'a self, visit: &mut dyn FnMut(BorrowedFd<'a>, bool));
}
