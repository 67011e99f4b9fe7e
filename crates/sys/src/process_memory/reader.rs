//! A task that reads other processes' memory in place of the thread that asks.
//!
//! A read waits for as long as the process wants: at a page that the process registered with a userfaultfd of its
//! own and never serves, or at a page of a file on a file system that it serves itself. So the task has one job at a
//! time, the asking thread waits a few milliseconds for it, and a job that is not over after [`HUNG`] is given up.
//!
//! With `CAP_SYS_PTRACE` the task is a process that shares this process's memory: it can be killed, which also ends
//! its hold on the other memory. Without it the task is a thread: the kernel may allow a program's ancestors to read
//! it (`kernel.yama.ptrace_scope` of 1), and no other process. A thread that hangs is left behind.
//!
//! Invariants: the task allocates nothing, takes no lock and makes system calls without libc, because as a process it
//! has the thread-local memory of the thread that started it, and can be killed at every instruction. A job belongs to
//! the task until the task says that it is done, or has ended.

use std::arch::asm;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, capabilities};

use crate::mapping::Mapping;
use crate::shared_futex;

/// How long the asking thread waits for its job: a thousand times what one takes.
const PATIENCE: Duration = Duration::from_millis(5);

/// A job that takes longer hangs. A page that is away comes back sooner, unless its donors are silent.
const HUNG: Duration = Duration::from_secs(2);

/// Threads that may be left behind at a time.
const LEFT_BEHIND_MAX: usize = 8;

/// The task uses a hundredth of it.
const STACK_BYTES: usize = 64 << 10;

/// What [`Slot::state`] says.
const IDLE: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;
const END: u32 = 3;

/// Bytes of a head of a list of robust locks.
pub(super) const HEAD_BYTES: usize = size_of::<[u64; 3]>();

/// Robust locks of one thread that are looked at; the kernel itself walks 2048 (`ROBUST_LIST_LIMIT`), programs hold
/// one or two.
const LOCKS_OF_THREAD_MAX: usize = 64;

/// `UIO_MAXIOV` of the kernel (`linux/uio.h`): parts that one call reads.
const PARTS_MAX: usize = 1024;

/// Pieces of equal length of one process's memory, and what stands there.
#[derive(Debug)]
pub(super) struct Job {
    process: i32,
    part_bytes: usize,
    parts: Vec<libc::iovec>,
    /// What stands in the parts, one behind the other.
    pub(super) bytes: Vec<u8>,
    /// Which of them could be read.
    pub(super) is_read: Vec<bool>,
    /// The kernel lets this user read none of them.
    pub(super) is_forbidden: bool,
    /// Where the parts are heads of lists of robust locks: where the locks are. It does not grow.
    pub(super) locks: Vec<u64>,
}

// SAFETY: the addresses are those of another process, which no thread here follows.
unsafe impl Send for Job {}

