//! Proof that I/O threads do not allocate: an allocator for test binaries that aborts inside a guarded section.
//!
//! A thread that serves page-outs must never wait for memory, because the memory it would wait for is freed only by
//! the page-out itself (ARCHITECTURE.md, "A page-in through the swap device"). Test binaries install
//! [`GuardedAllocator`] and wrap what I/O threads do in [`forbid_allocation`]; one allocation there ends the test
//! with a message and a backtrace.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static FORBIDDEN: Cell<u32> = const { Cell::new(0) };
}

/// The system allocator, with an abort inside [`forbid_allocation`].
#[derive(Debug, Default)]
pub struct GuardedAllocator;

/// Runs `section`; where [`GuardedAllocator`] is installed, an allocation or a free inside ends the process.
pub fn forbid_allocation<T>(section: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            FORBIDDEN.with(|depth| depth.set(depth.get() - 1));
        }
    }
    FORBIDDEN.with(|depth| depth.set(depth.get() + 1));
    let _leave = Leave;
    section()
}

fn check(what: &str) {
    let forbidden = FORBIDDEN.try_with(|depth| depth.replace(0)).unwrap_or(0);
    if forbidden > 0 && !std::thread::panicking() {
        // The depth is zero now, so printing may allocate.
        eprintln!("{what} on an I/O path:\n{}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }
}

// SAFETY: every call is passed on unchanged to the system allocator, which upholds the contract; the check does not
// touch the memory.
unsafe impl GlobalAlloc for GuardedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check("allocation");
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        check("free");
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        check("reallocation");
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
