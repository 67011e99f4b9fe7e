//! The data protocol: what a data connection carries after its handshake.
//!
//! The borrower sends requests, a header each, a write's payload right after it. The donor answers in the order of
//! the requests, a header each, a read's payload right after it. A read's answer carries its payload also when it
//! failed (zeroes then), so the borrower knows the layout of the stream ahead and receives straight into its buffers.
//! Reads and writes in flight at the same time are not ordered among each other.
//!
//! Request (20 bytes): operation u8 (1 read, 2 write, 3 discard), zero u8 x 3, sequence u32, slab u32, offset u32,
//! length u32. Response (16 bytes): status u8 (0 done, 1 not lent, 2 failed), zero u8 x 3, sequence u32, payload length
//! u32, errno i32 (0 unless failed). Offsets and lengths are whole pages.

use super::array_at;
use crate::limits::REQUEST_SIZE_BYTES_MAX;
use crate::queue_pair::{Operation, RequestError};
use crate::units::{PAGE_SIZE_BYTES, RemoteAddress, SlabHandle};

/// Bytes of a request header.
pub const REQUEST_HEADER_BYTES: usize = 20;
/// Bytes of a response header.
pub const RESPONSE_HEADER_BYTES: usize = 16;

/// Why a header was refused; the connection that brought it cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// An operation or status that does not exist, or a reserved byte that is not zero.
    #[error("the peer sent a header with an unknown kind {0}; it is broken")]
    Kind(u8),
    /// A range that is not whole pages, is empty, or is longer than allowed.
    #[error("the peer sent an impossible range of {length_bytes} bytes at {offset_bytes}; it is broken")]
    Range {
        /// Start of the range.
        offset_bytes: u32,
        /// Its length.
        length_bytes: u32,
    },
    /// An answer to another request than the next one, or of another size.
    #[error("the peer's answers do not match the requests; it is broken")]
    Sequence,
}

/// One request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// What to do.
    pub operation: Operation,
    /// Counts a connection's requests, from 0, wrapping.
    pub sequence: u32,
    /// Where.
    pub remote: RemoteAddress,
    /// How much.
    pub length_bytes: u32,
}

impl RequestHeader {
    /// Bytes after this header.
    pub fn payload_bytes(&self) -> usize {
        if self.operation == Operation::Write { self.length_bytes as usize } else { 0 }
    }

    /// The header as it travels.
    pub fn encode(&self) -> [u8; REQUEST_HEADER_BYTES] {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[0] = match self.operation {
            Operation::Read => 1,
            Operation::Write => 2,
            Operation::Discard => 3,
        };
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.remote.slab.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.remote.offset_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.length_bytes.to_le_bytes());
        bytes
    }

    /// The header in `bytes`, refused if no correct borrower sends it.
    pub fn decode(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Result<Self, DataError> {
        let operation = match bytes[..4] {
            [1, 0, 0, 0] => Operation::Read,
            [2, 0, 0, 0] => Operation::Write,
            [3, 0, 0, 0] => Operation::Discard,
            _ => return Err(DataError::Kind(bytes[0])),
        };
        let offset_bytes = u32::from_le_bytes(array_at(bytes, 12));
        let length_bytes = u32::from_le_bytes(array_at(bytes, 16));
        check_range(operation, offset_bytes, length_bytes)?;
        Ok(Self {
            operation,
            sequence: u32::from_le_bytes(array_at(bytes, 4)),
            remote: RemoteAddress { slab: SlabHandle(u32::from_le_bytes(array_at(bytes, 8))), offset_bytes },
            length_bytes,
        })
    }
}

fn check_range(operation: Operation, offset_bytes: u32, length_bytes: u32) -> Result<(), DataError> {
    let whole_pages =
        offset_bytes.is_multiple_of(PAGE_SIZE_BYTES as u32) && length_bytes.is_multiple_of(PAGE_SIZE_BYTES as u32);
    let allowed = operation == Operation::Discard || length_bytes as usize <= REQUEST_SIZE_BYTES_MAX;
    if !whole_pages || !allowed || length_bytes == 0 {
        return Err(DataError::Range { offset_bytes, length_bytes });
    }
    Ok(())
}

/// How a request ended at the donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was carried out.
    Done,
    /// The slab is not lent, or the range lies outside it.
    NotLent,
    /// The donor's kernel refused, with this errno.
    Failed(i32),
}

impl Status {
    /// What the borrower's queue pair reports.
    pub fn result(self) -> Result<(), RequestError> {
        match self {
            Self::Done => Ok(()),
            Self::NotLent => Err(RequestError::NotLent),
            Self::Failed(errno) => Err(RequestError::Medium(errno)),
        }
    }
}

/// One response's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The request's sequence.
    pub sequence: u32,
    /// How it ended.
    pub status: Status,
    /// Bytes after this header: a read's length, 0 otherwise.
    pub payload_bytes: u32,
}

