//! How long a program took with all of its memory local, and with parts of it: in words, and as JSON. Decisions only.
//!
//! Between two sizes the slowdown is taken to be on a straight line.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::fmt::Write;

use serde::Serialize;
use spillway_machine::size::human;

use super::finding::NAMED_PERCENT;
use super::picture::Slowdowns;

/// Parts of the memory that are local, in percent; all of it first, which says how much that is.
pub(super) const SHARES_PERCENT: [u32; 4] = [100, 75, 50, 25];

/// One run of the program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    pub(super) percent: u32,
    /// Local memory at most.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Page faults that waited for a page from elsewhere.
    pub(super) page_ins: u64,
}

/// All runs of a program.
#[derive(Clone, Debug)]
pub(super) struct Trials {
    /// How long it took by itself.
    pub(super) seconds_alone: f64,
    /// All that it uses.
    pub(super) footprint_bytes: u64,
    /// From the largest memory to the smallest; at least one.
    pub(super) trials: Vec<Trial>,
    /// Shares that would be too little memory for any program.
    pub(super) left_out_percent: Vec<u32>,
}

/// Its JSON form is stable.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    footprint_bytes: u64,
    seconds_alone: f64,
    trials: Vec<Measured>,
    left_out_percent: Vec<u32>,
    named: Vec<Named>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    trial: Trial,
    slowdown_percent: f64,
}

/// The least memory for a slowdown; none if all sizes cost more.
#[derive(Clone, Copy, Debug, Serialize)]
struct Named {
    slowdown_percent: f64,
    bytes: Option<u64>,
}

impl Trials {
    fn of_trial(&self, trial: &Trial) -> f64 {
        100.0 * (trial.seconds / self.seconds_alone - 1.0)
    }

    /// The least memory with which, and with all sizes above it, the program loses no more.
    fn least_bytes(&self, slowdown_percent: f64) -> Option<u64> {
        let mut least: Option<&Trial> = None;
        for trial in &self.trials {
            if self.of_trial(trial) <= slowdown_percent {
                least = Some(trial);
                continue;
            }
            let above = least?;
            let (low, high) = (self.of_trial(above), self.of_trial(trial));
            let part = (slowdown_percent - low) / (high - low);
            return Some(above.bytes - ((above.bytes - trial.bytes) as f64 * part).round() as u64);
        }
        least.map(|trial| trial.bytes)
    }

    pub(super) fn report(&self) -> Report {
        let measured = |trial: &Trial| Measured { trial: *trial, slowdown_percent: self.of_trial(trial) };
        let named = |percent: f64| Named { slowdown_percent: percent, bytes: self.least_bytes(percent) };
        Report {
            footprint_bytes: self.footprint_bytes,
            seconds_alone: self.seconds_alone,
            trials: self.trials.iter().map(measured).collect(),
            left_out_percent: self.left_out_percent.clone(),
            named: NAMED_PERCENT.map(named).to_vec(),
        }
    }

    /// In words.
    pub(super) fn told(&self) -> String {
        let mut text = self.sentence() + "\n";
        let _ = writeln!(
            text,
            "It uses {} in all, and took {:.1} s by itself. Each size was measured once.",
            human(self.footprint_bytes),
            self.seconds_alone
        );
        if !self.left_out_percent.is_empty() {
            let left_out: Vec<String> = self.left_out_percent.iter().map(|percent| format!("{percent} %")).collect();
            let _ = writeln!(text, "{} of that is less than any program needs, and was left out.", left_out.join(", "));
        }
        text.push_str("\n  local          memory       seconds     page-ins   slowdown\n");
        for trial in &self.trials {
            let _ = writeln!(
                text,
                "  {:>4} %  {:>13}  {:>12.1} {:>12}  {:>7.0} %",
                trial.percent,
                human(trial.bytes),
                trial.seconds,
                trial.page_ins,
                self.of_trial(trial)
            );
        }
        text
    }
}

