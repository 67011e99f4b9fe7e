//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A thread that panicked holding a lock takes the pager down elsewhere; what it protects is looked at all the same.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
