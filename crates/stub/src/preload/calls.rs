//! System calls of Linux on x86_64, without libc: results are values or negative error numbers.
//!
//! Only what this library needs; numbers are those of `asm/unistd_64.h`.

use core::arch::{asm, naked_asm};
use core::sync::atomic::AtomicU32;

use crate::protocol::{PAGE_BYTES, UNASKED};

/// A value, or a negative error number.
pub(crate) type Result = core::result::Result<usize, i32>;

/// `-ENOENT`.
pub(crate) const NO_ENTRY: i32 = -2;
/// `-EINTR`.
pub(crate) const INTERRUPTED: i32 = -4;
/// `-EAGAIN`.
pub(crate) const AGAIN: i32 = -11;
/// `-EACCES`.
pub(crate) const NO_ACCESS: i32 = -13;
/// `-EBUSY`.
pub(crate) const BUSY: i32 = -16;
/// `-EEXIST`.
pub(crate) const EXISTS: i32 = -17;
/// `-EINVAL`.
pub(crate) const INVALID: i32 = -22;

/// Makes system call `number`.
///
/// # Safety
///
/// As the call demands of its arguments.
pub(crate) unsafe fn call(number: usize, arguments: [usize; 6]) -> Result {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the instruction changes rax, rcx and r11 only; what the kernel does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if result < 0 { Err(result as i32) } else { Ok(result as usize) }
}

/// Where the kernel clears a word when this thread ends (`PR_GET_TID_ADDRESS`); not every kernel says.
pub(crate) fn cleared_word() -> Result {
    let mut address = 0_usize;
    // SAFETY: the kernel writes one word.
    unsafe { call(157, [40, &raw mut address as usize, 0, 0, 0, 0]) }?;
    Ok(address)
}

