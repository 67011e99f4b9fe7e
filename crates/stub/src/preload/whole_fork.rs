//! `fork`, so that no signal interrupts one that waits for the pager.
//!
//! A signal that comes before the pager has heard of a fork ends the call, although the filter asks for waits that only a killing
//! signal ends: that holds once the pager has heard (`seccomp_do_user_notification` in kernel/seccomp.c waits interruptibly before, and
//! the call ends with `-ERESTARTSYS`). It is made again without a handler or with one that has `SA_RESTART`; with any other handler it
//! fails with `EINTR`, which no program expects of a fork. So all signals wait until the fork is over, as they do anyway while the
//! kernel copies. Programs that fork by a bare system call go without this.
//!
//! The real `fork` is glibc's, under its other name `__fork`, which is exported as well, or whatever the dynamic linker finds behind
//! this library (musl). `dlsym` comes second because a fork may happen in a signal handler, while its lock is held.

use core::arch::asm;
use core::ffi::{CStr, c_void};

use crate::calls;

/// `RTLD_NEXT`: behind the library that asks.
const BEHIND_THIS: *mut c_void = usize::MAX as *mut c_void;

/// SIGILL, SIGTRAP, SIGBUS, SIGFPE and SIGSEGV: whoever has one of them pending and blocked is killed, and handlers of `pthread_atfork`
/// run meanwhile.
const OF_FAULTS: u64 = 1 << (4 - 1) | 1 << (5 - 1) | 1 << (7 - 1) | 1 << (8 - 1) | 1 << (11 - 1);

type Fork = unsafe extern "C" fn() -> i32;
type Find = unsafe extern "C" fn(*mut c_void, *const core::ffi::c_char) -> *mut c_void;

/// In place of libc's `fork`.
///
/// # Safety
///
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> i32 {
    let Some(real) = real() else { crate::start::refuse(b"its libc has no fork", 0) };
    let before = calls::block_signals(!OF_FAULTS);
    // SAFETY: the caller's promise.
    let result = unsafe { real() };
    // In the child too, which has the same mask.
    calls::block_signals(before);
    result
}

fn real() -> Option<Fork> {
    let (of_glibc, find): (usize, usize);
    // SAFETY: reads two words of this library, which the dynamic linker set to the functions' addresses, or left zero.
    unsafe {
        asm!(
            ".weak __fork",
            ".weak dlsym",
            "mov {fork}, [rip + __fork@GOTPCREL]",
            "mov {find}, [rip + dlsym@GOTPCREL]",
            fork = out(reg) of_glibc,
            find = out(reg) find,
            options(nostack, preserves_flags, readonly),
        );
    }
    if of_glibc != 0 {
        // SAFETY: it is libc's function of that name.
        return Some(unsafe { core::mem::transmute::<usize, Fork>(of_glibc) });
    }
    if find == 0 {
        return None;
    }
    const NAME: &CStr = c"fork";
    // SAFETY: it is libc's function of that name, which takes a string, and finds a function without arguments or nothing.
    unsafe {
        let find = core::mem::transmute::<usize, Find>(find);
        core::mem::transmute::<*mut c_void, Option<Fork>>(find(BEHIND_THIS, NAME.as_ptr()))
    }
}
