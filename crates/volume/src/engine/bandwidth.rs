//! A bound of a volume's page traffic, both directions together: `run --bandwidth`.
//!
//! A token bucket as one number: the moment at which all bytes that were let through so far have been carried at the
//! rate (the generic cell rate algorithm of ATM). I/O threads share it without a lock. A request that a thread waits
//! for *reserves*: it gets the moment from which it may begin, in the order of its coming, so none starves. A prefetch
//! only takes what is free now, and so delays no fault.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limits::{BANDWIDTH_BURST_BYTES, BANDWIDTH_BYTES_PER_SECOND_MIN};
use crate::status::BandwidthStatus;

/// The bound of one volume, see the module text.
#[derive(Debug)]
pub struct Bandwidth {
    bytes_per_second: u64,
    start: Instant,
    /// When everything that was let through has been carried, in nanoseconds since `start`.
    carried_at_ns: AtomicU64,
    requests_held: AtomicU64,
    held_us: AtomicU64,
}

/// What a request owes before it may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Toll {
    /// Nothing, or nothing more.
    Paid,
    /// It has reserved, and begins at this moment.
    Due(Instant),
    /// It takes what is free, and waits until there is something.
    Open,
}

impl Bandwidth {
    /// At most so many bytes a second; never less than [`BANDWIDTH_BYTES_PER_SECOND_MIN`].
    pub fn new(bytes_per_second: u64, now: Instant) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(BANDWIDTH_BYTES_PER_SECOND_MIN),
            start: now,
            carried_at_ns: AtomicU64::new(0),
            requests_held: AtomicU64::new(0),
            held_us: AtomicU64::new(0),
        }
    }

    /// What it did.
    pub fn status(&self) -> BandwidthStatus {
        BandwidthStatus {
            bytes_per_second: self.bytes_per_second,
            requests_held: self.requests_held.load(Ordering::Relaxed),
            held_us: self.held_us.load(Ordering::Relaxed),
        }
    }

    fn cost_ns(&self, bytes: u64) -> u64 {
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    fn elapsed_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// From when on the bytes before have been carried, a burst of them ahead of time.
    fn free_at_ns(&self, carried_at_ns: u64) -> u64 {
        carried_at_ns.saturating_sub(self.cost_ns(BANDWIDTH_BURST_BYTES))
    }

    /// Lets `bytes` through, now or later: from when on.
    pub(super) fn reserve(&self, bytes: u64, now: Instant) -> Toll {
        let (now_ns, cost_ns) = (self.elapsed_ns(now), self.cost_ns(bytes));
        let add = |carried_at_ns: u64| Some(carried_at_ns.max(now_ns).saturating_add(cost_ns));
        let before = self.carried_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let free_at_ns = self.free_at_ns(before.unwrap_or_else(|before| before));
        if free_at_ns <= now_ns {
            return Toll::Paid;
        }
        self.requests_held.fetch_add(1, Ordering::Relaxed);
        self.held_us.fetch_add((free_at_ns - now_ns) / 1000, Ordering::Relaxed);
        Toll::Due(self.start + Duration::from_nanos(free_at_ns))
    }

    /// Lets `bytes` through if that is possible now.
    pub(super) fn take(&self, bytes: u64, now: Instant) -> bool {
        let (now_ns, cost_ns) = (self.elapsed_ns(now), self.cost_ns(bytes));
        let add = |carried_at_ns: u64| {
            let is_free = self.free_at_ns(carried_at_ns) <= now_ns;
            is_free.then(|| carried_at_ns.max(now_ns).saturating_add(cost_ns))
        };
        self.carried_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: u64 = 100 << 20;

    fn bandwidth() -> (Bandwidth, Instant) {
        let now = Instant::now();
        (Bandwidth::new(RATE, now), now)
    }

    #[test]
    fn a_burst_goes_at_once_and_what_follows_waits_its_turn() {
        let (bandwidth, now) = bandwidth();
        let mut free = 0;
        while bandwidth.take(4096, now) {
            free += 4096;
        }
        assert_eq!(free, BANDWIDTH_BURST_BYTES + 4096, "the burst, and the request that overdraws it");
        let Toll::Due(first) = bandwidth.reserve(RATE, now) else { panic!("nothing is free") };
        let Toll::Due(second) = bandwidth.reserve(4096, now) else { panic!("nothing is free") };
        let apart = (second - first).as_secs_f64();
        assert!((0.999..1.001).contains(&apart), "a second's bytes lie between them: {apart}");
        assert_eq!(bandwidth.status().requests_held, 2);
        assert!(!bandwidth.take(1, second) && bandwidth.take(1, second + Duration::from_millis(1)));
    }

    #[test]
    fn a_prefetch_that_finds_nothing_free_delays_no_fault() {
        let (bandwidth, now) = bandwidth();
        bandwidth.reserve(2 * BANDWIDTH_BURST_BYTES, now);
        let before = bandwidth.carried_at_ns.load(Ordering::Relaxed);
        assert!(!bandwidth.take(1 << 20, now));
        assert_eq!(bandwidth.carried_at_ns.load(Ordering::Relaxed), before);
    }

    #[test]
    fn a_rate_that_would_have_requests_time_out_is_raised() {
        let bandwidth = Bandwidth::new(1, Instant::now());
        assert_eq!(bandwidth.status().bytes_per_second, BANDWIDTH_BYTES_PER_SECOND_MIN);
    }

    proptest! {
        /// Whatever comes when: by no moment have more bytes begun than the rate allows since any earlier one, a burst
        /// and one request aside; and reservations begin in their order.
        #[test]
        fn no_more_goes_through_than_the_rate_allows(
            requests in proptest::collection::vec((0_u64..20_000, 1_u64..256, any::<bool>()), 1..200),
        ) {
            let (bandwidth, start) = bandwidth();
            let (mut now, mut begun, mut last) = (start, Vec::new(), start);
            for (pause_us, pages, is_prefetch) in requests {
                now += Duration::from_micros(pause_us);
                let bytes = pages * 4096;
                if is_prefetch {
                    if bandwidth.take(bytes, now) {
                        begun.push((now, bytes));
                    }
                    continue;
                }
                let at = match bandwidth.reserve(bytes, now) {
                    Toll::Due(at) => at,
                    _ => now,
                };
                prop_assert!(at >= last.min(now) && at >= now);
                last = at;
                begun.push((at, bytes));
            }
            begun.sort();
            let total = |until: Instant| -> u64 { begun.iter().filter(|(at, _)| *at <= until).map(|(_, bytes)| bytes).sum() };
            for (at, _) in &begun {
                let allowed = RATE as f64 * (*at - start).as_secs_f64() + (BANDWIDTH_BURST_BYTES + (1 << 20)) as f64;
                prop_assert!(total(*at) as f64 <= allowed + 4096.0);
            }
        }
    }
}
