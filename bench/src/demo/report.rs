//! The tables at the end of the demo, and three sentences that say what they mean.

use super::redis_job::Served;
use super::server::Shown;
use crate::harness::HarnessError;
use crate::harness::fault_latency::Waits;
use crate::table::Table;
use spillway_workloads::size::{Size, format_bytes};

/// A run with part of the memory lent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lent {
    /// The program's own time.
    pub seconds: f64,
    /// Pages that came back.
    pub pages_in: u64,
    /// How long the kernel waited for pages of a swap device, by the block layer.
    pub waits: Waits,
    /// Bytes of output that differ from the all-local run.
    pub wrong_bytes: u64,
    /// Whether a donor was killed meanwhile.
    pub donor_killed: bool,
    /// What a server's clients saw.
    pub served: Option<Served>,
}

/// A run over disk swap under the same limit.
#[derive(Clone, Debug, PartialEq)]
pub enum Disk {
    /// It took so many seconds, and a server's clients saw this.
    Took(f64, Option<Served>),
    /// It was ended after so many seconds.
    LongerThan(f64),
    /// It failed, which says nothing about Spillway.
    Failed(String),
    /// It was not tried.
    NotRun,
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
    /// What a server's clients saw then.
    pub all_local_served: Option<Served>,
    /// By the pager, where it can be used.
    pub pager: Option<Lent>,
    /// Over the swap device, where it can be used.
    pub device: Option<Lent>,
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
    memcached: Option<Shown>,
}

/// The share that the sentences speak of.
const HALF_PERCENT: u64 = 50;

/// Seconds, and how many times as long as with all memory local.
fn time(seconds: f64, all_local_seconds: f64) -> [String; 2] {
    [format!("{seconds:.2}"), format!("{:.2}x", seconds / all_local_seconds)]
}

fn dashes<const COUNT: usize>() -> [String; COUNT] {
    std::array::from_fn(|_| "-".to_owned())
}

impl Row {
    fn outputs(&self) -> impl Iterator<Item = &Lent> {
        self.pager.iter().chain(&self.device)
    }

    fn disk_cells(&self) -> [String; 2] {
        match &self.disk {
            Disk::Took(seconds, _) => time(*seconds, self.all_local_seconds),
            Disk::LongerThan(seconds) => time(*seconds, self.all_local_seconds).map(|text| format!("> {text}")),
            Disk::Failed(_) => ["failed".to_owned(), "-".to_owned()],
            Disk::NotRun => dashes(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let killed = if self.outputs().any(|lent| lent.donor_killed) { ", donor killed" } else { "" };
        let (pager, device) = (self.pager.as_ref(), self.device.as_ref());
        let timed = |lent: Option<&Lent>| lent.map_or_else(dashes, |lent| time(lent.seconds, self.all_local_seconds));
        let pages = |lent: Option<&Lent>| lent.map_or_else(|| "-".to_owned(), |lent| lent.pages_in.to_string());
        let wrong: u64 = self.outputs().map(|lent| lent.wrong_bytes).sum();
        let mut cells =
            vec![format!("{}{killed}", self.program), format!("{} % = {}", self.percent, format_bytes(self.local.0))];
        cells.extend([pager, device].into_iter().flat_map(timed));
        cells.extend(self.disk_cells());
        cells.extend([pager, device].map(pages));
        cells.extend(device.map_or_else(dashes, |lent| percentiles(&lent.waits)));
        cells.push(wrong.to_string());
        cells
    }

    /// What a server's clients saw each way: all local, pager, swap device, disk swap.
    fn served(&self) -> [Option<Served>; 4] {
        let over_disk = match self.disk {
            Disk::Took(_, served) => served,
            _ => None,
        };
        let [paged, over_device] = [&self.pager, &self.device].map(|lent| lent.as_ref()?.served);
        [self.all_local_served, paged, over_device, over_disk]
    }
}

/// Median and 99th percentile; dashes where too few pages came in to tell.
fn percentiles(waits: &Waits) -> [String; 2] {
    waits.percentiles_us.map_or_else(dashes, |(p50, p99)| [p50, p99].map(|part| format!("{part:.0}")))
}

/// What the columns are.
const NOTES: &str = "
x: time relative to all memory local. Disk swap has the same limit; '>' where it was ended early. Where the machine keeps its disk in
memory (a virtual machine's host does), disk swap is as fast as memory; other disks are slower.
wait p50, p99: what one of sixteen of the kernel's read requests of the swap device took from the moment its page reached the block layer
to its end; what is read ahead counts too. A dash: fewer than 100 were seen.
";

/// The least and the most of some ratios, with the programs that had them.
fn range<'a>(ratios: impl Iterator<Item = (f64, &'a str)>) -> Option<String> {
    let mut ratios: Vec<(f64, &str)> = ratios.collect();
    ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
    match ratios.as_slice() {
        [] => None,
        [(ratio, program)] => Some(format!("{ratio:.1} times ({program})")),
        [(least, first), .., (most, last)] => Some(format!("{least:.1} ({first}) to {most:.1} times ({last})")),
    }
}

impl Report {
    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Notes what memcached's clients saw.
    pub fn memcached(&mut self, shown: Shown) {
        self.memcached = Some(shown);
    }

