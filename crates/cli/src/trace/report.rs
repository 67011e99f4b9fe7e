//! What a replay found, as a table and as JSON.

use std::fmt::Write;

use serde::Serialize;
use spillway_machine::size::human;
use spillway_policy::replay::detection::Windows;

use super::loaded::Overview;

/// Of one policy; its JSON form is stable. A rate is null where there is nothing to take a part of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) name: &'static str,
    pub(crate) faults_left: u64,
    pub(crate) pages_prefetched: u64,
    pub(crate) accuracy: Option<f64>,
    pub(crate) coverage: Option<f64>,
    pub(crate) timeliness: Option<f64>,
    pub(crate) pollution: Option<f64>,
    /// What the program would have waited, by the replay's model of times.
    pub(crate) waited_ms: f64,
}

/// Runs of faults, seen in one way; its JSON form is stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunsReport {
    /// Whose faults are looked at together: those of a `process` or of a `thread`.
    pub(crate) by: &'static str,
    /// `strict` or `majority`.
    pub(crate) look: &'static str,
    pub(crate) windows: u64,
    pub(crate) sequential: f64,
    pub(crate) stride: f64,
    pub(crate) irregular: f64,
}

impl RunsReport {
    /// Of all windows.
    pub(crate) fn new(by: &'static str, look: &'static str, windows: Windows) -> Self {
        let shares = windows.shares();
        let (sequential, stride, irregular) = (shares.sequential, shares.stride, shares.irregular);
        Self { by, look, windows: windows.count, sequential, stride, irregular }
    }
}

/// The whole answer; its JSON form is stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) trace: Overview,
    pub(crate) local_pages: u32,
    /// Faults that wait for a donor without prefetching.
    pub(crate) faults: u64,
    pub(crate) policies: Vec<PolicyReport>,
    pub(crate) runs: Vec<RunsReport>,
}

impl Report {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = self.head();
        let row = |cells: [&str; 7]| {
            let [name, cells @ ..] = cells;
            let cells: String = cells.iter().map(|cell| format!("{cell:>13}")).collect();
            format!("{name:<16}{cells}\n")
        };
        text += &row(["policy", "faults left", "accuracy", "coverage", "timeliness", "pollution", "waited"]);
        for policy in &self.policies {
            let rates = [policy.accuracy, policy.coverage, policy.timeliness, policy.pollution];
            let [accuracy, coverage, timeliness, pollution] = rates.map(per_cent);
            let (left, waited) = (policy.faults_left.to_string(), format!("{:.1} ms", policy.waited_ms));
            text += &row([policy.name, &left, &accuracy, &coverage, &timeliness, &pollution, &waited]);
        }
        text.push('\n');
        text += &row(["runs of faults", "sequential", "stride", "irregular", "", "", ""]);
        for runs in &self.runs {
            let shares = [runs.sequential, runs.stride, runs.irregular].map(|share| per_cent(Some(share)));
            let name = format!("{} {}", runs.by, runs.look);
            text += &row([&name, &shares[0], &shares[1], &shares[2], "", "", ""]);
        }
        text.push('\n');
        for by in ["process", "thread"] {
            text += &self.more_found(by).unwrap_or_default();
        }
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn head(&self) -> String {
        let Overview { file, kind, events, lost, pages, threads, address_spaces, seconds } = &self.trace;
        let mut text = format!(
            "{file}: {events} {} on {pages} pages, of {threads} thread(s) in {address_spaces} address space(s)",
            kind.replace('-', " "),
        );
        // What is written to a string cannot fail.
        if let Some(seconds) = seconds {
            let _ = write!(text, ", in {seconds:.2} s");
        }
        if *lost > 0 {
            let _ = write!(text, "\n{lost} more were lost when it was recorded");
        }
        let local = human(u64::from(self.local_pages) * 4096);
        let _ = writeln!(text, "\nreplayed with {local} of local memory: {} faults without prefetching\n", self.faults);
        text
    }

    /// Leap's figure: how many more sequential runs a majority finds.
    fn more_found(&self, by: &str) -> Option<String> {
        let of = |look: &str| self.runs.iter().find(|runs| runs.by == by && runs.look == look);
        let (strict, majority) = (of("strict")?.sequential, of("majority")?.sequential);
        let more = 100.0 * (majority / strict - 1.0);
        more.is_finite()
            .then(|| format!("by {by}, a majority finds {more:.1} % more sequential runs than a strict look\n"))
    }
}

fn per_cent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", 100.0 * part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(strict: u64) -> Report {
        let trace = Overview {
            file: "a.trace".to_owned(),
            kind: "major-faults",
            events: 10,
            lost: 2,
            pages: 5,
            threads: 1,
            address_spaces: 1,
            seconds: Some(0.5),
        };
        let policy = PolicyReport {
            name: "leap",
            faults_left: 7,
            pages_prefetched: 4,
            accuracy: Some(0.75),
            coverage: Some(0.3),
            timeliness: None,
            pollution: Some(0.0),
            waited_ms: 1.25,
        };
        let windows = |sequential| Windows { count: 100, sequential, stride: 5 };
        let runs = vec![
            RunsReport::new("process", "strict", windows(strict)),
            RunsReport::new("process", "majority", windows(60)),
        ];
        Report { trace, local_pages: 256, faults: 9, policies: vec![policy], runs }
    }

    #[test]
    fn people_read_a_table() {
        let text = report(50).table();
        for part in ["10 major faults on 5 pages", "2 more were lost", "1 MiB of local memory: 9 faults"] {
            assert!(text.contains(part), "no '{part}' in {text}");
        }
        let row: Vec<_> = text.lines().find(|line| line.starts_with("leap")).unwrap().split_whitespace().collect();
        assert_eq!(row.join(" "), "leap 7 75.0 % 30.0 % - 0.0 % 1.2 ms");
        assert!(text.contains("by process, a majority finds 20.0 % more sequential runs"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 120 && line == line.trim_end()), "{text}");
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        assert!(!report(0).table().contains("more sequential runs"));
    }

    #[test]
    fn the_json_is_stable() {
        let json = serde_json::to_value(report(50)).unwrap();
        assert_eq!(json["trace"]["kind"], "major-faults");
        assert_eq!(json["policies"][0]["timeliness"], serde_json::Value::Null);
        assert_eq!(
            (json["policies"][0]["accuracy"].as_f64(), json["runs"][0]["by"].as_str()),
            (Some(0.75), Some("process"))
        );
    }
}
