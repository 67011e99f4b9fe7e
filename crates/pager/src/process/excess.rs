//! A budget that was exceeded for longer than a moment: how far, how long and why is in the statistics, and is told
//! once.

use std::time::{Duration, Instant};

use crate::limits::EXCESS_MOMENT;
use crate::process::{Survey, TrackedProcess};
use crate::threads::lock::lock;

/// Since when the budget is exceeded by more than is allowed without a word, and what was seen since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Excess {
    since: Option<Instant>,
    counted_until: Option<Instant>,
    bytes_peak: u64,
    /// Why that was so much, when it was.
    cause: &'static str,
    is_told: bool,
}

/// What is to be noted of an excess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Noted {
    /// Time that was not noted before.
    time: Duration,
    bytes_peak: u64,
    cause: &'static str,
    /// The user was not told yet.
    is_news: bool,
}

impl Excess {
    /// Programs have `local_bytes`, of which `allowed_bytes` need no word.
    fn saw(
        &mut self,
        (local_bytes, allowed_bytes): (u64, u64),
        cause: impl FnOnce() -> &'static str,
        now: Instant,
    ) -> Option<Noted> {
        if local_bytes <= allowed_bytes {
            *self = Self { is_told: self.is_told, ..Self::default() };
            return None;
        }
        let since = *self.since.get_or_insert(now);
        if local_bytes > self.bytes_peak {
            (self.bytes_peak, self.cause) = (local_bytes, cause());
        }
        if now.saturating_duration_since(since) < EXCESS_MOMENT {
            return None;
        }
        let from = self.counted_until.replace(now).unwrap_or(since);
        let is_news = !std::mem::replace(&mut self.is_told, true);
        Some(Noted {
            time: now.saturating_duration_since(from),
            bytes_peak: self.bytes_peak,
            cause: self.cause,
            is_news,
        })
    }
}

impl Survey {
    /// Notes that programs have `local_bytes`, and tells of it if that is too much for too long.
    pub(super) fn tell_of_excess(&mut self, local_bytes: u64, now: Instant) {
        let budget = &self.shared.budget;
        let budget_bytes = budget.bytes();
        let bytes = (local_bytes, budget_bytes + budget.slack_bytes());
        let mut excess = self.excess;
        let noted = excess.saw(bytes, || self.cause_of_excess(), now);
        self.excess = excess;
        let Some(noted) = noted else { return };
        let mut told = lock(&self.shared.excess).clone();
        told.seconds += noted.time.as_secs_f64();
        if noted.bytes_peak > told.local_bytes_peak {
            (told.local_bytes_peak, told.budget_bytes) = (noted.bytes_peak, budget_bytes);
            told.cause = noted.cause.to_owned();
        }
        if noted.is_news {
            let (local, budget, cause) = (told.local_bytes_peak >> 20, budget_bytes >> 20, &told.cause);
            tracing::warn!("the budget of {budget} MiB is exceeded, {local} MiB are local: {cause}");
        }
        *lock(&self.shared.excess) = told;
    }

    /// Why no more has left: what has more than half of the excess.
    fn cause_of_excess(&self) -> &'static str {
        let budget = &self.shared.budget;
        let is_much = |is_meant: fn(&TrackedProcess) -> bool| {
            let pages: i64 = self.tracked.iter().filter(|tracked| is_meant(tracked)).map(|tracked| tracked.pages).sum();
            pages > budget.excess_pages() / 2
        };
        if is_much(|tracked| tracked.whole.is_some() || tracked.space.is_held()) {
            "a program's memory is all local for a fork, a debugger, or a reader of its files in /proc"
        } else if lock(&self.shared.staying).now.budgeted_bytes() > budget.bytes() / 2 {
            "memory that cannot be paged fills the budget"
        } else if is_much(|tracked| tracked.evictor_failure.is_some()) {
            "a program can have no evictor"
        } else if is_much(|tracked| !tracked.has_evictor()) {
            "a program had no evictor yet: one system call filled memory, or the machine was busy"
        } else if budget.is_stuck() {
            "no page could leave"
        } else {
            "memory came faster than pages left"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excess_is_noted_after_a_moment_and_told_once() {
        let (mut now, mut excess) = (Instant::now(), Excess::default());
        assert_eq!(excess.saw((100, 100), || panic!(), now), None, "no excess");
        assert_eq!(excess.saw((190, 100), || "first", now), None, "it has just begun");
        now += EXCESS_MOMENT;
        let noted = |time, bytes_peak, cause, is_news| Some(Noted { time, bytes_peak, cause, is_news });
        assert_eq!(
            excess.saw((150, 100), || "later", now),
            noted(EXCESS_MOMENT, 190, "first", true),
            "from its beginning"
        );
        let step = EXCESS_MOMENT / 2;
        assert_eq!(
            excess.saw((200, 100), || "later", now + step),
            noted(step, 200, "later", false),
            "what was not noted before"
        );
        assert_eq!(excess.saw((99, 100), || panic!(), now + step), None, "it is over");
        now += 4 * EXCESS_MOMENT;
        assert_eq!(excess.saw((101, 100), || "new", now), None, "another one");
        assert_eq!(excess.saw((101, 100), || panic!(), now + EXCESS_MOMENT), noted(EXCESS_MOMENT, 101, "new", false));
    }
}
