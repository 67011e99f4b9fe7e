//! How often a source may begin a handshake. Decisions only: the time comes with each call.
//!
//! A handshake costs a thread, and each is of a stranger until it proves the cluster's key or a session's token.
//! Therefore each source has a bound, and all sources that have proven nothing lately have one together. A handshake
//! that succeeds is given back, so honest peers meet no bound, however many connections they open. A source that has
//! proven itself is not judged by what strangers do, and gets more: a stranger may share its address.
//!
//! Bounds are kept by the generic cell rate algorithm (ITU-T I.371): one time for each source, of which no more than
//! [`SOURCES_MAX`] are remembered. Strangers are forgotten first.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::{Duration, Instant};

use crate::connections::Source;
use crate::limits::{
    HANDSHAKE_INTERVAL, HANDSHAKES_AT_ONCE_MAX, PROVEN_FACTOR, PROVEN_FOR, SOURCES_MAX, STRANGERS_AT_ONCE_MAX,
    STRANGERS_INTERVAL,
};

/// The handshakes of a donor, see the module text.
#[derive(Debug, Default)]
pub struct HandshakeRates {
    /// The source heard last stands last.
    sources: Vec<Heard>,
    /// All that have proven nothing lately, together.
    strangers: Cell,
}

/// A source that began handshakes.
#[derive(Clone, Copy, Debug)]
struct Heard {
    source: Source,
    cell: Cell,
    proven: Option<Instant>,
}

/// When the next event would come if all had come evenly; none before the first one.
#[derive(Clone, Copy, Debug, Default)]
struct Cell(Option<Instant>);

impl Cell {
    /// Whether there is room for an event of a burst of `burst`, one every `interval`.
    fn has_room(self, now: Instant, interval: Duration, burst: u32) -> bool {
        self.0.is_none_or(|due| due.saturating_duration_since(now) <= interval * (burst - 1))
    }

    fn count(&mut self, now: Instant, interval: Duration) {
        self.0 = Some(self.0.map_or(now, |due| due.max(now)) + interval);
    }

    fn give_back(&mut self, interval: Duration) {
        self.0 = self.0.and_then(|due| due.checked_sub(interval));
    }
}

impl Heard {
    fn is_stranger(&self, now: Instant) -> bool {
        self.proven.is_none_or(|proven| now.saturating_duration_since(proven) > PROVEN_FOR)
    }

    /// One handshake in so long, and so many at once.
    fn bounds(&self, now: Instant) -> (Duration, u32) {
        let factor = if self.is_stranger(now) { 1 } else { PROVEN_FACTOR };
        (HANDSHAKE_INTERVAL / factor, HANDSHAKES_AT_ONCE_MAX * factor)
    }
}

impl HandshakeRates {
    /// Whether `source` may begin a handshake now. It is counted if so.
    pub fn admit(&mut self, source: Source, now: Instant) -> bool {
        let mut heard = self.take(source, now);
        let is_stranger = heard.is_stranger(now);
        let (interval, burst) = heard.bounds(now);
        let admitted = heard.cell.has_room(now, interval, burst)
            && (!is_stranger || self.strangers.has_room(now, STRANGERS_INTERVAL, STRANGERS_AT_ONCE_MAX));
        if admitted {
            heard.cell.count(now, interval);
            if is_stranger {
                self.strangers.count(now, STRANGERS_INTERVAL);
            }
        }
        self.sources.push(heard);
        assert!(self.sources.len() <= SOURCES_MAX);
        admitted
    }

    /// A handshake of `source` succeeded: it costs nothing.
    pub fn proved(&mut self, source: Source, now: Instant) {
        let mut heard = self.take(source, now);
        if heard.is_stranger(now) {
            heard.cell = Cell::default();
            self.strangers.give_back(STRANGERS_INTERVAL);
        } else {
            heard.cell.give_back(heard.bounds(now).0);
        }
        heard.proven = Some(now);
        self.sources.push(heard);
    }

    /// Sources remembered.
    pub fn count(&self) -> usize {
        self.sources.len()
    }

