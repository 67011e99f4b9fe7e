//! One I/O thread's end of a one-file FUSE filesystem: a [`BlockChannel`].
//!
//! Life of a request: `receive` reads it into a free slot (the pages of a write land at the slot's start) -> the
//! caller works on the slot; then `complete` answers, a read's pages straight from the slot, and the slot is free
//! again. Requests about names and attributes are answered inside `receive` and never reach the caller. With every
//! slot taken nothing is read, and requests wait in the kernel, where other threads take them.
//!
//! Invariants: a slot is either free or holds exactly one unanswered request; nothing here allocates after
//! [`FuseChannel::new`]; a request that is not whole pages inside the file is refused, never cut.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use spillway_block::channel::{BlockChannel, Received};
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::limits::REQUEST_SIZE_BYTES_MAX;
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority};
use spillway_sys::fuse::{FuseDevice, Incoming, REQUEST_HEAD_BYTES};

use crate::fuse::protocol::{Features, FuseRequest, Range, Reply, RequestHeader, decode};

/// What every channel of a filesystem agrees on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShape {
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Requests of direct I/O that the kernel may have in flight: all slots of all channels.
    pub in_flight_max: u16,
    /// Whether requests pass through rings, if the kernel offers that.
    pub wants_rings: bool,
}

/// See the module text.
#[derive(Debug)]
pub struct FuseChannel {
    device: FuseDevice,
    pool: Arc<BufferPool>,
    shape: FileShape,
    head: [u8; REQUEST_HEAD_BYTES],
    free: Vec<usize>,
    in_flight: Vec<Option<InFlight>>,
    features: Option<Features>,
}

/// What an answer needs to know of its request.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    unique: u64,
    operation: BlockOperation,
    length_bytes: u64,
}

impl FuseChannel {
    /// A channel with `slot_count` slots on `device`.
    pub fn new(device: FuseDevice, slot_count: usize, shape: FileShape) -> io::Result<Self> {
        Ok(Self {
            device,
            pool: BufferPool::new(slot_count, REQUEST_SIZE_BYTES_MAX)?,
            shape,
            head: [0; REQUEST_HEAD_BYTES],
            free: (0..slot_count).rev().collect(),
            in_flight: vec![None; slot_count],
            features: None,
        })
    }

    /// Takes no request from the descriptor into slots from `slot_count` on, which belong to a ring from now on. No
    /// request may be in flight.
    pub(super) fn leave_slots_from(&mut self, slot_count: usize) {
        assert!(self.in_flight.iter().all(Option::is_none), "the slots are free");
        self.free = (0..slot_count).rev().collect();
    }

    /// The file's shape.
    pub(super) fn shape(&self) -> FileShape {
        self.shape
    }

    /// What the kernel offered, once this channel has answered its first request.
    pub(super) fn features(&self) -> Option<Features> {
        self.features
    }

    /// The descriptor, to mount or clone it.
    pub(super) fn device(&self) -> &FuseDevice {
        &self.device
    }

    /// Takes or answers one request that was read into `slot`.
    fn dispatch(&mut self, slot: usize, length: usize) -> io::Result<Option<BlockRequest>> {
        let Ok((header, request)) = decode(&self.head, length) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel sent a request that is no FUSE request",
            ));
        };
        match block_request(request) {
            Some((operation, range)) => self.begin(slot, header, operation, range),
            None => self.answer(header, request).map(|()| None),
        }
    }

    /// Gives a block request to the caller, or refuses it.
    fn begin(
        &mut self,
        slot: usize,
        header: RequestHeader,
        operation: BlockOperation,
        range: Range,
    ) -> io::Result<Option<BlockRequest>> {
        if !self.shape.holds(operation, range) {
            self.device.reply(Reply::failed(header.unique, BlockError::Invalid.errno()).bytes())?;
            return Ok(None);
        }
        let taken = self.free.pop();
        assert_eq!(taken, Some(slot), "the request lies in the slot that is free next");
        let earlier = self.in_flight[slot].replace(InFlight {
            unique: header.unique,
            operation,
            length_bytes: range.length_bytes,
        });
        assert!(earlier.is_none(), "slot {slot} was free and held a request");
        let Range { offset_bytes, length_bytes } = range;
        Ok(Some(BlockRequest { slot, operation, offset_bytes, length_bytes, priority: Priority::Demand }))
    }

    /// Answers what does not concern the caller.
    fn answer(&mut self, header: RequestHeader, request: FuseRequest) -> io::Result<()> {
        if let FuseRequest::Initialise(features) = request {
            self.features = Some(features);
        }
        match self.shape.reply_to(header, request) {
            Some(reply) => self.device.reply(reply.bytes()),
            None => Ok(()),
        }
    }
}

