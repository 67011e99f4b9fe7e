//! Traced threads that end while another one of their process is seized.
//!
//! A thread that executes another program waits for the ends of its process's others, each of which stays until its
//! tracer has taken notice; and a tracer that seizes one of them meanwhile waits for that thread (`cred_guard_mutex`,
//! in `de_thread` of the kernel's `fs/exec.c` and `ptrace_attach` of its `kernel/ptrace.c`). Each would wait for the
//! other, but that any thread of the tracer's process may take notice.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};
use std::time::Duration;

use super::stop::Thread;

/// Between two looks: as long as the kernel takes to end threads.
const REAP_INTERVAL: Duration = Duration::from_millis(1);

/// Does `work`, which seizes, while another thread takes notice of the ends of those in `held`.
pub(super) fn while_reaping<T>(held: &Mutex<Vec<Thread>>, work: impl FnOnce() -> T) -> io::Result<T> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reaper = Builder::new().name("reaper".to_owned()).spawn_scoped(scope, || {
            while !is_over.load(Ordering::Relaxed) {
                thread::park_timeout(REAP_INTERVAL);
                for thread in lock(held).iter() {
                    thread.reap();
                }
            }
        })?;
        let _end = End { is_over: &is_over, reaper: reaper.thread() };
        Ok(work())
    })
}

/// Also if the work panics.
struct End<'a> {
    is_over: &'a AtomicBool,
    reaper: &'a thread::Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.reaper.unpark();
    }
}

/// The list stays usable whatever panicked.
pub(super) fn lock(held: &Mutex<Vec<Thread>>) -> MutexGuard<'_, Vec<Thread>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
