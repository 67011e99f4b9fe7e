//! Each operation on memory of this process, with a thread that waits where a fault is wanted.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::mapping::PAGE_SIZE_BYTES;

/// Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);
const PAGE: u64 = PAGE_SIZE_BYTES as u64;
const BASIC: Features = Features(Features::WRITE_PROTECT.0 | Features::THREAD.0 | Features::MOVE.0);

/// Memory of `pages` pages that is registered, and its userfaultfd, which goes first: unmapping waits for its reader.
struct Paged {
    userfaultfd: Userfaultfd,
    memory: Arc<Mapping>,
}

impl Paged {
    fn new(pages: usize, features: Features) -> Self {
        let memory = Arc::new(Mapping::anonymous(pages * PAGE_SIZE_BYTES).unwrap());
        // SAFETY: only ranges of the `Mapping` are given to it.
        let userfaultfd = unsafe { Userfaultfd::create(Scope::Everything) }.expect("these tests need userfaultfd");
        userfaultfd.agree(features).unwrap();
        let paged = Self { userfaultfd, memory };
        let mode = RegisterMode::MISSING | RegisterMode::WRITE_PROTECT;
        paged.userfaultfd.register(paged.range(0, pages), mode).unwrap();
        paged
    }

    fn address(&self, page: usize) -> u64 {
        self.memory.address() as u64 + page as u64 * PAGE
    }

    fn range(&self, page: usize, pages: usize) -> Range<u64> {
        self.address(page)..self.address(page + pages)
    }

    /// Fills one page with `byte`.
    fn fill(&self, page: usize, byte: u8, write_protect: bool) -> Result<u64, PageError> {
        let source = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        source.write(0, &[byte; PAGE_SIZE_BYTES]);
        self.userfaultfd.copy(self.address(page), &source, 0, PAGE_SIZE_BYTES, write_protect, Wake::Waiters)
    }

    fn byte(&self, page: usize) -> u8 {
        let mut byte = [0];
        self.memory.read(page * PAGE_SIZE_BYTES, &mut byte);
        byte[0]
    }

    /// The next message.
    fn message(&self) -> Message {
        let deadline = Instant::now() + PATIENCE;
        let mut messages = Vec::new();
        while messages.is_empty() {
            assert!(Instant::now() < deadline, "no message came");
            self.userfaultfd.read_messages(|message| messages.push(message)).unwrap();
            thread::yield_now();
        }
        assert_eq!(messages.len(), 1, "{messages:?}");
        messages.remove(0)
    }

    fn fault(&self) -> Fault {
        match self.message() {
            Message::Fault(fault) => fault,
            other => panic!("a fault is expected, not {other:?}"),
        }
    }
}

#[test]
fn a_thread_that_reads_a_missing_page_gets_what_is_copied() {
    let paged = Paged::new(4, BASIC);
    assert_eq!(paged.userfaultfd.read_messages(|_| panic!("nothing happened yet")).unwrap(), 0);
    let memory = Arc::clone(&paged.memory);
    let reader = thread::spawn(move || {
        let mut byte = [0];
        memory.read(PAGE_SIZE_BYTES, &mut byte);
        (byte[0], rustix::thread::gettid().as_raw_nonzero().get())
    });
    let fault = paged.fault();
    assert_eq!((fault.address, fault.is_write, fault.is_write_protected), (paged.address(1), false, false));
    assert_eq!(paged.fill(1, 7, true).unwrap(), PAGE);
    let (byte, thread) = reader.join().unwrap();
    assert_eq!((byte, thread), (7, fault.thread.cast_signed()));
    assert!(matches!(paged.fill(1, 8, false), Err(PageError::Exists)));
}

#[test]
fn a_write_to_a_protected_page_waits_until_protection_goes() {
    let paged = Paged::new(1, BASIC);
    paged.fill(0, 7, true).unwrap();
    assert_eq!(paged.byte(0), 7, "reading is free");
    let memory = Arc::clone(&paged.memory);
    let writer = thread::spawn(move || memory.write(0, &[9]));
    let fault = paged.fault();
    assert!(fault.is_write && fault.is_write_protected);
    paged.userfaultfd.write_protect(paged.range(0, 1), false, Wake::NoThread).unwrap();
    paged.userfaultfd.wake(paged.range(0, 1)).unwrap();
    writer.join().unwrap();
    assert_eq!(paged.byte(0), 9);
    paged.userfaultfd.write_protect(paged.range(0, 1), true, Wake::Waiters).unwrap();
    assert_eq!(paged.byte(0), 9);
}

