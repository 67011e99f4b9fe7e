//! The part of the FUSE protocol that a filesystem of one file needs, as functions from bytes to values and back.
//!
//! Offsets and sizes are those of `linux/fuse.h`, protocol 7.31 and later; numbers are in the machine's byte order,
//! as the protocol has them. No I/O and no allocation: replies are built in arrays on the stack.
//!
//! Invariant: [`decode`] reads nothing beyond what was received and never panics, whatever the bytes.

use spillway_sys::fuse::REQUEST_HEAD_BYTES;
use spillway_sys::fuse::ring::REPLY_HEADER_BYTES;

use crate::limits::FUSE_PAGES_MAX;

/// The root directory, as the protocol numbers it.
pub const ROOT_NODE: u64 = 1;
/// The one file.
pub const FILE_NODE: u64 = 2;
/// The one file's name.
pub const FILE_NAME: &str = "volume";

/// `fuse_in_header`.
pub(super) const REQUEST_HEADER_BYTES: usize = 40;
/// The longest reply body that we build: `fuse_entry_out`.
const REPLY_BODY_BYTES_MAX: usize = 128;

/// The newest protocol version whose layouts stand here.
const PROTOCOL_MAJOR: u32 = 7;
const PROTOCOL_MINOR: u32 = 42;
/// Linux 5.4, which has everything used here.
const PROTOCOL_MINOR_MIN: u32 = 31;

const FLAG_ASYNC_READ: u32 = 1 << 0;
const FLAG_BIG_WRITES: u32 = 1 << 5;
const FLAG_ASYNC_DIRECT_IO: u32 = 1 << 15;
const FLAG_MAX_PAGES: u32 = 1 << 22;
/// There is a second word of flags (`FUSE_INIT_EXT`, protocol 7.36).
const FLAG_INIT_EXTENDED: u32 = 1 << 30;
/// In the second word: requests may pass through rings (`FUSE_OVER_IO_URING`, protocol 7.42, Linux 6.14).
const FLAG_2_OVER_IO_URING: u32 = 1 << (41 - 32);

/// Without asynchronous direct I/O one request at a time would reach us; without MAX_PAGES requests end at 128 KiB.
const FLAGS_REQUIRED: u32 = FLAG_ASYNC_DIRECT_IO | FLAG_MAX_PAGES;
const FLAGS_WANTED: u32 = FLAGS_REQUIRED | FLAG_ASYNC_READ | FLAG_BIG_WRITES;

/// Reads and writes pass the page cache; writes run side by side.
const OPEN_DIRECT_IO: u32 = 1 << 0;
const OPEN_KEEP_CACHE: u32 = 1 << 1;
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

const OPCODE_LOOKUP: u32 = 1;

const FALLOCATE_PUNCH_HOLE: u32 = 2;
const FALLOCATE_ZERO_RANGE: u32 = 16;

/// How long the kernel may believe attributes and names: they never change.
const VALID_SECONDS: u64 = 1 << 30;

const PAGE_BYTES: u32 = 4096;

/// What identifies a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Comes back in the reply.
    pub unique: u64,
    /// What it is about.
    pub node: u64,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseRequest {
    /// The first one: versions and features.
    Initialise(Features),
    /// A name in the root directory; whether it is ours.
    Lookup(bool),
    /// The attributes of a node (also after an attempt to set them).
    GetAttributes,
    /// Opens a node.
    Open,
    /// Reads from the file.
    Read(Range),
    /// Writes to the file; the data follow the head.
    Write(Range),
    /// Frees or zeroes a range of the file.
    Discard(Range),
    /// Everything written before must be kept.
    Synchronise,
    /// The filesystem's size.
    StatFilesystem,
    /// Succeeds without any effect.
    Accept,
    /// Wants no answer.
    Silent,
    /// The kernel asks for something that this filesystem does not have.
    Unsupported,
}

/// A range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Bytes from its start.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
}

/// What the kernel offers in its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Protocol version.
    pub major: u32,
    /// Protocol version.
    pub minor: u32,
    flags: u32,
    flags_2: u32,
    read_ahead_bytes_max: u32,
}

/// Bytes that are no request, which only a broken kernel sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel sent a FUSE request that cannot be understood")]
pub struct ProtocolError;

impl Features {
    /// Whether this kernel can carry a block device.
    pub fn suffice(&self) -> bool {
        self.major == PROTOCOL_MAJOR
            && self.minor >= PROTOCOL_MINOR_MIN
            && self.flags & FLAGS_REQUIRED == FLAGS_REQUIRED
    }

