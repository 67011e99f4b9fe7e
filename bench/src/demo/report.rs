//! The table at the end of the demo.

use crate::harness::HarnessError;
use crate::harness::fault_latency::{Source, Waits};
use crate::harness::spillway::Traffic;
use crate::size::{Size, format_bytes};
use crate::table::Table;

/// A run over Spillway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lent {
    /// The program's own time.
    pub seconds: f64,
    /// What the device counted.
    pub traffic: Traffic,
    /// Faults that waited for a page.
    pub faults: u64,
    /// How long the kernel waited for pages, by the block layer.
    pub waits: Waits,
    /// Bytes of output that differ from the all-local run.
    pub wrong_bytes: u64,
    /// Whether a donor was killed meanwhile.
    pub donor_killed: bool,
}

/// A run over disk swap under the same limit.
#[derive(Clone, Debug, PartialEq)]
pub enum Disk {
    /// It took so many seconds.
    Took(f64),
    /// It was ended after so many seconds.
    LongerThan(f64),
    /// It failed, which says nothing about Spillway.
    Failed(String),
}

/// One program at one share of its working set.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The program.
    pub program: String,
    /// Share of the working set in local memory.
    pub percent: u64,
    /// The same in bytes.
    pub local: Size,
    /// Time with all memory local.
    pub all_local_seconds: f64,
    /// Over Spillway.
    pub lent: Lent,
    /// Over disk swap.
    pub disk: Disk,
}

/// All rows.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    inputs: Vec<String>,
    failures: Vec<String>,
    left_out: Vec<String>,
}

impl Row {
    /// Seconds that the program waited for pages: faults times their mean latency.
    fn fault_cost_seconds(&self) -> f64 {
        self.lent.faults as f64 * self.lent.waits.mean_us.unwrap_or(0.0) / 1e6
    }

    fn against_disk(&self) -> String {
        match &self.disk {
            Disk::Took(seconds) => format!("{:.2}x", self.lent.seconds / seconds),
            Disk::LongerThan(seconds) => format!("< {:.2}x", self.lent.seconds / seconds),
            Disk::Failed(_) => "failed".to_owned(),
        }
    }

    fn cells(&self) -> [String; 12] {
        let traffic = &self.lent.traffic;
        let [p50, p99] = percentiles(&self.lent.waits);
        let killed = if self.lent.donor_killed { ", donor killed" } else { "" };
        [
            format!("{}{killed}", self.program),
            format!("{} % = {}", self.percent, format_bytes(self.local.0)),
            format!("{:.2}", self.lent.seconds),
            format!("{:.2}x", self.lent.seconds / self.all_local_seconds),
            self.against_disk(),
            traffic.pages_out.to_string(),
            traffic.pages_in.to_string(),
            p50,
            p99,
            format!("{:.0}", traffic.read_latency.p50_us),
            format!("{:.2}", self.fault_cost_seconds()),
            self.lent.wrong_bytes.to_string(),
        ]
    }
}

/// Median and 99th percentile, marked where they are means of windows; dashes where too few pages came in to tell.
fn percentiles(waits: &Waits) -> [String; 2] {
    let mark = if waits.source == Source::Requests { "" } else { "~" };
    match waits.percentiles_us {
        Some((p50, p99)) => [p50, p99].map(|part| format!("{mark}{part:.0}")),
        None => ["-", "-"].map(str::to_owned),
    }
}

/// What the columns are. What is said of windows is said only where there are some.
const NOTES: &str = "
/ disk swap: time over Spillway relative to disk swap under the same limit; '<' where disk swap was ended early.
fault p50, p99: what one of sixteen of the kernel's read requests took from the moment its page reached the block layer to its end; a
page fault waits for one, and some microseconds for the kernel around it; what is read ahead counts too. A dash: fewer than 100 were seen.
ours: the part of it inside the device's process (median).
fault cost: page faults times the mean of all read requests.
";

impl Report {
    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Notes what a program works on.
    pub fn input(&mut self, program: &str, input: &str) {
        self.inputs.push(format!("{program}: {input}"));
    }

    /// Notes a run that failed.
    pub fn failed(&mut self, program: &str, percent: u64, error: &HarnessError) {
        self.failures.push(format!("{program} at {percent} %: {error}"));
    }

    /// Notes a program that did not run. What only lacks a package is not a failure.
    pub fn left_out(&mut self, program: &str, error: &HarnessError) {
        let list = if matches!(error, HarnessError::Missing(_)) { &mut self.left_out } else { &mut self.failures };
        list.push(format!("{program}: {error}"));
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.failures.is_empty() && self.left_out.is_empty()
    }

