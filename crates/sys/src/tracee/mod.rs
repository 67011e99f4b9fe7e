//! One call of a function inside another process, on a thread that is borrowed for a moment (ptrace(2)); and threads
//! that are held for a moment and do nothing ([`Pause`]).
//!
//! The thread is in user code, or waits in a system call that begins anew when it is interrupted (`waiting`): any
//! other could be seen to fail with `EINTR`. Its registers, its floating-point state and its signal mask are put back
//! as they were; meanwhile it takes no signals. The function runs on a stack that the caller gives, never returns,
//! says by a word in shared memory that it is done, and then loops until the thread is stopped again: no breakpoint
//! is used, because its signal can change how the program handles `SIGTRAP`.
//!
//! Stops are looked for and not waited for with wait(2), which could take an end away from the thread that waits for
//! the program. A thread of this process that waits for *any* child may be told of a stopped one; it shall ignore
//! that.

mod borrowed;
mod ends;
mod pause;
mod request;
mod stop;
mod waiting;

use std::cell::RefCell;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::whereabouts::Whereabouts;
use borrowed::Borrowed;
pub use pause::Pause;

/// How long a stop or the function may take on a busy machine, between two looks.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// How long putting a thread back may take before it is put off; it only has to be scheduled.
const RESTORE_PATIENCE: Duration = Duration::from_secs(5);

/// What to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function's address in the process; it never returns.
    pub function: u64,
    /// Its only argument.
    pub argument: u64,
    /// The end of the stack that it runs on, aligned to 16 bytes.
    pub stack_end: u64,
    /// How long it may take, once it was begun.
    pub patience: Duration,
}

/// Why nothing was called.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The thread is in a system call that would fail, in a restartable sequence, stopped, or not of 64 bits; try
    /// another, or later.
    #[error("the thread cannot be borrowed now ({0}); try another one, or later")]
    Unsuitable(&'static str),
    /// The stopped thread is not of the program that was meant.
    #[error("the process has become another program")]
    Another,
    /// The thread ended.
    #[error("the thread has ended")]
    Gone,
    /// It did not stop in time, or one that did not is still to be given back; try later.
    #[error("the thread did not stop in time; try later")]
    NotStopped,
    /// The function failed (a filter of system calls, say); it will again.
    #[error("the function failed in the program")]
    Failed,
    /// Tracing is forbidden.
    #[error(
        "this user may not trace the program (kernel.yama.ptrace_scope, another user, or a debugger has it); start the agent early"
    )]
    Forbidden,
    /// The function did not say that it is done; the thread was put back all the same.
    #[error("the function did not finish in time; the thread goes on as before")]
    TimedOut,
    /// Anything else.
    #[error("ptrace: {0}")]
    Kernel(#[source] io::Error),
}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH) => Self::Gone,
            Some(libc::EPERM | libc::EACCES) => Self::Forbidden,
            _ if error.kind() == io::ErrorKind::NotFound => Self::Gone,
            _ if error.kind() == io::ErrorKind::WouldBlock => Self::Unsuitable("its memory cannot be read now"),
            _ => Self::Kernel(error),
        }
    }
}

/// Calls `call` on thread `thread` of process `process`, until `is_finished` says so; begins with it by `deadline`.
/// Once the thread has stopped, and before anything of it is changed, `is_meant` is asked: a process may have become
/// another program until then, and cannot any more.
///
/// A thread that cannot be given back at once (the kernel keeps it from running) is kept, traced, until the calling
/// thread tries again: [`give_back_rest`].
///
/// # Safety
///
/// The function and the stack are in that process and made for this: nothing else uses the stack, and the function
/// keeps what it was promised there. (The process is another one, but it may share memory with this one.)
pub unsafe fn call(
    process: u32,
    thread: u32,
    call: &Call,
    is_meant: &mut dyn FnMut() -> bool,
    mut is_finished: impl FnMut() -> bool,
    deadline: Instant,
) -> Result<(), TraceError> {
    let target = stop::Thread { process, thread };
    match borrow_and_call(target, call, is_meant, &mut is_finished, deadline) {
        // The kernel answers for a thread that ended as if it were another tracer's.
        Err(_) if target.is_dead() => Err(TraceError::Gone),
        result => result,
    }
}

thread_local! {
    /// Threads that could not be given back yet; only the thread that traces them can.
    static KEPT: RefCell<Vec<Borrowed>> = const { RefCell::new(Vec::new()) };
}

/// Gives threads back that could not be when they were borrowed by this thread; without waiting. Whether some are
/// left: it must be called again, soon, since one that has stopped meanwhile does nothing.
pub fn give_back_rest() -> bool {
    KEPT.with_borrow_mut(|kept| {
        kept.retain_mut(|borrowed| !borrowed.give_back(Duration::ZERO));
        !kept.is_empty()
    })
}

fn kept() -> Vec<stop::Thread> {
    KEPT.with_borrow(|kept| kept.iter().map(Borrowed::thread).collect())
}

fn is_kept(target: stop::Thread) -> bool {
    KEPT.with_borrow(|kept| kept.iter().any(|borrowed| borrowed.thread() == target))
}

fn borrow_and_call(
    target: stop::Thread,
    call: &Call,
    is_meant: &mut dyn FnMut() -> bool,
    is_finished: &mut dyn FnMut() -> bool,
    deadline: Instant,
) -> Result<(), TraceError> {
    if is_kept(target) {
        return Err(TraceError::NotStopped);
    }
    if !target.can_be_stopped()? {
        return Err(TraceError::Unsuitable("the kernel keeps it"));
    }
    let whereabouts = Whereabouts::of_thread(target.process, target.thread)?;
    if !waiting::may_be_borrowed(target.process, target.thread, whereabouts) {
        return Err(TraceError::Unsuitable("it is in a system call"));
    }
    let mut borrowed = match kept() {
        kept if kept.is_empty() => Borrowed::seize(target)?,
        kept => ends::while_reaping(&Mutex::new(kept), || Borrowed::seize(target))??,
    };
    let outcome = borrowed.make(call, is_meant, is_finished, deadline);
    if !borrowed.give_back(RESTORE_PATIENCE) {
        KEPT.with_borrow_mut(|kept| kept.push(borrowed));
    }
    outcome
}

#[cfg(test)]
mod tests;
