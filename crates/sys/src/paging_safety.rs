//! What a process that serves page-outs asks of the kernel, so that it never waits for the memory it frees.
//!
//! Each step reports what it achieved; whether a failure matters is the caller's decision.
//! [`set_input_output_flusher`] must come before the first thread is started: threads inherit it, and it cannot be
//! given to a thread that runs.

use std::fs;
use std::hint::black_box;
use std::io;

/// `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
#[cfg(test)]
const PR_GET_IO_FLUSHER: libc::c_int = 58;

/// The score of a process that the kernel never kills for memory (`linux/oom.h`).
const OOM_SCORE_ADJUSTMENT_MIN: i32 = -1000;

/// Bytes touched by one step of [`prefault_stack`].
const STACK_STEP_BYTES: usize = 4096;

/// Locks all memory that the process has and will have. With `on_fault` pages are locked when first touched instead of
/// made present at once: for address space much larger than what is used of it.
pub fn lock_all_memory(on_fault: bool) -> io::Result<()> {
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | if on_fault { libc::MCL_ONFAULT as libc::c_int } else { 0 };
    // SAFETY: mlockall changes no content and takes no pointer.
    check(unsafe { libc::mlockall(flags) }).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot lock memory ({error}); run as root, or raise the limit (LimitMEMLOCK=infinity)"),
        )
    })
}

/// Gives the heap `bytes` that are there before they are needed and are never given back, for all threads together. A
/// thread that brings slabs from a donor then allocates without asking the kernel for a page, which a machine that
/// waits for just these slabs does not have. Call it before other threads exist; [`lock_all_memory`] then keeps the
/// pages.
pub fn reserve_heap(bytes: usize) -> io::Result<()> {
    // glibc's limit for a threshold (DEFAULT_MMAP_THRESHOLD_MAX).
    const MAPPING_THRESHOLD_BYTES: i32 = 32 << 20;
    let settings =
        [(libc::M_ARENA_MAX, 1), (libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_MMAP_THRESHOLD, MAPPING_THRESHOLD_BYTES)];
    for (name, value) in settings {
        // SAFETY: mallopt changes settings of the allocator only.
        if unsafe { libc::mallopt(name, value) } != 1 {
            return Err(io::Error::other(format!("the allocator refuses setting {name}")));
        }
    }
    // Below the threshold, so that they come from the heap and stay in it; written, so that their pages exist.
    let pieces: Vec<Vec<u8>> = (0..bytes.div_ceil(HEAP_PIECE_BYTES)).map(|_| vec![1_u8; HEAP_PIECE_BYTES]).collect();
    std::hint::black_box(&pieces);
    Ok(())
}

/// Heap is reserved in pieces of this size.
const HEAP_PIECE_BYTES: usize = 1 << 20;

/// Lets this thread, and those it starts from now on, take pages that the kernel keeps back: a real-time task may
/// have half of `vm.min_free_kbytes` when every other one must wait for reclaim (`gfp_to_alloc_flags` in
/// `mm/page_alloc.c`). Sending a page to a donor takes a page, and on a machine without a free one reclaim waits for
/// just that page to be sent.
///
/// Round robin at the lowest real-time priority: the kernel's throttling of real-time tasks leaves others their part
/// of a CPU.
pub fn use_memory_reserves() -> io::Result<()> {
    // SAFETY: the structure is plain data, for which zeroes are valid.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: the call reads the structure, which outlives it.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) })
}

/// Takes a real-time policy away from this thread that it inherited. One that looks for work again and again would
/// keep a CPU from the very threads that it waits for.
pub fn give_up_real_time() -> io::Result<()> {
    // SAFETY: a number only.
    let policy = unsafe { libc::sched_getscheduler(0) };
    check(policy)?;
    if !matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR) {
        return Ok(());
    }
    // SAFETY: the structure is plain data, for which zeroes are valid, and what this policy asks for.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the structure, which outlives it.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) })
}

/// Asks the scheduler for short turns of this thread: it gets a CPU soon after it was woken, and no more of it in all
/// (Linux 6.12; before, nothing happens). For a thread that wakes often and has little to do.
pub fn ask_for_short_turns() -> io::Result<()> {
    const SIZE: u32 = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the structure is plain data, for which zeroes are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes no more than the size that it is told.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) } as i32)?;
    attributes.sched_runtime = SHORT_TURN_NS;
    // SAFETY: the call reads the structure, which outlives it.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } as i32)
}

/// The shortest turn that there is (`__setparam_fair` in `kernel/sched/syscalls.c`).
const SHORT_TURN_NS: u64 = 100_000;

