//! Requests as they arrive at the donor.
//!
//! Bytes are received into a small staging buffer, since what comes next is not known. While a write's payload is
//! expected, the rest of it lands straight in the slab, and only what follows it in the staging buffer. A write to a
//! slab that is not lent is read and dropped, so that the stream stays in step.
//!
//! Invariant: between two receives the staging buffer holds less than one header, or the answers are full.

use std::io;
use std::os::fd::BorrowedFd;

use spillway_sys::mapping::Mapping;
use spillway_sys::vectored::{ReceiveList, Wait};

use super::replies::Replies;
use super::slab_directory::SlabDirectory;
use super::traffic::Traffic;
use crate::limits::STAGING_BYTES;
use crate::queue_pair::Operation;
use crate::wire::data::{DataError, REQUEST_HEADER_BYTES, RequestHeader, Status};

/// A write whose payload is arriving.
#[derive(Clone, Copy, Debug)]
struct IncomingWrite {
    header: RequestHeader,
    received_bytes: usize,
    status: Status,
}

impl IncomingWrite {
    fn missing_bytes(&self) -> usize {
        self.header.payload_bytes() - self.received_bytes
    }

    /// Where the next byte belongs.
    fn offset(&self) -> usize {
        self.header.remote.offset_bytes as usize + self.received_bytes
    }
}

/// The receiving half of a donor's end, see the module text.
#[derive(Debug)]
pub(super) struct Intake<'a> {
    traffic: &'a Traffic,
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    write: Option<IncomingWrite>,
    expected_sequence: u32,
}

impl<'a> Intake<'a> {
    pub(super) fn new(traffic: &'a Traffic) -> Self {
        Self { traffic, staging: vec![0; STAGING_BYTES].into(), start: 0, end: 0, write: None, expected_sequence: 0 }
    }

    /// Whether nothing of a request has arrived.
    pub(super) fn is_between_requests(&self) -> bool {
        self.write.is_none() && self.start == self.end
    }

    /// Whether a write's payload is expected.
    pub(super) fn is_inside_write(&self) -> bool {
        self.write.is_some()
    }

