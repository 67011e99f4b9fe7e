//! Threads of a process that are held for a moment, so that nothing changes in it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::borrowed::Borrowed;
use super::ends::{lock, while_reaping};
use super::stop::Thread;
use super::{KEPT, TraceError, is_kept, kept};
use crate::threads::Threads;

/// Threads that were asked to stop. They go on as they were when this is dropped, which the thread that made it does;
/// those that cannot be given back at once are kept for [`super::give_back_rest`].
pub struct Pause {
    threads: Vec<Borrowed>,
}

impl Pause {
    /// Asks the threads of `process` to stop that run or want to, wait for a page, or change their mappings; but not
    /// thread `spared`. They stop when they come back to user code. A thread that waits otherwise is left alone: a
    /// call of it may end by that. Those that came meanwhile are looked for until there are none, or `deadline` is
    /// over. `is_meant` is asked of each thread once it is traced: a process may have become another program until
    /// then.
    pub fn begin(
        process: u32,
        spared: u32,
        is_meant: &mut dyn FnMut(u32) -> bool,
        deadline: Instant,
    ) -> Result<Self, TraceError> {
        let mut pause = Self { threads: Vec::new() };
        let mut list = Threads::of(process)?;
        let held = Mutex::new(kept());
        while_reaping(&held, || {
            let mut before = usize::MAX;
            while before != pause.threads.len() && Instant::now() < deadline {
                before = pause.threads.len();
                for thread in list.list()? {
                    let thread = Thread { process, thread };
                    if thread.thread != spared && Instant::now() < deadline && pause.hold(thread, is_meant)? {
                        lock(&held).push(thread);
                    }
                }
            }
            Ok::<(), TraceError>(())
        })??;
        Ok(pause)
    }

    /// Whether this one is to stop that was not to before.
    fn hold(&mut self, thread: Thread, is_meant: &mut dyn FnMut(u32) -> bool) -> Result<bool, TraceError> {
        let is_held = is_kept(thread) || self.threads.iter().any(|held| held.thread() == thread);
        if is_held || !thread.may_be_held() {
            return Ok(false);
        }
        let asked = Borrowed::seize(thread).and_then(|borrowed| {
            let outcome = borrowed.ask_to_stop();
            self.threads.push(borrowed);
            outcome
        });
        match asked {
            // It goes on at once, as all do that are held.
            Ok(()) if !is_meant(thread.thread) && !thread.is_dead() => Err(TraceError::Another),
            Ok(()) => Ok(true),
            Err(_) if thread.is_dead() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether all of them have stopped or ended. Signals that come first are passed on.
    pub fn is_complete(&self) -> bool {
        // All are looked at, since one may want a signal.
        self.threads.iter().filter(|thread| !thread.has_stopped()).count() == 0
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        // The end of a process's first thread is told after those of the others.
        for mut borrowed in self.threads.drain(..).rev() {
            if !borrowed.give_back(Duration::ZERO) {
                KEPT.with_borrow_mut(|kept| kept.push(borrowed));
            }
        }
    }
}
