//! A thread from when it is seized to when it goes on as it was.

use std::cell::RefCell;
use std::io;
use std::time::{Duration, Instant};

use super::request::{self, Registers};
use super::stop::{Reaped, Stop, Thread};
use super::{Call, LOOK_INTERVAL, TraceError, waiting};
use crate::process_stat::ProcessStat;

/// A thread that is traced until it is [given back](Borrowed::give_back), which no thread may forget.
pub(super) struct Borrowed {
    thread: Thread,
    /// What is put back; `None` as long as nothing of it was changed.
    saved: Option<Saved>,
}

impl Borrowed {
    /// Begins to trace a thread.
    pub(super) fn seize(thread: Thread) -> io::Result<Self> {
        request::seize(thread.thread)?;
        Ok(Self::of(thread))
    }

    /// Of a thread that is traced by the calling one, and that no other thread gives back.
    fn of(thread: Thread) -> Self {
        TRACED.with_borrow_mut(|traced| traced.push(thread));
        Self { thread, saved: None }
    }

    pub(super) fn thread(&self) -> Thread {
        self.thread
    }

    /// Stops it by `deadline` and lets it run `call`, if it `is_meant`.
    pub(super) fn make(
        &mut self,
        call: &Call,
        is_meant: &mut dyn FnMut() -> bool,
        is_finished: &mut dyn FnMut() -> bool,
        deadline: Instant,
    ) -> Result<(), TraceError> {
        self.stop(deadline)?;
        if !is_meant() {
            return Err(TraceError::Another);
        }
        self.saved = Some(Saved::take(self.thread)?);
        request::set_signal_mask(self.thread.thread, u64::MAX)?;
        self.run(call, is_finished, Instant::now() + call.patience)
    }

    /// It is to stop as soon as it is in user code.
    pub(super) fn ask_to_stop(&self) -> io::Result<()> {
        request::interrupt(self.thread.thread)
    }

    /// Whether it has stopped, or ended. A signal that comes first is passed on.
    pub(super) fn has_stopped(&self) -> bool {
        match self.thread.look() {
            Ok(Some(Stop::Asked | Stop::Group)) => true,
            Ok(Some(Stop::Signal(signal))) => {
                // If it ends by that, it is found dead.
                let _ = request::go_on(self.thread.thread, signal);
                false
            }
            Ok(None) => false,
            Err(_) => self.thread.is_dead(),
        }
    }

