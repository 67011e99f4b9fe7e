//! How far moving of memory is, for people: "3.1 GiB of 4 GiB moved, 40 s left".

use std::time::{Duration, Instant};

use crate::limits;
use crate::size::human;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    total_bytes: u64,
    left_bytes: u64,
    /// When something moved last.
    moved: Instant,
    /// When it was told last.
    told: Option<Instant>,
}

impl Progress {
    /// So much is to move.
    pub(crate) fn new(now: Instant, total_bytes: u64) -> Self {
        Self { began: now, total_bytes, left_bytes: total_bytes, moved: now, told: None }
    }

    /// So much is left. A line to print, but not too often.
    pub(crate) fn look(&mut self, now: Instant, left_bytes: u64) -> Option<String> {
        if left_bytes != self.left_bytes {
            self.moved = now;
        }
        self.left_bytes = left_bytes;
        // What was being lent when it began counts too.
        self.total_bytes = self.total_bytes.max(left_bytes);
        let is_due = self.told.is_none_or(|told| now.saturating_duration_since(told) >= limits::PROGRESS_INTERVAL);
        is_due.then(|| {
            self.told = Some(now);
            self.line(now)
        })
    }

    /// How long nothing has moved.
    pub(crate) fn rest(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved)
    }

    fn line(&self, now: Instant) -> String {
        let moved_bytes = self.total_bytes - self.left_bytes;
        let so_far = format!("{} of {} moved", human(moved_bytes), human(self.total_bytes));
        if self.rest(now) >= limits::MOVE_STALL_TOLD {
            return format!("{so_far}, nothing for {} s", self.rest(now).as_secs());
        }
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
        if moved_bytes == 0 || elapsed == 0.0 {
            return so_far;
        }
        let left_seconds = elapsed * self.left_bytes as f64 / moved_bytes as f64;
        format!("{so_far}, {:.0} s left", left_seconds.ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_rest_is_reckoned_from_what_moved_so_far() {
        let start = Instant::now();
        let mut progress = Progress::new(start, 4 * GIB);
        assert_eq!(progress.look(start, 4 * GIB).unwrap(), "0 B of 4 GiB moved");
        assert_eq!(progress.look(start + limits::PROGRESS_INTERVAL / 2, 3 * GIB), None, "told a moment ago");
        let later = start + Duration::from_secs(30);
        assert_eq!(progress.look(later, GIB).unwrap(), "3 GiB of 4 GiB moved, 10 s left");
        assert_eq!(progress.rest(later), Duration::ZERO);
    }

    #[test]
    fn a_stall_is_told_and_more_than_at_first_counts() {
        let start = Instant::now();
        let mut progress = Progress::new(start, GIB);
        let later = start + limits::MOVE_STALL_TOLD;
        let line = progress.look(later, GIB).unwrap();
        assert!(line.contains("0 B of 1 GiB") && line.contains("nothing for"), "{line}");
        assert_eq!(progress.rest(later), limits::MOVE_STALL_TOLD);
        let line = progress.look(later + limits::PROGRESS_INTERVAL, 2 * GIB).unwrap();
        assert!(line.starts_with("0 B of 2 GiB moved"), "{line}");
    }
}