    /// What is known of `source`, taken out; there is room for it then.
    fn take(&mut self, source: Source, now: Instant) -> Heard {
        if let Some(place) = self.sources.iter().rposition(|heard| heard.source == source) {
            return self.sources.remove(place);
        }
        if self.sources.len() >= SOURCES_MAX {
            let stranger = self.sources.iter().position(|heard| heard.is_stranger(now));
            self.sources.remove(stranger.unwrap_or(0));
        }
        Heard { source, cell: Cell::default(), proven: None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(number: u32) -> Source {
        Source::of_address(std::net::IpAddr::from((0x0a00_0000 + number).to_be_bytes()))
    }

    /// So many of `times` lie in the busiest window of this length.
    fn most_within(times: &[Instant], window: Duration) -> usize {
        let within = |start: &Instant| times.iter().filter(|time| *time >= start && **time - *start <= window).count();
        times.iter().map(within).max().unwrap_or(0)
    }

    fn most_allowed(window: Duration, interval: Duration, burst: u32) -> usize {
        burst as usize + (window.as_nanos() / interval.as_nanos()) as usize
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_its_bound_for_one_source_and_for_all(
            steps in prop::collection::vec((0_u32..6, 0_u64..20_000), 1..1500),
            window_ms in 1_u64..3000,
        ) {
            let (mut rates, mut now) = (HandshakeRates::default(), Instant::now());
            let mut admitted: Vec<(u32, Instant)> = Vec::new();
            for (number, microseconds) in steps {
                now += Duration::from_micros(microseconds);
                if rates.admit(source(number), now) {
                    admitted.push((number, now));
                }
            }
            let window = Duration::from_millis(window_ms);
            let all: Vec<Instant> = admitted.iter().map(|(_, at)| *at).collect();
            prop_assert!(most_within(&all, window) <= most_allowed(window, STRANGERS_INTERVAL, STRANGERS_AT_ONCE_MAX));
            for number in 0..6 {
                let own: Vec<Instant> = admitted.iter().filter(|(of, _)| *of == number).map(|(_, at)| *at).collect();
                let bound = most_allowed(window, HANDSHAKE_INTERVAL, HANDSHAKES_AT_ONCE_MAX);
                prop_assert!(most_within(&own, window) <= bound);
            }
        }

        #[test]
        fn whatever_strangers_do_a_proven_source_is_let_in(
            strangers in prop::collection::vec((0_u32..5000, 0_u64..2000), 0..4000),
        ) {
            let (mut rates, mut now) = (HandshakeRates::default(), Instant::now());
            let borrower = source(1_000_000);
            prop_assert!(rates.admit(borrower, now));
            rates.proved(borrower, now);
            for (number, microseconds) in strangers {
                now += Duration::from_micros(microseconds);
                rates.admit(source(number), now);
                prop_assert!(rates.count() <= SOURCES_MAX);
            }
            for _ in 0..10 * HANDSHAKES_AT_ONCE_MAX {
                prop_assert!(rates.admit(borrower, now), "what it proves is given back");
                rates.proved(borrower, now);
            }
        }
    }

    #[test]
    fn a_source_is_bounded_and_recovers_and_others_do_not_notice() {
        let (mut rates, now) = (HandshakeRates::default(), Instant::now());
        let admitted = (0..1000).filter(|_| rates.admit(source(1), now)).count();
        assert_eq!(admitted, HANDSHAKES_AT_ONCE_MAX as usize);
        assert!(rates.admit(source(2), now));
        assert!(rates.admit(source(1), now + HANDSHAKE_INTERVAL));
        assert!(!rates.admit(source(1), now + HANDSHAKE_INTERVAL));
    }

    #[test]
    fn a_stranger_with_a_borrowers_address_has_a_bound_too() {
        let (mut rates, now) = (HandshakeRates::default(), Instant::now());
        rates.admit(source(1), now);
        rates.proved(source(1), now);
        let admitted = (0..100_000).filter(|_| rates.admit(source(1), now)).count();
        assert_eq!(admitted, (PROVEN_FACTOR * HANDSHAKES_AT_ONCE_MAX) as usize);
    }

    #[test]
    fn strangers_are_forgotten_before_proven_sources_and_a_proof_grows_old() {
        let (mut rates, mut now) = (HandshakeRates::default(), Instant::now());
        rates.admit(source(0), now);
        rates.proved(source(0), now);
        for number in 1..3 * SOURCES_MAX as u32 {
            rates.admit(source(number), now);
        }
        assert!(rates.sources.iter().any(|heard| heard.source == source(0)));
        now += PROVEN_FOR + Duration::from_secs(1);
        let flood = |rates: &mut HandshakeRates| (1..2000).filter(|number| rates.admit(source(*number), now)).count();
        assert_eq!(flood(&mut rates), STRANGERS_AT_ONCE_MAX as usize);
        assert!(!rates.admit(source(0), now), "it is a stranger again");
    }
}
