//! One I/O thread's end of a one-file FUSE filesystem whose requests pass through a ring: a [`BlockChannel`].
//!
//! The kernel has one queue for each CPU, and a request waits in the queue of the CPU where it was made. Each channel
//! serves some of the queues. A request and the answer to the one before cross in one system call, where `/dev/fuse`
//! takes three (docs/decisions/fuse.md).
//!
//! Life of a request: the kernel puts it into a slot that waits (the pages of a write land at the slot's start) ->
//! `receive` takes it -> the caller works on the slot; then `complete` prepares the answer (the kernel takes a read's
//! pages straight from the slot) -> `flush`, or the next `receive`, hands over all answers at once.
//!
//! Requests wait until every queue has a slot. A few that want no answer (FORGET) or hardly one (INTERRUPT) come over
//! `/dev/fuse` all the same, so a channel looks at the descriptor too, with `DEVICE_SLOTS` of its slots
//! ([`FuseChannel`]).
//!
//! Invariants: those of [`FuseChannel`]; and a slot of the ring is either with the kernel, or holds exactly one
//! unanswered request, or is gone for good.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use spillway_block::channel::{BlockChannel, Received};
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::Priority;
use spillway_sys::fuse::REQUEST_HEAD_BYTES;
use spillway_sys::fuse::ring::{FuseRing, REPLY_HEADER_BYTES, RingEvent};

use crate::fuse::channel::{FuseChannel, block_request};
use crate::fuse::protocol::{REQUEST_HEADER_BYTES, Range, Reply, RequestHeader, decode, is_about_a_name, length_of};

/// Slots of a channel into which requests from `/dev/fuse` are read. The others wait in the ring.
pub(super) const DEVICE_SLOTS: usize = 1;

/// Fruitless looks at the ring between two looks at `/dev/fuse`, which cost a system call each.
const LOOKS_PER_DEVICE_LOOK: u32 = 32;

/// What a channel needs of a ring; tests put another one in the kernel's place.
pub trait RequestRing: AsFd + Send {
    /// Lets `slot`, with its buffer of `length` bytes at `offset`, wait for its first request in the kernel's queue
    /// `queue`.
    fn register(&mut self, slot: usize, queue: u16, offset: usize, length: usize);
    /// The first bytes of the request in `slot`: its header and its fixed argument.
    fn head(&self, slot: usize) -> [u8; REQUEST_HEAD_BYTES];
    /// Answers the request in `slot` with a reply's header and so many bytes of the slot's buffer, and lets the slot
    /// wait for the next one.
    fn answer(&mut self, slot: usize, header: &[u8; REPLY_HEADER_BYTES], payload_bytes: u32);
    /// Hands over what was prepared.
    fn submit(&mut self) -> io::Result<()>;
    /// The next slot that the kernel gave back.
    fn next_event(&mut self) -> Option<(usize, RingEvent)>;
}

impl RequestRing for FuseRing {
    fn register(&mut self, slot: usize, queue: u16, offset: usize, length: usize) {
        self.register(slot, queue, offset, length);
    }

    fn head(&self, slot: usize) -> [u8; REQUEST_HEAD_BYTES] {
        self.head(slot)
    }

    fn answer(&mut self, slot: usize, header: &[u8; REPLY_HEADER_BYTES], payload_bytes: u32) {
        self.answer(slot, header, payload_bytes);
    }

    fn submit(&mut self) -> io::Result<()> {
        self.submit()
    }

    fn next_event(&mut self) -> Option<(usize, RingEvent)> {
        self.next_event()
    }
}

/// Where a slot of the ring is.
#[derive(Clone, Copy, Debug)]
enum Slot {
    /// Not registered yet.
    New,
    /// The kernel may put a request into it.
    Waiting,
    /// It holds a request.
    Taken { unique: u64, operation: BlockOperation, length_bytes: u64 },
    /// The filesystem is gone.
    Gone,
}

/// See the module text.
#[derive(Debug)]
pub struct RingChannel<R = FuseRing> {
    device: FuseChannel,
    ring: R,
    /// The kernel's queues that this channel serves: CPUs.
    queues: Box<[u16]>,
    /// Slots of the ring: the pool's slot `DEVICE_SLOTS` is the first.
    slots: Box<[Slot]>,
    gone_count: usize,
    /// Watches ring and descriptor.
    event: OwnedFd,
    fruitless: u32,
}

impl RingChannel {
    /// A channel that serves the kernel's queues `queues`, of which there are fewer than slots of `device`.
    pub(super) fn new(device: FuseChannel, queues: Box<[u16]>) -> io::Result<Self> {
        let pool = Arc::clone(device.pool());
        let slot_count = pool.slot_count() - DEVICE_SLOTS;
        let ring = FuseRing::new(device.device(), pool, slot_count as u16)?;
        Self::over(ring, device, queues)
    }
}

