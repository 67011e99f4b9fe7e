//! Looks at something again and again while something else is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct EndOnDrop<'flag>(&'flag AtomicBool, std::thread::Thread);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}

/// Does `work`, and meanwhile calls `look` in each `interval`, from another thread. A panic of `work` ends that thread
/// too.
pub fn watched<Value>(interval: Duration, mut look: impl FnMut() + Send, work: impl FnOnce() -> Value) -> Value {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                look();
                std::thread::park_timeout(interval);
            }
        });
        let _ended = EndOnDrop(&done, watcher.thread().clone());
        work()
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn it_looks_until_the_work_is_done() {
        let (sender, looks) = channel();
        let look = move || assert!(sender.send(()).is_ok());
        let value = watched(Duration::from_millis(1), look, || {
            for _ in 0..3 {
                looks.recv().unwrap();
            }
            7
        });
        assert_eq!(value, 7);
    }

    #[test]
    fn a_panic_ends_it() {
        let panics = || watched(Duration::from_secs(1000), || {}, || panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    }
}