impl Job {
    pub(super) fn new(process: u32, addresses: &[u64], part_bytes: usize) -> Self {
        let part = |address: &u64| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(*address as usize),
            iov_len: part_bytes,
        };
        Self {
            process: process.cast_signed(),
            part_bytes,
            parts: addresses.iter().map(part).collect(),
            bytes: vec![0; addresses.len() * part_bytes],
            is_read: vec![false; addresses.len()],
            is_forbidden: false,
            locks: Vec::new(),
        }
    }

    /// The parts are heads of lists of robust locks: at most `locks_max` locks are looked for.
    pub(super) fn with_locks(mut self, locks_max: usize) -> Self {
        assert_eq!(self.part_bytes, HEAD_BYTES, "a head has three words");
        // Two addresses of each.
        self.locks.reserve_exact(2 * locks_max);
        self
    }

    pub(super) fn process(&self) -> u32 {
        self.process.cast_unsigned()
    }

    fn run(&mut self) {
        self.read_parts();
        let is_read = |index: usize| self.is_read.get(index).copied().unwrap_or(false);
        for index in (0..self.parts.len()).filter(|index| is_read(*index)) {
            let place = index * HEAD_BYTES;
            let Some(head) = self.parts.get(index) else { return };
            let words = self.bytes.get(place..place + HEAD_BYTES).unwrap_or_default();
            let room = self.locks.capacity();
            let locks = &mut self.locks;
            if locks.len() == room {
                return;
            }
            let word = |at: usize| {
                words.get(at * 8..at * 8 + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
            };
            let record = [word(0), word(1), word(2)];
            let note = |address: u64| {
                if locks.len() < room {
                    locks.push(address);
                }
                locks.len() < room
            };
            walk(head.iov_base as u64, record, note, |entry| read_word(self.process, entry));
        }
    }

    /// Reads around parts that cannot be read.
    fn read_parts(&mut self) {
        let mut first = 0;
        while first < self.parts.len() {
            let count = (self.parts.len() - first).min(PARTS_MAX);
            let place = first * self.part_bytes;
            let local = libc::iovec {
                iov_base: self.bytes.as_mut_ptr().wrapping_add(place).cast(),
                iov_len: count * self.part_bytes,
            };
            let remote = self.parts.as_ptr().wrapping_add(first);
            let arguments = [self.process as usize, (&raw const local) as usize, 1, remote as usize, count, 0];
            // SAFETY: `count` parts fit behind `place`; the other addresses are the kernel's to check.
            let bytes = unsafe { system_call(libc::SYS_process_vm_readv, arguments) };
            if bytes == -(libc::EPERM as isize) {
                self.is_forbidden = true;
                return;
            }
            // Of a part in two pages, of which the second cannot be read, a piece may have come.
            let complete = usize::try_from(bytes).unwrap_or(0) / self.part_bytes.max(1);
            self.is_read.iter_mut().skip(first).take(complete).for_each(|is_read| *is_read = true);
            // The kernel ends at the first part that it cannot read.
            first += if complete == count { count } else { complete + 1 };
        }
    }
}

fn read_word(process: i32, address: u64) -> Option<u64> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), ..local };
    let arguments = [process as usize, (&raw const local) as usize, 1, (&raw const remote) as usize, 1, 0];
    // SAFETY: the kernel writes one word of ours.
    let bytes = unsafe { system_call(libc::SYS_process_vm_readv, arguments) };
    (bytes == size_of::<u64>() as isize).then_some(word)
}

/// Tells `note` where the robust locks are that a thread holds, and one that it is just taking, until `note` has no
/// room. `record` is what stands at the head (`struct robust_list_head` in `linux/futex.h`): the first entry, the
/// distance from entries to locks, the one being taken.
fn walk(
    head: u64,
    [mut entry, distance, taking]: [u64; 3],
    mut note: impl FnMut(u64) -> bool,
    mut next: impl FnMut(u64) -> Option<u64>,
) {
    // The lowest bit says of what kind a lock is.
    if taking != 0 && !(note(taking & !1) && note((taking & !1).wrapping_add(distance))) {
        return;
    }
    for _ in 0..LOCKS_OF_THREAD_MAX {
        let place = entry & !1;
        if place == head || !(note(place) && note(place.wrapping_add(distance))) {
            return;
        }
        let Some(following) = next(place) else { return };
        entry = following;
    }
}

/// Makes a system call and leaves libc's `errno` alone: a value, or a negative error number.
///
/// # Safety
///
/// As the call demands of its arguments.
unsafe fn system_call(number: i64, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the instruction changes rax, rcx and r11 only; what the kernel does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// What a process is before it serves: without descriptors, deaf to signals, and ended by the end of the thread that
/// started it.
///
/// # Safety
///
/// Only for a process that has nothing but the memory in common with others, and needs no descriptor.
unsafe fn prepare_process(parent: u32) {
    let (mask, all) = (u64::MAX, u32::MAX as usize);
    let calls = [
        (libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0]),
        (libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, (&raw const mask) as usize, 0, 8, 0, 0]),
        (libc::SYS_setsid, [0; 6]),
        (libc::SYS_prctl, [libc::PR_SET_NAME as usize, c"spillway-reader".as_ptr() as usize, 0, 0, 0, 0]),
        (libc::SYS_close_range, [0, all, 0, 0, 0, 0]),
    ];
    // SAFETY: numbers, and memory that lives through the calls.
    unsafe {
        for (number, arguments) in calls {
            system_call(number, arguments);
        }
        // A parent that ended before the first call sends nothing.
        if system_call(libc::SYS_getppid, [0; 6]) != parent as isize {
            system_call(libc::SYS_exit, [0; 6]);
        }
    }
}

