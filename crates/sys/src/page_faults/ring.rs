//! The ring of samples that the kernel writes and this process reads (`struct perf_event_mmap_page`).
//!
//! Invariants: this process alone writes the tail, and only after it has copied what lies before it; the kernel never
//! overwrites what lies between tail and head, and counts what it could not write.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use super::{FaultKind, FaultSample};
use crate::mapping::{Mapping, PAGE_SIZE_BYTES};
use crate::shared_futex::long_word;

/// Pages of samples of each CPU, a power of two: 6,500 samples of 40 bytes, 10 ms of a CPU that does nothing but
/// minor faults.
const DATA_PAGES: usize = 64;

const DATA_BYTES: usize = DATA_PAGES * PAGE_SIZE_BYTES;

/// Places in the first page: `data_head` and `data_tail`.
const HEAD: usize = 1024;
const TAIL: usize = HEAD + 8;

/// `PERF_RECORD_LOST`: an id and a count.
const RECORD_LOST: u32 = 2;

/// `PERF_RECORD_SAMPLE`.
const RECORD_SAMPLE: u32 = 9;

/// Bytes of `struct perf_event_header`.
const HEADER_BYTES: usize = 8;

/// Words of a sample behind its header: process and thread, time, address, id of the counter.
const SAMPLE_WORDS: usize = 4;

/// A sample as it lies in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record([u64; SAMPLE_WORDS]);

impl Record {
    /// What it says; `major_id` is the counter of major faults.
    pub(super) fn sample(self, major_id: u64) -> FaultSample {
        let Self([who, time_ns, address, id]) = self;
        FaultSample {
            kind: if id == major_id { FaultKind::Major } else { FaultKind::Minor },
            process: (who & u64::from(u32::MAX)) as u32,
            thread: (who >> 32) as u32,
            address,
            time_ns,
        }
    }
}

/// One CPU's ring.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Mapping,
}

impl Ring {
    /// That of a counter.
    pub(super) fn map(counter: &OwnedFd) -> io::Result<Self> {
        Ok(Self { memory: Mapping::of_descriptor(counter.as_fd(), PAGE_SIZE_BYTES + DATA_BYTES)? })
    }

    /// Calls `take` with each sample, and makes room. Returns how many the kernel had no room for.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Record)) -> u64 {
        // The kernel's samples lie before its head, so the head is read first.
        let head = long_word(&self.memory, HEAD).load(Ordering::Acquire);
        let tail_word = long_word(&self.memory, TAIL);
        let mut tail = tail_word.load(Ordering::Relaxed);
        let mut lost = 0;
        while tail < head {
            let header = self.word(tail);
            // Type, flags, and the size with this header.
            let (kind, size_bytes) = ((header & u64::from(u32::MAX)) as u32, header >> 48);
            if size_bytes < HEADER_BYTES as u64 {
                // The kernel writes no such record; nothing behind it could be understood.
                tail = head;
                break;
            }
            match kind {
                RECORD_SAMPLE if size_bytes as usize >= HEADER_BYTES + SAMPLE_WORDS * 8 => {
                    take(Record(std::array::from_fn(|word| self.word(tail + (HEADER_BYTES + word * 8) as u64))));
                }
                RECORD_LOST => lost += self.word(tail + HEADER_BYTES as u64 + 8),
                _ => {}
            }
            tail += size_bytes;
        }
        tail_word.store(tail, Ordering::Release);
        lost
    }

    /// The word at a place that counts on and on; records begin at multiples of a word.
    fn word(&self, place: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(PAGE_SIZE_BYTES + place as usize % DATA_BYTES, &mut bytes);
        u64::from_ne_bytes(bytes)
    }
}
