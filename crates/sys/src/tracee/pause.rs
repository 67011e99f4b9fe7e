//! Threads of a process that are held for a moment, so that nothing changes in it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::borrowed::Borrowed;
use super::ends::{lock, while_reaping};
use super::stop::Thread;
use super::{Call, KEPT, RESTORE_PATIENCE, TraceError, is_kept, kept};
use crate::threads::Threads;

/// Threads that were asked to stop. They go on as they were when this is dropped, which the thread that made it does;
/// those that cannot be given back at once are kept for [`super::give_back_rest`].
pub struct Pause {
    process: u32,
    threads: Vec<Borrowed>,
}

impl Pause {
    /// Holds the threads of `process` as [`follow`](Self::follow) does.
    pub fn begin(
        process: u32,
        spared: u32,
        is_meant: &mut dyn FnMut(u32) -> bool,
        deadline: Instant,
    ) -> Result<Self, TraceError> {
        let mut pause = Self { process, threads: Vec::new() };
        pause.follow(spared, is_meant, deadline)?;
        Ok(pause)
    }

    /// Asks the threads of the process to stop that run or want to, wait for a page, or change their mappings, and
    /// were not asked yet; but not thread `spared`. They stop when they come back to user code. A thread that waits
    /// otherwise is left alone: a call of it may end by that. Those that came meanwhile are looked for until there are
    /// none, or `deadline` is over. `is_meant` is asked of each thread once it is traced: a process may have become
    /// another program until then.
    pub fn follow(
        &mut self,
        spared: u32,
        is_meant: &mut dyn FnMut(u32) -> bool,
        deadline: Instant,
    ) -> Result<(), TraceError> {
        let process = self.process;
        let mut list = Threads::of(process)?;
        let held: Vec<Thread> = kept().into_iter().chain(self.threads.iter().map(Borrowed::thread)).collect();
        let listed = list.list()?;
        let is_new = |thread: &u32| held.iter().all(|held| held.thread != *thread) && *thread != spared;
        if !listed.iter().any(|thread| is_new(thread) && Thread { process, thread: *thread }.may_be_held()) {
            return Ok(());
        }
        let is_alone = listed.len() == 1 && held.is_empty();
        let held = Mutex::new(held);
        let mut hold_all = || {
            let mut before = usize::MAX;
            while before != self.threads.len() && Instant::now() < deadline {
                before = self.threads.len();
                for thread in list.list()? {
                    let thread = Thread { process, thread };
                    if thread.thread != spared && Instant::now() < deadline && self.hold(thread, is_meant)? {
                        lock(&held).push(thread);
                    }
                }
            }
            Ok::<(), TraceError>(())
        };
        // No other thread's end need be taken notice of then, and another thread of ours would have to get a CPU.
        if is_alone { hold_all() } else { while_reaping(&held, hold_all)? }
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

    /// The threads that are held.
    pub fn threads(&self) -> Vec<u32> {
        self.threads.iter().map(|held| held.thread().thread).collect()
    }

    /// Calls `call` on `thread`, one of those that are held, as [`super::call`] does; the thread stays held.
    ///
    /// # Safety
    ///
    /// As of [`super::call`].
    pub unsafe fn call(
        &mut self,
        thread: u32,
        call: &Call,
        is_meant: &mut dyn FnMut() -> bool,
        is_finished: &mut dyn FnMut() -> bool,
        deadline: Instant,
    ) -> Result<(), TraceError> {
        let Some(index) = self.threads.iter().position(|held| held.thread().thread == thread) else {
            return Err(TraceError::Gone);
        };
        let borrowed = &mut self.threads[index];
        let outcome = borrowed.make(call, is_meant, is_finished, deadline);
        if !borrowed.put_back(RESTORE_PATIENCE) {
            give_back_or_keep(self.threads.remove(index), RESTORE_PATIENCE);
        }
        outcome
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
        self.threads.drain(..).rev().for_each(|borrowed| give_back_or_keep(borrowed, Duration::ZERO));
    }
}

fn give_back_or_keep(mut borrowed: Borrowed, patience: Duration) {
    if !borrowed.give_back(patience) {
        KEPT.with_borrow_mut(|kept| kept.push(borrowed));
    }
}
