//! Threads of a process that are held for a moment, so that nothing changes in it.

use std::time::Duration;

use super::borrowed::Borrowed;
use super::stop::Thread;
use super::{KEPT, TraceError, is_kept};
use crate::threads::Threads;

/// Threads that were asked to stop. They go on as they were when this is dropped, which the thread that made it does; those that cannot be given back at once
/// are kept for [`super::give_back_rest`].
pub struct Pause {
    threads: Vec<Borrowed>,
}

impl Pause {
    /// Asks the threads of `process` to stop that run, want to, or wait for the kernel as no signal ends it (for whoever reads of a change of their mappings, say); but not
    /// thread `spared`. They stop when they come back to user code. Who sleeps otherwise is left alone: a call of his may end by that.
    pub fn begin(process: u32, spared: u32) -> Result<Self, TraceError> {
        let mut pause = Self { threads: Vec::new() };
        for thread in Threads::of(process)?.list()? {
            let thread = Thread { process, thread };
            if thread.thread == spared || is_kept(thread) || !thread.is_busy() {
                continue;
            }
            let asked = Borrowed::seize(thread).map(|borrowed| {
                let outcome = borrowed.ask_to_stop();
                pause.threads.push(borrowed);
                outcome
            });
            match asked {
                Ok(Ok(())) => {}
                Err(_) | Ok(Err(_)) if thread.is_dead() => {}
                Err(error) | Ok(Err(error)) => return Err(error.into()),
            }
        }
        Ok(pause)
    }

    /// Whether all of them have stopped or ended. Signals that come first are passed on.
    pub fn is_complete(&self) -> bool {
        self.threads.iter().all(Borrowed::has_stopped)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        for mut borrowed in self.threads.drain(..) {
            if !borrowed.give_back(Duration::ZERO) {
                KEPT.with_borrow_mut(|kept| kept.push(borrowed));
            }
        }
    }
}
