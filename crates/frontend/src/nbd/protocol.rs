//! The transmission phase of the Network Block Device protocol: bytes of requests and replies, and what may be served.
//!
//! Sans-I/O. A request is a header of [`REQUEST_BYTES`], followed by its data if it writes; a reply is
//! [`REPLY_BYTES`], followed by data if it answers a read. [`judge`] decides about one request: served, refused with
//! an error, or the end of the connection when nothing after it can be understood. The kernel's client and ordinary
//! ones send the same.
//!
//! Only simple replies are spoken: structured ones pay for themselves with sparse maps, which the volume does not
//! offer. Numbers are those of the protocol's description (`doc/proto.md` of the `nbd` project); all are big-endian.

use spillway_block::request::{BlockError, BlockOperation};
use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::limits::{NBD_REQUEST_BYTES_MAX, NBD_SKIPPED_BYTES_MAX};

/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its data.
pub const REPLY_BYTES: usize = 16;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const COMMAND_FLUSH: u16 = 3;
const COMMAND_TRIM: u16 = 4;
const COMMAND_WRITE_ZEROES: u16 = 6;

/// Force unit access: what is acknowledged has reached a donor or the disk anyway.
const FLAG_FUA: u16 = 1 << 0;
/// No hole for zeroes. Every page's room is found when it is written, so a hole is no less than a page of zeroes.
const FLAG_NO_HOLE: u16 = 1 << 1;
/// Fail rather than write zeroes slowly: they are never written.
const FLAG_FAST_ZERO: u16 = 1 << 4;

/// What the export can do: has flags, flush, FUA, trim, write zeroes, several connections, fast zeroes. Several
/// connections may share it because whatever one was told is written, every other one reads: they serve one volume
/// without caches.
pub const TRANSMISSION_FLAGS: u16 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 11;

/// What the kernel's client is told: has flags, trim, write zeroes (heeded by newer ones), several connections. No
/// flush and no FUA: what is acknowledged is stored, so the device has no cache to write back, and the kernel need
/// not ask.
pub const KERNEL_FLAGS: u16 = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 8;

/// An error as the protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdError {
    /// `NBD_EIO`.
    InputOutput,
    /// `NBD_EINVAL`.
    Invalid,
    /// `NBD_ENOSPC`.
    NoSpace,
}

impl NbdError {
    fn number(self) -> u32 {
        match self {
            Self::InputOutput => 5,
            Self::Invalid => 22,
            Self::NoSpace => 28,
        }
    }
}

impl From<BlockError> for NbdError {
    fn from(error: BlockError) -> Self {
        match error {
            // The protocol has no number for a timeout.
            BlockError::InputOutput | BlockError::TimedOut => Self::InputOutput,
            BlockError::Invalid => Self::Invalid,
            BlockError::NoSpace => Self::NoSpace,
        }
    }
}

/// A request as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// Command flags.
    pub flags: u16,
    /// The command's number.
    pub command: u16,
    /// What the client knows it by, returned as it came.
    pub cookie: [u8; 8],
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u32,
}

/// The stream holds no request here: nothing after it can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an NBD request")]
pub struct NotARequest;

/// What is done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is given to the device; a write's data follows.
    Serve(BlockOperation),
    /// It is answered with an error, once so many bytes of its data were thrown away.
    Refuse(NbdError, u64),
    /// The client says goodbye.
    Goodbye,
    /// Its data is more than any client would send: the connection ends.
    HangUp,
}

impl NbdRequest {
    /// Reads a header.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, NotARequest> {
        let [m0, m1, m2, m3, f0, f1, c0, c1, rest @ ..] = *bytes;
        if u32::from_be_bytes([m0, m1, m2, m3]) != REQUEST_MAGIC {
            return Err(NotARequest);
        }
        let [k0, k1, k2, k3, k4, k5, k6, k7, o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3] = rest;
        Ok(Self {
            flags: u16::from_be_bytes([f0, f1]),
            command: u16::from_be_bytes([c0, c1]),
            cookie: [k0, k1, k2, k3, k4, k5, k6, k7],
            offset_bytes: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            length_bytes: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// Bytes of data that follow the header.
    fn data_bytes(&self) -> u64 {
        if self.command == COMMAND_WRITE { u64::from(self.length_bytes) } else { 0 }
    }
}

/// Decides about `request` to an export of `size_bytes`.
pub fn judge(request: &NbdRequest, size_bytes: u64) -> Verdict {
    let (operation, flags_known) = match request.command {
        COMMAND_READ => (BlockOperation::Read, FLAG_FUA),
        COMMAND_WRITE => (BlockOperation::Write, FLAG_FUA),
        COMMAND_FLUSH => (BlockOperation::Flush, FLAG_FUA),
        COMMAND_TRIM => (BlockOperation::Discard, FLAG_FUA),
        COMMAND_WRITE_ZEROES => (BlockOperation::Discard, FLAG_FUA | FLAG_NO_HOLE | FLAG_FAST_ZERO),
        COMMAND_DISCONNECT => return Verdict::Goodbye,
        _ => return Verdict::Refuse(NbdError::Invalid, 0),
    };
    let data_bytes = request.data_bytes();
    if data_bytes > NBD_SKIPPED_BYTES_MAX {
        return Verdict::HangUp;
    }
    let refused =
        if request.flags & !flags_known != 0 { Err(NbdError::Invalid) } else { check(operation, request, size_bytes) };
    match refused {
        Ok(()) => Verdict::Serve(operation),
        Err(error) => Verdict::Refuse(error, data_bytes),
    }
}

/// Whole pages inside the export, and no more data than a buffer holds.
fn check(operation: BlockOperation, request: &NbdRequest, size_bytes: u64) -> Result<(), NbdError> {
    if operation == BlockOperation::Flush {
        return Ok(());
    }
    let (page, length_bytes) = (PAGE_SIZE_BYTES as u64, u64::from(request.length_bytes));
    let with_data = matches!(operation, BlockOperation::Read | BlockOperation::Write);
    if length_bytes == 0
        || !request.offset_bytes.is_multiple_of(page)
        || !length_bytes.is_multiple_of(page)
        || (with_data && length_bytes > NBD_REQUEST_BYTES_MAX as u64)
    {
        return Err(NbdError::Invalid);
    }
    match request.offset_bytes.checked_add(length_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        // What the protocol's description asks for past the end.
        _ if operation == BlockOperation::Write => Err(NbdError::NoSpace),
        _ => Err(NbdError::Invalid),
    }
}

/// A simple reply; a successful read's data follows it.
pub fn reply(cookie: [u8; 8], result: Result<(), NbdError>) -> [u8; REPLY_BYTES] {
    let mut bytes = [0; REPLY_BYTES];
    bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&result.err().map_or(0, NbdError::number).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie);
    bytes
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
