//! Forks that wait until the pager allows them.
//!
//! A child's memory is not registered with any userfaultfd unless the pager gets a message about the fork, which the
//! kernel refuses to users without `CAP_SYS_PTRACE`; pages that were evicted would read as zeroes in the child. So
//! the pager is asked before the fork, and brings all pages back first. A filter of system calls asks (seccomp(2),
//! user notification): for `fork`, and for `clone` of a process with memory of its own. The arguments of `clone3`
//! cannot be seen by a filter; it is said to be missing, and every libc then uses `clone`.
//!
//! Children and the programs that they execute inherit the filter, and the descriptor that asks stays the same. But
//! the kernel allows one such filter only, and it might be that of a sandbox; so a program that finds one there makes
//! sure that its own pager is asked.

use crate::calls::{self, BUSY, Descriptor, INTERRUPTED};
use crate::protocol::{PROBE_FLAGS, PROBE_STACK, probe_answer};

/// `struct sock_filter`.
#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

const fn step(code: u16, operand: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, operand }
}

/// Load a word of `struct seccomp_data`; jump if equal, if not less, if any bit is set; return (`linux/bpf_common.h`).
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_NOT_LESS: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Where `struct seccomp_data` has the call's number, the machine, and the low half of the first argument.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const FLAGS: u32 = 16;

/// `AUDIT_ARCH_X86_64`. Programs of 32 bits inherit the filter and are never paged.
const X86_64: u32 = 0xc000_003e;
/// `__X32_SYSCALL_BIT`: calls of programs that no distribution has.
const X32: u32 = 0x4000_0000;
const CLONE: u32 = 56;
const FORK: u32 = 57;
const CLONE3: u32 = 435;
/// `CLONE_VM`.
const SAME_MEMORY: u32 = 0x100;

/// `SECCOMP_RET_ALLOW`, `SECCOMP_RET_USER_NOTIF`, and `SECCOMP_RET_ERRNO` with `ENOSYS`.
const ALLOW: u32 = 0x7fff_0000;
const ASK: u32 = 0x7fc0_0000;
const MISSING: u32 = 0x0005_0000 | 38;

/// `SECCOMP_FILTER_FLAG_` `TSYNC | SPEC_ALLOW | NEW_LISTENER | TSYNC_ESRCH | WAIT_KILLABLE_RECV`: also for threads
/// that other libraries started, no cost for speculation, ask by a descriptor, and let no signal start a fork anew
/// that the pager prepares for (Linux 5.19).
const FILTER_FLAGS: usize = 1 | 4 | 8 | 0x10 | 0x20;

/// Makes forks of this program wait for the holder of the descriptor; `None` when they do so already, for the
/// pager of a program before this one.
pub(crate) fn ask_before() -> Result<Option<Descriptor>, i32> {
    let instructions = [
        step(LOAD, MACHINE, 0, 0),
        step(IF_EQUAL, X86_64, 0, 7),
        step(LOAD, NUMBER, 0, 0),
        step(IF_NOT_LESS, X32, 7, 0),
        step(IF_EQUAL, CLONE3, 6, 0),
        step(IF_EQUAL, FORK, 4, 0),
        step(IF_EQUAL, CLONE, 0, 2),
        step(LOAD, FLAGS, 0, 0),
        step(IF_ANY_BIT, SAME_MEMORY, 0, 1),
        step(RETURN, ALLOW, 0, 0),
        step(RETURN, ASK, 0, 0),
        step(RETURN, MISSING, 0, 0),
    ];
    let program = Program { length: instructions.len() as u16, instructions: instructions.as_ptr() };
    // SAFETY: the program and its instructions live through the call.
    match unsafe { calls::filter_calls(&raw const program as usize, FILTER_FLAGS) } {
        Ok(listener) => Ok(Some(listener)),
        Err(BUSY) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the pager at `address` is asked about forks: by one that only the pager answers, and that no
/// thread makes. To be called when he knows that this program asks him.
pub(crate) fn is_asked(address: &[u8]) -> bool {
    let arguments = [PROBE_FLAGS as usize, PROBE_STACK as usize, 0, 0, 0, 0];
    loop {
        // SAFETY: the kernel refuses such flags before it looks at the stack.
        match unsafe { calls::call(CLONE as usize, arguments) } {
            Err(INTERRUPTED) => {}
            result => return result == Ok(probe_answer(address) as usize),
        }
    }
}
