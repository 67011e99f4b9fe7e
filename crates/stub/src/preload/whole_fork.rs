//! Forks that no signal interrupts while they wait for the pager.
//!
//! A signal that comes before the pager has heard of a fork ends the call, although the filter asks for waits that
//! only a killing signal ends: that holds once the pager has heard (`seccomp_do_user_notification` in
//! kernel/seccomp.c waits interruptibly before, and the call ends with `-ERESTARTSYS`). It is made again without a
//! handler or with one that has `SA_RESTART`; with any other handler it fails with `EINTR`, which no program expects
//! of a fork. So all signals wait until the call is over, as they do anyway while the kernel copies.
//!
//! glibc tells of its forks (`fork`, and those in `daemon` and `forkpty`): what
//! [`__register_atfork`](pthread_atfork(3)) names first runs last before the call and first behind it, in both
//! processes. So the program's own handlers of that kind run with the mask that it has; only those of libraries that
//! name theirs before this one does, which is loaded last, see signals blocked. musl has signals blocked around the
//! call by itself. `_Fork`, which does not tell, is taken the place of. Programs that fork by a bare system call go
//! without this.
//!
//! Where the mask was is written down by thread, in variables, since the handlers have no arguments. A child is its
//! parent's copy with the same thread pointer, by which it finds its own.

use core::arch::asm;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use crate::calls;

/// `RTLD_NEXT`: behind the library that asks.
const BEHIND_THIS: *mut c_void = usize::MAX as *mut c_void;

/// SIGILL, SIGTRAP, SIGBUS, SIGFPE and SIGSEGV: the thread that has one of them pending and blocked is killed.
const OF_FAULTS: u64 = 1 << (4 - 1) | 1 << (5 - 1) | 1 << (7 - 1) | 1 << (8 - 1) | 1 << (11 - 1);

/// Threads of one process that fork at the same time; those beyond may be interrupted.
const FORKS_MAX: usize = 64;

/// A thread that is about to fork.
struct Forking {
    /// Its thread pointer; 0 for no thread.
    thread: AtomicUsize,
    /// Signals that it blocked before.
    blocked: AtomicU64,
}

static FORKING: [Forking; FORKS_MAX] =
    [const { Forking { thread: AtomicUsize::new(0), blocked: AtomicU64::new(0) } }; FORKS_MAX];

/// The next `_Fork`, as an address; 0 where there is none.
static NEXT_FORK: AtomicUsize = AtomicUsize::new(0);

type Handler = extern "C" fn();
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> i32;
type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Fork = unsafe extern "C" fn() -> i32;

/// The address of a function that a program may be without; 0 there.
macro_rules! weak_function {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: reads a word of this library, which the dynamic linker set to the function's address, or left zero.
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("mov {address}, [rip + ", $name, "@GOTPCREL]"),
                address = out(reg) address,
                options(nostack, preserves_flags, readonly),
            );
        }
        address
    }};
}

/// Sees to all forks from now on.
pub(crate) fn begin() {
    find_next();
    let register = weak_function!("__register_atfork");
    if register != 0 {
        // SAFETY: it is glibc's function of that name; handlers of no particular library are never taken back.
        let _ = unsafe {
            core::mem::transmute::<usize, Register>(register)(
                before,
                after_in_parent,
                after_in_child,
                core::ptr::null_mut(),
            )
        };
    }
}

/// Finds the `_Fork` behind this library's.
fn find_next() {
    let find = weak_function!("dlsym");
    if find != 0 {
        const NAME: &CStr = c"_Fork";
        // SAFETY: it is libc's function of that name, which takes a string.
        let next = unsafe { core::mem::transmute::<usize, Find>(find)(BEHIND_THIS, NAME.as_ptr()) };
        NEXT_FORK.store(next as usize, Release);
    }
}

/// In place of libc's `_Fork`.
///
/// # Safety
///
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> i32 {
    // A program that is not paged has the library too, and constructors before ours may fork.
    if NEXT_FORK.load(Acquire) == 0 {
        find_next();
    }
    let next = NEXT_FORK.load(Acquire);
    if next == 0 {
        crate::start::refuse(b"its libc has no _Fork", 0)
    }
    let blocked = calls::block_signals(!OF_FAULTS);
    // SAFETY: it is libc's function of that name; the rest is the caller's promise.
    let result = unsafe { core::mem::transmute::<usize, Fork>(next)() };
    // In the child too, which has the same mask.
    calls::block_signals(blocked);
    result
}

extern "C" fn before() {
    let own = thread_pointer();
    // First of all, as a handler of a signal may fork too.
    let blocked = calls::block_signals(!OF_FAULTS);
    match FORKING.iter().find(|one| one.thread.compare_exchange(0, own, AcqRel, Relaxed).is_ok()) {
        Some(free) => free.blocked.store(blocked, Relaxed),
        None => {
            calls::block_signals(blocked);
        }
    }
}

extern "C" fn after_in_parent() {
    let own = thread_pointer();
    if let Some(found) = FORKING.iter().find(|one| one.thread.load(Acquire) == own) {
        let blocked = found.blocked.load(Relaxed);
        found.thread.store(0, Release);
        calls::block_signals(blocked);
    }
}

extern "C" fn after_in_child() {
    // Other threads that were about to fork are the parent's.
    let own = thread_pointer();
    let others = FORKING.iter().filter(|one| one.thread.load(Relaxed) != own);
    others.for_each(|one| one.thread.store(0, Relaxed));
    after_in_parent();
}

/// What tells this thread from all others of its process: where libc has its control block.
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the first word of a control block is its own address (ELF Handling For Thread-Local Storage, x86-64).
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly)) };
    pointer
}
