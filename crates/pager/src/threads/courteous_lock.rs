//! A lock between one thread that needs it nearly all the time (the frequent thread) and other threads that need it
//! rarely.
//!
//! The fault thread holds the lock of a program's page table for most of each fault, and takes the lock again a
//! microsecond after its release. A plain mutex gives the lock to the first thread that asks. A thread that sleeps for
//! the lock wakes up and finds the lock taken again, for a millisecond and more, and each fault pays for the wake
//! (docs/decisions/pager-fault.md).
//!
//! The frequent thread therefore checks whether another thread waits, and lets that thread go first. Three bounds:
//! - the frequent thread gives way no longer than a thread needs to wake up ([`GIVE_WAY_LOOKS_MAX`]);
//! - giving way ends when a third thread takes the offered CPU;
//! - a thread that did not come in time is not offered the lock again until a thread has had it: the CPU of that
//!   thread may be busy.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::limits::GIVE_WAY_LOOKS_MAX;
use crate::threads::lock::lock;

/// See the module text.
#[derive(Debug)]
pub struct CourteousLock<T> {
    value: Mutex<T>,
    /// Threads that wait for the lock.
    waiting: AtomicU32,
    /// The frequent thread gave way, and no thread came in time; true until a waiting thread has had the lock.
    is_in_vain: AtomicBool,
}

impl<T> CourteousLock<T> {
    /// A free lock around `value`.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0), is_in_vain: AtomicBool::new(false) }
    }

    /// For threads that need the lock rarely: the frequent thread lets them in.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.value.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(error)) => return error.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = lock(&self.value);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.is_in_vain.store(false, Ordering::SeqCst);
        guard
    }

    /// For the frequent thread. `offer` offers the CPU between two checks of the waiting threads, and tells whether no
    /// other thread took the CPU.
    pub fn lock_last(&self, mut offer: impl FnMut() -> bool) -> MutexGuard<'_, T> {
        if self.is_wanted() && !self.is_in_vain.load(Ordering::Relaxed) {
            let mut looks = 0;
            while self.is_wanted() && looks < GIVE_WAY_LOOKS_MAX {
                looks += 1;
                if !offer() {
                    break;
                }
            }
            self.is_in_vain.store(true, Ordering::SeqCst);
            if !self.is_wanted() {
                self.is_in_vain.store(false, Ordering::SeqCst);
            }
        }
        lock(&self.value)
    }

    fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread::{scope, yield_now};
    use std::time::{Duration, Instant};

    use super::*;

    /// Waits until `count` threads wait for `lock`.
    fn await_waiting<T>(lock: &CourteousLock<T>, count: u32) {
        let begin = Instant::now();
        while lock.waiting.load(Ordering::SeqCst) != count {
            assert!(begin.elapsed() < Duration::from_secs(60), "no thread comes");
            yield_now();
        }
    }

    #[test]
    fn a_waiting_client_is_let_in_before_the_frequent_one() {
        let order = CourteousLock::new(Vec::new());
        scope(|threads| {
            let held = order.lock_last(|| panic!("no thread waits"));
            threads.spawn(|| order.lock().push("now and then"));
            await_waiting(&order, 1);
            drop(held);
            // As patient as it takes here; a count of looks is no time.
            let offer = || {
                await_waiting(&order, 0);
                true
            };
            order.lock_last(offer).push("frequent");
        });
        assert_eq!(*order.lock(), ["now and then", "frequent"]);
    }

    #[test]
    fn a_thread_that_does_not_come_is_not_awaited_again() {
        let counted = CourteousLock::new(0);
        counted.waiting.store(1, Ordering::SeqCst);
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            true
        };
        drop(counted.lock_last(look));
        assert_eq!(looks.get(), GIVE_WAY_LOOKS_MAX, "not for ever");
        drop(counted.lock_last(|| panic!("and once")));
        // A thread has had it: the next is let in again.
        scope(|threads| {
            let held = counted.lock_last(|| panic!("and once"));
            threads.spawn(|| drop(counted.lock()));
            await_waiting(&counted, 2);
            drop(held);
        });
        drop(counted.lock_last(|| {
            looks.set(0);
            false
        }));
        assert_eq!(looks.get(), 0, "another thread took the CPU: no second offer");
    }
}
