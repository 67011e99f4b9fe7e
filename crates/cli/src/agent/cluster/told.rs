//! What members of a cluster make an agent write into its log: a bound for each minute, and a sum of the rest.

use std::time::{Duration, Instant};

use spillway_console::log_writer::CHANGES;
use tracing::Level;

/// Lines a minute: a cluster that starts, or is cut in two, is told of in full if it has so many machines.
const LINES_MAX: u32 = 128;
const MINUTE: Duration = Duration::from_secs(60);

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Told {
    since: Option<Instant>,
    lines: u32,
    kept_back: u64,
}

impl Told {
    /// Writes a line, or counts it.
    pub(super) fn say(&mut self, line: &str, level: Level) {
        let (is_said, kept_back) = self.take(Instant::now());
        if kept_back > 0 {
            tracing::warn!("{kept_back} more lines about members of the cluster were left out");
        }
        match level {
            _ if !is_said => {}
            Level::INFO => tracing::info!(target: CHANGES, "{line}"),
            _ => tracing::warn!("{line}"),
        }
    }

    /// Whether a line is written now, and how many were kept back before, once their minute is over.
    fn take(&mut self, now: Instant) -> (bool, u64) {
        let mut kept_back = 0;
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= MINUTE) {
            kept_back = std::mem::take(&mut self.kept_back);
            (self.since, self.lines) = (Some(now), 0);
        }
        let is_said = self.lines < LINES_MAX;
        self.lines += u32::from(is_said);
        self.kept_back += u64::from(!is_said);
        (is_said, kept_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_a_bound_and_the_next_one_tells_the_sum() {
        let (mut told, now) = (Told::default(), Instant::now());
        let said = (0..1000).filter(|_| told.take(now).0).count();
        assert_eq!(said, LINES_MAX as usize);
        assert_eq!(told.take(now + MINUTE), (true, 1000 - u64::from(LINES_MAX)));
        assert_eq!(told.take(now + MINUTE), (true, 0));
    }
}
