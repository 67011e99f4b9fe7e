//! One I/O thread's end of a ublk device, which is one hardware queue: a [`BlockChannel`].
//!
//! Life of a request: the kernel puts it into a slot that waits (the pages of a write land at the slot's start) ->
//! `receive` takes it -> the caller works on the slot; then `complete` prepares the answer (the kernel takes a read's
//! pages straight from the slot) -> `flush`, or the next `receive`, hands over all answers at once, and their slots
//! wait again. With every slot taken, requests wait in the kernel; no other queue takes them.
//!
//! The kernel gives requests to the thread that fetched, and the caller makes channels on another one; so slots are
//! fetched by the first `receive`.
//!
//! Invariants: a slot is either with the kernel or holds exactly one unanswered request, or it is gone for good;
//! nothing here allocates after [`UblkChannel::new`]; a request that is not whole pages inside the device is refused,
//! never cut.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use spillway_block::channel::{BlockChannel, Received};
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority};
use spillway_sys::ublk::abi::{Descriptor, IoOperation, SECTOR_SIZE_BYTES};
use spillway_sys::ublk::queue::{SlotEvent, UblkQueue};

/// What a channel needs of a hardware queue; tests put another one in the kernel's place.
pub trait RequestQueue: AsFd + Send {
    /// Lets `slot`, with its buffer of `length` bytes at `offset`, wait for its first request.
    fn fetch(&mut self, slot: u16, offset: usize, length: usize);
    /// Answers the request in `slot` with bytes or a negative errno, and lets it wait for the next.
    fn answer(&mut self, slot: u16, result: i32, offset: usize, length: usize);
    /// Hands over what was prepared.
    fn submit(&mut self) -> io::Result<()>;
    /// The next slot that the kernel gave back.
    fn next_event(&mut self) -> Option<(u16, SlotEvent)>;
}

impl RequestQueue for UblkQueue {
    fn fetch(&mut self, slot: u16, offset: usize, length: usize) {
        self.fetch(slot, offset, length);
    }

    fn answer(&mut self, slot: u16, result: i32, offset: usize, length: usize) {
        self.answer(slot, result, offset, length);
    }

    fn submit(&mut self) -> io::Result<()> {
        self.submit()
    }

    fn next_event(&mut self) -> Option<(u16, SlotEvent)> {
        self.next_event()
    }
}

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Not fetched yet.
    New,
    /// The kernel may put a request into it.
    Waiting,
    /// It holds a request, which succeeds with this result.
    Taken { success: i32 },
    /// The device is stopping; nothing will come any more.
    Gone,
}

/// See the module text.
#[derive(Debug)]
pub struct UblkChannel<Q = UblkQueue> {
    queue: Q,
    pool: Arc<BufferPool>,
    size_bytes: u64,
    slots: Box<[Slot]>,
    gone_count: usize,
}

impl<Q: RequestQueue> UblkChannel<Q> {
    /// A channel on `queue`, with a slot for each of `pool`, of a device of `size_bytes`.
    pub fn new(queue: Q, pool: Arc<BufferPool>, size_bytes: u64) -> Self {
        let slots = vec![Slot::New; pool.slot_count()].into();
        Self { queue, pool, size_bytes, slots, gone_count: 0 }
    }

    fn fetch_all(&mut self) {
        for slot in 0..self.slots.len() {
            let buffer = self.pool.slot(slot);
            self.queue.fetch(slot as u16, buffer.offset_bytes as usize, buffer.length_bytes as usize);
            self.slots[slot] = Slot::Waiting;
        }
    }

    fn answer(&mut self, slot: usize, result: i32) {
        let buffer = self.pool.slot(slot);
        self.queue.answer(slot as u16, result, buffer.offset_bytes as usize, buffer.length_bytes as usize);
        self.slots[slot] = Slot::Waiting;
    }

    /// The next request of those that the kernel gave; refused ones are answered.
    fn next_request(&mut self) -> io::Result<Option<BlockRequest>> {
        while let Some((slot, event)) = self.queue.next_event() {
            let slot = usize::from(slot);
            assert_eq!(self.slots[slot], Slot::Waiting, "slot {slot} was with the kernel");
            match event {
                SlotEvent::Ended(errno) => {
                    self.slots[slot] = Slot::Gone;
                    self.gone_count += 1;
                    if errno != rustix::io::Errno::NODEV.raw_os_error() {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                }
                SlotEvent::Request(descriptor) => match self.decode(slot, descriptor) {
                    Ok((request, success)) => {
                        self.slots[slot] = Slot::Taken { success };
                        return Ok(Some(request));
                    }
                    Err(refusal) => self.answer(slot, -refusal.errno()),
                },
            }
        }
        Ok(None)
    }

    /// The request in `slot`, and what it is answered with when it succeeds: the bytes moved.
    fn decode(&self, slot: usize, descriptor: Descriptor) -> Result<(BlockRequest, i32), BlockError> {
        let priority = Priority::Demand;
        let operation = match descriptor.operation {
            IoOperation::Read => BlockOperation::Read,
            IoOperation::Write => BlockOperation::Write,
            // A discarded page reads as zeroes.
            IoOperation::Discard | IoOperation::WriteZeroes => BlockOperation::Discard,
            IoOperation::Flush => {
                return Ok((
                    BlockRequest { slot, operation: BlockOperation::Flush, offset_bytes: 0, length_bytes: 0, priority },
                    0,
                ));
            }
            IoOperation::Other(_) => return Err(BlockError::Invalid),
        };
        let length_bytes = u64::from(descriptor.sector_count) * SECTOR_SIZE_BYTES;
        let offset_bytes = descriptor.first_sector.checked_mul(SECTOR_SIZE_BYTES).ok_or(BlockError::Invalid)?;
        let moves_data = operation != BlockOperation::Discard;
        let end = offset_bytes.checked_add(length_bytes);
        let is_valid = length_bytes > 0
            && offset_bytes.is_multiple_of(PAGE_SIZE_BYTES as u64)
            && length_bytes.is_multiple_of(PAGE_SIZE_BYTES as u64)
            && end.is_some_and(|end| end <= self.size_bytes)
            && (!moves_data || length_bytes <= self.pool.slot_size_bytes() as u64);
        if !is_valid {
            return Err(BlockError::Invalid);
        }
        let success = if moves_data { length_bytes as i32 } else { 0 };
        Ok((BlockRequest { slot, operation, offset_bytes, length_bytes, priority }, success))
    }
}

impl<Q: RequestQueue> BlockChannel for UblkChannel<Q> {
    fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    fn receive(&mut self) -> io::Result<Received> {
        if self.slots[0] == Slot::New {
            self.fetch_all();
        }
        // Answers first: the process that waits for them should not wait for more.
        self.queue.submit()?;
        if let Some(request) = self.next_request()? {
            return Ok(Received::Request(request));
        }
        // Refusals that were just prepared.
        self.queue.submit()?;
        Ok(if self.gone_count == self.slots.len() { Received::Closed } else { Received::Nothing })
    }

    fn complete(&mut self, slot: usize, result: Result<(), BlockError>) -> io::Result<()> {
        let Slot::Taken { success } = self.slots[slot] else {
            panic!("slot {slot} is completed once, by the caller that owns it");
        };
        self.answer(slot, result.map_or_else(|error| -error.errno(), |()| success));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.submit()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
