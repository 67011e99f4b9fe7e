//! The end of a device one of whose I/O threads panicked.
//!
//! What the thread was doing is unknown: pages stay owned, gates stay passed, bits may say half of the truth. So the
//! whole device ends, at once and in the open: every request, in flight or to come, at any thread, fails with an I/O
//! error; no thread waits for what the thread owned; status says what happened. The front end stays attached until the
//! device is stopped, because errors are better for programs than a device that vanished. A failed page-out leaves
//! the page in memory.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::request::{BlockError, BlockRequest};
use crate::service::{BlockService, Completed, Waiting};

/// Whether the device has ended this way; all of its threads share it.
#[derive(Debug, Default)]
pub struct DeviceFailure {
    has_come: AtomicBool,
    reason: Mutex<String>,
}

impl DeviceFailure {
    /// A thread panicked with `payload`. The first reason stays.
    pub fn come(&self, payload: &(dyn Any + Send)) {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message");
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_come.load(Ordering::SeqCst) {
            text.clone_into(&mut reason);
            self.has_come.store(true, Ordering::SeqCst);
        }
        drop(reason);
        tracing::error!("an I/O thread panicked ({text}); every request to the device fails from now on: stop it");
    }

    /// Whether it has come. A look costs nothing.
    pub fn has_come(&self) -> bool {
        self.has_come.load(Ordering::SeqCst)
    }

    /// Why it has come, in the panic's words.
    pub fn reason(&self) -> Option<String> {
        self.has_come().then(|| self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// Fails every request.
#[derive(Debug)]
pub struct FailedService {
    slots: Vec<usize>,
}

impl FailedService {
    /// For requests of `slot_count` slots; everything it needs is made here.
    pub fn new(slot_count: usize) -> Self {
        Self { slots: Vec::with_capacity(slot_count) }
    }
}

impl BlockService for FailedService {
    fn submit(&mut self, request: BlockRequest, _now: Instant) {
        self.slots.push(request.slot);
    }

    fn poll(&mut self, _now: Instant, completed: Completed<'_>) -> Waiting {
        self.slots.drain(..).for_each(|slot| completed(slot, Err(BlockError::InputOutput)));
        Waiting::Nothing
    }

    fn for_each_event<'a>(&'a self, _visit: &mut dyn FnMut(BorrowedFd<'a>, bool)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_is_kept() {
        let device_failure = DeviceFailure::default();
        assert_eq!((device_failure.has_come(), device_failure.reason()), (false, None));
        device_failure.come(&"index out of bounds");
        device_failure.come(&String::from("a later one"));
        assert_eq!(
            (device_failure.has_come(), device_failure.reason()),
            (true, Some("index out of bounds".to_owned()))
        );
        let silent = DeviceFailure::default();
        silent.come(&7_u32);
        assert_eq!(silent.reason().unwrap(), "without a message");
    }
}