/// What the task and the asking thread share.
#[derive(Debug, Default)]
struct Slot {
    /// The process that asks.
    asker: u32,
    state: AtomicU32,
    job: AtomicPtr<Job>,
}

/// The task.
#[derive(Debug)]
enum Task {
    Process(i32),
    Thread,
    Ended,
}

/// A task, and its job.
#[derive(Debug)]
struct Worker {
    task: Task,
    slot: Arc<Slot>,
    /// When the job was asked for that is under way, and of which process it is.
    under_way: Option<(Instant, u32)>,
    /// Lives as long as the task.
    stack: Option<Mapping>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unread {
    /// Not in time; later it may be.
    Later,
    /// This process's job was given up.
    Hung(u32),
    /// There is no task.
    Kernel(io::Error),
}

/// The tasks for the programs of one user: one that works, and those that were left behind.
#[derive(Debug, Default)]
pub(super) struct Reader {
    worker: Option<Worker>,
    left_behind: Vec<Worker>,
}

impl Reader {
    /// Has `job` done.
    pub(super) fn read(&mut self, job: Job) -> Result<Job, Unread> {
        self.left_behind.retain_mut(|worker| !worker.is_over());
        if self.worker.as_mut().is_some_and(Worker::is_over) {
            self.worker = None;
        }
        // An answer that came too late is for no thread.
        let busy = self.worker.as_mut().and_then(|worker| {
            drop(worker.take());
            worker.under_way
        });
        if let Some((since, process)) = busy {
            if since.elapsed() < HUNG {
                return Err(Unread::Later);
            }
            self.give_up();
            return Err(Unread::Hung(process));
        }
        if self.worker.is_none() {
            if self.left_behind.len() >= LEFT_BEHIND_MAX {
                return Err(Unread::Later);
            }
            self.worker = Some(Worker::start().map_err(Unread::Kernel)?);
        }
        let worker = self.worker.as_mut().expect("it was started just now, if there was none");
        worker.ask(job);
        worker.wait();
        worker.take().ok_or(Unread::Later)
    }

    /// Leaves a task behind that hangs, and tells it to end.
    fn give_up(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        worker.end();
        self.left_behind.push(worker);
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let may_trace = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
        if may_trace { Self::start_process() } else { Self::start_thread() }
    }

    fn start_thread() -> io::Result<Self> {
        let slot = Arc::new(Slot::default());
        let its = Arc::clone(&slot);
        std::thread::Builder::new().name("foreign-reader".to_owned()).spawn(move || its.serve())?;
        Ok(Self { task: Task::Thread, slot, under_way: None, stack: None })
    }

    fn start_process() -> io::Result<Self> {
        extern "C" fn run(slot: *mut libc::c_void) -> libc::c_int {
            // SAFETY: the slot lives until this process was waited for, and the process needs no descriptor.
            unsafe {
                let slot = &*slot.cast::<Slot>();
                prepare_process(slot.asker);
                slot.serve();
                // Not by libc, which would run what is registered for the end of the other.
                system_call(libc::SYS_exit, [0; 6]);
            }
            0
        }
        let stack = Mapping::anonymous(STACK_BYTES)?;
        let slot = Arc::new(Slot { asker: std::process::id(), ..Slot::default() });
        let end = (stack.address() + STACK_BYTES) as *mut libc::c_void;
        // No signal tells of its end, so no thread that waits for a program is told of it.
        let flags = libc::CLONE_VM;
        // SAFETY: `run` keeps to its own stack, and to the slot and its job, which both outlive it.
        let process = unsafe { libc::clone(run, end, flags, Arc::as_ptr(&slot).cast_mut().cast()) };
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { task: Task::Process(process), slot, under_way: None, stack: Some(stack) })
    }

