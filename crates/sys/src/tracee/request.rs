//! Requests of ptrace(2), one function each. All must come from the thread that seized.

use std::io;

use super::Call;
use crate::process_memory;

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// `PTRACE_GETSIGMASK` and `PTRACE_SETSIGMASK`.
const GET_SIGNAL_MASK: libc::c_uint = 0x420a;
const SET_SIGNAL_MASK: libc::c_uint = 0x420b;
/// `NT_PRSTATUS` and `NT_X86_XSTATE`.
const GENERAL: usize = 1;
const EXTENDED: usize = 0x202;
/// More than any processor's extended state (AMX: 11 KiB).
const EXTENDED_BYTES_MAX: usize = 64 << 10;
/// Bytes of the kernel's signal mask.
const SIGNAL_MASK_BYTES: usize = 8;

/// A thread's general registers.
#[derive(Clone, Copy)]
pub(super) struct Registers(libc::user_regs_struct);

/// The code segment of user code of 64 bits.
const CODE_SEGMENT_64_BIT: u64 = 0x33;
/// `ERESTARTNOHAND`, as a result; the kernel's `include/linux/errno.h`.
const AGAIN_WITHOUT_HANDLER: i64 = -514;
/// The flags that every call starts with: interrupts on, direction up, no single steps.
const CLEAN_FLAGS: u64 = 0x202;

impl Registers {
    /// The system call that the thread is in, or comes from.
    pub(super) fn system_call(&self) -> Option<i64> {
        (self.0.orig_rax != u64::MAX).then_some(self.0.orig_rax.cast_signed())
    }

    /// The result of a system call.
    pub(super) fn result(&self) -> i64 {
        self.0.rax.cast_signed()
    }

    /// As they are, but that the system call is made again, unless a handler runs first: then it fails with `EINTR`.
    /// The kernel sees to that when the thread goes on.
    pub(super) fn with_call_again(&self) -> Self {
        let mut registers = self.0;
        registers.rax = AGAIN_WITHOUT_HANDLER.cast_unsigned();
        Self(registers)
    }

    pub(super) fn is_64_bit(&self) -> bool {
        self.0.cs == CODE_SEGMENT_64_BIT
    }

    pub(super) fn instruction(&self) -> u64 {
        self.0.rip
    }

    /// As they are at a function's first instruction.
    pub(super) fn for_call(&self, call: &Call) -> Self {
        let mut registers = self.0;
        registers.rip = call.function;
        registers.rdi = call.argument;
        // The place of a return address, so that the stack is aligned as functions expect.
        registers.rsp = call.stack_end - 8;
        registers.rbp = 0;
        registers.eflags = CLEAN_FLAGS;
        registers.orig_rax = u64::MAX;
        Self(registers)
    }
}

/// # Safety
///
/// `data` is what `request` reads or writes, see ptrace(2).
unsafe fn request(number: libc::c_uint, thread: u32, address: usize, data: usize) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::ptrace(number, thread.cast_signed(), address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result.unsigned_abs() as usize) }
}

pub(super) fn seize(thread: u32) -> io::Result<()> {
    // SAFETY: no data.
    unsafe { request(libc::PTRACE_SEIZE, thread, 0, 0) }.map(drop)
}

pub(super) fn interrupt(thread: u32) -> io::Result<()> {
    // SAFETY: no data.
    unsafe { request(libc::PTRACE_INTERRUPT, thread, 0, 0) }.map(drop)
}

pub(super) fn go_on(thread: u32, signal: i32) -> io::Result<()> {
    // SAFETY: the data is a number.
    unsafe { request(libc::PTRACE_CONT, thread, 0, signal as usize) }.map(drop)
}

/// Lets a stopped thread go, with `signal` if it was stopped by one (0: none).
pub(super) fn detach(thread: u32, signal: i32) -> io::Result<()> {
    // SAFETY: the data is a number.
    unsafe { request(libc::PTRACE_DETACH, thread, 0, signal as usize) }.map(drop)
}

