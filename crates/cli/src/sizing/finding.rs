//! What was found: the curve as sentences for people and as JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use spillway_machine::size::human;
use spillway_policy::sizing::miss_curve::MissCurve;

use super::picture::Slowdowns;

const PAGE_BYTES: f64 = 4096.0;

/// Slowdowns that the sentence names, in percent: hardly noticed, and what many bear for half of the memory.
pub(super) const NAMED_PERCENT: [f64; 2] = [5.0, 20.0];

/// Shares of the footprint in the table, in percent.
const SHARES: [u32; 9] = [100, 90, 80, 75, 70, 60, 50, 40, 25];

/// So much of the memory in huge pages makes the curve coarse.
const HUGE_PART_TOLD: f64 = 0.1;

/// Less work has too few rounds of scans to be relied on: two of the shortest.
const WORK_MIN: Duration = Duration::from_secs(1);

/// What the curve was made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Page-table scans.
    Scans { looks: u64, longest_window: Duration, huge_part: f64 },
    /// Recorded faults.
    Trace { faults: u64, part: f64 },
}

/// See the module text.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    curve: MissCurve,
    source: Source,
    time: Duration,
    work: Duration,
    page_in_us: f64,
    /// The user said what a page-in costs.
    is_cost_given: bool,
}

/// Its JSON form is stable.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    footprint_bytes: u64,
    /// Below this the curve is not known, and at least as high as there.
    least_bytes: u64,
    seconds: f64,
    /// CPU time of the program: misses are counted by it.
    work_seconds: f64,
    /// It worked for too short a time: the curve is no ground for a decision.
    is_too_little_work: bool,
    page_in_us: f64,
    page_in_given: bool,
    curve: Vec<Place>,
    /// At shares of the footprint.
    shares: Vec<Share>,
    named: Vec<Place>,
}

/// A size of memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Place {
    pub(super) bytes: u64,
    pub(super) page_ins_per_second: f64,
    pub(super) slowdown_percent: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Share {
    percent: u32,
    #[serde(flatten)]
    place: Place,
}

impl Finding {
    pub(super) fn new(
        curve: MissCurve,
        source: Source,
        time: Duration,
        work: Duration,
        page_in_us: f64,
        is_cost_given: bool,
    ) -> Self {
        Self { curve, source, time, work, page_in_us, is_cost_given }
    }

    fn place(&self, pages: f64) -> Place {
        let page_ins_per_second = self.curve.misses_per_second(pages);
        let bytes = (pages * PAGE_BYTES) as u64;
        Place { bytes, page_ins_per_second, slowdown_percent: page_ins_per_second * self.page_in_us / 1e4 }
    }

    /// Places along the curve, the smallest memory first.
    pub(super) fn places(&self) -> Vec<Place> {
        self.curve.points().iter().map(|point| self.place(point.pages)).collect()
    }

    /// At a part of the footprint.
    fn at(&self, part: f64) -> Place {
        self.place(self.curve.footprint_pages() * part)
    }

    fn named(&self) -> Vec<Place> {
        let misses = |percent: f64| percent * 1e4 / self.page_in_us;
        let place = |percent: &f64| Place {
            bytes: (self.curve.pages_for(misses(*percent)) * PAGE_BYTES) as u64,
            page_ins_per_second: misses(*percent),
            slowdown_percent: *percent,
        };
        NAMED_PERCENT.iter().map(place).collect()
    }

    pub(super) fn report(&self) -> Report {
        Report {
            footprint_bytes: self.footprint_bytes() as u64,
            least_bytes: (self.curve.least_pages() * PAGE_BYTES) as u64,
            seconds: self.time.as_secs_f64(),
            work_seconds: self.work.as_secs_f64(),
            is_too_little_work: self.is_too_little_work(),
            page_in_us: self.page_in_us,
            page_in_given: self.is_cost_given,
            curve: self.places(),
            shares: SHARES.map(|percent| Share { percent, place: self.at(f64::from(percent) / 100.0) }).to_vec(),
            named: self.named(),
        }
    }

    /// Of recorded faults the time is not that of the work.
    fn is_too_little_work(&self) -> bool {
        matches!(self.source, Source::Scans { .. }) && self.work < WORK_MIN
    }

