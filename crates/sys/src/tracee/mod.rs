//! One call of a function inside another process, on a thread that is borrowed for a moment (ptrace(2)).
//!
//! The thread is in user code, or waits in a system call that begins anew when it is interrupted (`waiting`): any other could
//! be seen to fail with `EINTR`. Its registers, its floating-point state and its signal mask are put back as they were;
//! meanwhile it takes no signals. The function runs on a stack that the caller gives, never returns, says by a word in shared
//! memory that it is done, and then loops until the thread is stopped again: no breakpoint is used, because its signal can
//! change how the program handles `SIGTRAP`.
//!
//! Stops are looked for and not waited for with wait(2), which could take an end away from whoever waits for the program. A
//! thread of this process that waits for *any* child may be told of a stopped one; it shall ignore that.

mod request;
mod stop;
mod waiting;

use std::io;
use std::time::{Duration, Instant};

use request::Registers;
use stop::Stop;

use crate::whereabouts::Whereabouts;

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
    /// The thread is in a system call that would fail, in a restartable sequence, stopped, or not of 64 bits; try another, or later.
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
    let before = Whereabouts::of_thread(target.process, target.thread)?;
    if !waiting::may_be_borrowed(target.process, target.thread, before) {
        return Err(TraceError::Unsuitable("it is in a system call"));
    }
    request::seize(target.thread)?;
    let mut borrowed = Borrowed { thread: target, before, saved: None, is_to_stop: false };
    borrowed.stop(deadline)?;
    borrowed.save()?;
    let outcome = borrowed.run(call, is_finished, Instant::now() + call.patience);
    borrowed.stop_anyhow()?;
    outcome
}

/// A thread that is traced until this goes; then it goes on as it was.
struct Borrowed {
    thread: stop::Thread,
    /// Where it was before it was stopped.
    before: Whereabouts,
    /// What is put back; `None` as long as nothing of it was changed.
    saved: Option<Saved>,
    /// Its process was told to stop while the thread could not.
    is_to_stop: bool,
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
                None if Instant::now() >= deadline => return Err(TraceError::Unsuitable("it gets no CPU")),
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Notes what it is, and keeps signals from it.
    fn save(&mut self) -> Result<(), TraceError> {
        self.saved = Some(Saved::take(self.thread, self.before)?);
        Ok(request::set_signal_mask(self.thread.thread, u64::MAX)?)
    }

    /// Lets it run `call` until the function is done.
    fn run(&mut self, call: &Call, is_finished: &mut dyn FnMut() -> bool, deadline: Instant) -> Result<(), TraceError> {
        let saved = self.saved.as_ref().expect("what is changed was saved");
        request::set_registers(self.thread.thread, &saved.registers.for_call(call))?;
        request::go_on(self.thread.thread, 0)?;
        while !is_finished() {
            match self.thread.look()? {
                // Its process was told to stop (job control): that takes effect when the thread is given back.
                Some(Stop::Asked | Stop::Group) => request::go_on(self.thread.thread, 0)?,
                Some(Stop::Signal(libc::SIGSTOP)) => {
                    self.is_to_stop = true;
                    request::go_on(self.thread.thread, 0)?;
                }
                Some(Stop::Signal(_)) => return Err(TraceError::Unsuitable("the function failed")),
                None if Instant::now() >= deadline => return Err(TraceError::TimedOut),
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
        Ok(())
    }

    /// Stops it wherever it is. Whatever stops it is good enough.
    fn stop_anyhow(&self) -> Result<Stop, TraceError> {
        if let Some(stop) = self.thread.look()? {
            return Ok(stop);
        }
        let deadline = Instant::now() + RESTORE_PATIENCE;
        request::interrupt(self.thread.thread)?;
        loop {
            match self.thread.look()? {
                Some(stop) => return Ok(stop),
                None if Instant::now() >= deadline => return Err(TraceError::TimedOut),
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Puts back what was changed, and lets it go.
    fn give_back(&mut self) -> Result<(), TraceError> {
        let stop::Thread { process, thread } = self.thread;
        // A thread that runs cannot be detached from.
        let stop = self.stop_anyhow()?;
        let restored = match &self.saved {
            Some(saved) => saved.restore(thread),
            None => Saved::begin_again(thread, self.before),
        };
        let signal = match (stop, &self.saved) {
            (Stop::Signal(libc::SIGSTOP), Some(_)) => {
                self.is_to_stop = true;
                0
            }
            // The function's fault, if it is one.
            (Stop::Signal(_), Some(_)) | (Stop::Asked | Stop::Group, _) => 0,
            (Stop::Signal(signal), None) => signal,
        };
        request::detach(thread, signal)?;
        if self.is_to_stop {
            // SAFETY: sends a signal; the process is the one that was sent it before.
            unsafe { libc::kill(process.cast_signed(), libc::SIGSTOP) };
        }
        Ok(restored?)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Err(error) = self.give_back()
            && !self.thread.is_dead()
        {
            tracing::warn!(
                "thread {} of process {} was not given back: {error}",
                self.thread.thread,
                self.thread.process
            );
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
    fn take(stop::Thread { process, thread }: stop::Thread, before: Whereabouts) -> Result<Self, TraceError> {
        let registers = request::registers(thread)?;
        if !registers.is_64_bit() {
            return Err(TraceError::Unsuitable("it runs code of 32 bits"));
        }
        if request::is_in_restartable_sequence(process, thread, registers.instruction())? {
            return Err(TraceError::Unsuitable("it is in a restartable sequence"));
        }
        let floating_point = request::floating_point(thread)?;
        let registers = waiting::begins_again(&registers, before).unwrap_or(registers);
        Ok(Self { registers, floating_point, signal_mask: request::signal_mask(thread)? })
    }

    /// All of it, whatever fails.
    fn restore(&self, thread: u32) -> io::Result<()> {
        let results = [
            request::set_registers(thread, &self.registers),
            request::set_floating_point(thread, &self.floating_point),
            request::set_signal_mask(thread, self.signal_mask),
        ];
        results.into_iter().collect()
    }

    /// For a thread that was only stopped.
    fn begin_again(thread: u32, before: Whereabouts) -> io::Result<()> {
        let registers = request::registers(thread)?;
        waiting::begins_again(&registers, before).map_or(Ok(()), |again| request::set_registers(thread, &again))
    }
}

#[cfg(test)]
mod tests;
