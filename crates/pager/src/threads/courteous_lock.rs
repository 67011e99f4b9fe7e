//! A lock between one thread that needs it nearly all the time and others that need it now and then.
//!
//! The fault thread has a program's page table for most of each fault, and takes it again a microsecond after it gave
//! it back. A thread that sleeps for it is woken then, and finds it taken, again and again: a mutex lets who comes
//! first have it. Seen for a millisecond and more, in which each fault also paid for waking the other without success
//! (docs/decisions/pager-fault.md). So the frequent thread looks whether a thread waits,
//! and lets him go first; not for longer than he takes to wake up, not if the offer of the CPU took a third one, and
//! once only: his CPU may be busy.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::limits::GIVE_WAY_LOOKS_MAX;
use crate::threads::lock::lock;

/// See the module text.
#[derive(Debug)]
pub struct CourteousLock<T> {
    value: Mutex<T>,
    /// Threads that wait for it and are to be let in.
    waiting: AtomicU32,
    /// A thread was let go first, and did not come in time; true until one has had it.
    is_in_vain: AtomicBool,
}

impl<T> CourteousLock<T> {
    /// A free lock around `value`.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0), is_in_vain: AtomicBool::new(false) }
    }

    /// For threads that need it now and then: the frequent thread lets them in.
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

    /// For the frequent thread, which offers the CPU between two looks whether the waiting threads have come; `offer`
    /// says whether no other thread took it.
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

    /// Waits until `lock` is waited for by so many.
    fn await_waiting<T>(lock: &CourteousLock<T>, count: u32) {
        let begin = Instant::now();
        while lock.waiting.load(Ordering::SeqCst) != count {
            assert!(begin.elapsed() < Duration::from_secs(60), "nobody comes");
            yield_now();
        }
    }

    #[test]
    fn who_waits_is_let_in_before_the_frequent_one() {
        let order = CourteousLock::new(Vec::new());
        scope(|threads| {
            let held = order.lock_last(|| panic!("nobody waits"));
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
    fn who_does_not_come_is_not_waited_for_again() {
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
        assert_eq!(looks.get(), 0, "somebody else took the CPU: no second offer");
    }
}
