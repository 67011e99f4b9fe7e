//! What foca asks of its surroundings, collected: datagrams to send, timers, news.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use foca::{Notification, OwnedNotification, Runtime, Timer};

use super::identity::Identity;

/// Everything that one call of foca asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The time of the call.
    now: Instant,
    /// Messages and their receivers.
    pub(crate) sends: Vec<(Identity, Vec<u8>)>,
    /// Timers and when they are due.
    pub(crate) timers: Vec<(Instant, Timer<Identity>)>,
    /// What changed.
    pub(crate) news: Vec<OwnedNotification<Identity>>,
}

impl Asked {
    /// Nothing yet.
    pub(crate) fn at(now: Instant) -> Self {
        Self { now, sends: Vec::new(), timers: Vec::new(), news: Vec::new() }
    }
}

impl Runtime<Identity> for Asked {
    fn notify(&mut self, notification: Notification<'_, Identity>) {
        self.news.push(notification.to_owned());
    }

    fn send_to(&mut self, to: Identity, data: &[u8]) {
        self.sends.push((to, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Identity>, after: Duration) {
        self.timers.push((self.now + after, event));
    }
}

/// Timers in the order in which they are due; those of one moment in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeMap<(Instant, u64), Timer<Identity>>,
    set: u64,
}

impl Timers {
    /// Sets one.
    pub(crate) fn set(&mut self, due: Instant, timer: Timer<Identity>) {
        self.set += 1;
        self.queue.insert((due, self.set), timer);
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((due, _), _)| *due)
    }

    /// The next one that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer<Identity>> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_order_and_not_too_early() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut timers = Timers::default();
        for (due, token) in [(2, 1), (1, 2), (1, 3)] {
            timers.set(start + due * second, Timer::PeriodicGossip(token));
        }
        assert_eq!(timers.next(), Some(start + second));
        let mut due = |at| timers.take_due(start + at * second);
        assert_eq!(due(0), None);
        let tokens = [due(1), due(1), due(1), due(2), due(9)];
        let expected = [Some(2), Some(3), None, Some(1), None].map(|token| token.map(Timer::PeriodicGossip));
        assert_eq!(tokens, expected);
    }
}
