//! What the kernel tells the holder of a userfaultfd, decoded from `struct uffd_msg`.

use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};

use super::Userfaultfd;

/// `sizeof(struct uffd_msg)`.
pub(super) const MESSAGE_BYTES: usize = 32;

/// One message. All but faults come only when their feature was agreed on; the thread that caused them waits until
/// they were read.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault(Fault),
    /// The process forked; here is the child's userfaultfd, with the same ranges registered, and the same features.
    Fork(Userfaultfd),
    /// `mremap` moved `length` bytes with all their pages.
    Remap {
        /// The old address.
        from: u64,
        /// The new one.
        to: u64,
        /// Bytes moved.
        length: u64,
    },
    /// `madvise` takes pages away (`MADV_DONTNEED`, `MADV_REMOVE`); they go after the message was read.
    Remove(Range<u64>),
    /// The range is unmapped, after the fact.
    Unmap(Range<u64>),
    /// A message that this version does not know.
    Unknown(u8),
}

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address touched; page aligned unless exact addresses were agreed on.
    pub address: u64,
    /// Whether it wants to write.
    pub is_write: bool,
    /// Whether the page is there but write-protected (otherwise it is missing).
    pub is_write_protected: bool,
    /// The thread's number in the reader's PID namespace; 0 without the feature.
    pub thread: u32,
}

const EVENT_FAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

const FLAG_WRITE: u64 = 1;
const FLAG_WRITE_PROTECTED: u64 = 1 << 1;

impl Message {
    /// # Safety
    ///
    /// `bytes` are a message that was just read from a userfaultfd and is decoded once: a descriptor in it becomes
    /// owned.
    pub(super) unsafe fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let word = |offset: usize| u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"));
        let half = |offset: usize| u32::from_ne_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"));
        match bytes[0] {
            EVENT_FAULT => Self::Fault(Fault {
                address: word(16),
                is_write: word(8) & FLAG_WRITE != 0,
                is_write_protected: word(8) & FLAG_WRITE_PROTECTED != 0,
                thread: half(24),
            }),
            EVENT_FORK => {
                // SAFETY: the kernel installed this descriptor for the reader of the message, which decodes it once
                // (contract).
                let descriptor = unsafe { OwnedFd::from_raw_fd(half(8).cast_signed()) };
                Self::Fork(Userfaultfd::from_kernel(descriptor))
            }
            EVENT_REMAP => Self::Remap { from: word(8), to: word(16), length: word(24) },
            EVENT_REMOVE => Self::Remove(word(8)..word(16)),
            EVENT_UNMAP => Self::Unmap(word(8)..word(16)),
            other => Self::Unknown(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: u8, words: [u64; 3]) -> Message {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = event;
        for (place, word) in words.iter().enumerate() {
            bytes[8 + 8 * place..16 + 8 * place].copy_from_slice(&word.to_ne_bytes());
        }
        assert_ne!(event, EVENT_FORK);
        // SAFETY: no fork event, so no descriptor is in it (checked).
        unsafe { Message::decode(&bytes) }
    }

    #[test]
    fn messages_are_taken_apart() {
        let Message::Fault(fault) = message(EVENT_FAULT, [3, 0x7000, 42]) else { panic!("a fault") };
        assert_eq!(fault, Fault { address: 0x7000, is_write: true, is_write_protected: true, thread: 42 });
        assert!(matches!(message(EVENT_REMAP, [1, 2, 3]), Message::Remap { from: 1, to: 2, length: 3 }));
        assert!(matches!(message(EVENT_REMOVE, [1, 2, 0]), Message::Remove(range) if range == (1..2)));
        assert!(matches!(message(EVENT_UNMAP, [1, 2, 0]), Message::Unmap(range) if range == (1..2)));
        assert!(matches!(message(0x77, [0; 3]), Message::Unknown(0x77)));
    }
}
