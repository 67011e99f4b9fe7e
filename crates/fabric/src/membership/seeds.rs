//! The addresses at which a machine finds its cluster.
//!
//! A machine that knows no living member greets all seeds, ever more rarely. One that knows some greets a random seed
//! that is not among them now and then: so two halves of a cluster that started apart find each other.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::limits::{JOIN_INTERVAL_MAX, JOIN_INTERVAL_MIN, SEED_INTERVAL, SEEDS_MAX};

/// See the module text.
#[derive(Debug)]
pub(crate) struct Seeds {
    addresses: Vec<SocketAddr>,
    next: Instant,
    patience: Duration,
}

impl Seeds {
    /// None yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self { addresses: Vec::new(), next: now, patience: JOIN_INTERVAL_MIN }
    }

    /// Takes these from now on, and greets them at once if they are others than before.
    pub(crate) fn set(&mut self, now: Instant, mut addresses: Vec<SocketAddr>, own: SocketAddr) {
        addresses.retain(|address| *address != own);
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(SEEDS_MAX);
        if addresses != self.addresses {
            self.addresses = addresses;
            (self.next, self.patience) = (now, JOIN_INTERVAL_MIN);
        }
    }

    /// Whether one is at `address`.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Instant> {
        (!self.addresses.is_empty()).then_some(self.next)
    }

    /// Whom to greet now. `is_member` tells living members by their address; `is_alone` that there are none.
    pub(crate) fn take_due(
        &mut self,
        now: Instant,
        is_alone: bool,
        is_member: impl Fn(SocketAddr) -> bool,
        rng: &mut SmallRng,
    ) -> Vec<SocketAddr> {
        if now < self.next || self.addresses.is_empty() {
            return Vec::new();
        }
        if is_alone {
            self.next = now + self.patience;
            self.patience = (self.patience * 2).min(JOIN_INTERVAL_MAX);
            return self.addresses.clone();
        }
        (self.next, self.patience) = (now + SEED_INTERVAL, JOIN_INTERVAL_MIN);
        let strangers: Vec<_> = self.addresses.iter().copied().filter(|address| !is_member(*address)).collect();
        if strangers.is_empty() { strangers } else { vec![strangers[rng.random_range(0..strangers.len())]] }
    }

    /// The last member went: all seeds are greeted soon.
    pub(crate) fn on_alone(&mut self, now: Instant) {
        (self.next, self.patience) = (now + JOIN_INTERVAL_MIN, JOIN_INTERVAL_MIN);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn all_seeds_are_greeted_until_there_is_a_member() {
        let (start, mut rng) = (Instant::now(), SmallRng::seed_from_u64(1));
        let mut seeds = Seeds::new(start);
        assert_eq!(seeds.next(), None);
        seeds.set(start, vec![address(3), address(1), address(2), address(1)], address(3));
        let all = vec![address(1), address(2)];
        assert_eq!(seeds.take_due(start, true, |_| false, &mut rng), all);
        assert!(seeds.take_due(start, true, |_| false, &mut rng).is_empty(), "not at once again");
        let (mut waits, mut now) = (Vec::new(), start);
        for _ in 0..6 {
            let next = seeds.next().unwrap();
            waits.push(next - now);
            now = next;
            assert_eq!(seeds.take_due(now, true, |_| false, &mut rng), all);
        }
        assert!(waits.is_sorted() && waits.last() == Some(&JOIN_INTERVAL_MAX), "{waits:?}");
    }

    #[test]
    fn later_one_seed_that_is_no_member_is_greeted_now_and_then() {
        let (start, mut rng) = (Instant::now(), SmallRng::seed_from_u64(1));
        let mut seeds = Seeds::new(start);
        seeds.set(start, vec![address(1), address(2)], address(3));
        assert_eq!(seeds.take_due(start, false, |it| it == address(1), &mut rng), [address(2)]);
        assert_eq!(seeds.next(), Some(start + SEED_INTERVAL));
        seeds.set(start, vec![address(2), address(1)], address(3));
        assert_eq!(seeds.next(), Some(start + SEED_INTERVAL), "the same seeds again change nothing");
        assert!(seeds.take_due(start + SEED_INTERVAL, false, |_| true, &mut rng).is_empty());
        seeds.on_alone(start);
        assert_eq!(seeds.next(), Some(start + JOIN_INTERVAL_MIN));
    }
}
