//! Lets the manager wait until no request uses a slab's old copy any more.
//!
//! A request passes the gate of its slab before it reads where the slab's copies are, and leaves when its last byte
//! has moved. To take a copy away, the manager first removes its location, then [drains](Gate::drain) the gate:
//! afterwards no request can still be using that location, and it may be unmapped or lent to another borrower. Requests
//! never wait.
//!
//! This is sleepable read-copy-update with two counters (Linux `Documentation/RCU`, SRCU). One flip of the phase is
//! not enough: a request may read the phase, be delayed over a whole drain, and count itself under the old phase
//! afterwards, where the next drain would not look. So a drain flips twice and waits for each counter once.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use crate::sync::{AtomicU32, Ordering, yield_now};

/// The gate of one slab.
#[derive(Debug, Default)]
pub struct Gate {
    phase: AtomicU32,
    inside: [AtomicU32; 2],
}

/// Proof of having passed a gate; hand it back with [`Gate::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass(u8);

impl Gate {
    /// Passes; never waits. Locations must be read after this, not before.
    pub fn enter(&self) -> Pass {
        let index = self.phase.load(Ordering::SeqCst) & 1;
        self.inside[index as usize].fetch_add(1, Ordering::SeqCst);
        Pass(index as u8)
    }

    /// Leaves; the request uses nothing of the slab any more.
    pub fn leave(&self, pass: Pass) {
        let before = self.inside[usize::from(pass.0)].fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a gate was left more often than entered");
    }

    /// Waits until every request that passed before this call has left. Only one thread drains at a time. `pause` is
    /// called between looks.
    pub fn drain(&self, mut pause: impl FnMut()) {
        let drained = self.drain_while(|| {
            pause();
            true
        });
        assert!(drained, "nothing ends the wait but the last request");
    }

    /// As [`Gate::drain`], as long as `goes_on` says so between looks; whether no thread is inside any more.
    pub fn drain_while(&self, mut goes_on: impl FnMut() -> bool) -> bool {
        for _ in 0..2 {
            let old = self.phase.fetch_add(1, Ordering::SeqCst) & 1;
            while self.inside[old as usize].load(Ordering::SeqCst) != 0 {
                yield_now();
                if !goes_on() {
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_waits_for_those_inside_only() {
        let gate = Gate::default();
        let pass = gate.enter();
        let mut looks = 0;
        gate.drain(|| {
            looks += 1;
            if looks == 3 {
                gate.leave(pass);
            }
        });
        assert_eq!(looks, 3);
        gate.drain(|| panic!("the gate is empty"));
    }

    #[test]
    fn threads_that_enter_during_a_drain_do_not_hold_it_up() {
        let gate = Gate::default();
        let first = gate.enter();
        let mut later = Vec::new();
        gate.drain(|| {
            if later.is_empty() {
                later.push(gate.enter());
                gate.leave(first);
            } else {
                // The second flip waits for the other counter, where the later one may stand.
                later.drain(..).for_each(|pass| gate.leave(pass));
            }
        });
    }

    #[test]
    #[should_panic(expected = "more often than entered")]
    fn leaving_twice_is_a_bug() {
        let gate = Gate::default();
        let pass = gate.enter();
        gate.leave(pass);
        gate.leave(pass);
    }
}
