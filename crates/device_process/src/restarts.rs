//! Decides whether the process of a device is started again after its death, and when. No clock and no I/O.
//!
//! A life in which a request came and none was carried out, or that did not get so far as to serve, was for nothing.
//! Many of them in a row mean that the next one would end so, too: the device is given up. Whatever ends lives that
//! serve is no fault of the device, however often it comes, and a life that was asked for nothing says nothing.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::Duration;

use crate::limits::{RESTART_PAUSE_MAX, RESTART_PAUSE_MIN, RESTART_PAUSE_SERVED_MAX, RESTART_WINDOW, RESTARTS_MAX};

/// What a process did until it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// From its start to its end.
    pub(super) lived: Duration,
    /// It was ready to serve.
    pub(super) was_ready: bool,
    /// A request came.
    pub(super) was_asked: bool,
    /// A request was carried out.
    pub(super) has_answered: bool,
}

/// What follows from a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another process starts after this pause.
    Start(Duration),
    /// No process is started any more.
    GiveUp,
}

/// The deaths of a device's processes so far.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// Of all times.
    count: u32,
    /// In a row, each of a life for nothing.
    barren: u32,
    /// In a row, each soon after its start.
    quick: u32,
}

impl Restarts {
    /// Whether a process died.
    pub(super) fn have_been(&self) -> bool {
        self.count > 0
    }

    /// Takes a life that ended.
    pub(super) fn after(&mut self, life: Life) -> Next {
        self.count = self.count.saturating_add(1);
        let was_long = life.lived >= RESTART_WINDOW;
        if was_long || life.has_answered {
            self.barren = 0;
        } else if life.was_asked || !life.was_ready {
            self.barren += 1;
        }
        self.quick = if was_long { 1 } else { self.quick.saturating_add(1) };
        if self.barren > RESTARTS_MAX {
            return Next::GiveUp;
        }
        let doubled = 2_u32.saturating_pow(self.quick - 1);
        let most = if life.has_answered { RESTART_PAUSE_SERVED_MAX } else { RESTART_PAUSE_MAX };
        Next::Start(RESTART_PAUSE_MIN.saturating_mul(doubled).min(most))
    }

    /// A device that was given up is to be tried again, as often as at first.
    pub(super) fn try_again(&mut self) {
        (self.barren, self.quick) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARREN: Life = Life { lived: Duration::from_secs(1), was_ready: true, was_asked: true, has_answered: false };
    const SERVED: Life = Life { has_answered: true, ..BARREN };
    const IDLE: Life = Life { was_asked: false, ..BARREN };
    const STILLBORN: Life = Life { was_ready: false, ..IDLE };

    /// The deaths until the device is given up, of so many at most.
    fn deaths(restarts: &mut Restarts, lives: impl IntoIterator<Item = Life>) -> Option<usize> {
        lives.into_iter().position(|life| restarts.after(life) == Next::GiveUp)
    }

    #[test]
    fn lives_for_nothing_end_it_and_pauses_grow_meanwhile() {
        for life in [BARREN, STILLBORN] {
            let mut restarts = Restarts::default();
            let mut pauses = Vec::new();
            while let Next::Start(pause) = restarts.after(life) {
                pauses.push(pause);
            }
            assert_eq!(pauses.len(), RESTARTS_MAX as usize);
            assert!(pauses.is_sorted() && pauses[0] == RESTART_PAUSE_MIN && pauses[1] > pauses[0]);
            assert!(pauses.iter().sum::<Duration>() < Duration::from_secs(8), "requests wait so long: {pauses:?}");
            restarts.try_again();
            assert_eq!(restarts.after(life), Next::Start(RESTART_PAUSE_MIN));
            assert!(restarts.have_been());
        }
    }

    #[test]
    fn a_device_that_serves_is_never_given_up() {
        let mut restarts = Restarts::default();
        assert!(!restarts.have_been());
        assert_eq!(deaths(&mut restarts, [SERVED; 1000]), None);
        assert_eq!(restarts.after(SERVED), Next::Start(RESTART_PAUSE_SERVED_MAX), "it is not started all the time");
    }

    #[test]
    fn one_life_that_serves_or_lasts_makes_good_for_those_before() {
        let nearly = [BARREN; RESTARTS_MAX as usize];
        for good in [SERVED, Life { lived: RESTART_WINDOW, ..BARREN }] {
            let mut restarts = Restarts::default();
            assert_eq!(deaths(&mut restarts, nearly), None);
            assert!(matches!(restarts.after(good), Next::Start(_)));
            assert_eq!(deaths(&mut restarts, nearly), None);
            assert_eq!(restarts.after(BARREN), Next::GiveUp);
        }
    }

    #[test]
    fn a_life_without_a_request_says_nothing() {
        let mut restarts = Restarts::default();
        assert_eq!(deaths(&mut restarts, [IDLE; 1000]), None);
        assert_eq!(deaths(&mut restarts, [BARREN; RESTARTS_MAX as usize]), None);
        assert_eq!(deaths(&mut restarts, [IDLE; 1000]), None);
        assert_eq!(restarts.after(BARREN), Next::GiveUp);
    }

    #[test]
    fn a_long_life_makes_the_next_start_quick_again() {
        let mut restarts = Restarts::default();
        assert_eq!(deaths(&mut restarts, [SERVED; 20]), None);
        let long = Life { lived: RESTART_WINDOW, ..SERVED };
        assert_eq!(restarts.after(long), Next::Start(RESTART_PAUSE_MIN));
    }
}
