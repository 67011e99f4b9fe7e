//! How long a silent donor is waited for: decided by what giving it up would cost.
//!
//! Where every page has another copy within reach, a donor that says nothing is given up soon, and reads go on
//! elsewhere. Where it holds the only copy of some page, giving up loses that page for certain, while a donor that is
//! merely slow (its machine is busy, it was stopped for a moment) answers later: so it is waited for much longer. A
//! connection that is closed is lost at once in every case.
//!
//! One value for each donor: the process that knows where copies are sets it, the control channel and every data
//! connection look at it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::limits::{REQUEST_DEADLINE, SILENCE_DEADLINE, SOLE_COPY_PATIENCE};

/// See the module text. Starts with a donor that can be spared.
#[derive(Debug, Default)]
pub struct Patience {
    /// How long it is waited for if that is longer than for others, in milliseconds.
    longest_ms: AtomicU64,
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
