//! A forked child is borrowed from: it has this program's functions at the same addresses.

mod ends;
mod pauses;
mod waits;

use std::arch::asm;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::mapping::{Mapping, PAGE_SIZE_BYTES};
use crate::memfd::Memfd;
use crate::process_stat::ProcessStat;
use crate::shared_futex::{long_word, wake, word};

const PATIENCE: Duration = Duration::from_secs(60);

/// Places in the memory that the child and the test share.
const STEPS: usize = 0;
const CALLED_WITH: usize = 8;
const BROKEN: usize = 16;
const SIGNALS: usize = 20;
const RESULT: usize = 24;
const AWAITED: usize = 32;
const DESCRIPTOR: usize = 36;
const COMMAND: usize = 40;
/// Three thread numbers.
const THREADS: usize = 48;
const STACK_END: usize = 4 * PAGE_SIZE_BYTES;

/// A child that does nothing but `behaviour`; killed when dropped.
struct Child {
    pid: u32,
    memory: Arc<Mapping>,
}

impl Child {
    fn fork(behaviour: fn(&Mapping)) -> Self {
        Self::fork_with(|_| {}, behaviour)
    }

    /// `prepare` is called here, before the child is there.
    fn fork_with(prepare: impl FnOnce(&Mapping), behaviour: impl Fn(&Mapping)) -> Self {
        let file = Memfd::create("tracee", STACK_END as u64).unwrap();
        let memory = Arc::new(Mapping::shared(&file, STACK_END).unwrap());
        prepare(&memory);
        // SAFETY: the child touches the shared mapping and makes simple calls, and ends by being killed.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            loop {
                behaviour(&memory);
            }
        }
        Self { pid: pid.unsigned_abs(), memory }
    }

    /// Waits until it made `steps` more steps.
    fn wait_for_steps(&self, steps: u64) {
        self.wait_until(long_word(&self.memory, STEPS).load(SeqCst) + steps);
    }

    /// Waits until it made `goal` steps in all.
    fn wait_until(&self, goal: u64) {
        let deadline = Instant::now() + PATIENCE;
        while long_word(&self.memory, STEPS).load(SeqCst) < goal {
            assert!(Instant::now() < deadline, "the child does not run");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether it waits in this system call.
    fn is_in_call(&self, number: i64) -> bool {
        let whereabouts = Whereabouts::of_thread(self.pid, self.pid);
        matches!(whereabouts, Ok(Whereabouts::Call(found, _)) if found == number || found == libc::SYS_restart_syscall)
    }

    fn wait_for_call(&self, number: i64) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_in_call(number) {
            assert!(Instant::now() < deadline, "the child is not in call {number}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tries this when the child waits in call `number`. One that has just been given back is on its way into its
    /// call once more: it sleeps nowhere, and might wait for a page for all that is known, so that it is asked again.
    fn once_it_waits(&self, number: i64, attempt: impl Fn() -> Result<(), TraceError>) -> Result<(), TraceError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.wait_for_call(number);
            let result = attempt();
            if !matches!(result, Err(TraceError::Unsuitable(_))) || Instant::now() > deadline {
                return result;
            }
        }
    }

    /// What the call returned that it made as its second step; an error number below zero.
    fn wait_for_result(&self) -> i64 {
        self.wait_until(2);
        long_word(&self.memory, RESULT).load(SeqCst).cast_signed()
    }

    fn call(&self, function: extern "C" fn(*const Mapping) -> !, deadline: Instant) -> Result<(), TraceError> {
        self.call_until(function, || word(&self.memory, CALLED_WITH).load(SeqCst) != 0, deadline)
    }

    fn target(&self, function: extern "C" fn(*const Mapping) -> !, patience: Duration) -> Call {
        Call {
            function: function as *const () as u64,
            argument: Arc::as_ptr(&self.memory) as u64,
            stack_end: (self.memory.address() + STACK_END) as u64,
            patience,
        }
    }

    fn call_until(
        &self,
        function: extern "C" fn(*const Mapping) -> !,
        is_finished: impl FnMut() -> bool,
        deadline: Instant,
    ) -> Result<(), TraceError> {
        let target = self.target(function, deadline.saturating_duration_since(Instant::now()));
        // SAFETY: the child is a copy of this process, with the function and the mapping where they are here; the
        // stack is the last page of the mapping, which nothing else uses.
        unsafe { call(self.pid, self.pid, &target, &mut || true, is_finished, deadline) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: signals and waits for a child of this test.
        unsafe {
            libc::kill(self.pid.cast_signed(), libc::SIGKILL);
            libc::waitpid(self.pid.cast_signed(), std::ptr::null_mut(), 0);
        }
    }
}

/// This waits, a millisecond at a time, for at most [`PATIENCE`].
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The thread that traces it: 0 for none.
fn tracer(process: u32, thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap()
}

/// Counts, and checks that registers keep what is put into them.
fn count(memory: &Mapping) {
    let (pattern, mut general, mut vector) = (0x1234_5678_9abc_def0_u64, 0_u64, 0_u64);
    // SAFETY: registers only.
    unsafe {
        asm!(
            "movq xmm5, {pattern}",
            "mov {general}, {pattern}",
            "mov ecx, 100000",
            "2: pause",
            "dec ecx",
            "jnz 2b",
            "movq {vector}, xmm5",
            pattern = in(reg) pattern, general = inout(reg) general, vector = inout(reg) vector,
            out("ecx") _, out("xmm5") _,
        );
    }
    if general != pattern || vector != pattern {
        word(memory, BROKEN).store(1, SeqCst);
    }
    long_word(memory, STEPS).fetch_add(1, SeqCst);
}

extern "C" fn mark(memory: *const Mapping) -> ! {
    // SAFETY: registers only: what a function may clobber and what it may not.
    unsafe { asm!("pxor xmm5, xmm5", "xor ecx, ecx", out("xmm5") _, out("ecx") _) };
    // SAFETY: the argument is the child's own mapping.
    word(unsafe { &*memory }, CALLED_WITH).store(1, SeqCst);
    loop {
        std::hint::spin_loop();
    }
}

extern "C" fn linger(_: *const Mapping) -> ! {
    loop {
        std::hint::spin_loop();
    }
}

#[test]
fn a_running_thread_makes_the_call_and_goes_on_as_before() {
    let child = Child::fork(count);
    child.wait_for_steps(1);
    for _ in 0..20 {
        word(&child.memory, CALLED_WITH).store(0, SeqCst);
        child.call(mark, Instant::now() + PATIENCE).unwrap();
        child.wait_for_steps(1);
    }
    assert_eq!(word(&child.memory, BROKEN).load(SeqCst), 0, "registers are as they were");
}

#[test]
fn a_function_that_does_not_finish_is_given_up() {
    let child = Child::fork(count);
    child.wait_for_steps(1);
    let result = child.call(linger, Instant::now() + Duration::from_millis(100));
    assert!(matches!(result, Err(TraceError::TimedOut)), "{result:?}");
    child.wait_for_steps(2);
    assert_eq!(word(&child.memory, BROKEN).load(SeqCst), 0);
}

#[test]
fn a_thread_that_ended_is_gone() {
    let child = Child::fork(|_| {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.call(mark, Instant::now() + Duration::from_millis(200)) {
            Err(TraceError::Gone) => break,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    }
}

extern "C" fn note_signal(_: i32) {
    // The handler finds the memory by a variable of its own copy of the process.
    let memory = SIGNAL_MEMORY.load(SeqCst) as *const Mapping;
    // SAFETY: set by the child before the handler was installed.
    word(unsafe { &*memory }, SIGNALS).fetch_add(1, SeqCst);
}

static SIGNAL_MEMORY: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[test]
fn a_signal_that_comes_meanwhile_is_taken_afterwards() {
    let child = Child::fork(|memory| {
        if SIGNAL_MEMORY.swap(std::ptr::from_ref(memory) as usize, SeqCst) == 0 {
            // SAFETY: installs a handler that only changes the shared memory.
            unsafe { libc::signal(libc::SIGUSR1, note_signal as *const () as libc::sighandler_t) };
        }
        count(memory);
    });
    child.wait_for_steps(1);
    for round in 1..=10 {
        word(&child.memory, CALLED_WITH).store(0, SeqCst);
        let target = child.pid.cast_signed();
        // SAFETY: a signal to a child of this test.
        unsafe { libc::kill(target, libc::SIGUSR1) };
        child.call(mark, Instant::now() + PATIENCE).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while word(&child.memory, SIGNALS).load(SeqCst) < round {
            assert!(Instant::now() < deadline, "signal {round} was lost");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(word(&child.memory, BROKEN).load(SeqCst), 0);
}

#[test]
fn a_thread_that_is_killed_meanwhile_is_gone() {
    let child = Child::fork(count);
    child.wait_for_steps(1);
    let kill = || {
        // SAFETY: a signal to a child of this test.
        unsafe { libc::kill(child.pid.cast_signed(), libc::SIGKILL) };
        false
    };
    let result = child.call_until(linger, kill, Instant::now() + PATIENCE);
    assert!(matches!(result, Err(TraceError::Gone)), "{result:?}");
    let mut status = 0;
    // SAFETY: waits for a child of this test.
    let waited = unsafe { libc::waitpid(child.pid.cast_signed(), &raw mut status, 0) };
    assert_eq!(waited, child.pid.cast_signed(), "its end is left to whoever waits for it");
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
}