/// The signal and the code that tell why a thread is stopped; `ESRCH` when it is not.
pub(super) fn signal_information(thread: u32) -> io::Result<(i32, i32)> {
    // SAFETY: all zeroes are a valid `siginfo_t`.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure.
    unsafe { request(libc::PTRACE_GETSIGINFO, thread, 0, &raw mut information as usize) }?;
    Ok((information.si_signo, information.si_code))
}

pub(super) fn registers(thread: u32) -> io::Result<Registers> {
    // SAFETY: all zeroes are valid registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let bytes = (&raw mut registers).cast::<u8>();
    // SAFETY: the bytes are those of `registers`, all of which may have any value.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, size_of::<libc::user_regs_struct>()) };
    get_set(thread, GENERAL, bytes)?;
    Ok(Registers(registers))
}

pub(super) fn set_registers(thread: u32, registers: &Registers) -> io::Result<()> {
    let bytes = (&raw const registers.0).cast::<u8>();
    // SAFETY: the bytes are those of `registers`, which has no padding.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, size_of::<libc::user_regs_struct>()) };
    put_set(thread, GENERAL, bytes)
}

pub(super) fn floating_point(thread: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; EXTENDED_BYTES_MAX];
    let length = get_set(thread, EXTENDED, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

pub(super) fn set_floating_point(thread: u32, bytes: &[u8]) -> io::Result<()> {
    put_set(thread, EXTENDED, bytes)
}

fn get_set(thread: u32, set: usize, target: &mut [u8]) -> io::Result<usize> {
    let mut piece = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes of `target`, and how many into `piece`.
    unsafe { request(libc::PTRACE_GETREGSET, thread, set, &raw mut piece as usize) }?;
    Ok(piece.iov_len)
}

fn put_set(thread: u32, set: usize, source: &[u8]) -> io::Result<()> {
    let mut piece = libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: source.len() };
    // SAFETY: the kernel reads `iov_len` bytes of `source`.
    unsafe { request(libc::PTRACE_SETREGSET, thread, set, &raw mut piece as usize) }.map(drop)
}

pub(super) fn signal_mask(thread: u32) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes a mask of the size given.
    unsafe { request(GET_SIGNAL_MASK, thread, SIGNAL_MASK_BYTES, &raw mut mask as usize) }?;
    Ok(mask)
}

pub(super) fn set_signal_mask(thread: u32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads a mask of the size given.
    unsafe { request(SET_SIGNAL_MASK, thread, SIGNAL_MASK_BYTES, &raw const mask as usize) }.map(drop)
}

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Default)]
struct RseqConfiguration {
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// Tries of a read that fails where the machine is too busy for it: some 5 ms each, in which the thread is stopped.
const READ_TRIES_MAX: u32 = 4;

fn read_stopped(process: u32, address: u64, target: &mut [u8]) -> io::Result<()> {
    for _ in 1..READ_TRIES_MAX {
        match process_memory::read_exact(process, address, target) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
    process_memory::read_exact(process, address, target)
}

/// Whether a thread that is at `instruction` is inside a restartable sequence (rseq(2)): it must be restarted and not
/// be continued later, which the kernel could not see to if its registers were changed meanwhile.
pub(super) fn is_in_restartable_sequence(process: u32, thread: u32, instruction: u64) -> io::Result<bool> {
    let mut configuration = RseqConfiguration::default();
    let size = size_of::<RseqConfiguration>();
    // SAFETY: the kernel writes at most `size` bytes.
    let result = unsafe { request(GET_RSEQ_CONFIGURATION, thread, size, &raw mut configuration as usize) };
    // A kernel built without them has none.
    if result.is_err() || configuration.address == 0 {
        return Ok(false);
    }
    // `struct rseq`: two numbers, then the address of the current `struct rseq_cs`: two numbers, then start and length.
    let mut sequence = [0; 8];
    read_stopped(process, configuration.address + 8, &mut sequence)?;
    let sequence = u64::from_ne_bytes(sequence);
    if sequence == 0 {
        return Ok(false);
    }
    let mut bounds = [0; 16];
    read_stopped(process, sequence + 8, &mut bounds)?;
    let number = |at: usize| u64::from_ne_bytes(bounds[at..at + 8].try_into().expect("eight bytes"));
    Ok(instruction.wrapping_sub(number(0)) < number(8))
}