    /// The table, and what is to be said about it.
    pub fn text(&self) -> String {
        let mut table = Table::new([
            "program",
            "local memory",
            "seconds",
            "/ all-local",
            "/ disk swap",
            "pages out",
            "pages in",
            "fault p50 us",
            "p99 us",
            "ours us",
            "fault cost s",
            "wrong bytes",
        ]);
        self.rows.iter().for_each(|row| table.row(row.cells()));
        let mut text = if table.is_empty() { String::new() } else { table.markdown() };
        text += NOTES;
        if let Some(reason) = self.rows.iter().find_map(|row| row.lent.waits.source.reason()) {
            text += &format!(
                "~: means of windows of 20 ms instead of requests, for want of the kernel's events: {reason}\n"
            );
        }
        if !self.inputs.is_empty() {
            text += &format!("Inputs: {}. More with --large.\n", self.inputs.join("; "));
        }
        for row in &self.rows {
            if let Disk::Failed(reason) = &row.disk {
                text += &format!("{} at {} % over disk swap: {reason}\n", row.program, row.percent);
            }
        }
        for (title, list) in [("Left out", &self.left_out), ("FAILED", &self.failures)] {
            list.iter().for_each(|one| text += &format!("{title}: {one}\n"));
        }
        text
    }

    /// An error if a run failed or an output was wrong.
    pub fn verdict(&self) -> Result<(), HarnessError> {
        let wrong: u64 = self.rows.iter().map(|row| row.lent.wrong_bytes).sum();
        if wrong > 0 {
            return Err(HarnessError::failed("the demo", format!("{wrong} bytes of output were WRONG")));
        }
        match self.failures.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(HarnessError::failed("the demo", first.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::spillway::Latency;

    fn row(wrong_bytes: u64, disk: Disk) -> Row {
        let read_latency = Latency { p50_us: 3.0, p99_us: 9.0, mean_us: 4.0 };
        let waits = Waits { mean_us: Some(20.0), percentiles_us: Some((12.0, 40.0)), source: Source::Requests };
        let traffic = Traffic { pages_in: 30, pages_out: 40, read_latency, ..Traffic::default() };
        let lent = Lent { seconds: 3.0, traffic, faults: 50_000, waits, wrong_bytes, donor_killed: wrong_bytes == 0 };
        Row { program: "sort".to_owned(), percent: 50, local: Size(64 << 20), all_local_seconds: 2.0, lent, disk }
    }

    #[test]
    fn a_row_tells_everything() {
        let mut report = Report::default();
        assert!(report.is_empty());
        report.input("sort", "64.0 MiB of text");
        report.push(row(0, Disk::Took(6.0)));
        let text = report.text();
        for part in [
            "sort: 64.0 MiB of text",
            "sort, donor killed",
            "50 % = 64.0 MiB",
            "3.00",
            "1.50x",
            "0.50x",
            " 40 |",
            " 30 |",
            " 12 |",
            " 40 |",
            " 3 |",
            "1.00 |",
            " 0 |",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(report.verdict().is_ok());
    }

    #[test]
    fn a_run_without_faults_has_no_latency() {
        let mut quiet = row(0, Disk::Took(3.0));
        (quiet.lent.waits, quiet.lent.faults) = (Waits::default(), 1);
        let cells = quiet.cells();
        assert_eq!((cells[7].as_str(), cells[8].as_str(), cells[10].as_str()), ("-", "-", "0.00"));
        assert_eq!(row(0, Disk::Took(3.0)).cells()[8], "40");
    }

    #[test]
    fn windows_are_marked_and_explained() {
        let mut report = Report::default();
        report.push(row(0, Disk::Took(3.0)));
        assert!(!report.text().contains('~'), "{}", report.text());
        let mut coarse = row(0, Disk::Took(3.0));
        coarse.lent.waits.source = Source::Windows("no tracefs".to_owned());
        report.push(coarse);
        let text = report.text();
        for part in [" 12 |", " ~12 |", " ~40 |", "~: means of windows", "no tracefs"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn a_disk_that_was_not_waited_for_is_a_bound() {
        assert_eq!(row(0, Disk::LongerThan(12.0)).against_disk(), "< 0.25x");
    }

    #[test]
    fn a_failure_over_disk_swap_is_told_and_is_not_ours() {
        let mut report = Report::default();
        report.push(row(0, Disk::Failed("out of memory".to_owned())));
        assert!(report.verdict().is_ok());
        assert!(report.text().contains("sort at 50 % over disk swap: out of memory"));
    }

    #[test]
    fn wrong_bytes_and_failures_are_errors_and_missing_packages_are_not() {
        let mut report = Report::default();
        report.left_out("redis", &HarnessError::Missing("apt install redis".to_owned()));
        assert!(report.verdict().is_ok() && report.text().contains("Left out: redis: apt install redis"));
        report.failed("sort", 25, &HarnessError::failed("sort", "killed"));
        assert!(report.verdict().unwrap_err().to_string().contains("sort at 25 %"));
        report.push(row(3, Disk::Took(1.0)));
        assert!(report.verdict().unwrap_err().to_string().contains("3 bytes of output were WRONG"));
    }
}