    fn ask(&mut self, job: Job) {
        assert!(self.under_way.is_none(), "a task has one job at a time");
        self.under_way = Some((Instant::now(), job.process.cast_unsigned()));
        self.slot.job.store(Box::into_raw(Box::new(job)), Ordering::SeqCst);
        self.slot.say(ASKED);
    }

    fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.slot.state.load(Ordering::SeqCst) == ASKED {
            if !shared_futex::wait(&self.slot.state, ASKED, Some(deadline)).unwrap_or(false) {
                return;
            }
        }
    }

    /// The job, if it is done.
    fn take(&mut self) -> Option<Job> {
        if self.under_way.is_none() || self.slot.state.load(Ordering::SeqCst) != DONE {
            return None;
        }
        self.under_way = None;
        self.slot.state.store(IDLE, Ordering::SeqCst);
        let job = self.slot.job.swap(std::ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: it was made from a box in `ask`, and belongs to this side again now that it is done.
        Some(*unsafe { Box::from_raw(job) })
    }

    /// Whether the task has ended.
    fn is_over(&mut self) -> bool {
        let is_over = match self.task {
            Task::Ended => return true,
            Task::Thread => Arc::strong_count(&self.slot) == 1,
            Task::Process(process) => {
                let mut status = 0;
                // SAFETY: the kernel writes one number. The task is a child of this process that sends no signal.
                unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG | libc::__WALL) != 0 }
            }
        };
        if is_over {
            self.task = Task::Ended;
            let job = self.slot.job.swap(std::ptr::null_mut(), Ordering::SeqCst);
            if !job.is_null() {
                // SAFETY: it was made from a box in `ask`, and the task that had it is no more.
                drop(unsafe { Box::from_raw(job) });
            }
        }
        is_over
    }

    /// Tells the task to end, whatever it does.
    fn end(&self) {
        self.slot.say(END);
        if let Task::Process(process) = self.task {
            // SAFETY: a signal to a child of this process that was not waited for.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
        if !self.is_over() {
            // The task has them until it ends.
            std::mem::forget(Arc::clone(&self.slot));
            std::mem::forget(self.stack.take());
        }
    }
}

impl Slot {
    fn say(&self, state: u32) {
        self.state.store(state, Ordering::SeqCst);
        shared_futex::wake(&self.state);
    }

    /// The task's life.
    fn serve(&self) {
        loop {
            match self.state.load(Ordering::SeqCst) {
                ASKED => {
                    let job = self.job.load(Ordering::SeqCst);
                    // SAFETY: the job belongs to the task until the task says that it is done.
                    unsafe { (*job).run() };
                    if self.state.compare_exchange(ASKED, DONE, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                        return;
                    }
                    self.futex(libc::FUTEX_WAKE, 1);
                }
                END => return,
                other => self.futex(libc::FUTEX_WAIT, other),
            }
        }
    }

