//! How far something is that has an end, for people: "75 %: 3 GiB of 4 GiB moved, 10 s left". Decisions only;
//! [`progress_line`](crate::progress_line) shows it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::{Duration, Instant};

use spillway_machine::size::human;

use crate::limits;

/// See the module text.
#[derive(Debug)]
pub struct Progress {
    /// What happens to the bytes, such as `moved`.
    done: &'static str,
    began: Instant,
    total_bytes: u64,
    left_bytes: u64,
    /// When something moved last.
    moved: Instant,
}

impl Progress {
    /// So much is to be `done`.
    pub fn new(done: &'static str, now: Instant, total_bytes: u64) -> Self {
        Self { done, began: now, total_bytes, left_bytes: total_bytes, moved: now }
    }

    /// So much is left.
    pub fn look(&mut self, now: Instant, left_bytes: u64) {
        if left_bytes != self.left_bytes {
            self.moved = now;
        }
        self.left_bytes = left_bytes;
        // What came to it after the begin counts too.
        self.total_bytes = self.total_bytes.max(left_bytes);
    }

    /// How long nothing has moved.
    pub fn rest(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved)
    }

    /// How long it will take, if the rest goes as fast as what is done went; nothing before anything is done.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.began);
        let done_bytes = self.total_bytes - self.left_bytes;
        if done_bytes == 0 || elapsed.is_zero() {
            return None;
        }
        // The bytes may be another machine's word, and the time then longer than any that there is.
        Duration::try_from_secs_f64(elapsed.as_secs_f64() * self.left_bytes as f64 / done_bytes as f64).ok()
    }

    /// What is shown at this moment.
    pub(crate) fn line(&self, now: Instant) -> String {
        let done_bytes = self.total_bytes - self.left_bytes;
        // Rounded down: only the end is 100 %.
        let percentage =
            if self.total_bytes == 0 { 100 } else { u128::from(done_bytes) * 100 / u128::from(self.total_bytes) };
        let so_far = format!("{percentage} %: {} of {} {}", human(done_bytes), human(self.total_bytes), self.done);
        if self.rest(now) >= limits::MOVE_STALL_TOLD {
            return format!("{so_far}, nothing for {} s", self.rest(now).as_secs());
        }
        match self.left(now) {
            Some(left) => format!("{so_far}, {:.0} s left", left.as_secs_f64().ceil()),
            None => so_far,
        }
    }
}

/// When a line that tells of progress is due.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    /// The first one is due when the work has taken [`limits::PROGRESS_BEGIN`]: what is shorter needs none.
    pub(crate) fn new(now: Instant, interval: Duration) -> Self {
        Self { interval, next: now + limits::PROGRESS_BEGIN }
    }

    /// Whether a line is due, which is then taken for told.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_time_that_no_clock_counts_is_not_told() {
        let now = Instant::now();
        let mut progress = Progress::new("moved", now, u64::MAX);
        let later = now + Duration::from_secs(3600);
        progress.look(later, u64::MAX - 1);
        assert_eq!(progress.left(later), None);
        assert!(progress.line(later).starts_with("0 %"));
    }

    #[test]
    fn the_rest_is_reckoned_from_what_moved_so_far() {
        let start = Instant::now();
        let mut progress = Progress::new("moved", start, 4 * GIB);
        assert_eq!((progress.line(start).as_str(), progress.left(start)), ("0 %: 0 B of 4 GiB moved", None));
        let later = start + Duration::from_secs(30);
        progress.look(later, GIB);
        assert_eq!(progress.line(later), "75 %: 3 GiB of 4 GiB moved, 10 s left");
        assert_eq!((progress.left(later), progress.rest(later)), (Some(Duration::from_secs(10)), Duration::ZERO));
        progress.look(later, 0);
        assert_eq!(progress.line(later), "100 %: 4 GiB of 4 GiB moved, 0 s left");
    }

    #[test]
    fn only_the_end_is_a_hundred_percent_and_nothing_to_do_is_done() {
        let start = Instant::now();
        let mut progress = Progress::new("moved", start, 4 * GIB);
        progress.look(start, 1);
        assert!(progress.line(start).starts_with("99 %"), "{}", progress.line(start));
        let nothing = Progress::new("moved", start, 0);
        assert_eq!(nothing.line(start), "100 %: 0 B of 0 B moved");
        let huge = Progress::new("moved", start, u64::MAX);
        assert!(huge.line(start).starts_with("0 %"));
    }

    #[test]
    fn a_stall_is_told_and_more_than_at_first_counts() {
        let start = Instant::now();
        let mut progress = Progress::new("moved", start, GIB);
        let later = start + limits::MOVE_STALL_TOLD;
        progress.look(later, GIB);
        let line = progress.line(later);
        assert!(line.contains("0 B of 1 GiB") && line.contains("nothing for"), "{line}");
        assert_eq!(progress.rest(later), limits::MOVE_STALL_TOLD);
        progress.look(later, 2 * GIB);
        let line = progress.line(later);
        assert!(line.starts_with("0 %: 0 B of 2 GiB moved"), "{line}");
    }

    #[test]
    fn the_first_line_waits_and_the_others_keep_their_distance() {
        let (start, interval) = (Instant::now(), Duration::from_secs(5));
        let mut pace = Pace::new(start, interval);
        assert!(!pace.is_due(start), "it may be over in a moment");
        let first = start + limits::PROGRESS_BEGIN;
        assert!(pace.is_due(first) && !pace.is_due(first) && !pace.is_due(first + interval / 2));
        assert!(pace.is_due(first + interval));
    }
}