    /// Notes what a program works on.
    pub fn input(&mut self, program: &str, input: &str) {
        self.inputs.push(format!("{program}: {input}"));
    }

    /// Notes a run that failed.
    pub fn failed(&mut self, program: &str, percent: u64, error: &HarnessError) {
        self.failures.push(format!("{program} at {percent} %: {error}"));
    }

    /// Notes a program, or a way to run them, that was not tried. What only lacks a package is not a failure.
    pub fn left_out(&mut self, what: &str, error: &HarnessError) {
        let list = if matches!(error, HarnessError::Missing(_)) { &mut self.left_out } else { &mut self.failures };
        list.push(format!("{what}: {error}"));
    }

    /// Whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.memcached.is_none() && self.failures.is_empty() && self.left_out.is_empty()
    }

    /// The tables, what is to be said about them, and what they mean.
    pub fn text(&self) -> String {
        let mut table = Table::new([
            "program",
            "local memory",
            "pager s",
            "x",
            "swap device s",
            "x",
            "disk swap s",
            "x",
            "pages in, pager",
            "device",
            "wait p50 us",
            "p99 us",
            "wrong bytes",
        ]);
        self.rows.iter().for_each(|row| table.row(row.cells()));
        let mut text = if table.is_empty() { String::new() } else { table.markdown() };
        text += &self.server_table();
        text += &self.memcached.map_or(String::new(), |shown| format!("\n{}", shown.table()));
        text += NOTES;
        if let Some(reason) = self.rows.iter().find_map(|row| row.device.as_ref()?.waits.obstacle.as_ref()) {
            text += &format!("The kernel has no events of requests here: {reason}\n");
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
        if !self.rows.is_empty() {
            text += &format!("\nWhat this means:\n{}\n", self.sentences().join("\n"));
        }
        // Without programs the server alone is told.
        if let Some(shown) = self.memcached.filter(|_| self.rows.is_empty()) {
            text += &format!("\n{}\n", shown.sentence());
        }
        text
    }

    fn server_table(&self) -> String {
        let mut table =
            Table::new(["requests to Redis: p99 ms (requests/s)", "all local", "pager", "swap device", "disk swap"]);
        for row in self.rows.iter().filter(|row| row.outputs().any(|lent| lent.served.is_some())) {
            let cell = |served: Option<Served>| {
                served.map_or("-".to_owned(), |served| {
                    format!("{:.2} ({:.0})", served.p99_ms, served.requests_per_second)
                })
            };
            table.row([format!("{} % local", row.percent)].into_iter().chain(row.served().map(cell)));
        }
        if table.is_empty() { String::new() } else { format!("\n{}", table.markdown()) }
    }

    /// Three texts: times, servers' answers, and what was right and faster.
    fn sentences(&self) -> [String; 3] {
        [self.sentence_of_times(), self.sentence_of_servers(), self.sentence_of_outputs()]
    }

    fn at_half(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.percent == HALF_PERCENT)
    }