    /// Stops it, passing on signals that come first.
    fn stop(&self, deadline: Instant) -> Result<(), TraceError> {
        self.ask_to_stop()?;
        loop {
            match self.thread.look()? {
                Some(Stop::Asked) => return Ok(()),
                Some(Stop::Group) => return Err(TraceError::Unsuitable("it is stopped")),
                Some(Stop::Signal(signal)) => request::go_on(self.thread.thread, signal)?,
                None if Instant::now() >= deadline => return Err(TraceError::NotStopped),
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Lets it run `call` until the function is done.
    fn run(&self, call: &Call, is_finished: &mut dyn FnMut() -> bool, deadline: Instant) -> Result<(), TraceError> {
        let saved = self.saved.as_ref().expect("what is changed was saved");
        request::set_registers(self.thread.thread, &saved.registers.for_call(call))?;
        request::go_on(self.thread.thread, 0)?;
        let mut idling = Idling::since(self.thread);
        while !is_finished() {
            match self.thread.look()? {
                // Its process was told to stop (job control): that takes effect when the thread is given back. The
                // one signal for it that cannot be blocked is passed on, since one that follows may undo it.
                Some(Stop::Asked | Stop::Group) => request::go_on(self.thread.thread, 0)?,
                Some(Stop::Signal(libc::SIGSTOP)) => request::go_on(self.thread.thread, libc::SIGSTOP)?,
                Some(Stop::Signal(_)) => return Err(TraceError::Failed),
                None if Instant::now() >= deadline || idling.is_proven() => return Err(TraceError::TimedOut),
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
        Ok(())
    }

    /// Puts back what a call changed, and leaves the thread stopped. False if that cannot be: it must be given back.
    pub(super) fn put_back(&mut self, patience: Duration) -> bool {
        let Some(saved) = &self.saved else { return true };
        let deadline = Instant::now() + patience;
        if self.ask_to_stop().is_err() {
            return false;
        }
        loop {
            match self.thread.look() {
                Ok(Some(Stop::Asked)) => break,
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_INTERVAL),
                _ => return false,
            }
        }
        let is_restored = saved.restore(self.thread.thread).is_ok();
        if is_restored {
            self.saved = None;
        }
        is_restored
    }

    /// Puts back what was changed, and lets it go. False if it did not stop in time: it must be tried again.
    pub(super) fn give_back(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            match self.thread.look() {
                Ok(Some(stop)) if self.let_go(stop).is_ok() => return true,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) if self.is_no_more() => return true,
                Ok(None) | Err(_) => {}
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Whether there is nothing to give back. What does not stop by itself is asked to once more, which changes
    /// nothing if it was.
    fn is_no_more(&mut self) -> bool {
        if !self.thread.is_dead() {
            // The thread that has its number now is not traced here: another of its process became another program,
            // and took the number of the first. It may also be this one that took it, in this very moment.
            return self.ask_to_stop().is_err() && !self.thread.is_dead();
        }
        match self.thread.reap() {
            Reaped::Yes => true,
            Reaped::NotYet => false,
            Reaped::NoProcess => self.has_no_successor(),
        }
    }

    /// A thread that executes another program takes the number of its process's first, and is traced there, also
    /// before that program has begun.
    fn has_no_successor(&mut self) -> bool {
        let first = Thread { thread: self.thread.process, ..self.thread };
        let is_others = TRACED.with_borrow(|traced| traced.contains(&first));
        if is_others || request::interrupt(first.thread).is_err() {
            return true;
        }
        // Nothing is put back into another program.
        *self = Self::of(first);
        false
    }

    fn let_go(&self, stop: Stop) -> io::Result<()> {
        let thread = self.thread.thread;
        match &self.saved {
            Some(saved) => saved.restore(thread)?,
            None => Saved::begin_again(thread)?,
        }
        let signal = match (stop, &self.saved) {
            (Stop::Signal(signal), None) => signal,
            (Stop::Signal(libc::SIGSTOP), Some(_)) => libc::SIGSTOP,
            // The function's fault, if it is one.
            (Stop::Signal(_), Some(_)) | (Stop::Asked | Stop::Group, _) => 0,
        };
        request::detach(thread, signal)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // The list may be gone already where its thread ends.
        let _ = TRACED.try_with(|traced| traced.borrow_mut().retain(|thread| *thread != self.thread));
    }
}

thread_local! {
    /// What this thread traces.
    static TRACED: RefCell<Vec<Thread>> = const { RefCell::new(Vec::new()) };
}

/// Whether a thread does something else than the function, which needs a hundred microseconds of a CPU and sleeps in
/// nothing: a program says itself where its function is.
struct Idling {
    thread: Thread,
    begun: Instant,
    ticks: Option<u64>,
    looks_asleep: u32,
}

impl Idling {
    /// Nothing is proven before.
    const GRACE: Duration = Duration::from_millis(500);
    /// CPU time, in hundredths of a second.
    const TICKS_MAX: u64 = 30;
    /// Looks in a row, [`LOOK_INTERVAL`] apart.
    const LOOKS_ASLEEP_MAX: u32 = 1000;

    fn since(thread: Thread) -> Self {
        Self { thread, begun: Instant::now(), ticks: Self::look(thread).0, looks_asleep: 0 }
    }

    fn look(Thread { process, thread }: Thread) -> (Option<u64>, bool) {
        let stat = ProcessStat::of_thread(process, thread).ok();
        let is_asleep = stat.as_ref().and_then(ProcessStat::state).is_some_and(|state| matches!(state, 'S' | 'D'));
        (stat.and_then(|stat| stat.cpu_ticks()), is_asleep)
    }

    fn is_proven(&mut self) -> bool {
        if self.begun.elapsed() < Self::GRACE {
            return false;
        }
        let (ticks, is_asleep) = Self::look(self.thread);
        self.looks_asleep = if is_asleep { self.looks_asleep + 1 } else { 0 };
        let has_run = ticks.zip(self.ticks).is_some_and(|(now, then)| now.saturating_sub(then) > Self::TICKS_MAX);
        has_run || self.looks_asleep > Self::LOOKS_ASLEEP_MAX
    }
}

/// What is put back.
struct Saved {
    registers: Registers,
    floating_point: Vec<u8>,
    signal_mask: u64,
}

impl Saved {
    fn take(Thread { process, thread }: Thread) -> Result<Self, TraceError> {
        let registers = request::registers(thread)?;
        if !registers.is_64_bit() {
            return Err(TraceError::Unsuitable("it runs code of 32 bits"));
        }
        if matches!(registers.system_call(), Some(libc::SYS_execve | libc::SYS_execveat)) {
            return Err(TraceError::Unsuitable("it has just become another program"));
        }
        match request::is_in_restartable_sequence(process, thread, registers.instruction()) {
            Ok(false) => {}
            Ok(true) => return Err(TraceError::Unsuitable("it is in a restartable sequence")),
            Err(_) => return Err(TraceError::Unsuitable("its restartable sequence cannot be read now")),
        }
        let signal_mask = request::signal_mask(thread)?;
        if waiting::blocks_more_than(process, thread, signal_mask)? {
            return Err(TraceError::Unsuitable("it waits with signals blocked"));
        }
        let floating_point = request::floating_point(thread)?;
        let registers = waiting::begins_again(&registers).unwrap_or(registers);
        Ok(Self { registers, floating_point, signal_mask })
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
    fn begin_again(thread: u32) -> io::Result<()> {
        let registers = request::registers(thread)?;
        waiting::begins_again(&registers).map_or(Ok(()), |again| request::set_registers(thread, &again))
    }
}