impl<R: RequestRing> RingChannel<R> {
    /// A channel on `ring`, which has a slot for each of `device` but the first `DEVICE_SLOTS`.
    fn over(ring: R, mut device: FuseChannel, queues: Box<[u16]>) -> io::Result<Self> {
        let slot_count = device.pool().slot_count() - DEVICE_SLOTS;
        assert!((1..=slot_count).contains(&queues.len()), "each queue has a slot");
        device.leave_slots_from(DEVICE_SLOTS);
        let event = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for watched in [ring.as_fd(), device.device().as_fd()] {
            epoll::add(&event, watched, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        let slots = vec![Slot::New; slot_count].into();
        Ok(Self { device, ring, queues, slots, gone_count: 0, event, fruitless: 0 })
    }

    /// Lets every slot wait for a request, with this thread as the one that answers it.
    fn register(&mut self) -> io::Result<()> {
        for slot in 0..self.slots.len() {
            let buffer = self.device.pool().slot(slot + DEVICE_SLOTS);
            let queue = self.queues[slot % self.queues.len()];
            self.ring.register(slot, queue, buffer.offset_bytes as usize, buffer.length_bytes as usize);
            self.slots[slot] = Slot::Waiting;
        }
        self.ring.submit()
    }

    /// Prepares a reply whose body is in `reply`.
    fn reply(&mut self, slot: usize, reply: &Reply) {
        let body = reply.body();
        let buffer = self.device.pool().slot(slot + DEVICE_SLOTS);
        self.device.pool().memory().write(buffer.offset_bytes as usize, body);
        self.ring.answer(slot, reply.header(), body.len() as u32);
        self.slots[slot] = Slot::Waiting;
    }

    /// The next request of those that the kernel gave; those about names are answered, and so are refused ones.
    fn next_request(&mut self) -> io::Result<Option<BlockRequest>> {
        while let Some((slot, event)) = self.ring.next_event() {
            assert!(matches!(self.slots[slot], Slot::Waiting), "slot {slot} was with the kernel");
            match event {
                RingEvent::Ended(errno) => {
                    self.slots[slot] = Slot::Gone;
                    self.gone_count += 1;
                    let is_the_end = [rustix::io::Errno::NOTCONN, rustix::io::Errno::CANCELED]
                        .iter()
                        .any(|end| end.raw_os_error() == errno);
                    if !is_the_end {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                }
                RingEvent::Request => {
                    if let Some(request) = self.take(slot)? {
                        return Ok(Some(request));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The block request in `slot`; any other is answered.
    fn take(&mut self, slot: usize) -> io::Result<Option<BlockRequest>> {
        let mut head = self.ring.head(slot);
        if is_about_a_name(&head) {
            // It has no fixed argument, and the name lies in the buffer.
            let buffer = self.device.pool().slot(slot + DEVICE_SLOTS);
            self.device.pool().memory().read(buffer.offset_bytes as usize, &mut head[REQUEST_HEADER_BYTES..]);
        }
        let (header, request) = decode(&head, length_of(&head))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let Some((operation, range)) = block_request(request) else {
            let reply = self.device.shape().reply_to(header, request);
            // Each slot is answered, whatever it held.
            self.reply(slot, &reply.unwrap_or_else(|| Reply::done(header.unique)));
            return Ok(None);
        };
        Ok(self.begin(slot, header, operation, range))
    }

    fn begin(
        &mut self,
        slot: usize,
        header: RequestHeader,
        operation: BlockOperation,
        range: Range,
    ) -> Option<BlockRequest> {
        let unique = header.unique;
        if !self.device.shape().holds(operation, range) {
            self.reply(slot, &Reply::failed(unique, BlockError::Invalid.errno()));
            return None;
        }
        let Range { offset_bytes, length_bytes } = range;
        self.slots[slot] = Slot::Taken { unique, operation, length_bytes };
        let (slot, priority) = (slot + DEVICE_SLOTS, Priority::Demand);
        Some(BlockRequest { slot, operation, offset_bytes, length_bytes, priority })
    }
}

impl<R: RequestRing> BlockChannel for RingChannel<R> {
    fn pool(&self) -> &Arc<BufferPool> {
        self.device.pool()
    }

    fn receive(&mut self) -> io::Result<Received> {
        if matches!(self.slots[0], Slot::New) {
            self.register()?;
        }
        // Answers first: the process that waits for them should not wait for more.
        self.ring.submit()?;
        if let Some(request) = self.next_request()? {
            self.fruitless = 0;
            return Ok(Received::Request(request));
        }
        // Answers that were just prepared.
        self.ring.submit()?;
        if self.gone_count == self.slots.len() {
            return Ok(Received::Closed);
        }
        self.fruitless += 1;
        if self.fruitless.is_multiple_of(LOOKS_PER_DEVICE_LOOK) {
            return match self.device.receive()? {
                // The slots of the ring come back first.
                Received::Closed => Ok(Received::Nothing),
                received => Ok(received),
            };
        }
        Ok(Received::Nothing)
    }

    fn complete(&mut self, slot: usize, result: Result<(), BlockError>) -> io::Result<()> {
        let Some(slot) = slot.checked_sub(DEVICE_SLOTS) else { return self.device.complete(slot, result) };
        let Slot::Taken { unique, operation, length_bytes } = self.slots[slot] else {
            panic!("slot {slot} of the ring is completed once, by the caller that owns it");
        };
        match (result, operation) {
            (Err(error), _) => self.reply(slot, &Reply::failed(unique, error.errno())),
            (Ok(()), BlockOperation::Read) => {
                self.ring.answer(slot, Reply::data(unique, length_bytes).header(), length_bytes as u32);
                self.slots[slot] = Slot::Waiting;
            }
            (Ok(()), BlockOperation::Write) => self.reply(slot, &Reply::written(unique, length_bytes)),
            (Ok(()), BlockOperation::Discard | BlockOperation::Flush) => self.reply(slot, &Reply::done(unique)),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ring.submit()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
#[path = "ring_channel_tests.rs"]
mod tests;
