//! How long a run still takes, about: what each study took on the development machine.
//!
//! No clock of its own: times are passed in.

use std::time::{Duration, Instant};

/// The studies of a run that are not over.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    expected: Vec<Duration>,
    current: usize,
    started: Option<Instant>,
}

impl Schedule {
    /// Studies that are expected to take so long.
    pub fn new(expected: impl IntoIterator<Item = Duration>) -> Self {
        Self { expected: expected.into_iter().collect(), ..Self::default() }
    }

    /// The study at `index` begins; those before it are over.
    pub fn begin(&mut self, index: usize, now: Instant) {
        (self.current, self.started) = (index, Some(now));
    }

    /// What remains, the current study included, in words.
    pub fn text(&self, now: Instant) -> String {
        let elapsed = self.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        let current = self.expected.get(self.current).map_or(Duration::ZERO, |it| it.saturating_sub(elapsed));
        let later: Duration = self.expected.iter().skip(self.current + 1).sum();
        match (current + later).as_secs() {
            seconds @ 0..=89 => format!("about {} s left", seconds.max(1)),
            seconds => format!("about {} min left", (seconds + 30) / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_expected_remains_and_a_late_study_is_not_over() {
        let (mut schedule, start) = (Schedule::new([100, 20].map(Duration::from_secs)), Instant::now());
        assert_eq!(schedule.text(start), "about 2 min left");
        schedule.begin(0, start);
        let text = |schedule: &Schedule, seconds| schedule.text(start + Duration::from_secs(seconds));
        assert_eq!([text(&schedule, 40), text(&schedule, 400)], ["about 80 s left", "about 20 s left"]);
        schedule.begin(1, start + Duration::from_secs(400));
        assert_eq!([text(&schedule, 415), text(&schedule, 500)], ["about 5 s left", "about 1 s left"]);
        assert_eq!(Schedule::default().text(start), "about 1 s left");
    }
}