    /// As of [`shared_futex`], without libc.
    fn futex(&self, operation: i32, value: u32) {
        let arguments = [self.state.as_ptr() as usize, operation as usize, value as usize, 0, 0, 0];
        // SAFETY: the word lives as long as the slot.
        unsafe { system_call(libc::SYS_futex, arguments) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::PAGE_SIZE_BYTES;
    use crate::userfaultfd::{Features, RegisterMode, Scope, Userfaultfd};

    fn reader_of(start: fn() -> io::Result<Worker>) -> Reader {
        Reader { worker: Some(start().unwrap()), left_behind: Vec::new() }
    }

    #[test]
    fn a_process_and_a_thread_read_around_what_cannot_be_read() {
        let words: Vec<u64> = (0..3 * PARTS_MAX as u64).collect();
        let at = |index: u64| words.as_ptr() as u64 + index * 8;
        for start in [Worker::start_process, Worker::start_thread] {
            let mut reader = reader_of(start);
            let mut read = |addresses: &[u64]| {
                let deadline = Instant::now() + Duration::from_secs(60);
                loop {
                    match reader.read(Job::new(std::process::id(), addresses, 8)) {
                        Ok(job) => return job,
                        Err(Unread::Later) => assert!(Instant::now() < deadline, "it never reads"),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            };
            let job = read(&[8, at(0), at(5), 16, 24, at(6), 8]);
            assert_eq!(job.is_read, [false, true, true, false, false, true, false]);
            assert_eq!(job.bytes[8..24], [0_u64.to_ne_bytes(), 5_u64.to_ne_bytes()].concat());
            let many: Vec<u64> = (0..words.len() as u64).map(at).collect();
            let job = read(&many);
            let found = job.bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            assert!(found.eq(words.iter().copied()) && job.is_read.iter().all(|is_read| *is_read));
            assert!(read(&[]).bytes.is_empty());
        }
    }

    /// Waits for it, at most a minute.
    fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn memory_that_is_never_served_holds_no_thread_up_and_its_reader_is_given_up() {
        let memory = Mapping::anonymous(PAGE_SIZE_BYTES).unwrap();
        // SAFETY: only the `Mapping` is given to it.
        let userfaultfd = unsafe { Userfaultfd::create(Scope::Everything) }.expect("this test needs userfaultfd");
        userfaultfd.agree(Features::default()).unwrap();
        let page = memory.address() as u64..memory.address() as u64 + PAGE_SIZE_BYTES as u64;
        let word = 7_u64;
        for start in [Worker::start_process, Worker::start_thread] {
            userfaultfd.register(page.clone(), RegisterMode::MISSING).unwrap();
            let (mut reader, own) = (reader_of(start), std::process::id());
            let mut read = |address: u64| match reader.read(Job::new(own, &[address], 8)) {
                Ok(job) => (Some(job.bytes), None),
                Err(Unread::Hung(process)) => (None, Some(process)),
                Err(_) => (None, None),
            };
            assert_eq!(read(page.start), (None, None), "no thread serves it");
            // Others are not read meanwhile, and are when it was given up.
            let mut hung = None;
            wait_until(
                || {
                    hung = read(&raw const word as u64).1;
                    hung.is_some()
                },
                "it is waited for without end",
            );
            assert_eq!(hung, Some(own));
            wait_until(|| read(&raw const word as u64).0 == Some(word.to_ne_bytes().to_vec()), "nothing is read again");
            userfaultfd.unregister(page.clone()).unwrap();
            let is_over = || reader.left_behind.iter_mut().all(Worker::is_over);
            wait_until(is_over, "the task that hung does not end");
        }
    }

    #[test]
    fn locks_are_found_through_their_list() {
        // A list as a thread would have it: two locks at their distance, one being taken, and the way back to the head.
        let next = |list: &[(u64, u64)], entry: u64| list.iter().find(|(at, _)| *at == entry).map(|(_, next)| *next);
        let found = |record, list: &[(u64, u64)], room: usize| {
            let mut locks = Vec::new();
            let note = |lock| {
                locks.push(lock);
                locks.len() < room
            };
            walk(0x1000, record, note, |entry| next(list, entry));
            locks
        };
        let distance = 0_u64.wrapping_sub(0x20);
        let list = [(0x5000, 0x6000 | 1), (0x6000, 0x1000)];
        let all = [0x7000, 0x6fe0, 0x5000, 0x4fe0, 0x6000, 0x5fe0];
        assert_eq!(found([0x5000, distance, 0x7000], &list, 100), all);
        assert_eq!(found([0x5000, distance, 0x7000], &list, 4), all[..4]);
        assert_eq!(found([0x1000, distance, 0], &list, 100), [], "an empty list");
        assert_eq!(found([0x5000, 0, 0], &[(0x5000, 0x5000)], 1000).len(), 2 * LOCKS_OF_THREAD_MAX, "a ring");
        assert_eq!(found([0x9000, 8, 0], &list, 100), [0x9000, 0x9008], "what cannot be read ends it");
    }
}