    fn sentence_of_times(&self) -> String {
        let against = |row: &Row, seconds: f64| seconds / row.all_local_seconds;
        let paged = range(
            self.at_half().filter_map(|row| Some((against(row, row.pager.as_ref()?.seconds), row.program.as_str()))),
        );
        let device = range(
            self.at_half().filter_map(|row| Some((against(row, row.device.as_ref()?.seconds), row.program.as_str()))),
        );
        let disk = range(self.at_half().filter_map(|row| match row.disk {
            Disk::Took(seconds, _) => Some((against(row, seconds), row.program.as_str())),
            _ => None,
        }));
        let ways = [(paged, "by the pager"), (device, "over the swap device"), (disk, "over this machine's disk")];
        let ways: Vec<String> = ways.into_iter().filter_map(|(times, way)| Some(format!("{} {way}", times?))).collect();
        if ways.is_empty() {
            return "No program was run with half of its memory elsewhere.".to_owned();
        }
        format!("With half of its memory elsewhere a program took, relative to all memory local: {}.", ways.join(", "))
    }

    fn sentence_of_servers(&self) -> String {
        let told = [self.sentence_of_redis(), self.memcached.map(|shown| shown.sentence())];
        match told.into_iter().flatten().collect::<Vec<String>>().as_slice() {
            [] => "No server was measured.".to_owned(),
            sentences => sentences.join("\n"),
        }
    }

    fn sentence_of_redis(&self) -> Option<String> {
        let served = self.at_half().map(Row::served).find(|served| served[1].or(served[2]).is_some())?;
        let names = ["with all memory local", "by the pager", "over the swap device", "over disk swap"];
        let parts: Vec<String> = served
            .into_iter()
            .zip(names)
            .filter_map(|(served, name)| Some(format!("{:.2} ms {name}", served?.p99_ms)))
            .collect();
        let parts = parts.join(", ");
        Some(format!("With half of its memory elsewhere Redis answered 99 of 100 requests within {parts}."))
    }

    fn sentence_of_outputs(&self) -> String {
        let outputs = self.rows.iter().flat_map(Row::outputs);
        let (count, wrong) = outputs.fold((0, 0), |(count, wrong), lent| (count + 1, wrong + lent.wrong_bytes));
        let pair = |row: &Row| Some((row.pager.as_ref()?.seconds, row.device.as_ref()?.seconds));
        let pairs = || self.rows.iter().filter_map(pair);
        let faster = pairs().filter(|(pager, device)| pager < device).count();
        let killed = self.rows.iter().flat_map(Row::outputs).any(|lent| lent.donor_killed);
        let killed = if killed { ", also of the run in which a donor was killed" } else { "" };
        let right = match wrong {
            0 => format!("Every byte of {count} outputs was right{killed}"),
            _ => format!("{wrong} bytes of {count} outputs were WRONG"),
        };
        let way = match pairs().count() {
            0 if self.rows.iter().any(|row| row.pager.is_some()) => {
                "the swap device, which serves programs that the pager cannot, was not used here".to_owned()
            }
            0 => "the pager, which is the faster way for most programs, was not used here".to_owned(),
            both => format!(
                "the pager was faster than the swap device in {faster} of {both} runs: `spillway run` takes it without root, `--via pager` \
                 insists on it, and the swap device serves programs that it cannot"
            ),
        };
        format!("{right}; {way}.")
    }