impl ResponseHeader {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; RESPONSE_HEADER_BYTES] {
        let (status, errno) = match self.status {
            Status::Done => (0, 0),
            Status::NotLent => (1, 0),
            Status::Failed(errno) => (2, errno),
        };
        let mut bytes = [0; RESPONSE_HEADER_BYTES];
        bytes[0] = status;
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&errno.to_le_bytes());
        bytes
    }

    /// The header in `bytes`, refused if no correct donor sends it.
    pub fn decode(bytes: &[u8; RESPONSE_HEADER_BYTES]) -> Result<Self, DataError> {
        let errno = i32::from_le_bytes(array_at(bytes, 12));
        let status = match (&bytes[..4], errno) {
            ([0, 0, 0, 0], 0) => Status::Done,
            ([1, 0, 0, 0], 0) => Status::NotLent,
            ([2, 0, 0, 0], _) => Status::Failed(errno),
            _ => return Err(DataError::Kind(bytes[0])),
        };
        let payload_bytes = u32::from_le_bytes(array_at(bytes, 8));
        if payload_bytes as usize > REQUEST_SIZE_BYTES_MAX {
            return Err(DataError::Range { offset_bytes: 0, length_bytes: payload_bytes });
        }
        Ok(Self { sequence: u32::from_le_bytes(array_at(bytes, 4)), status, payload_bytes })
    }
}

/// Feeds arbitrary bytes to the decoders, for fuzzing: they must not panic, and what they accept must encode to the
/// same bytes again. Returns whether anything was accepted.
pub fn fuzz_decode(bytes: &[u8]) -> bool {
    let mut accepted = false;
    if let Some(bytes) = bytes.first_chunk()
        && let Ok(header) = RequestHeader::decode(bytes)
    {
        assert_eq!(&header.encode(), bytes, "a request has one encoding");
        accepted = true;
    }
    if let Some(bytes) = bytes.first_chunk()
        && let Ok(header) = ResponseHeader::decode(bytes)
    {
        assert_eq!(&header.encode(), bytes, "a response has one encoding");
        accepted = true;
    }
    accepted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request() -> impl Strategy<Value = RequestHeader> {
        let operation = prop_oneof![Just(Operation::Read), Just(Operation::Write), Just(Operation::Discard)];
        (operation, any::<u32>(), any::<u32>(), 0_u32..1 << 20, 1_u32..=256).prop_map(
            |(operation, sequence, slab, page, pages)| RequestHeader {
                operation,
                sequence,
                remote: RemoteAddress { slab: SlabHandle(slab), offset_bytes: page << 12 },
                length_bytes: pages << 12,
            },
        )
    }

    proptest! {
        #[test]
        fn requests_survive_a_round_trip(header in request()) {
            prop_assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
            prop_assert!(fuzz_decode(&header.encode()));
        }

        #[test]
        fn responses_survive_a_round_trip(
            status in prop_oneof![Just(Status::Done), Just(Status::NotLent), any::<i32>().prop_map(Status::Failed)],
            sequence: u32,
            payload_bytes in 0..=REQUEST_SIZE_BYTES_MAX as u32,
        ) {
            let header = ResponseHeader { sequence, status, payload_bytes };
            prop_assert_eq!(ResponseHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            fuzz_decode(&bytes);
        }

        #[test]
        fn a_damaged_request_is_refused_or_another_valid_one(header in request(), at in 0..REQUEST_HEADER_BYTES, flip in 1_u8..) {
            let mut bytes = header.encode();
            bytes[at] ^= flip;
            fuzz_decode(&bytes);
            if (1..4).contains(&at) {
                prop_assert!(RequestHeader::decode(&bytes).is_err());
            }
        }
    }

    #[test]
    fn impossible_ranges_are_refused() {
        let header = |operation, offset_bytes, length_bytes| RequestHeader {
            operation,
            sequence: 0,
            remote: RemoteAddress { slab: SlabHandle(0), offset_bytes },
            length_bytes,
        };
        let huge = REQUEST_SIZE_BYTES_MAX as u32 + 4096;
        for (operation, offset, length) in [
            (Operation::Read, 0, 0),
            (Operation::Read, 1, 4096),
            (Operation::Write, 0, 100),
            (Operation::Read, 0, huge),
            (Operation::Write, 0, huge),
        ] {
            assert!(RequestHeader::decode(&header(operation, offset, length).encode()).is_err());
        }
        assert!(RequestHeader::decode(&header(Operation::Discard, 0, huge).encode()).is_ok());
        let response = ResponseHeader { sequence: 0, status: Status::Done, payload_bytes: huge };
        assert!(ResponseHeader::decode(&response.encode()).is_err());
    }

    #[test]
    fn statuses_become_results() {
        assert_eq!(Status::Done.result(), Ok(()));
        assert_eq!(Status::NotLent.result(), Err(RequestError::NotLent));
        assert_eq!(Status::Failed(28).result(), Err(RequestError::Medium(28)));
    }
}
