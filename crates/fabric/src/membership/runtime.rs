//! What foca asks of its surroundings, collected: datagrams to send, timers, news.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::{BTreeMap, VecDeque};
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
    /// When dead members are forgotten: all after the same time, so in the order in which they were set.
    removals: VecDeque<(Instant, Timer<Identity>)>,
    set: u64,
}

impl Timers {
    /// Sets one.
    pub(crate) fn set(&mut self, due: Instant, timer: Timer<Identity>) {
        if matches!(timer, Timer::RemoveDown(_)) {
            return self.removals.push_back((due, timer));
        }
        self.set += 1;
        self.queue.insert((due, self.set), timer);
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let first = self.queue.first_key_value().map(|((due, _), _)| *due);
        first.into_iter().chain(self.removals.front().map(|(due, _)| *due)).min()
    }

    /// The next one that is due. Dead members are forgotten sooner when there are more than `dead_max` of them.
    pub(crate) fn take_due(&mut self, now: Instant, dead_max: usize) -> Option<Timer<Identity>> {
        let first = self.queue.first_entry().filter(|first| first.key().0 <= now);
        if let Some(first) = first {
            return Some(first.remove());
        }
        let is_due = |(due, _): &(Instant, Timer<Identity>)| *due <= now;
        let oldest = self.removals.front().is_some_and(is_due) || self.removals.len() > dead_max;
        oldest.then(|| self.removals.pop_front()).flatten().map(|(_, timer)| timer)
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
        let mut due = |at| timers.take_due(start + at * second, 2);
        assert_eq!(due(0), None);
        let tokens = [due(1), due(1), due(1), due(2), due(9)];
        let expected = [Some(2), Some(3), None, Some(1), None].map(|token| token.map(Timer::PeriodicGossip));
        assert_eq!(tokens, expected);
    }

    #[test]
    fn of_too_many_dead_members_the_first_one_is_forgotten_at_once() {
        let (start, day) = (Instant::now(), Duration::from_secs(86400));
        let removal = |port| {
            Timer::RemoveDown(Identity::new(super::super::identity::MachineId(1), 1, ([10, 0, 0, 1], port).into()))
        };
        let mut timers = Timers::default();
        (1..=3).for_each(|port| timers.set(start + day, removal(port)));
        assert_eq!(timers.next(), Some(start + day));
        assert_eq!((timers.take_due(start, 2), timers.take_due(start, 2)), (Some(removal(1)), None));
        assert_eq!(timers.take_due(start + day, 2), Some(removal(2)));
    }
}
