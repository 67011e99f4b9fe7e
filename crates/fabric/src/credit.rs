//! Credit-based flow control, as in HPBD: what bounds the requests in flight, and lets urgent ones pass.
//!
//! A queue pair has [`QUEUE_DEPTH_MAX`] credits. Each request in flight holds one. A class may take a credit only while
//! more remain than are reserved for the classes above it. So no fault waits for a credit that discards, moves or
//! refills hold ([`Priority::WriteBack`]). Pages that leave are [`Priority::Demand`], as a program may wait for their
//! room, and so they share the credits of faults.
//!
//! Invariant: credits held plus credits free are [`QUEUE_DEPTH_MAX`].

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use crate::limits::{CREDITS_RESERVED_FOR_DEMAND, CREDITS_RESERVED_FOR_PREFETCH, QUEUE_DEPTH_MAX};
use crate::units::Priority;

/// The credits of one queue pair.
#[derive(Debug)]
pub struct Credits {
    free: usize,
}

impl Credits {
    /// All credits free.
    pub fn new() -> Self {
        Self { free: QUEUE_DEPTH_MAX }
    }

    /// Takes a credit for a request of `priority`, if that class may have one now.
    #[must_use]
    pub fn take(&mut self, priority: Priority) -> bool {
        let taken = self.free > reserved_above(priority);
        if taken {
            self.free -= 1;
        }
        taken
    }

    /// A request ended.
    pub fn give_back(&mut self) {
        assert!(self.free < QUEUE_DEPTH_MAX, "a credit was given back twice");
        self.free += 1;
    }

    /// Requests that hold a credit.
    pub fn held(&self) -> usize {
        QUEUE_DEPTH_MAX - self.free
    }
}

impl Default for Credits {
    fn default() -> Self {
        Self::new()
    }
}

/// Credits that stay free for the classes above `priority`.
fn reserved_above(priority: Priority) -> usize {
    match priority {
        Priority::Demand => 0,
        Priority::Prefetch => CREDITS_RESERVED_FOR_DEMAND,
        Priority::WriteBack => CREDITS_RESERVED_FOR_DEMAND + CREDITS_RESERVED_FOR_PREFETCH,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn take_all(credits: &mut Credits, priority: Priority) -> usize {
        std::iter::repeat_with(|| credits.take(priority)).take_while(|&taken| taken).count()
    }

    #[test]
    fn each_class_leaves_the_credits_of_the_classes_above_it() {
        let mut credits = Credits::new();
        let write_back = take_all(&mut credits, Priority::WriteBack);
        assert_eq!(write_back, QUEUE_DEPTH_MAX - CREDITS_RESERVED_FOR_DEMAND - CREDITS_RESERVED_FOR_PREFETCH);
        assert_eq!(take_all(&mut credits, Priority::Prefetch), CREDITS_RESERVED_FOR_PREFETCH);
        assert_eq!(take_all(&mut credits, Priority::Demand), CREDITS_RESERVED_FOR_DEMAND);
        assert_eq!(credits.held(), QUEUE_DEPTH_MAX);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_what_was_not_taken_is_a_bug() {
        Credits::new().give_back();
    }

    proptest! {
        #[test]
        fn held_credits_equal_a_simple_count(steps in proptest::collection::vec(0_usize..4, 0..600)) {
            let mut credits = Credits::new();
            let mut held = 0_usize;
            for step in steps {
                match Priority::ALL.get(step) {
                    Some(&priority) => held += usize::from(credits.take(priority)),
                    None if held > 0 => { credits.give_back(); held -= 1; }
                    None => {}
                }
                prop_assert_eq!(credits.held(), held);
                prop_assert!(held <= QUEUE_DEPTH_MAX);
            }
        }
    }
}
