//! What strangers can make a donor or a pager write into its log. A stranger can connect as often as it likes, so the
//! log has a line now and then, with a sum.
//!
//! No clock of its own: the caller passes the time.

use std::time::Instant;

use crate::limits::COMPLAINT_INTERVAL;

/// Decides which complaints are written, see the module text.
#[derive(Debug, Default)]
pub struct Complaints {
    said_at: Option<Instant>,
    kept_back: u64,
}

impl Complaints {
    /// What is to be written of a complaint that comes `now`, if anything: with how many were kept back since the
    /// last one.
    pub fn take(&mut self, text: &str, now: Instant) -> Option<String> {
        let is_recent = self.said_at.is_some_and(|at| now.saturating_duration_since(at) < COMPLAINT_INTERVAL);
        if is_recent {
            self.kept_back += 1;
            return None;
        }
        self.said_at = Some(now);
        let line = match std::mem::take(&mut self.kept_back) {
            0 => text.to_owned(),
            more => format!("{text} (and {more} more like that since the last such line)"),
        };
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_complaints_are_one_line_with_their_number() {
        let (start, mut complaints) = (Instant::now(), Complaints::default());
        assert_eq!(complaints.take("refused", start).as_deref(), Some("refused"));
        let late = start + COMPLAINT_INTERVAL - Duration::from_millis(1);
        assert!((0..1000).all(|_| complaints.take("refused", late).is_none()));
        let line = complaints.take("refused", start + COMPLAINT_INTERVAL).unwrap();
        assert!(line.contains("1000 more"), "{line}");
        let line = complaints.take("refused", start + 3 * COMPLAINT_INTERVAL).unwrap();
        assert_eq!(line, "refused", "none was kept back");
    }
}
