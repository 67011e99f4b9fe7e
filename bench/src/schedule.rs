//! How long a run still takes, about: what each study took on the development machine, stretched by how much slower
//! this one has been so far.
//!
//! No clock of its own: times are passed in.

use std::time::{Duration, Instant};

/// A study's share of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    expected: Duration,
    taken: Option<Duration>,
}

/// The studies of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    entries: Vec<Entry>,
    current: Option<(usize, Instant)>,
}

impl Schedule {
    /// Studies that are expected to take so long.
    pub fn new(expected: impl IntoIterator<Item = Duration>) -> Self {
        let entries = expected.into_iter().map(|expected| Entry { expected, taken: None }).collect();
        Self { entries, current: None }
    }

    /// The study at `index` begins; the one before it is over.
    pub fn begin(&mut self, index: usize, now: Instant) {
        assert!(index < self.entries.len(), "a study that begins was announced");
        self.end(now);
        self.current = Some((index, now));
    }

    /// The current study is over.
    pub fn end(&mut self, now: Instant) {
        if let Some((index, started)) = self.current.take() {
            self.entries[index].taken = Some(now.saturating_duration_since(started));
        }
    }

    /// How much slower than expected the finished studies were.
    fn pace(&self) -> f64 {
        let finished = || self.entries.iter().filter_map(|entry| Some((entry.expected, entry.taken?)));
        let expected: f64 = finished().map(|(expected, _)| expected.as_secs_f64()).sum();
        let taken: f64 = finished().map(|(_, taken)| taken.as_secs_f64()).sum();
        if expected > 0.0 && taken > 0.0 { taken / expected } else { 1.0 }
    }

    /// What remains, the current study included.
    pub fn remaining(&self, now: Instant) -> Duration {
        let pace = self.pace();
        let left = |(index, entry): (usize, &Entry)| match self.current {
            _ if entry.taken.is_some() => Duration::ZERO,
            Some((current, started)) if current == index => {
                entry.expected.mul_f64(pace).saturating_sub(now.saturating_duration_since(started))
            }
            _ => entry.expected.mul_f64(pace),
        };
        self.entries.iter().enumerate().map(left).sum()
    }

    /// What remains, in words.
    pub fn text(&self, now: Instant) -> String {
        let seconds = self.remaining(now).as_secs();
        match seconds {
            0..=89 => format!("about {} s left", seconds.max(1)),
            _ => format!("about {} min left", (seconds + 30) / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn what_was_expected_remains_until_more_is_known() {
        let (mut schedule, start) = (Schedule::new([seconds(100), seconds(200)]), Instant::now());
        assert_eq!(schedule.remaining(start), seconds(300));
        schedule.begin(0, start);
        assert_eq!(schedule.remaining(start + seconds(40)), seconds(260));
        assert_eq!(schedule.remaining(start + seconds(400)), seconds(200), "a late study is not over");
    }

    #[test]
    fn a_slow_machine_stretches_what_remains() {
        let (mut schedule, start) = (Schedule::new([seconds(100), seconds(200)]), Instant::now());
        schedule.begin(0, start);
        schedule.begin(1, start + seconds(300));
        assert_eq!(schedule.remaining(start + seconds(300)), seconds(600));
        schedule.end(start + seconds(800));
        assert_eq!(schedule.remaining(start + seconds(900)), Duration::ZERO);
    }

    #[test]
    fn studies_that_are_skipped_at_once_do_not_confuse() {
        let (mut schedule, start) = (Schedule::new([seconds(100), seconds(200)]), Instant::now());
        schedule.begin(0, start);
        schedule.begin(1, start);
        assert_eq!(schedule.remaining(start), seconds(200));
        assert_eq!(Schedule::default().remaining(start), Duration::ZERO);
    }

    #[test]
    fn short_times_are_told_in_seconds() {
        let now = Instant::now();
        let text = |count| Schedule::new([seconds(count)]).text(now);
        assert_eq!([text(0), text(60), text(89)], ["about 1 s left", "about 60 s left", "about 89 s left"]);
        assert_eq!([text(90), text(1500)], ["about 2 min left", "about 25 min left"]);
    }

    #[test]
    #[should_panic(expected = "announced")]
    fn an_unknown_study_is_a_mistake() {
        Schedule::new([seconds(1)]).begin(1, Instant::now());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn less_remains_with_time_inside_a_study(
            expected in proptest::collection::vec(1_u64..1000, 1..8), one in 0_u64..2000, more in 0_u64..2000
        ) {
            let (mut schedule, start) = (Schedule::new(expected.iter().map(|count| seconds(*count))), Instant::now());
            schedule.begin(0, start);
            let (early, late) =
                (schedule.remaining(start + seconds(one)), schedule.remaining(start + seconds(one + more)));
            prop_assert!(late <= early);
            prop_assert!(early <= seconds(expected.iter().sum()));
        }
    }
}
