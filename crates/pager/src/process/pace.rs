//! When the survey does again what takes its time: it must not take a large part of a CPU, also where one run of it
//! takes long, because the program is large or because all CPUs are busy.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use spillway_sys::process::user_of;

use crate::limits::{BORROWED_WELL_MAX, LOOK_INTERVAL_MAX, USER_REST_MAX, USER_REST_TIMES};
use crate::process::fork_shared_pages::cpu_time;

/// The last run of a task.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Its end, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// After `rest_max`, or after `rest_times` what the last run took, if that is less.
    pub(super) fn is_due(self, rest_times: Option<u32>, rest_max: Duration, now: Instant) -> bool {
        self.last.is_none_or(|(at, took)| {
            let rest = rest_times.map_or(rest_max, |times| took.saturating_mul(times));
            now.saturating_duration_since(at) >= rest.min(rest_max)
        })
    }

    /// A run took from `begin` to `end`.
    pub(super) fn ended(&mut self, begin: Instant, end: Instant) {
        self.last = Some((end, end.saturating_duration_since(begin)));
    }
}

/// Until when the survey does nothing more for programs of a user that kept it waiting. A program can do that as often
/// as it has children, and those of other users would not be paged meanwhile.
#[derive(Debug, Default)]
pub(super) struct UserPaces(HashMap<u32, Instant>);

impl UserPaces {
    /// Whether programs of the user of `process` may have to do without something.
    pub(super) fn bounds(process: u32) -> bool {
        bounded_user_of(process).is_some()
    }

    /// Until when `process` has to do without; `None`: it has not.
    pub(super) fn rests_until(&mut self, process: u32, now: Instant) -> Option<Instant> {
        self.0.retain(|_, until| now < *until);
        // Mostly none has to, and nothing is asked.
        if self.0.is_empty() { None } else { self.0.get(&bounded_user_of(process)?).copied() }
    }

    /// What is done for `process` counts if `work` takes much of a CPU: what else the machine does is not the program's
    /// doing.
    pub(super) fn while_working<T>(&mut self, process: u32, now: Instant, work: impl FnOnce() -> T) -> T {
        let (user, begin) = (bounded_user_of(process), cpu_time());
        let result = work();
        self.took(user, cpu_time().saturating_sub(begin), now);
        result
    }

    /// What a thread of `process` is borrowed for counts if it came to nothing and took long, or took very long.
    pub(super) fn while_borrowing<T, E>(
        &mut self,
        process: u32,
        borrow: impl FnOnce(Instant) -> Result<T, E>,
    ) -> Result<T, E> {
        let (user, begin) = (bounded_user_of(process), Instant::now());
        let result = borrow(begin);
        if result.is_err() || begin.elapsed() > BORROWED_WELL_MAX {
            self.took(user, begin.elapsed(), Instant::now());
        }
        result
    }

    fn took(&mut self, user: Option<u32>, took: Duration, now: Instant) {
        if took > LOOK_INTERVAL_MAX
            && let Some(user) = user
        {
            self.0.insert(user, now + took.saturating_mul(USER_REST_TIMES).min(USER_REST_MAX));
        }
    }
}

/// The user of `process`, unless it is root or this process's own: they can do worse.
fn bounded_user_of(process: u32) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    user_of(process).ok().filter(|user| *user != 0 && *user != own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_whose_programs_took_long_rests_and_others_do_not() {
        let (begin, own) = (Instant::now(), std::process::id());
        let mut paces = UserPaces::default();
        assert_eq!(paces.while_working(own, begin, || 5), 5);
        paces.took(None, USER_REST_MAX, begin);
        assert_eq!((paces.rests_until(own, begin), UserPaces::bounds(own)), (None, false), "this process's own user");
        paces.took(Some(7), LOOK_INTERVAL_MAX, begin);
        assert!(paces.0.is_empty(), "that is not long");
        paces.took(Some(7), 2 * LOOK_INTERVAL_MAX, begin);
        assert_eq!(paces.0.remove(&7), Some(begin + 2 * LOOK_INTERVAL_MAX * USER_REST_TIMES));
        let until = begin + LOOK_INTERVAL_MAX;
        paces.0.insert(rustix::process::getuid().as_raw(), until);
        assert_eq!(paces.rests_until(1, until), None);
        assert!(paces.0.is_empty(), "it is over");
    }

    #[test]
    fn a_rest_is_as_many_times_what_the_last_run_took_and_has_a_bound() {
        const REST_MAX: Duration = Duration::from_millis(20);
        const REST_TIMES: u32 = 9;
        let begin = Instant::now();
        let mut pace = Pace::default();
        let often = Some(REST_TIMES);
        assert!(pace.is_due(None, REST_MAX, begin), "it never ran");
        let (took, large) = (Duration::from_micros(100), Duration::from_millis(50));
        let end = begin + took;
        pace.ended(begin, end);
        let rest = took * REST_TIMES;
        assert!(!pace.is_due(often, REST_MAX, end + rest - Duration::from_nanos(1)));
        assert!(pace.is_due(often, REST_MAX, end + rest));
        assert!(!pace.is_due(None, REST_MAX, end + rest) && pace.is_due(None, REST_MAX, end + REST_MAX));
        pace.ended(begin, begin + large);
        assert!(pace.is_due(often, REST_MAX, begin + large + REST_MAX), "no less often than else");
    }
}
