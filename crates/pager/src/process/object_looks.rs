//! When shared memory is looked for that could be taken in.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::{Duration, Instant};

use crate::limits::{OBJECT_LOOK_INTERVAL, OBJECT_RETRY_INTERVAL};

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// Every object was taken in or stays.
    AtAll,
    /// One could not be taken in now, because its programs changed their mappings.
    TooEarly,
}

/// The next look. One that came too early is followed soon by another, and each such one by a longer pause, so that
/// programs that change their mappings all the time cost no more than others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectLooks {
    next: Option<Instant>,
    /// How many came too early, one after the other.
    too_early: u32,
}

impl ObjectLooks {
    pub(super) fn is_due(self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// A look ended `now`.
    pub(super) fn ended(&mut self, looked: Looked, now: Instant) {
        let pause = match looked {
            Looked::AtAll => {
                self.too_early = 0;
                OBJECT_LOOK_INTERVAL
            }
            Looked::TooEarly => {
                let pause = OBJECT_RETRY_INTERVAL.saturating_mul(1 << self.too_early.min(u32::BITS / 2));
                self.too_early += 1;
                pause.min(OBJECT_LOOK_INTERVAL)
            }
        };
        self.next = Some(now + pause);
    }
}

/// For how long an object was without a descriptor, as far as looks tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unheld {
    /// Looks one after the other that found none.
    looks: u32,
    /// Since when there was one at each look.
    held_since: Option<Instant>,
    /// The user was told of it.
    is_told: bool,
}

/// What a look at an object's descriptors means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may be taken in if there is none still.
    Free,
    /// Not yet.
    Wait,
    /// As [`Verdict::Wait`], and the user is to be told, once.
    Tell,
}

impl Unheld {
    /// A look found that there is a descriptor, or none. It is free after `looks_min` looks without, and told of after
    /// `patience` with one.
    pub(super) fn looked(&mut self, is_held: bool, looks_min: u32, patience: Duration, now: Instant) -> Verdict {
        if !is_held {
            self.held_since = None;
            self.looks += 1;
            return if self.looks >= looks_min { Verdict::Free } else { Verdict::Wait };
        }
        self.looks = 0;
        let since = *self.held_since.get_or_insert(now);
        if self.is_told || now.saturating_duration_since(since) < patience {
            return Verdict::Wait;
        }
        self.is_told = true;
        Verdict::Tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_came_too_early_is_followed_soon_and_ever_later() {
        let (start, mut looks) = (Instant::now(), ObjectLooks::default());
        assert!(looks.is_due(start));
        let mut pauses = Vec::new();
        for _ in 0..200 {
            looks.ended(Looked::TooEarly, start);
            let pause = (1..).map(Duration::from_millis).find(|pause| looks.is_due(start + *pause)).unwrap();
            pauses.push(pause);
        }
        assert_eq!((pauses[0], pauses[1]), (OBJECT_RETRY_INTERVAL, OBJECT_RETRY_INTERVAL * 2));
        assert_eq!((pauses.iter().max(), pauses[199]), (Some(&OBJECT_LOOK_INTERVAL), OBJECT_LOOK_INTERVAL));
        looks.ended(Looked::AtAll, start);
        assert!(!looks.is_due(start + OBJECT_LOOK_INTERVAL / 2) && looks.is_due(start + OBJECT_LOOK_INTERVAL));
        looks.ended(Looked::TooEarly, start);
        assert!(looks.is_due(start + OBJECT_RETRY_INTERVAL), "from the beginning");
    }

    #[test]
    fn an_object_is_free_after_some_looks_without_a_descriptor_one_after_the_other() {
        let (now, patience, mut object) = (Instant::now(), Duration::from_secs(2), Unheld::default());
        let mut look = |is_held, now| object.looked(is_held, 3, patience, now);
        assert_eq!((look(false, now), look(false, now)), (Verdict::Wait, Verdict::Wait));
        assert_eq!(look(true, now), Verdict::Wait, "from the beginning");
        assert_eq!(
            [look(false, now), look(false, now), look(false, now)],
            [Verdict::Wait, Verdict::Wait, Verdict::Free]
        );
    }

    #[test]
    fn a_descriptor_that_stays_open_is_told_of_once() {
        let (start, patience, mut object) = (Instant::now(), Duration::from_secs(2), Unheld::default());
        let mut look = |is_held, now| object.looked(is_held, 3, patience, now);
        assert_eq!((look(true, start), look(true, start + patience / 2)), (Verdict::Wait, Verdict::Wait));
        assert_eq!((look(true, start + patience), look(true, start + 9 * patience)), (Verdict::Tell, Verdict::Wait));
        look(false, start + 9 * patience);
        look(true, start + 9 * patience);
        assert_eq!(look(true, start + 20 * patience), Verdict::Wait, "once");
    }
}