/// What a request asks of the block service; nothing if it is about names or attributes.
pub(super) fn block_request(request: FuseRequest) -> Option<(BlockOperation, Range)> {
    Some(match request {
        FuseRequest::Read(range) => (BlockOperation::Read, range),
        FuseRequest::Write(range) => (BlockOperation::Write, range),
        FuseRequest::Discard(range) => (BlockOperation::Discard, range),
        FuseRequest::Synchronise => (BlockOperation::Flush, Range { offset_bytes: 0, length_bytes: 0 }),
        _ => return None,
    })
}

impl FileShape {
    /// Whether a request is whole pages inside the file, and no longer than a slot.
    pub(super) fn holds(&self, operation: BlockOperation, range: Range) -> bool {
        let page = PAGE_SIZE_BYTES as u64;
        match operation {
            BlockOperation::Flush => return true,
            BlockOperation::Discard => {}
            BlockOperation::Read | BlockOperation::Write if range.length_bytes <= REQUEST_SIZE_BYTES_MAX as u64 => {}
            BlockOperation::Read | BlockOperation::Write => return false,
        }
        let end = range.offset_bytes.checked_add(range.length_bytes);
        range.length_bytes > 0
            && range.offset_bytes.is_multiple_of(page)
            && range.length_bytes.is_multiple_of(page)
            && end.is_some_and(|end| end <= self.size_bytes)
    }

    /// The reply to a request about names and attributes; some want none.
    pub(super) fn reply_to(&self, header: RequestHeader, request: FuseRequest) -> Option<Reply> {
        let (unique, size_bytes) = (header.unique, self.size_bytes);
        Some(match request {
            FuseRequest::Silent => return None,
            FuseRequest::Initialise(features) if features.suffice() => {
                Reply::initialised(unique, &features, self.in_flight_max, self.wants_rings)
            }
            FuseRequest::Initialise(_) => Reply::failed(unique, rustix::io::Errno::PROTO.raw_os_error()),
            FuseRequest::Lookup(true) => Reply::entry(unique, size_bytes),
            FuseRequest::Lookup(false) => Reply::failed(unique, rustix::io::Errno::NOENT.raw_os_error()),
            FuseRequest::GetAttributes => Reply::attributes_of(unique, header.node, size_bytes),
            FuseRequest::Open => Reply::opened(unique),
            FuseRequest::StatFilesystem => Reply::filesystem(unique, size_bytes),
            FuseRequest::Accept => Reply::done(unique),
            _ => Reply::failed(unique, rustix::io::Errno::NOSYS.raw_os_error()),
        })
    }
}

impl BlockChannel for FuseChannel {
    fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    fn receive(&mut self) -> io::Result<Received> {
        loop {
            let Some(&slot) = self.free.last() else { return Ok(Received::Nothing) };
            let buffer = self.pool.slot(slot);
            let (offset, length) = (buffer.offset_bytes as usize, buffer.length_bytes as usize);
            match self.device.receive(&mut self.head, self.pool.memory(), offset, length)? {
                Incoming::Nothing => return Ok(Received::Nothing),
                Incoming::Closed => return Ok(Received::Closed),
                Incoming::Request(length) => {
                    if let Some(request) = self.dispatch(slot, length)? {
                        return Ok(Received::Request(request));
                    }
                }
            }
        }
    }

    fn complete(&mut self, slot: usize, result: Result<(), BlockError>) -> io::Result<()> {
        let request = self.in_flight[slot].take().expect("a slot is completed once, by the caller that owns it");
        self.free.push(slot);
        let InFlight { unique, operation, length_bytes } = request;
        match (result, operation) {
            (Err(error), _) => self.device.reply(Reply::failed(unique, error.errno()).bytes()),
            (Ok(()), BlockOperation::Read) => {
                let (reply, buffer) = (Reply::data(unique, length_bytes), self.pool.slot(slot));
                let offset = buffer.offset_bytes as usize;
                self.device.reply_with_data(reply.bytes(), self.pool.memory(), offset, length_bytes as usize)
            }
            (Ok(()), BlockOperation::Write) => self.device.reply(Reply::written(unique, length_bytes).bytes()),
            (Ok(()), BlockOperation::Discard | BlockOperation::Flush) => self.device.reply(Reply::done(unique).bytes()),
        }
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