#[test]
fn a_copy_that_meets_a_page_says_how_far_it_came() {
    let paged = Paged::new(4, BASIC);
    paged.fill(2, 1, false).unwrap();
    let source = Mapping::anonymous(4 * PAGE_SIZE_BYTES).unwrap();
    let done =
        paged.userfaultfd.copy(paged.address(0), &source, 0, 4 * PAGE_SIZE_BYTES, false, Wake::NoThread).unwrap();
    assert_eq!(done, 2 * PAGE);
    let rest = paged.userfaultfd.copy(paged.address(2), &source, 0, 2 * PAGE_SIZE_BYTES, false, Wake::NoThread);
    assert!(matches!(rest, Err(PageError::Exists)));
}

#[test]
fn zeroes_probe_whether_one_registered_mapping_covers_a_page() {
    let paged = Paged::new(3, BASIC);
    assert_eq!(paged.userfaultfd.zero_page(paged.range(0, 1), Wake::Waiters).unwrap(), PAGE);
    assert!(matches!(paged.userfaultfd.zero_page(paged.range(0, 1), Wake::Waiters), Err(PageError::Exists)));
    paged.userfaultfd.unregister(paged.range(1, 1)).unwrap();
    assert!(matches!(paged.userfaultfd.zero_page(paged.range(1, 1), Wake::Waiters), Err(PageError::NotMapped)));
    // Rule 1: a mapping made later in a hole is not registered.
    paged.memory.map_anew(2 * PAGE_SIZE_BYTES, PAGE_SIZE_BYTES).unwrap();
    assert!(matches!(paged.userfaultfd.zero_page(paged.range(2, 1), Wake::Waiters), Err(PageError::NotMapped)));
    assert_eq!(paged.byte(0) | paged.byte(1) | paged.byte(2), 0);
}

#[test]
fn what_one_registered_mapping_covers_is_known_without_any_effect() {
    let paged = Paged::new(4, BASIC);
    let covers = |first, pages| paged.userfaultfd.covers(&paged.range(first, pages));
    paged.fill(1, 7, false).unwrap();
    assert!(covers(0, 4).unwrap(), "missing pages and one that is there");
    assert!(covers(1, 1).unwrap());
    paged.memory.map_anew(2 * PAGE_SIZE_BYTES, PAGE_SIZE_BYTES).unwrap();
    assert!(!covers(0, 4).unwrap() && !covers(2, 1).unwrap() && covers(0, 2).unwrap() && covers(3, 1).unwrap());
    paged.userfaultfd.unregister(paged.range(3, 1)).unwrap();
    assert!(!covers(3, 1).unwrap());
    assert_eq!(paged.byte(1), 7);
    // Nothing was filled: zeroes find no page.
    assert_eq!(paged.userfaultfd.zero_page(paged.range(0, 1), Wake::Waiters).unwrap(), PAGE);
}

#[test]
fn a_copy_across_two_mappings_fails_whole() {
    // Rule 8: nothing of the first mapping is filled either.
    let paged = Paged::new(2, BASIC);
    paged.memory.map_anew(PAGE_SIZE_BYTES, PAGE_SIZE_BYTES).unwrap();
    let source = Mapping::anonymous(2 * PAGE_SIZE_BYTES).unwrap();
    let across = paged.userfaultfd.copy(paged.address(0), &source, 0, 2 * PAGE_SIZE_BYTES, false, Wake::NoThread);
    assert!(matches!(across, Err(PageError::NotMapped)), "{across:?}");
    assert_eq!(paged.fill(0, 1, false).unwrap(), PAGE);
}

#[test]
fn moved_pages_leave_their_place_missing() {
    let paged = Paged::new(4, BASIC);
    for page in 0..2 {
        paged.fill(page, 10 + page as u8, page == 1).unwrap();
    }
    let moved = paged.userfaultfd.move_pages(paged.address(2), paged.address(0), 2 * PAGE, false, Wake::NoThread);
    assert_eq!(moved.unwrap(), 2 * PAGE);
    assert_eq!((paged.byte(2), paged.byte(3)), (10, 11));
    let again = paged.userfaultfd.move_pages(paged.address(2), paged.address(0), PAGE, false, Wake::NoThread);
    assert!(matches!(again, Err(PageError::Exists)), "{again:?}");
    paged.userfaultfd.unregister(paged.range(0, 4)).unwrap();
    assert_eq!(paged.byte(0), 0, "the source is missing");
}

#[test]
fn a_missing_page_cannot_be_moved() {
    let paged = Paged::new(2, BASIC);
    let moved = paged.userfaultfd.move_pages(paged.address(1), paged.address(0), PAGE, false, Wake::NoThread);
    assert!(matches!(moved, Err(PageError::NotMapped)), "{moved:?}");
    let passed = paged.userfaultfd.move_pages(paged.address(1), paged.address(0), PAGE, true, Wake::NoThread);
    assert_eq!(passed.unwrap(), PAGE, "a hole is passed over");
}