impl Slowdowns for Trials {
    fn sentence(&self) -> String {
        let smallest = self.trials.last().map_or(0, |trial| trial.bytes);
        let costs: Vec<String> = NAMED_PERCENT
            .iter()
            .map(|percent| match self.least_bytes(*percent) {
                None => format!("no size costs less than {percent} %"),
                Some(bytes) if bytes <= smallest => format!("{} local costs at most {percent} %", human(bytes)),
                Some(bytes) => format!("{} local costs {percent} %", human(bytes)),
            })
            .collect();
        costs.join(", ") + ", as measured."
    }

    fn footprint_bytes(&self) -> f64 {
        self.footprint_bytes as f64
    }

    fn slowdown_percent(&self, part: f64) -> f64 {
        let at = |trial: &Trial| (trial.bytes as f64 / self.footprint_bytes as f64, self.of_trial(trial));
        let mut above: Option<(f64, f64)> = None;
        for (here, slowdown) in self.trials.iter().map(at) {
            if here <= part {
                let Some((there, less)) = above else { return slowdown.max(0.0) };
                let place = (part - here) / (there - here).max(f64::EPSILON);
                return (slowdown + (less - slowdown) * place).max(0.0);
            }
            above = Some((here, slowdown));
        }
        // Below the smallest: at least as much.
        above.map_or(0.0, |(_, slowdown)| slowdown.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 100 MiB, 10 s by itself.
    fn trials(seconds: &[f64]) -> Trials {
        let trial = |(percent, seconds): (&u32, &f64)| Trial {
            percent: *percent,
            bytes: u64::from(*percent) * MIB,
            seconds: *seconds,
            page_ins: 7,
        };
        let trials = SHARES_PERCENT.iter().zip(seconds).map(trial).collect();
        Trials { seconds_alone: 10.0, footprint_bytes: 100 * MIB, trials, left_out_percent: Vec::new() }
    }

    #[test]
    fn between_two_sizes_the_cost_is_on_a_line() {
        let trials = trials(&[10.0, 10.0, 11.0, 16.0]);
        assert_eq!(trials.least_bytes(5.0), Some(62 * MIB + MIB / 2));
        assert_eq!(trials.least_bytes(20.0), Some(45 * MIB));
        assert_eq!(trials.sentence(), "62.5 MiB local costs 5 %, 45 MiB local costs 20 %, as measured.");
        assert!((trials.slowdown_percent(0.375) - 35.0).abs() < 1e-9);
        assert_eq!(trials.slowdown_percent(1.0), 0.0);
        assert!((trials.slowdown_percent(0.1) - 60.0).abs() < 1e-9, "as at the smallest");
    }

    #[test]
    fn what_costs_less_or_more_than_any_size_is_said() {
        assert_eq!(
            trials(&[10.0, 10.0, 10.0, 10.1]).sentence(),
            "25 MiB local costs at most 5 %, 25 MiB local costs at most 20 %, as measured."
        );
        let slow = trials(&[11.0, 30.0, 40.0, 50.0]);
        assert!(slow.sentence().starts_with("no size costs less than 5 %, 98.7 MiB local costs 20 %"), "{slow:?}");
        assert_eq!(slow.least_bytes(5.0), None);
    }

    #[test]
    fn a_size_below_one_that_costs_more_is_not_named() {
        assert_eq!(trials(&[10.0, 20.0, 10.0, 10.0]).least_bytes(5.0), Some(98 * MIB + 3 * MIB / 4));
    }

    #[test]
    fn a_program_that_is_faster_with_less_memory_has_no_negative_bar() {
        let trials = trials(&[9.0, 9.5, 12.0, 12.0]);
        assert!((0..=10).all(|step| trials.slowdown_percent(f64::from(step) / 10.0) >= 0.0));
        assert!(
            trials.told().contains("   100 %        100 MiB           9.0            7      -10 %"),
            "{}",
            trials.told()
        );
    }

    #[test]
    fn the_report_has_all_of_it() {
        let left_out = Trials { left_out_percent: vec![25], ..trials(&[10.0, 10.0, 11.0]) };
        let report = serde_json::to_value(left_out.report()).unwrap();
        assert_eq!(
            (report["trials"][2]["percent"].as_u64(), report["left_out_percent"][0].as_u64()),
            (Some(50), Some(25))
        );
        assert_eq!(report["trials"][2]["page_ins"], 7);
        assert!(left_out.told().contains("25 % of that is less than any program needs"), "{}", left_out.told());
    }
}