/// A descriptor that is closed when it goes out of scope.
pub(crate) struct Descriptor(pub(crate) i32);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        let _ = unsafe { call(3, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// `open(2)`, closed on exec. `path` ends with a zero byte.
pub(crate) fn open(path: &[u8], write: bool) -> core::result::Result<Descriptor, i32> {
    const CLOSE_ON_EXEC: usize = 0o2_000_000;
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is a string that lives through the call.
    unsafe { call(2, [path.as_ptr() as usize, CLOSE_ON_EXEC | if write { 2 } else { 0 }, 0, 0, 0, 0]) }
        .map(|descriptor| Descriptor(descriptor as i32))
}

/// Opens a file to be read, whatever its path may lead to, without waiting or taking a terminal over.
pub(crate) fn open_anything(path: &[u8]) -> core::result::Result<Descriptor, i32> {
    /// `O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC`.
    const FLAGS: usize = 0o400 | 0o4_000 | 0o2_000_000;
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is a string that lives through the call.
    unsafe { call(2, [path.as_ptr() as usize, FLAGS, 0, 0, 0, 0]) }.map(|descriptor| Descriptor(descriptor as i32))
}

/// `read(2)`.
pub(crate) fn read(descriptor: &Descriptor, target: &mut [u8]) -> Result {
    // SAFETY: the target is ours.
    unsafe { call(0, [descriptor.0 as usize, target.as_mut_ptr() as usize, target.len(), 0, 0, 0]) }
}

/// Writes to standard error, as far as that is possible.
pub(crate) fn complain(text: &[u8]) {
    // SAFETY: the text lives through the call.
    let _ = unsafe { call(1, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
}

/// `ioctl(2)`; the pager asks nothing about it ([`UNASKED`]).
///
/// # Safety
///
/// `argument` is what `request` demands.
pub(crate) unsafe fn control(descriptor: i32, request: u32, argument: usize) -> Result {
    // SAFETY: the caller's promise.
    unsafe { call(16, [descriptor as usize, request as usize, argument, UNASKED as usize, 0, 0]) }
}

/// `userfaultfd(2)`.
pub(crate) fn userfaultfd(flags: usize) -> core::result::Result<Descriptor, i32> {
    // SAFETY: it takes flags as a number.
    unsafe { call(323, [flags, 0, 0, 0, 0, 0]) }.map(|descriptor| Descriptor(descriptor as i32))
}

/// `mmap(2)` where the kernel likes; `descriptor` -1 for anonymous memory.
pub(crate) fn map(length: usize, protection: usize, flags: usize, descriptor: i32) -> Result {
    map_at(0, length, protection, flags, descriptor)
}

/// As [`map`], far from where programs have their mappings, if there is room. The kernel puts a new mapping right below
/// the others, and so in the way of a stack that grows (`MAP_GROWSDOWN`). Each `number` is another place.
pub(crate) fn map_apart(number: usize, length: usize, protection: usize, flags: usize, descriptor: i32) -> Result {
    static PLACE: u8 = 0;
    // Where this library is, is random, and so is this.
    let place = APART | (&raw const PLACE as usize & (APART / 2 - 1) & !(PAGE_BYTES - 1));
    map_at(place + number * APART_BYTES, length, protection, flags, descriptor)
}

/// Neither programs and their heaps begin there, nor libraries.
const APART: usize = 0x2000_0000_0000;
const APART_BYTES: usize = 1 << 30;

fn map_at(place: usize, length: usize, protection: usize, flags: usize, descriptor: i32) -> Result {
    // SAFETY: a new mapping replaces nothing, as the place is a wish (no MAP_FIXED).
    unsafe { call(9, [place, length, protection, flags, descriptor as isize as usize, 0]) }
}

/// `mprotect(2)` of memory of this library.
pub(crate) fn protect(address: usize, length: usize, protection: usize) -> Result {
    // SAFETY: the caller passes memory of this library.
    unsafe { call(10, [address, length, protection, 0, 0, 0]) }
}

/// `munmap(2)` of memory of this library.
pub(crate) fn unmap(address: usize, length: usize) -> Result {
    // SAFETY: the caller passes memory of this library.
    unsafe { call(11, [address, length, 0, 0, 0, 0]) }
}

/// `munlock(2)` of memory of this library.
pub(crate) fn unlock(address: usize, length: usize) -> Result {
    // SAFETY: it changes no content.
    unsafe { call(150, [address, length, 0, 0, 0, 0]) }
}

/// `madvise(2)`.
///
/// # Safety
///
/// The advice does nothing to a range whose owner does not want it.
pub(crate) unsafe fn advise(address: usize, length: usize, advice: u32) -> Result {
    // SAFETY: the caller's promise.
    unsafe { call(28, [address, length, advice as usize, 0, 0, 0]) }
}

/// Sleeps while `word` is `seen`; also returns for no reason.
pub(crate) fn sleep_on(word: &AtomicU32, seen: u32) {
    // SAFETY: FUTEX_WAIT on a word that lives through the call, without a timeout.
    let _ = unsafe { call(202, [word.as_ptr() as usize, 0, seen as usize, 0, 0, 0]) };
}

/// Wakes every thread that sleeps on `word`, in all processes.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE reads nothing.
    let _ = unsafe { call(202, [word.as_ptr() as usize, 1, i32::MAX as usize, 0, 0, 0]) };
}

/// This process's number, as it sees itself.
pub(crate) fn process() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(39, [0; 6]) }.unwrap_or(0) as u32
}

/// This thread's number, as it sees itself.
pub(crate) fn thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(186, [0; 6]) }.unwrap_or(0) as u32
}

/// The CPU that this thread runs on now, without a system call, which a filter of the program could forbid: as the
/// kernel's own `getcpu` of programs finds it (`vdso_read_cpunode` of its `arch/x86/include/asm/segment.h`), in the
/// limit of a segment that each CPU has for that.
pub(crate) fn cpu() -> Option<u32> {
    /// `__CPUNODE_SEG`.
    const SEGMENT: u32 = 15 * 8 + 3;
    /// `VDSO_CPUNODE_MASK`; above it is the memory node.
    const CPU_MASK: u32 = 0xfff;
    let (limit, is_known): (u32, u8);
    // SAFETY: the instruction reads a segment's limit, and says in a flag whether there is one.
    unsafe {
        asm!(
            "lsl {limit:e}, {segment:e}",
            "setz {is_known}",
            segment = in(reg) SEGMENT,
            limit = out(reg) limit,
            is_known = out(reg_byte) is_known,
            options(nomem, nostack),
        );
    }
    (is_known != 0).then_some(limit & CPU_MASK)
}

/// Sets which signals this thread blocks; returns those it blocked before.
pub(crate) fn block_signals(mask: u64) -> u64 {
    const SET_MASK: usize = 2;
    let mut before = 0_u64;
    // SAFETY: both masks are words of ours, of the size given.
    let _ = unsafe { call(14, [SET_MASK, &raw const mask as usize, &raw mut before as usize, 8, 0, 0]) };
    before
}