    /// An error if a run failed or an output was wrong.
    pub fn verdict(&self) -> Result<(), HarnessError> {
        let wrong: u64 = self.rows.iter().flat_map(Row::outputs).map(|lent| lent.wrong_bytes).sum();
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
    use super::super::server::Answers;
    use super::*;

    fn lent(seconds: f64, wrong_bytes: u64) -> Lent {
        Lent { seconds, pages_in: 30, wrong_bytes, ..Lent::default() }
    }

    fn row(wrong_bytes: u64, disk: Disk) -> Row {
        let waits = Waits { percentiles_us: Some((12.0, 40.0)), obstacle: None };
        let device = Lent { waits, donor_killed: wrong_bytes == 0, ..lent(3.0, wrong_bytes) };
        Row {
            program: "sort".to_owned(),
            percent: 50,
            local: Size(64 << 20),
            all_local_seconds: 2.0,
            all_local_served: None,
            pager: Some(Lent { pages_in: 20, ..lent(2.4, 0) }),
            device: Some(device),
            disk,
        }
    }

    fn served(p99_ms: f64) -> Option<Served> {
        Some(Served { requests_per_second: 5000.0, p99_ms })
    }

    #[test]
    fn a_row_tells_everything() {
        let mut report = Report::default();
        assert!(report.is_empty());
        report.input("sort", "64.0 MiB of text");
        report.push(row(0, Disk::Took(6.0, None)));
        let text = report.text();
        for part in [
            "sort: 64.0 MiB of text",
            "sort, donor killed",
            "50 % = 64.0 MiB",
            "2.40 | 1.20x |",
            "3.00 | 1.50x |",
            "6.00 | 3.00x |",
            " 20 |",
            " 30 |",
            " 12 |",
            " 40 |",
            " 0 |",
        ] {
            let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(squeezed.contains(part), "{part}\n{text}");
        }
        assert!(report.verdict().is_ok());
    }

    #[test]
    fn the_sentences_are_computed_from_the_rows() {
        let mut report = Report::default();
        report.push(row(0, Disk::Took(6.0, None)));
        let mut redis = row(0, Disk::Took(5.0, served(9.0)));
        redis.program = "redis".to_owned();
        redis.all_local_served = served(0.2);
        redis.device.as_mut().unwrap().served = served(4.0);
        let paged = Lent { served: served(1.5), ..lent(3.2, 0) };
        report.push(Row { pager: Some(paged), ..redis });
        let [times, servers, outputs] = report.sentences();
        assert_eq!(
            times,
            "With half of its memory elsewhere a program took, relative to all memory local: 1.2 (sort) to 1.6 times (redis) by the pager, \
             1.5 (sort) to 1.5 times (redis) over the swap device, 2.5 (redis) to 3.0 times (sort) over this machine's disk."
        );
        assert_eq!(
            servers,
            "With half of its memory elsewhere Redis answered 99 of 100 requests within 0.20 ms with all memory local, 1.50 ms by the \
             pager, 4.00 ms over the swap device, 9.00 ms over disk swap."
        );
        assert!(outputs.starts_with("Every byte of 4 outputs was right, also of the run in which a donor was killed"));
        assert!(outputs.contains("faster than the swap device in 1 of 2 runs"), "{outputs}");
        assert!(report.text().contains("50 % local"), "{}", report.text());
    }

    #[test]
    fn without_pager_server_and_half_the_sentences_say_so() {
        let mut report = Report::default();
        report.push(Row { pager: None, percent: 25, ..row(0, Disk::NotRun) });
        let [times, servers, outputs] = report.sentences();
        assert_eq!(times, "No program was run with half of its memory elsewhere.");
        assert_eq!(servers, "No server was measured.");
        assert!(outputs.contains("was not used here"), "{outputs}");
    }

    #[test]
    fn without_the_swap_way_the_pager_is_shown_alone() {
        let mut report = Report::default();
        report.push(Row { device: None, ..row(0, Disk::NotRun) });
        let [times, _, outputs] = report.sentences();
        assert!(times.ends_with("1.2 times (sort) by the pager."), "{times}");
        assert!(outputs.contains("the swap device, which serves"), "{outputs}");
        let answers = Answers { rate: 1.0, p99_us: 70.0 };
        report.memcached(Shown { local: Size(1), all_local: answers, pager: Some(answers), device: None });
        assert!(report.text().contains("70 us by the pager") && report.verdict().is_ok());
    }

    #[test]
    fn a_kernel_without_events_is_told_once() {
        let mut report = Report::default();
        report.push(row(0, Disk::NotRun));
        assert!(!report.text().contains("no events"), "{}", report.text());
        let mut blind = row(0, Disk::NotRun);
        blind.device.as_mut().unwrap().waits = Waits { percentiles_us: None, obstacle: Some("no tracefs".to_owned()) };
        report.push(blind);
        assert!(report.text().contains("no events of requests here: no tracefs"), "{}", report.text());
    }

    #[test]
    fn a_disk_that_was_not_waited_for_is_a_bound() {
        assert_eq!(row(0, Disk::LongerThan(12.0)).disk_cells(), ["> 12.00", "> 6.00x"]);
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
        report.push(row(3, Disk::NotRun));
        assert!(report.verdict().unwrap_err().to_string().contains("3 bytes of output were WRONG"));
        assert!(report.text().contains("3 bytes of 2 outputs were WRONG"));
        let mut by_pager = row(0, Disk::NotRun);
        by_pager.pager = Some(lent(1.0, 5));
        let mut report = Report::default();
        report.push(by_pager);
        assert!(report.verdict().unwrap_err().to_string().contains("5 bytes"));
    }
}