    /// In words.
    pub(super) fn told(&self) -> String {
        let mut text = self.sentence() + "\n";
        let given = if self.is_cost_given { "as given" } else { "assumed; --page-in-us gives yours" };
        let _ = writeln!(
            text,
            "It uses {} in all. A page-in costs {} us ({given}). {}",
            human(self.footprint_bytes() as u64),
            self.page_in_us,
            self.basis(),
        );
        text.push_str("\n  local          memory    page-ins/s   slowdown\n");
        for percent in SHARES {
            let place = self.at(f64::from(percent) / 100.0);
            let _ = writeln!(
                text,
                "  {percent:>4} %  {:>13}  {:>12.0}  {:>7.0} %",
                human(place.bytes),
                place.page_ins_per_second,
                place.slowdown_percent
            );
        }
        text
    }

    fn basis(&self) -> String {
        let seconds = self.time.as_secs_f64();
        match self.source {
            Source::Scans { looks, longest_window, huge_part } => {
                let mut text = format!(
                    "From {looks} page-table scans in {seconds:.1} s, {:.1} s of them CPU time, which page-ins are counted by; uses further \
                     apart than {:.1} s were not seen.",
                    self.work.as_secs_f64(),
                    longest_window.as_secs_f64(),
                );
                if self.is_too_little_work() {
                    text.push_str(" That is too little work to rely on; let it work for longer.");
                }
                if huge_part > HUGE_PART_TOLD {
                    let _ = write!(
                        text,
                        " {:.0} % of it are huge pages, so it seems to need more than it does; `spillway size -- CMD` has none.",
                        100.0 * huge_part
                    );
                }
                text
            }
            Source::Trace { faults, part } => {
                format!("From {faults} recorded faults in {seconds:.1} s, {:.0} % of the pages.", 100.0 * part)
            }
        }
    }
}

impl Slowdowns for Finding {
    /// Such as "3.1 GiB local costs 5 %, 2.2 GiB costs 20 %."
    fn sentence(&self) -> String {
        let least = (self.curve.least_pages() * PAGE_BYTES) as u64;
        let costs: Vec<String> = self
            .named()
            .iter()
            .enumerate()
            .map(|(index, place)| {
                let local = if index == 0 { " local" } else { "" };
                // Below the smallest memory that is known no size can be named.
                if place.bytes <= least {
                    return format!("{}{local} costs less than {} %", human(least), place.slowdown_percent);
                }
                format!("{}{local} costs {} %", human(place.bytes), place.slowdown_percent)
            })
            .collect();
        costs.join(", ") + "."
    }

    fn footprint_bytes(&self) -> f64 {
        self.curve.footprint_pages() * PAGE_BYTES
    }

    fn slowdown_percent(&self, part: f64) -> f64 {
        self.at(part).slowdown_percent
    }
}

#[cfg(test)]
pub(super) mod tests {
    use spillway_policy::sizing::miss_curve::CurvePoint;

    use super::*;

    /// 100 MiB: 10,000 page-ins a second at 25 MiB, and none at 100 MiB.
    pub(crate) fn finding(page_in_us: f64) -> Finding {
        let measured = [(CurvePoint { pages: 6400.0, misses_per_second: 10_000.0 }, 1.0)];
        let source = Source::Scans { looks: 7, longest_window: Duration::from_secs(2), huge_part: 0.5 };
        let second = Duration::from_secs(1);
        Finding::new(MissCurve::through(&measured, 25_600.0), source, second * 2, second, page_in_us, true)
    }

    #[test]
    fn the_sentence_names_sizes_and_what_they_cost() {
        assert_eq!(finding(40.0).sentence(), "90.6 MiB local costs 5 %, 62.5 MiB costs 20 %.");
        assert_eq!(finding(10.0).sentence(), "62.5 MiB local costs 5 %, 25 MiB costs less than 20 %.");
    }

    #[test]
    fn it_says_what_it_stands_on() {
        let told = finding(40.0).told();
        for part in ["uses 100 MiB in all", "costs 40 us (as given)", "7 page-table scans", "50 % of it are huge pages"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(told.contains("    25 %         25 MiB         10000       40 %"), "{told}");
    }

    #[test]
    fn the_report_has_all_of_it() {
        let report = serde_json::to_value(finding(40.0).report()).unwrap();
        assert_eq!(
            (report["footprint_bytes"].as_u64(), report["least_bytes"].as_u64()),
            (Some(100 << 20), Some(25 << 20))
        );
        assert_eq!(report["named"][1]["bytes"], 62.5 * 1_048_576.0);
        assert_eq!(report["shares"][0]["slowdown_percent"], 0.0);
        assert_eq!(report["curve"].as_array().unwrap().len(), 2);
    }
}
