//! What answers block requests: the engine of a volume, or memory of this process as a yardstick.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use spillway_sys::mapping::Mapping;

use crate::request::{BlockError, BlockRequest};

/// Called with the slot and result of each request that ended.
pub type Completed<'a> = &'a mut dyn FnMut(usize, Result<(), BlockError>);

/// Called with memory that is read in place, and the offset of what was asked for; says how many bytes were used,
/// from the first on.
pub type UseMemory<'a> = &'a mut dyn FnMut(&Mapping, usize) -> u64;

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
/// ```
/// use std::sync::Arc;
/// use std::time::Instant;
///
/// use spillway_block::local_memory::LocalMemory;
/// use spillway_block::metrics::Metrics;
/// use spillway_block::request::{BlockOperation, BlockRequest};
/// use spillway_block::service::BlockService;
/// use spillway_fabric::buffer_pool::BufferPool;
/// use spillway_fabric::units::Priority;
/// use spillway_sys::mapping::Mapping;
///
/// let pool = BufferPool::unlocked(1, 4096)?;
/// let memory = Arc::new(Mapping::anonymous(1 << 20)?);
/// let mut service = LocalMemory::new(memory, Arc::new(Metrics::default()), pool);
/// let (operation, priority) = (BlockOperation::Write, Priority::Demand);
/// let request = BlockRequest { slot: 0, operation, offset_bytes: 0, length_bytes: 4096, priority };
/// service.submit(request, Instant::now());
/// let mut ended = Vec::new();
/// service.poll(Instant::now(), &mut |slot, result| ended.push((slot, result)));
/// assert_eq!(ended, [(0, Ok(()))]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait BlockService: Send {
    /// Takes a request; its slot was free.
    fn submit(&mut self, request: BlockRequest, now: Instant);

    /// A thread waits for what the request in `slot` brings now: it is [`Priority::Demand`] from here on. A service
    /// without queues has nothing to do.
    ///
    /// [`Priority::Demand`]: spillway_fabric::units::Priority::Demand
    fn promote(&mut self, _slot: usize) {}

    /// Lets `use_memory` have the memory in which the `length_bytes` at `offset_bytes` lie and their offset in it, if
    /// they can be had without a request. False: they have to be read.
    fn read_in_place(&mut self, _offset_bytes: u64, _length_bytes: u64, _use_memory: UseMemory<'_>) -> bool {
        false
    }

    /// Moves everything as far as it goes, tells `completed` what ended, and says what it waits for.
    fn poll(&mut self, now: Instant, completed: Completed<'_>) -> Waiting;

    /// Asks for the events of what is in flight, before the thread sleeps. True: something came meanwhile, and the
    /// thread polls in place of sleeping.
    fn arm(&mut self) -> bool {
        false
    }

    /// Descriptors to wait on, and whether each waits to write.
    fn for_each_event<'a>(&'a self, visit: &mut dyn FnMut(BorrowedFd<'a>, bool));
}