/// Installs a filter of system calls, and returns the descriptor that tells of those it is asked about. The program
/// can gain no rights by executing others from now on, which users without rights must accept for that.
///
/// # Safety
///
/// `program` is the address of a `struct sock_fprog`.
pub(crate) unsafe fn filter_calls(program: usize, flags: usize) -> core::result::Result<Descriptor, i32> {
    const NO_NEW_PRIVILEGES: usize = 38;
    const SET_FILTER: usize = 1;
    // SAFETY: numbers only; the caller's promise.
    unsafe {
        call(157, [NO_NEW_PRIVILEGES, 1, 0, 0, 0, 0])?;
        call(317, [SET_FILTER, flags, program, 0, 0, 0])
    }
    .map(|descriptor| Descriptor(descriptor as i32))
}

/// Gives a new thread a name and an empty table of descriptors of its own, in one step with leaving that of the
/// process (`CLOSE_RANGE_UNSHARE`, close_range(2)); until then the thread touches no descriptor.
pub(crate) fn detach_thread(name: &[u8; 16]) -> core::result::Result<(), i32> {
    const SET_NAME: usize = 15;
    const UNSHARE: usize = 2;
    // SAFETY: numbers, and a name that the kernel copies; what the table is left with is this thread's alone.
    unsafe {
        call(436, [0, u32::MAX as usize, UNSHARE, 0, 0, 0])?;
        let _ = call(157, [SET_NAME, name.as_ptr() as usize, 0, 0, 0, 0]);
    }
    Ok(())
}

/// Goes to the root directory, with all threads that share this thread's.
pub(crate) fn leave_directory() {
    // SAFETY: the path is a string that lives through the call.
    let _ = unsafe { call(80, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// `ioctl(2)`, but `-EAGAIN` and no call while the word at `is_held` is not 0. Between the look and the call are two
/// instructions: the thread that finds this thread stopped outside of [`move_window`] knows that it looks again first.
///
/// # Safety
///
/// `is_held` can be read, and `argument` is what `request` demands.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn control_unless_held(
    is_held: *const AtomicU32,
    descriptor: usize,
    request: usize,
    argument: usize,
) -> isize {
    naked_asm!(
        ".hidden spillway_move_start",
        ".globl spillway_move_start",
        "spillway_move_start:",
        "cmp dword ptr [rdi], 0",
        "jne 2f",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov eax, 16",
        "syscall",
        ".hidden spillway_move_end",
        ".globl spillway_move_end",
        "spillway_move_end:",
        "ret",
        "2:",
        "mov rax, -11",
        "ret",
    )
}

/// Where [`control_unless_held`] begins, and the instruction behind its call.
pub(crate) fn move_window() -> (u64, u64) {
    let (start, end): (u64, u64);
    // SAFETY: takes two addresses of this library.
    unsafe {
        asm!(
            "lea {start}, [rip + spillway_move_start]",
            "lea {end}, [rip + spillway_move_end]",
            start = out(reg) start,
            end = out(reg) end,
            options(nomem, nostack, preserves_flags),
        );
    }
    (start, end)
}

/// Ends this thread.
pub(crate) fn end_thread(status: u8) -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { call(60, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Ends the program.
pub(crate) fn end_program(status: u8) -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { call(231, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// `clone(2)` of a thread that runs `entry` on the stack that ends at `stack_end` (aligned to 16 bytes). The kernel
/// writes the thread's number to `words[0]`, and 0 to `words[1]` when it ends; its thread-local storage, of which it
/// uses none, is there too. Returns the thread's number or a negative error number.
///
/// # Safety
///
/// The stack and the words belong to the new thread, and `flags` make a thread.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn clone_thread(
    flags: usize,
    stack_end: usize,
    entry: extern "C" fn() -> !,
    words: *const [AtomicU32; 2],
) -> isize {
    // The kernel takes the two words in rdx and r10 and the storage in r8, and keeps r9 for the new thread too.
    naked_asm!(
        "mov r9, rdx",
        "mov rdx, rcx",
        "lea r10, [rcx + 4]",
        "mov r8, rcx",
        "mov eax, 56",
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "xor ebp, ebp",
        "call r9",
        "ud2",
        "2:",
        "ret",
    )
}
