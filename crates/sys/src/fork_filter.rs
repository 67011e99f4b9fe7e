//! A process, and all that come of it, may not copy its memory: `fork` fails with `EPERM` (seccomp(2)).
//!
//! Where the kernel does not say when a program forks (userfaultfd tells it to `CAP_SYS_PTRACE` only), a copy of memory whose
//! pages are elsewhere would read zeroes. Children that share memory until they exec are no copies: threads, `vfork` and what
//! `posix_spawn` does stay as they are. `clone3` is refused as unknown, because its flags cannot be seen; every libc then uses `clone`.

use std::io;

/// Of `linux/audit.h`: system calls of 64-bit programs, and of 32-bit ones on the same machine.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
const ARCHITECTURE_32: u32 = 0x4000_0003;

/// Numbers of system calls of 32-bit programs (`asm/unistd_32.h`).
const FORK_32: u32 = 2;
const CLONE_32: u32 = 120;
const CLONE3_32: u32 = 435;

/// System calls of the x32 interface have this bit besides.
const X32_BIT: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data`; the lower half of the first argument, which has all flags that matter.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENT_OFFSET: u32 = 16;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn step(code: u16, value: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k: value }
}

/// Jumps over `yes` steps if the condition holds, and over `no` otherwise.
const fn jump(code: u16, value: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: yes, jf: no, k: value }
}

/// The filter's program; the targets of jumps are its last three steps.
#[cfg(target_arch = "x86_64")]
const PROGRAM: [libc::sock_filter; 17] = [
    step(LOAD, ARCHITECTURE_OFFSET),
    jump(IF_EQUAL, ARCHITECTURE, 5, 0),
    jump(IF_EQUAL, ARCHITECTURE_32, 0, 11),
    step(LOAD, NUMBER_OFFSET),
    jump(IF_EQUAL, FORK_32, 10, 0),
    jump(IF_EQUAL, CLONE_32, 6, 0),
    jump(IF_EQUAL, CLONE3_32, 9, 7),
    // Of 64-bit programs.
    step(LOAD, NUMBER_OFFSET),
    step(AND, !X32_BIT),
    jump(IF_EQUAL, libc::SYS_fork as u32, 5, 0),
    jump(IF_EQUAL, libc::SYS_clone3 as u32, 5, 0),
    jump(IF_EQUAL, libc::SYS_clone as u32, 0, 2),
    // A clone: with shared memory, or a copy.
    step(LOAD, ARGUMENT_OFFSET),
    jump(IF_SET, libc::CLONE_VM as u32, 0, 1),
    step(RETURN, libc::SECCOMP_RET_ALLOW),
    step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
];

/// From here on this thread, and every process and thread that comes of it, cannot copy its memory, nor gain rights by
/// executing a program (the kernel's condition for a filter without root).
#[cfg(target_arch = "x86_64")]
pub fn forbid_forks() -> io::Result<()> {
    // SAFETY: sets a flag of this thread; no pointer is passed.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let program = libc::sock_fprog { len: PROGRAM.len() as u16, filter: PROGRAM.as_ptr().cast_mut() };
    // SAFETY: the program is read by the kernel during the call, and never written.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Nothing can be paged on other machines, so that nothing needs to be forbidden.
#[cfg(not(target_arch = "x86_64"))]
pub fn forbid_forks() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// `fork` and its relatives by their numbers, without a libc's help; gives the error number, or 0.
    fn call(number: libc::c_long, flags: usize) -> i32 {
        // SAFETY: a child that comes of it ends at once, and has not touched anything.
        let result = unsafe { libc::syscall(number, flags, 0, 0, 0, 0) };
        match result {
            // SAFETY: ends the child.
            0 => unsafe { libc::_exit(0) },
            -1 => io::Error::last_os_error().raw_os_error().expect("a failed call has an error number"),
            child => {
                let mut status = 0;
                // SAFETY: waits for the child made above.
                unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
                0
            }
        }
    }

    #[test]
    fn copies_are_refused_and_everything_else_works() {
        assert_eq!(call(libc::SYS_fork, 0), 0, "without a filter a fork works");
        // The filter is this thread's and its children's.
        let thread = std::thread::spawn(|| {
            forbid_forks().unwrap();
            let refused =
                [call(libc::SYS_fork, 0), call(libc::SYS_clone, libc::SIGCHLD as usize), call(libc::SYS_clone3, 0)];
            let inner = std::thread::spawn(|| call(libc::SYS_fork, 0)).join().unwrap();
            let spawned = std::process::Command::new("true").status().unwrap().success();
            (refused, inner, spawned)
        });
        let (refused, inner, spawned) = thread.join().unwrap();
        assert_eq!(refused, [libc::EPERM, libc::EPERM, libc::ENOSYS]);
        assert_eq!((inner, spawned), (libc::EPERM, true));
        assert_eq!(call(libc::SYS_fork, 0), 0, "other threads are as they were");
    }

    #[test]
    fn every_jump_stays_inside() {
        for (index, step) in PROGRAM.iter().enumerate().filter(|(_, step)| step.jt > 0 || step.jf > 0) {
            let longest = usize::from(step.jt.max(step.jf));
            assert!(index + 1 + longest < PROGRAM.len(), "step {index}");
        }
    }
}