/// Marks this thread, and those it starts from now on, as part of the block layer: their allocations never wait for
/// I/O.
pub fn set_input_output_flusher() -> io::Result<()> {
    // SAFETY: PR_SET_IO_FLUSHER takes one flag and three zeroes.
    check(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1_u64, 0_u64, 0_u64, 0_u64) }).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot become an I/O flusher ({error}); it takes Linux 5.6 and CAP_SYS_RESOURCE"),
        )
    })
}

/// Takes that mark from this thread: one that brings pages in makes room for them by I/O.
pub fn give_up_input_output_flusher() -> io::Result<()> {
    // SAFETY: PR_SET_IO_FLUSHER takes one flag and three zeroes.
    check(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 0_u64, 0_u64, 0_u64, 0_u64) })
}

/// Whether this thread is marked by [`set_input_output_flusher`].
#[cfg(test)]
fn is_input_output_flusher() -> bool {
    // SAFETY: PR_GET_IO_FLUSHER takes four zeroes and returns the flag.
    unsafe { libc::prctl(PR_GET_IO_FLUSHER, 0_u64, 0_u64, 0_u64, 0_u64) == 1 }
}

/// Keeps the kernel from killing this process when memory runs out: killing it would lose the pages it holds.
pub fn avoid_out_of_memory_kill() -> io::Result<()> {
    set_out_of_memory_adjustment(OOM_SCORE_ADJUSTMENT_MIN)
}

/// Sets this process's adjustment; children inherit it, so programs that are started for the user set theirs back to 0.
pub fn set_out_of_memory_adjustment(adjustment: i32) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", adjustment.to_string())
}

/// Makes `depth_bytes` (and some more, without optimisation up to twice as much) of the calling thread's stack
/// present, so that no later call has to wait for a page. The caller makes sure that the stack is large enough.
pub fn prefault_stack(depth_bytes: usize) {
    let mut step = [0_u8; STACK_STEP_BYTES];
    black_box(&mut step);
    if depth_bytes > STACK_STEP_BYTES {
        prefault_stack(depth_bytes - STACK_STEP_BYTES);
    }
    // Used after the call, so that the array stays on the stack during it.
    black_box(&step);
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_stat::ProcessStat;

    /// Kibibytes of a field of `/proc/thread-self/status`.
    fn status_kib(field: &str) -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).expect("the kernel has the field");
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn a_reserved_heap_is_there_and_stays() {
        let resident_bytes = || {
            let text = fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap();
            line.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
        };
        let before = resident_bytes();
        reserve_heap(32 << 20).unwrap();
        // Half of it: other tests of this process give memory back meanwhile.
        assert!(resident_bytes() >= before + (16 << 20), "freed memory stays with the process");
    }

    fn policy() -> i32 {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        ProcessStat::of_thread(std::process::id(), thread).unwrap().policy().unwrap()
    }

    #[test]
    fn a_thread_that_may_use_reserves_hands_it_to_the_threads_it_starts() {
        let seen = std::thread::spawn(|| {
            let before = policy();
            let set = use_memory_reserves();
            (set, before, policy(), std::thread::spawn(policy).join().unwrap())
        });
        let (set, before, after, inherited) = seen.join().unwrap();
        // A user without the right is told so, and nothing changes.
        let expected = if set.is_ok() { libc::SCHED_RR } else { before };
        assert_eq!((after, inherited), (expected, expected), "{set:?}");
        let given_up = std::thread::spawn(|| {
            // As above.
            let _ = use_memory_reserves();
            give_up_real_time().unwrap();
            (policy(), give_up_real_time().map(|()| policy()).unwrap())
        });
        assert_eq!(given_up.join().unwrap(), (libc::SCHED_OTHER, libc::SCHED_OTHER));
        assert_eq!(policy(), before, "other threads stay as they were");
    }

    #[test]
    fn a_flusher_thread_hands_it_to_the_threads_it_starts() {
        let inherited = std::thread::spawn(|| {
            assert!(!is_input_output_flusher());
            let set = set_input_output_flusher();
            let inherited = std::thread::spawn(is_input_output_flusher).join().unwrap();
            assert_eq!(set.is_ok(), is_input_output_flusher());
            assert_eq!(set.is_ok(), inherited);
        });
        inherited.join().unwrap();
        assert!(!is_input_output_flusher(), "other threads are left alone");
    }

    #[test]
    fn a_prefaulted_stack_is_present() {
        let grows = || {
            let before = status_kib("VmRSS:");
            prefault_stack(4 << 20);
            status_kib("VmRSS:") >= before + 3 * 1024
        };
        let in_thread = |_| std::thread::Builder::new().stack_size(8 << 20).spawn(grows).unwrap().join().unwrap();
        // Other tests give memory back meanwhile, and the count is the process's.
        assert!((0..10).any(in_thread), "the stack's pages are present");
    }
}