    /// Carries out what has arrived, until the answers are full or more bytes are needed.
    pub(super) fn digest(&mut self, slabs: &dyn SlabDirectory, replies: &mut Replies<'_>) -> io::Result<()> {
        while !replies.is_full() {
            if let Some(mut write) = self.write.take() {
                self.take_staged(&mut write, slabs);
                if write.missing_bytes() > 0 {
                    self.write = Some(write);
                    return Ok(());
                }
                if write.status == Status::Done {
                    self.traffic.note_written(write.received_bytes);
                }
                replies.push_status(&write.header, write.status);
            } else if let Some(header) = self.next_header()? {
                match header.operation {
                    Operation::Read => replies.push_read(&header),
                    Operation::Discard => replies.push_status(&header, discard(&header, slabs)),
                    Operation::Write => {
                        self.write = Some(IncomingWrite { header, received_bytes: 0, status: Status::Done });
                    }
                }
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    fn next_header(&mut self) -> io::Result<Option<RequestHeader>> {
        let Some(bytes) = self.staging[self.start..self.end].first_chunk() else { return Ok(None) };
        let header = RequestHeader::decode(bytes).map_err(broken)?;
        if header.sequence != self.expected_sequence {
            return Err(broken(DataError::Sequence));
        }
        self.expected_sequence = self.expected_sequence.wrapping_add(1);
        self.start += REQUEST_HEADER_BYTES;
        Ok(Some(header))
    }

    /// Copies what staging holds of `write` to its slab.
    fn take_staged(&mut self, write: &mut IncomingWrite, slabs: &dyn SlabDirectory) {
        let count = write.missing_bytes().min(self.end - self.start);
        if count == 0 {
            return;
        }
        let bytes = &self.staging[self.start..self.start + count];
        let lent = write.status == Status::Done
            && with_range(slabs, &write.header, |memory| memory.write(write.offset(), bytes)).is_some();
        if !lent {
            write.status = Status::NotLent;
        }
        write.received_bytes += count;
        self.start += count;
    }

    /// Receives once; returns the bytes that came, 0 when the peer has closed.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        slabs: &dyn SlabDirectory,
        wait: Wait,
    ) -> io::Result<usize> {
        self.staging.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if let Some(write) = self.write.filter(|write| write.status == Status::Done) {
            let received = with_range(slabs, &write.header, |memory| self.receive_write(write, memory, socket));
            return received.unwrap_or_else(|| {
                // Not lent (any more): the rest is received into staging and dropped.
                self.write = Some(IncomingWrite { status: Status::NotLent, ..write });
                Err(io::ErrorKind::Interrupted.into())
            });
        }
        let mut list = ReceiveList::new();
        list.push_bytes(&mut self.staging[self.end..]);
        let count = list.receive(socket, wait)?;
        self.end += count;
        Ok(count)
    }

    /// Receives the rest of `write` into its slab, and what follows into staging. Never waits: slab memory is held.
    fn receive_write(
        &mut self,
        mut write: IncomingWrite,
        memory: &Mapping,
        socket: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        assert_eq!(self.end, 0, "what was staged went into the write");
        let missing = write.missing_bytes();
        let mut list = ReceiveList::new();
        list.push_memory(memory, write.offset(), missing);
        list.push_bytes(&mut self.staging);
        let count = list.receive(socket, Wait::No)?;
        write.received_bytes += count.min(missing);
        self.write = Some(write);
        self.end = count.saturating_sub(missing);
        Ok(count)
    }
}

fn discard(header: &RequestHeader, slabs: &dyn SlabDirectory) -> Status {
    let (offset, length) = (header.remote.offset_bytes as usize, header.length_bytes as usize);
    let is_registered = slabs.is_registered(header.remote.slab);
    let free = |memory: &Mapping| {
        if is_registered {
            memory.zero(offset, length);
            return Ok(());
        }
        memory.remove(offset, length)
    };
    match with_range(slabs, header, free) {
        None => Status::NotLent,
        Some(Ok(())) => Status::Done,
        Some(Err(error)) => Status::Failed(error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error())),
    }
}

/// Runs `access` with the memory of the request's slab, if it is lent and the whole range lies inside it.
fn with_range<T>(slabs: &dyn SlabDirectory, header: &RequestHeader, access: impl FnOnce(&Mapping) -> T) -> Option<T> {
    let end = header.remote.offset_bytes as usize + header.length_bytes as usize;
    let mut access = Some(access);
    let mut result = None;
    slabs.with_slab(header.remote.slab, &mut |memory| {
        if end <= memory.length()
            && let Some(access) = access.take()
        {
            result = Some(access(memory));
        }
    });
    result
}

fn broken(error: DataError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{RemoteAddress, SlabHandle};

    /// Lends nothing.
    struct Nothing;

    impl SlabDirectory for Nothing {
        fn with_slab(&self, _slab: SlabHandle, _use_memory: &mut dyn FnMut(&Mapping)) -> bool {
            false
        }
    }

    fn stage(intake: &mut Intake<'_>, sequence: u32) {
        let remote = RemoteAddress { slab: SlabHandle(0), offset_bytes: 0 };
        let header = RequestHeader { operation: Operation::Discard, sequence, remote, length_bytes: 4096 };
        let end = intake.end + REQUEST_HEADER_BYTES;
        intake.staging[intake.end..end].copy_from_slice(&header.encode());
        intake.end = end;
    }

    #[test]
    fn sequences_wrap_and_nothing_else_is_taken() {
        let traffic = Traffic::default();
        let (mut intake, mut replies) = (Intake::new(&traffic), Replies::new(&traffic).unwrap());
        intake.expected_sequence = u32::MAX;
        stage(&mut intake, u32::MAX);
        stage(&mut intake, 0);
        assert!(intake.digest(&Nothing, &mut replies).is_ok());
        assert!(intake.is_between_requests());
        stage(&mut intake, 0);
        assert!(intake.digest(&Nothing, &mut replies).is_err(), "a repeated request");
    }

    #[test]
    fn requests_wait_while_the_answers_are_full() {
        let traffic = Traffic::default();
        let (mut intake, mut replies) = (Intake::new(&traffic), Replies::new(&traffic).unwrap());
        let mut sequence = 0;
        while !replies.is_full() {
            stage(&mut intake, sequence);
            sequence += 1;
            intake.digest(&Nothing, &mut replies).unwrap();
        }
        stage(&mut intake, sequence);
        intake.digest(&Nothing, &mut replies).unwrap();
        assert!(!intake.is_between_requests(), "the request stays staged");
    }
}