#[test]
fn pages_taken_away_are_announced_before_they_go() {
    let paged = Paged::new(2, BASIC | Features::REMOVE);
    paged.fill(1, 5, false).unwrap();
    let (memory, address) = (Arc::clone(&paged.memory), paged.address(1) as usize);
    let remover = thread::spawn(move || {
        // SAFETY: the range lies in the `Mapping`, whose bytes may change at any time.
        let removed =
            unsafe { rustix::mm::madvise(address as *mut _, PAGE_SIZE_BYTES, rustix::mm::Advice::LinuxDontNeed) };
        drop(memory);
        removed.unwrap();
    });
    let expected = paged.range(1, 1);
    assert!(matches!(paged.message(), Message::Remove(range) if range == expected));
    remover.join().unwrap();
    paged.userfaultfd.unregister(paged.range(0, 2)).unwrap();
    assert_eq!(paged.byte(1), 0);
}

#[test]
fn an_unmapped_range_is_announced() {
    let paged = Paged::new(2, BASIC | Features::UNMAP);
    let memory = Arc::clone(&paged.memory);
    let unmapper = thread::spawn(move || memory.map_anew(PAGE_SIZE_BYTES, PAGE_SIZE_BYTES).unwrap());
    let expected = paged.range(1, 1);
    assert!(matches!(paged.message(), Message::Unmap(range) if range == expected));
    unmapper.join().unwrap();
}

#[test]
fn only_a_userfaultfd_is_taken_from_others() {
    let null = std::fs::File::open("/dev/null").unwrap();
    let error = Userfaultfd::from_descriptor(null.into()).unwrap_err();
    assert!(error.to_string().contains("/dev/null"), "{error}");
    let paged = Paged::new(1, BASIC);
    let taken = Userfaultfd::from_descriptor(paged.userfaultfd.try_clone().unwrap().into_descriptor()).unwrap();
    assert_eq!(taken.zero_page(paged.range(0, 1), Wake::NoThread).unwrap(), PAGE);
}

#[test]
fn a_range_that_is_no_page_is_refused() {
    let paged = Paged::new(1, BASIC);
    let odd = paged.address(0) + 1..paged.address(1);
    assert!(matches!(paged.userfaultfd.zero_page(odd, Wake::NoThread), Err(PageError::Refused)));
}

#[test]
fn a_poisoned_page_cannot_be_read_and_no_donor_is_asked_for_it() {
    let paged = Paged::new(2, BASIC);
    assert_eq!(paged.userfaultfd.poison(paged.range(0, 1), Wake::Waiters).unwrap(), PAGE);
    assert_eq!(paged.fill(1, 1, false).unwrap(), PAGE);
    // The kernel reads for us, and says what a touch would have been killed by.
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let read = |page| memory.read_at(&mut [0; 8], paged.address(page));
    assert!(read(0).is_err());
    assert_eq!(read(1).unwrap(), 8);
}

#[test]
fn a_thread_in_the_middle_of_a_move_shows_where_to() {
    let paged = Paged::new(2, Features(BASIC.0 | Features::REMAP.0));
    paged.fill(0, 7, false).unwrap();
    let place = Mapping::anonymous(2 * PAGE_SIZE_BYTES).unwrap();
    let (from, to, length) = (paged.address(0), place.address() as u64, 2 * PAGE);
    let mover = thread::spawn(move || {
        // The old place stays mapped, so that it is no other thread's when its owner unmaps it.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both ranges are mappings of this test that no thread uses meanwhile.
        let moved = unsafe {
            let (from, to) = (from as *mut libc::c_void, to as *mut libc::c_void);
            libc::mremap(from, 2 * PAGE_SIZE_BYTES, 2 * PAGE_SIZE_BYTES, flags, to)
        };
        assert_eq!(moved as u64, to);
    });
    let deadline = Instant::now() + PATIENCE;
    let expected = [crate::moves_under_way::Move { from, to, length }];
    while crate::moves_under_way::moves_under_way(std::process::id()) != expected {
        assert!(Instant::now() < deadline, "it is not seen");
        thread::yield_now();
    }
    assert!(matches!(paged.message(), Message::Remap { from: a, to: b, length: c } if (a, b, c) == (from, to, length)));
    mover.join().unwrap();
    let mut byte = [0];
    place.read(0, &mut byte);
    assert_eq!(byte, [7]);
}