    /// Whether requests can pass through rings: the kernel has that, and the administrator allows it.
    pub fn has_rings(&self) -> bool {
        self.flags & FLAG_INIT_EXTENDED != 0 && self.flags_2 & FLAG_2_OVER_IO_URING != 0
    }
}

/// The whole length of a request that begins with `head`, as its header has it.
pub(crate) fn length_of(head: &[u8; REQUEST_HEAD_BYTES]) -> usize {
    u32_at(head, 0) as usize
}

/// Whether a request that begins with `head` has no fixed argument: what follows its header is a name.
pub(crate) fn is_about_a_name(head: &[u8; REQUEST_HEAD_BYTES]) -> bool {
    u32_at(head, 4) == OPCODE_LOOKUP
}

/// Reads a request of `received` bytes whose first bytes are `head`.
pub fn decode(head: &[u8; REQUEST_HEAD_BYTES], received: usize) -> Result<(RequestHeader, FuseRequest), ProtocolError> {
    if received < REQUEST_HEADER_BYTES || u32_at(head, 0) as usize != received {
        return Err(ProtocolError);
    }
    let header = RequestHeader { unique: u64_at(head, 8), node: u64_at(head, 16) };
    let body = received - REQUEST_HEADER_BYTES;
    let (needed, request) = decode_body(head, u32_at(head, 4), header.node, body);
    if body < needed {
        return Err(ProtocolError);
    }
    Ok((header, request))
}

/// The request, and how long its body must be for the values taken from it to be real.
fn decode_body(head: &[u8; REQUEST_HEAD_BYTES], opcode: u32, node: u64, body: usize) -> (usize, FuseRequest) {
    match opcode {
        OPCODE_LOOKUP => {
            (1, FuseRequest::Lookup(node == ROOT_NODE && is_file_name(&head[REQUEST_HEADER_BYTES..], body)))
        }
        // FORGET, BATCH_FORGET.
        2 | 42 => (0, FuseRequest::Silent),
        // GETATTR, and SETATTR: nothing can be set, so it answers with what is.
        3 | 4 => (0, FuseRequest::GetAttributes),
        14 => (8, if node == FILE_NODE { FuseRequest::Open } else { FuseRequest::Unsupported }),
        15 => (24, FuseRequest::Read(range_at(head, 48, u64::from(u32_at(head, 56))))),
        16 => {
            let length = u32_at(head, 56);
            (40 + length as usize, FuseRequest::Write(range_at(head, 48, u64::from(length))))
        }
        17 => (0, FuseRequest::StatFilesystem),
        // RELEASE, FLUSH at close, DESTROY.
        18 | 25 | 38 => (0, FuseRequest::Accept),
        20 => (16, FuseRequest::Synchronise),
        26 => (16, FuseRequest::Initialise(features_at(head))),
        43 => (32, decode_fallocate(head)),
        // INTERRUPT too: with ENOSYS the kernel sends no further one.
        _ => (0, FuseRequest::Unsupported),
    }
}

fn decode_fallocate(head: &[u8; REQUEST_HEAD_BYTES]) -> FuseRequest {
    if u32_at(head, 64) & (FALLOCATE_PUNCH_HOLE | FALLOCATE_ZERO_RANGE) == 0 {
        return FuseRequest::Accept;
    }
    FuseRequest::Discard(range_at(head, 48, u64_at(head, 56)))
}

fn features_at(head: &[u8; REQUEST_HEAD_BYTES]) -> Features {
    Features {
        major: u32_at(head, 40),
        minor: u32_at(head, 44),
        read_ahead_bytes_max: u32_at(head, 48),
        flags: u32_at(head, 52),
        // Beyond an older kernel's request there are zeroes.
        flags_2: u32_at(head, 56),
    }
}

fn range_at(head: &[u8; REQUEST_HEAD_BYTES], offset_at: usize, length_bytes: u64) -> Range {
    Range { offset_bytes: u64_at(head, offset_at), length_bytes }
}

fn is_file_name(bytes: &[u8], length: usize) -> bool {
    length == FILE_NAME.len() + 1 && bytes.starts_with(FILE_NAME.as_bytes()) && bytes[FILE_NAME.len()] == 0
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("a slice of eight bytes"))
}

/// A reply under construction.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    bytes: [u8; REPLY_HEADER_BYTES + REPLY_BODY_BYTES_MAX],
    length: usize,
}

impl Reply {
    fn start(unique: u64, errno: i32) -> Self {
        let reply = Self { bytes: [0; REPLY_HEADER_BYTES + REPLY_BODY_BYTES_MAX], length: 0 };
        reply.u32(0).u32((-errno) as u32).u64(unique).finish(0)
    }

    /// Success without a body.
    pub fn done(unique: u64) -> Self {
        Self::start(unique, 0)
    }

