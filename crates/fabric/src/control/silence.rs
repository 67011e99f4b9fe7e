//! When a peer that says nothing is given up.
//!
//! Silence is counted in waits, not read from a clock: whoever was stopped itself (its virtual machine was paused, or others had
//! its processor) finds the peer silent for as long, although nobody listened. That counts as one wait.

use crate::limits::{HEARTBEAT_INTERVAL, SILENCE_DEADLINE};

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

    /// One more wait of [`HEARTBEAT_INTERVAL`] was in vain; whether the peer is to be given up.
    pub fn lasts(&mut self) -> bool {
        self.waits += 1;
        HEARTBEAT_INTERVAL * self.waits >= SILENCE_DEADLINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_waits_in_a_row_are_too_many() {
        let mut silence = Silence::default();
        for _ in 0..2 {
            assert_eq!([(); 3].map(|()| silence.lasts()), [false; 3]);
            silence.is_broken();
        }
        assert_eq!([(); 4].map(|()| silence.lasts()), [false, false, false, true]);
    }
}
