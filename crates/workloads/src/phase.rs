//! The parts of a workload and what a page cost in each.
//!
//! A workload wraps each part into [`PhaseClock::measure`] and says how many pages the part touched, so that a part
//! under paging can be compared page by page with the device below it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Visits of pages that had to be brought.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageIns {
    /// How many.
    pub count: usize,
    /// The median of what one took.
    pub p50_us: f64,
    /// What all but one in a hundred took at most.
    pub p99_us: f64,
}

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
    /// Visits that waited for a page from a device; of phases that look at each visit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_ins: Option<PageIns>,
}

impl PageIns {
    fn of(mut times_us: Vec<f64>) -> Option<Self> {
        times_us.sort_by(f64::total_cmp);
        let at = |percent: usize| times_us.get(times_us.len().saturating_sub(1) * percent / 100).copied();
        Some(Self { count: times_us.len(), p50_us: at(50)?, p99_us: at(99)? })
    }
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

    /// Runs `visit` for each number below `pages`; `major_faults` tells, before and after it, whether it waited for a
    /// device.
    pub fn measure_visits(
        &mut self,
        phase: &str,
        pages: u64,
        major_faults: impl Fn() -> u64,
        mut visit: impl FnMut(u64),
    ) {
        let mut page_ins = Vec::with_capacity(pages as usize);
        let start = Instant::now();
        let mut faults = major_faults();
        for page in 0..pages {
            let before = Instant::now();
            visit(page);
            let elapsed = before.elapsed();
            let faults_now = major_faults();
            if faults_now > faults {
                page_ins.push(elapsed.as_secs_f64() * 1e6);
            }
            faults = faults_now;
        }
        self.record(phase, pages, start.elapsed());
        self.reports.last_mut().expect("it was just recorded").page_ins = PageIns::of(page_ins);
    }

    /// Remembers what a part took that was measured elsewhere.
    pub fn record(&mut self, phase: &str, pages: u64, elapsed: Duration) {
        let pages = pages.max(1);
        let seconds = elapsed.as_secs_f64();
        let us_per_page = seconds * 1e6 / pages as f64;
        self.reports.push(PhaseReport { phase: phase.to_owned(), seconds, pages, us_per_page, page_ins: None });
    }

    /// The parts in their order.
    pub fn into_reports(self) -> Vec<PhaseReport> {
        self.reports
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
    fn only_visits_that_waited_are_page_ins() {
        let faults = Cell::new(0);
        let mut visited = Vec::new();
        let mut clock = PhaseClock::default();
        clock.measure_visits(
            "read",
            100,
            || faults.get(),
            |page| {
                visited.push(page);
                if page % 10 == 3 {
                    faults.set(faults.get() + 1);
                    std::thread::sleep(Duration::from_millis(1));
                }
            },
        );
        assert!(visited.into_iter().eq(0..100));
        let report = &clock.into_reports()[0];
        let page_ins = report.page_ins.unwrap();
        assert_eq!((report.pages, page_ins.count), (100, 10));
        assert!(page_ins.p50_us >= 1000.0 && page_ins.p99_us >= page_ins.p50_us, "{page_ins:?}");
        assert!(report.us_per_page >= 100.0, "{report:?}");
    }

    #[test]
    fn quantiles_are_of_the_sorted_times() {
        let times = (0..101).rev().map(f64::from).collect();
        assert_eq!(PageIns::of(times), Some(PageIns { count: 101, p50_us: 50.0, p99_us: 99.0 }));
        assert_eq!(PageIns::of(Vec::new()), None);
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
