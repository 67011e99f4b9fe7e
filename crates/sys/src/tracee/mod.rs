//! One call of a function inside another process, on a thread that is borrowed for a moment (ptrace(2)).
//!
//! The thread must be in user code: a thread stopped in a system call could see it fail with `EINTR`. Its registers, its
//! floating-point state and its signal mask are put back as they were; meanwhile it takes no signals. The function runs on a
//! stack that the caller gives, never returns, says by a word in shared memory that it is done, and then loops until the
//! thread is stopped again: no breakpoint is used, because its signal can change how the program handles `SIGTRAP`.
//!
//! Stops are looked for and not waited for with wait(2), which could take an end away from whoever waits for the program. A
//! thread of this process that waits for *any* child may be told of a stopped one; it shall ignore that.

mod request;
mod stop;

use std::io;
use std::time::{Duration, Instant};

use request::Registers;
use stop::Stop;

/// How long a stop or the function may take on a busy machine, between two looks.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// How long putting a thread back may take; it only has to be scheduled.
const RESTORE_PATIENCE: Duration = Duration::from_secs(20);

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
    /// The thread is in a system call, in a restartable sequence, stopped, or not of 64 bits; try another, or later.
    #[error("the thread cannot be borrowed now ({0}); try another one, or later")]
    Unsuitable(&'static str),
    /// The thread ended.
    #[error("the thread has ended")]
    Gone,
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
            _ => Self::Kernel(error),
        }
    }
}

/// Calls `call` on thread `thread` of process `process`, until `is_finished` says so; begins with it by `deadline`.
///
/// # Safety
///
/// The function and the stack are in that process and made for this: nothing else uses the stack, and the function keeps what
/// it was promised there. (The process is another one, but it may share memory with this one.)
pub unsafe fn call(
    process: u32,
    thread: u32,
    call: &Call,
    mut is_finished: impl FnMut() -> bool,
    deadline: Instant,
) -> Result<(), TraceError> {
    let target = stop::Thread { process, thread };
    match borrow_and_call(target, call, &mut is_finished, deadline) {
        // The kernel answers for a thread that ended as if it were somebody else's.
        Err(_) if target.is_dead() => Err(TraceError::Gone),
        result => result,
    }
}

fn borrow_and_call(
    target: stop::Thread,
    call: &Call,
    is_finished: &mut dyn FnMut() -> bool,
    deadline: Instant,
) -> Result<(), TraceError> {
    let stop::Thread { process, thread } = target;
    if !target.is_in_user_code()? {
        return Err(TraceError::Unsuitable("it is in a system call"));
    }
    request::seize(thread)?;
    let borrowed = Borrowed { thread: target };
    borrowed.stop(deadline)?;
    let saved = Saved::take(process, thread)?;
    request::set_signal_mask(thread, u64::MAX)?;
    let outcome = borrowed.run(&saved.registers.for_call(call), is_finished, Instant::now() + call.patience);
    borrowed.stop_anyhow()?;
    saved.restore(thread)?;
    outcome
}

/// A thread that is traced until this goes.
struct Borrowed {
    thread: stop::Thread,
}

impl Borrowed {
    /// Stops it, passing on signals that come first.
    fn stop(&self, deadline: Instant) -> Result<(), TraceError> {
        request::interrupt(self.thread.thread)?;
        loop {
            match self.thread.look()? {
                Some(Stop::Asked) => return Ok(()),
                Some(Stop::Group) => return Err(TraceError::Unsuitable("it is stopped")),
                Some(Stop::Signal(signal)) => request::go_on(self.thread.thread, signal)?,
                None if Instant::now() >= deadline => return Err(TraceError::TimedOut),
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Stops it after it ran for us. Whatever stops it is good enough: a stop of its process takes effect when the thread is given
    /// back, and a signal can only be the fault of the function.
    fn stop_anyhow(&self) -> Result<(), TraceError> {
        let deadline = Instant::now() + RESTORE_PATIENCE;
        request::interrupt(self.thread.thread)?;
        while self.thread.look()?.is_none() {
            if Instant::now() >= deadline {
                return Err(TraceError::TimedOut);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    /// Lets it run with `registers` until the function is done.
    fn run(
        &self,
        registers: &Registers,
        is_finished: &mut dyn FnMut() -> bool,
        deadline: Instant,
    ) -> Result<(), TraceError> {
        request::set_registers(self.thread.thread, registers)?;
        request::go_on(self.thread.thread, 0)?;
        while !is_finished() {
            match self.thread.look()? {
                // The process was told to stop (job control): that takes effect when the thread is given back.
                Some(Stop::Asked | Stop::Group) => request::go_on(self.thread.thread, 0)?,
                Some(Stop::Signal(_)) => return Err(TraceError::Unsuitable("the function failed")),
                None if Instant::now() >= deadline => return Err(TraceError::TimedOut),
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
        Ok(())
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A thread that runs cannot be detached from, so one that does is stopped first.
        if !request::detach(self.thread.thread) && self.stop_anyhow().is_ok() {
            request::detach(self.thread.thread);
        }
        self.thread.reap_if_dead();
    }
}

/// What is put back.
struct Saved {
    registers: Registers,
    floating_point: Vec<u8>,
    signal_mask: u64,
}

impl Saved {
    fn take(process: u32, thread: u32) -> Result<Self, TraceError> {
        let registers = request::registers(thread)?;
        if registers.is_in_system_call() {
            return Err(TraceError::Unsuitable("it is in a system call"));
        }
        if !registers.is_64_bit() {
            return Err(TraceError::Unsuitable("it runs code of 32 bits"));
        }
        if request::is_in_restartable_sequence(process, thread, registers.instruction())? {
            return Err(TraceError::Unsuitable("it is in a restartable sequence"));
        }
        let floating_point = request::floating_point(thread)?;
        Ok(Self { registers, floating_point, signal_mask: request::signal_mask(thread)? })
    }

    fn restore(&self, thread: u32) -> Result<(), TraceError> {
        request::set_registers(thread, &self.registers)?;
        request::set_floating_point(thread, &self.floating_point)?;
        Ok(request::set_signal_mask(thread, self.signal_mask)?)
    }
}

#[cfg(test)]
mod tests;
