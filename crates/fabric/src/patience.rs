//! How long a silent donor is waited for: decided by what giving it up would cost.
//!
//! Where every page has another copy within reach, a donor that says nothing is given up soon, and reads go on
//! elsewhere. Where it holds the only copy of some page, giving up loses that page for certain, while a donor that is
//! merely slow (its machine is busy, it was stopped for a moment) answers later: so it is waited for much longer. A
//! connection that is closed is lost at once in every case.
//!
//! One value for each donor: the process that knows where copies are sets it, the control channel and every data
//! connection look at it. A data connection whose answers stall says so here, before the donor is given up for that.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::limits::{REQUEST_DEADLINE, SILENCE_DEADLINE, SOLE_COPY_PATIENCE};

/// See the module text. Starts with a donor that can be spared.
#[derive(Debug, Default)]
pub struct Patience {
    /// How long it is waited for if that is longer than for others, in milliseconds.
    longest_ms: AtomicU64,
    /// Data connections whose answers stall.
    stalled: AtomicU32,
}

impl Patience {
    /// With a donor that holds the only copy of some page.
    pub fn with_sole_copies() -> Self {
        let patience = Self::default();
        patience.wait_for_sole_copies(Some(SOLE_COPY_PATIENCE));
        patience
    }

    /// The donor holds the only copy of some page, and is waited for so long; `None`: it can be spared.
    pub fn wait_for_sole_copies(&self, longest: Option<Duration>) {
        let longest_ms = longest.map_or(0, |longest| longest.as_millis() as u64);
        // Nothing else is published with it, and a late look costs one more round.
        self.longest_ms.store(longest_ms, Ordering::Relaxed);
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }

    /// How long a control channel may bring nothing.
    pub fn silence(&self) -> Duration {
        self.longest().max(SILENCE_DEADLINE)
    }

    /// How long a data connection that owes answers may bring nothing.
    pub fn request(&self) -> Duration {
        self.longest().max(REQUEST_DEADLINE)
    }

    /// Whether a data connection has brought nothing for [`STALL_NOTICED`](crate::limits::STALL_NOTICED) and owes
    /// answers.
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed) > 0
    }
}

/// What one data connection says of its donor; nothing any more once it is dropped.
#[derive(Debug)]
pub(crate) struct DataPatience {
    patience: Arc<Patience>,
    is_stalled: bool,
}

impl DataPatience {
    pub(crate) fn new(patience: Arc<Patience>) -> Self {
        Self { patience, is_stalled: false }
    }

    /// See [`Patience::request`].
    pub(crate) fn request(&self) -> Duration {
        self.patience.request()
    }

    /// Whether the answers of this connection stall.
    pub(crate) fn tell(&mut self, is_stalled: bool) {
        if self.is_stalled == is_stalled {
            return;
        }
        self.is_stalled = is_stalled;
        if is_stalled {
            self.patience.stalled.fetch_add(1, Ordering::Relaxed);
        } else {
            self.patience.stalled.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for DataPatience {
    fn drop(&mut self) {
        self.tell(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_donor_stalls_while_one_of_its_connections_does() {
        let patience = Arc::new(Patience::default());
        let [mut first, mut second] = [(); 2].map(|()| DataPatience::new(Arc::clone(&patience)));
        for is_stalled in [true, true, false, false, true] {
            first.tell(is_stalled);
            assert_eq!(patience.is_stalled(), is_stalled);
        }
        second.tell(true);
        drop(first);
        assert!(patience.is_stalled());
        drop(second);
        assert!(!patience.is_stalled(), "connections that are gone owe nothing");
    }

    #[test]
    fn what_cannot_be_replaced_is_waited_for_much_longer() {
        let patience = Patience::default();
        assert_eq!((patience.silence(), patience.request()), (SILENCE_DEADLINE, REQUEST_DEADLINE));
        patience.wait_for_sole_copies(Some(SOLE_COPY_PATIENCE));
        assert_eq!((patience.silence(), patience.request()), (SOLE_COPY_PATIENCE, SOLE_COPY_PATIENCE));
        patience.wait_for_sole_copies(None);
        assert_eq!(patience.request(), REQUEST_DEADLINE);
        assert_eq!(Patience::with_sole_copies().request(), SOLE_COPY_PATIENCE);
    }
}
