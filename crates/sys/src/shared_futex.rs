//! Words in memory that is shared between processes, and waiting for one to change (futex(2), not private).
//!
//! A [`Mapping`] never gives out references to its bytes. Single aligned words are the exception here: they are
//! reached as atomics, which stay valid whatever others do to them.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

use crate::mapping::Mapping;

/// The word of 32 bits at `offset` of `memory`.
///
/// # Panics
///
/// If it lies outside or is not aligned.
pub fn word(memory: &Mapping, offset: usize) -> &AtomicU32 {
    let address = place(memory, offset, size_of::<AtomicU32>());
    // SAFETY: `place` checked alignment and bounds of memory that stays mapped as long as `memory` is borrowed; users
    // of the word, in whatever process, access it as an atomic.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

/// The word of 32 bits with a sign at `offset` of `memory`; panics as [`word`].
pub fn signed_word(memory: &Mapping, offset: usize) -> &AtomicI32 {
    let address = place(memory, offset, size_of::<AtomicI32>());
    // SAFETY: as for `word`.
    unsafe { AtomicI32::from_ptr(address as *mut i32) }
}

/// The word of 64 bits at `offset` of `memory`; panics as [`word`].
pub fn long_word(memory: &Mapping, offset: usize) -> &AtomicU64 {
    let address = place(memory, offset, size_of::<AtomicU64>());
    // SAFETY: as for `word`.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

fn place(memory: &Mapping, offset: usize, size_bytes: usize) -> usize {
    assert!(
        offset.checked_add(size_bytes).is_some_and(|end| end <= memory.length()) && offset.is_multiple_of(size_bytes),
        "no aligned word of {size_bytes} bytes at {offset} of a mapping of {} bytes",
        memory.length()
    );
    memory.address() + offset
}

/// Sleeps until `word` may no longer be `seen`, or until `deadline`; also returns for no reason. Whether there is
/// time left.
pub fn wait(word: &AtomicU32, seen: u32, deadline: Option<Instant>) -> io::Result<bool> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if left == Some(Duration::ZERO) {
        return Ok(false);
    }
    let timeout =
        left.map(|left| futex::Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
    match futex::wait(word, Flags::empty(), seen, timeout.as_ref()) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(true),
        Err(Errno::TIMEDOUT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Wakes every thread that sleeps on `word`, in all processes.
pub fn wake(word: &AtomicU32) {
    // It fails only for addresses that are not mapped, which a reference rules out.
    let _ = futex::wake(word, Flags::empty(), i32::MAX.cast_unsigned());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::mapping::PAGE_SIZE_BYTES;
    use crate::memfd::Memfd;

    #[test]
    fn a_waiter_on_one_mapping_is_woken_through_another() {
        let file = Memfd::create("futex", PAGE_SIZE_BYTES as u64).unwrap();
        let one = Mapping::shared(&file, PAGE_SIZE_BYTES).unwrap();
        let other = Mapping::shared(&file, PAGE_SIZE_BYTES).unwrap();
        let waiter = std::thread::spawn(move || {
            let word = word(&other, 64);
            let deadline = Instant::now() + Duration::from_secs(60);
            while word.load(Ordering::SeqCst) == 0 {
                assert!(wait(word, 0, Some(deadline)).unwrap(), "nobody woke the waiter");
            }
        });
        word(&one, 64).store(1, Ordering::SeqCst);
        wake(word(&one, 64));
        waiter.join().unwrap();
    }

    #[test]
    fn a_deadline_ends_a_wait_and_another_value_does_not_start_one() {
        let memory = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        let word = word(&memory, 0);
        assert!(!wait(word, 0, Some(Instant::now() + Duration::from_millis(1))).unwrap());
        assert!(!wait(word, 0, Some(Instant::now())).unwrap());
        assert!(wait(word, 1, None).unwrap(), "the word is another already");
    }

    #[test]
    fn words_of_each_kind_see_the_same_bytes() {
        let memory = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        long_word(&memory, 8).store(u64::MAX << 32, Ordering::SeqCst);
        assert_eq!(word(&memory, 8).load(Ordering::SeqCst), 0);
        assert_eq!(signed_word(&memory, 12).load(Ordering::SeqCst), -1);
    }

    #[test]
    #[should_panic(expected = "no aligned word")]
    fn a_word_across_the_end_is_refused() {
        word(&Mapping::anonymous(PAGE_SIZE_BYTES).unwrap(), PAGE_SIZE_BYTES);
    }
}
