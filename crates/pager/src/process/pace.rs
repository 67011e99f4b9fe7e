//! When the survey does again what takes its time: it must not take a large part of a CPU, also where one run of it
//! takes long, because the program is large or because all CPUs are busy.

use std::time::{Duration, Instant};

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

#[cfg(test)]
mod tests {
    use super::*;

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