    /// A failure.
    pub fn failed(unique: u64, errno: i32) -> Self {
        Self::start(unique, errno)
    }

    /// A read's head; `length_bytes` of data follow it.
    pub fn data(unique: u64, length_bytes: u64) -> Self {
        Self::start(unique, 0).finish(length_bytes as usize)
    }

    /// So many bytes were written (`fuse_write_out`).
    pub fn written(unique: u64, length_bytes: u64) -> Self {
        Self::start(unique, 0).u32(length_bytes as u32).u32(0).finish(0)
    }

    /// The file is open, with direct I/O and parallel writes (`fuse_open_out`).
    pub fn opened(unique: u64) -> Self {
        let flags = OPEN_DIRECT_IO | OPEN_KEEP_CACHE | OPEN_PARALLEL_DIRECT_WRITES;
        Self::start(unique, 0).u64(0).u32(flags).u32(0).finish(0)
    }

    /// Versions and features (`fuse_init_out`), with at most `background` requests of direct I/O in flight, and rings
    /// if they are wanted and offered.
    pub fn initialised(unique: u64, features: &Features, background: u16, wants_rings: bool) -> Self {
        let has_rings = wants_rings && features.has_rings();
        let (extended, flags_2) = if has_rings { (FLAG_INIT_EXTENDED, FLAG_2_OVER_IO_URING) } else { (0, 0) };
        Self::start(unique, 0)
            .u32(PROTOCOL_MAJOR)
            .u32(features.minor.min(PROTOCOL_MINOR))
            .u32(features.read_ahead_bytes_max)
            .u32(features.flags & FLAGS_WANTED | extended)
            .u16(background)
            // Congestion at the bound itself: nothing of ours throttles earlier.
            .u16(background)
            .u32(u32::from(FUSE_PAGES_MAX) * PAGE_BYTES)
            .u32(1)
            .u16(FUSE_PAGES_MAX)
            .u16(0)
            .u32(flags_2)
            .pad(28)
            .finish(0)
    }

    /// The file as a directory entry (`fuse_entry_out`).
    pub fn entry(unique: u64, size_bytes: u64) -> Self {
        Self::start(unique, 0)
            .u64(FILE_NODE)
            .u64(0)
            .u64(VALID_SECONDS)
            .u64(VALID_SECONDS)
            .u64(0)
            .attributes(FILE_NODE, size_bytes)
            .finish(0)
    }

    /// A node's attributes (`fuse_attr_out`).
    pub fn attributes_of(unique: u64, node: u64, size_bytes: u64) -> Self {
        Self::start(unique, 0).u64(VALID_SECONDS).u64(0).attributes(node, size_bytes).finish(0)
    }

    /// The filesystem's size (`fuse_kstatfs`). Its block size becomes the granularity of the loop device's discards.
    pub fn filesystem(unique: u64, size_bytes: u64) -> Self {
        let blocks = size_bytes / u64::from(PAGE_BYTES);
        Self::start(unique, 0)
            .u64(blocks)
            .u64(0)
            .u64(0)
            .u64(1)
            .u64(0)
            .u32(PAGE_BYTES)
            .u32(255)
            .u32(PAGE_BYTES)
            .pad(28)
            .finish(0)
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// What stands before the body (`fuse_out_header`).
    pub fn header(&self) -> &[u8; REPLY_HEADER_BYTES] {
        self.bytes.first_chunk().expect("a reply has a header")
    }

    /// What follows the header.
    pub fn body(&self) -> &[u8] {
        &self.bytes[REPLY_HEADER_BYTES..self.length]
    }

    /// `fuse_attr`.
    fn attributes(self, node: u64, size_bytes: u64) -> Self {
        let directory = node == ROOT_NODE;
        let (mode, size_bytes) = if directory { (0o040_700, 0) } else { (0o100_600, size_bytes) };
        self.u64(node)
            .u64(size_bytes)
            .u64(size_bytes / 512)
            .pad(24 + 12)
            .u32(mode)
            .u32(if directory { 2 } else { 1 })
            .pad(12)
            .u32(PAGE_BYTES)
            .u32(0)
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        self
    }

    fn u16(self, value: u16) -> Self {
        self.put(&value.to_ne_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.put(&value.to_ne_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.put(&value.to_ne_bytes())
    }

    fn pad(mut self, bytes: usize) -> Self {
        self.length += bytes;
        self
    }

    /// Writes the total length into the header; `data_bytes` follow from elsewhere.
    fn finish(mut self, data_bytes: usize) -> Self {
        let total = (self.length + data_bytes) as u32;
        self.bytes[..4].copy_from_slice(&total.to_ne_bytes());
        self
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
