//! Which datagrams were seen before.
//!
//! Every process counts its datagrams. Per sender one window remembers the 64 newest counts; what is older or was seen
//! is a repetition. The table is bounded: when it is full, the sender that was silent longest is forgotten, and its old
//! datagrams would be taken again.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::HashMap;

use crate::limits::SENDERS_REMEMBERED_MAX;

/// A process that sends: 128 random bits of its own.
pub(crate) type Sender = [u8; 16];

#[derive(Clone, Copy, Debug)]
struct Window {
    newest: u64,
    /// Bit `n`: the datagram `newest - n` was seen.
    seen: u64,
    used: u64,
}

/// The windows of all senders.
#[derive(Debug, Default)]
pub(crate) struct ReplayGuard {
    windows: HashMap<Sender, Window>,
    clock: u64,
}

impl ReplayGuard {
    /// Whether the datagram is the first of its number. Asked of authenticated datagrams only: others must not move
    /// the windows.
    pub(crate) fn is_new(&mut self, sender: Sender, count: u64) -> bool {
        self.clock += 1;
        let used = self.clock;
        match self.windows.get_mut(&sender) {
            Some(window) => {
                window.used = used;
                window.admit(count)
            }
            None => {
                self.make_room();
                self.windows.insert(sender, Window { newest: count, seen: 1, used });
                true
            }
        }
    }

    fn make_room(&mut self) {
        if self.windows.len() < SENDERS_REMEMBERED_MAX {
            return;
        }
        let oldest = self.windows.iter().min_by_key(|(_, window)| window.used).map(|(sender, _)| *sender);
        oldest.map(|sender| self.windows.remove(&sender));
    }
}

impl Window {
    fn admit(&mut self, count: u64) -> bool {
        if count > self.newest {
            let steps = count - self.newest;
            self.seen = if steps < 64 { self.seen << steps } else { 0 } | 1;
            self.newest = count;
            return true;
        }
        let age = self.newest - count;
        let is_new = age < 64 && self.seen & 1 << age == 0;
        if is_new {
            self.seen |= 1 << age;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_datagram_is_taken_twice_and_those_in_order_all(counts in prop::collection::vec(0u64..300, 1..400)) {
            let mut guard = ReplayGuard::default();
            let (mut taken, mut newest) = (HashSet::new(), None);
            for count in counts {
                let is_new = guard.is_new([1; 16], count);
                prop_assert!(!is_new || taken.insert(count), "{count} was taken twice");
                prop_assert!(is_new || newest.is_some_and(|newest| count <= newest), "{count} is newer than {newest:?}");
                newest = newest.max(Some(count));
            }
        }
    }

    #[test]
    fn what_comes_late_is_taken_once_if_not_too_late() {
        let mut guard = ReplayGuard::default();
        let mut takes = |count| guard.is_new([1; 16], count);
        assert!(takes(100) && takes(99) && !takes(99) && takes(37) && !takes(36));
        assert!(takes(1000) && !takes(100) && !takes(999 - 63) && takes(999));
    }

    #[test]
    fn senders_are_apart_and_the_one_silent_longest_is_forgotten() {
        let mut guard = ReplayGuard::default();
        let sender = |number: usize| (number as u128).to_le_bytes();
        assert!((0..SENDERS_REMEMBERED_MAX).all(|number| guard.is_new(sender(number), 1)));
        assert!(!guard.is_new(sender(0), 1));
        assert!(guard.is_new(sender(SENDERS_REMEMBERED_MAX), 1));
        assert_eq!(guard.windows.len(), SENDERS_REMEMBERED_MAX);
        assert!(!guard.is_new(sender(0), 1) && guard.is_new(sender(1), 1));
    }
}
