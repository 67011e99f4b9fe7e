//! The parts of a workload and what a page cost in each.
//!
//! A workload wraps each part into [`PhaseClock::measure`] and says how many pages the part touched, so that a part under
//! paging can be compared page by page with the device below it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// One part of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// What the part does.
    pub phase: String,
    /// How long it took.
    pub seconds: f64,
    /// Pages that it touched, each counted once per visit.
    pub pages: u64,
    /// `seconds` over `pages`.
    pub us_per_page: f64,
}

/// Takes the time of one part after the other.
#[derive(Debug, Default)]
pub struct PhaseClock {
    reports: Vec<PhaseReport>,
}

impl PhaseClock {
    /// Runs `work`, which touches `pages` pages, and remembers what it took.
    pub fn measure<Result>(&mut self, phase: &str, pages: u64, work: impl FnOnce() -> Result) -> Result {
        let start = Instant::now();
        let result = work();
        self.record(phase, pages, start.elapsed());
        result
    }

    fn record(&mut self, phase: &str, pages: u64, elapsed: Duration) {
        let pages = pages.max(1);
        let seconds = elapsed.as_secs_f64();
        let us_per_page = seconds * 1e6 / pages as f64;
        self.reports.push(PhaseReport { phase: phase.to_owned(), seconds, pages, us_per_page });
    }

    /// The parts in their order.
    pub fn into_reports(self) -> Vec<PhaseReport> {
        self.reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_costs_its_share() {
        let mut clock = PhaseClock::default();
        clock.record("read", 1000, Duration::from_millis(20));
        clock.record("nothing", 0, Duration::from_micros(5));
        let reports = clock.into_reports();
        assert_eq!((reports[0].phase.as_str(), reports[0].pages), ("read", 1000));
        assert!((reports[0].us_per_page - 20.0).abs() < 1e-9);
        assert!((reports[1].us_per_page - 5.0).abs() < 1e-9, "a part without pages counts as one page");
    }

    #[test]
    fn the_result_of_the_work_comes_back() {
        let mut clock = PhaseClock::default();
        assert_eq!(clock.measure("one", 1, || 7), 7);
        assert_eq!(clock.measure("two", 1, || "text"), "text");
        let names: Vec<_> = clock.into_reports().into_iter().map(|report| report.phase).collect();
        assert_eq!(names, ["one", "two"]);
    }
}
