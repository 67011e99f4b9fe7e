//! When a peer that says nothing is given up.
//!
//! Silence is counted in waits, not read from a clock: a process that was stopped itself (its virtual machine was
//! paused, or others had its processor) finds the peer silent for as long, although no process listened. That counts
//! as one wait, and only after what came meanwhile was looked for.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::Duration;

use crate::limits::HEARTBEAT_INTERVAL;

/// How long a peer has been silent.
#[derive(Debug, Default)]
pub struct Silence {
    waits: u32,
}

impl Silence {
    /// The peer said something.
    pub fn is_broken(&mut self) {
        self.waits = 0;
    }

    /// One more wait of [`HEARTBEAT_INTERVAL`] was without success.
    pub fn lasts(&mut self) {
        self.waits = self.waits.saturating_add(1);
    }

    /// How long it has lasted, as far as this side listened.
    pub fn observed(&self) -> Duration {
        HEARTBEAT_INTERVAL.saturating_mul(self.waits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::SILENCE_DEADLINE;

    #[test]
    fn four_waits_in_a_row_are_too_many_for_a_peer_that_can_be_spared() {
        let mut silence = Silence::default();
        let mut wait = || {
            silence.lasts();
            silence.observed() >= SILENCE_DEADLINE
        };
        assert_eq!([(); 4].map(|()| wait()), [false, false, false, true]);
        silence.is_broken();
        assert_eq!(silence.observed(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn only_waits_since_the_last_word_count(words in prop::collection::vec(any::<bool>(), 0..100)) {
            let mut silence = Silence::default();
            for spoke in &words {
                if *spoke { silence.is_broken() } else { silence.lasts() }
            }
            let waits = words.iter().rev().take_while(|spoke| !**spoke).count() as u32;
            prop_assert_eq!(silence.observed(), HEARTBEAT_INTERVAL * waits);
        }
    }
}
