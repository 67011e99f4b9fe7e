//! Memory made of 64-bit words that threads, and processes one after the other, read and change one word at a time.
//!
//! A process that is killed between two instructions leaves the words as its last finished store left them, because
//! the pages belong to a memfd that another process holds too. So a program that orders its stores well finds a
//! consistent state again; no flush is needed for memory that outlives its writer.
//!
//! Invariants: the range stays mapped, readable and writable, and belongs to this value alone within the process, so
//! every access to it is atomic.

use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use crate::mapping::{Mapping, PAGE_SIZE_BYTES};
use crate::memfd::Memfd;

/// Bytes of a word.
pub const WORD_SIZE_BYTES: usize = size_of::<u64>();

/// A mapped range of words, see the module text.
#[derive(Debug)]
pub struct AtomicWords {
    mapping: Mapping,
    count: usize,
}

impl AtomicWords {
    /// `count` zeroes in private memory, whose pages are all present.
    pub fn anonymous(count: usize) -> io::Result<Self> {
        let mapping = Mapping::anonymous(mapped_bytes(count))?;
        mapping.zero(0, mapping.length());
        Ok(Self { mapping, count })
    }

    /// The first `count` words of `file`, present and locked in memory.
    pub fn shared(file: &Memfd, count: usize) -> io::Result<Self> {
        let mapping = Mapping::shared(file, mapped_bytes(count))?;
        mapping.lock()?;
        Ok(Self { mapping, count })
    }

    /// The same, whose pages come when they are touched.
    pub fn shared_as_used(file: &Memfd, count: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::shared(file, mapped_bytes(count))?, count })
    }
}

/// Bytes of the whole pages that hold `count` words; never none.
fn mapped_bytes(count: usize) -> usize {
    (count * WORD_SIZE_BYTES).next_multiple_of(PAGE_SIZE_BYTES).max(PAGE_SIZE_BYTES)
}

impl Deref for AtomicWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let first = self.mapping.address() as *const AtomicU64;
        // SAFETY: the range is mapped for as long as `self` lives, is page aligned, holds `count` words
        // (`mapped_bytes`), and is accessed through these atomics only: `mapping` is private to this value, and other
        // processes use the same type.
        unsafe { std::slice::from_raw_parts(first, self.count) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_outlive_the_value_that_wrote_them() {
        let file = Memfd::create("words", 2 * PAGE_SIZE_BYTES as u64).unwrap();
        let words = AtomicWords::shared(&file, 600).unwrap();
        assert_eq!(words.len(), 600);
        words[599].store(7, Ordering::SeqCst);
        drop(words);
        let words = AtomicWords::shared(&file, 600).unwrap();
        assert_eq!(words[599].fetch_or(8, Ordering::SeqCst), 7);
        assert_eq!(words[599].load(Ordering::SeqCst), 15);
    }

    #[test]
    fn private_words_start_as_zeroes_and_too_many_are_refused() {
        let words = AtomicWords::anonymous(3).unwrap();
        assert!(words.iter().all(|word| word.load(Ordering::SeqCst) == 0));
        assert!(AtomicWords::anonymous(0).unwrap().is_empty());
        let file = Memfd::create("words", PAGE_SIZE_BYTES as u64).unwrap();
        assert!(AtomicWords::shared(&file, 513).is_err());
    }
}
