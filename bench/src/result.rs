//! What a study found, as it is written to `bench/results/NAME.json` (schema: `bench/README.md`).
//!
//! A study records samples by case, subject and round. Ratios are formed from samples of the same round only. A goal
//! is printed with the ratio that was reached and never asserted: a benchmark that fails on a busy machine teaches
//! people to ignore it.
//!
//! Invariant: the samples of a measure stand in the order of rounds; a round in which a subject failed holds `null`.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::statistics::{Summary, paired_ratio};

/// The version of the JSON schema; raised when a reader must change.
pub const SCHEMA: u32 = 1;

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times and costs.
    Lower,
    /// Rates.
    Higher,
}

/// What the numbers of a measure are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its sign, such as `us`.
    pub sign: &'static str,
    /// Which way is good.
    pub better: Better,
}

/// Microseconds for one page or request.
pub const MICROSECONDS: Unit = Unit { sign: "us", better: Better::Lower };
/// Milliseconds that something takes.
pub const MILLISECONDS: Unit = Unit { sign: "ms", better: Better::Lower };
/// Seconds for each GiB.
pub const SECONDS_PER_GIB: Unit = Unit { sign: "s/GiB", better: Better::Lower };
/// A part of a rate that is lost.
pub const PER_CENT_LOST: Unit = Unit { sign: "% lost", better: Better::Lower };
/// Seconds of a whole program.
pub const SECONDS: Unit = Unit { sign: "s", better: Better::Lower };
/// MiB in a second.
pub const MIB_PER_SECOND: Unit = Unit { sign: "MiB/s", better: Better::Higher };
/// An amount.
pub const MEBIBYTES: Unit = Unit { sign: "MiB", better: Better::Lower };
/// Requests in a second.
pub const REQUESTS_PER_SECOND: Unit = Unit { sign: "IOPS", better: Better::Higher };
/// Requests of a server's clients in a second.
pub const OPERATIONS_PER_SECOND: Unit = Unit { sign: "op/s", better: Better::Higher };
/// New orders of TPC-C in a minute, all clients together.
pub const NEW_ORDERS_PER_MINUTE: Unit = Unit { sign: "tpmC", better: Better::Higher };
/// Pages in a second.
pub const PAGES_PER_SECOND: Unit = Unit { sign: "pages/s", better: Better::Higher };
/// CPU seconds for each GiB moved.
pub const CPU_SECONDS_PER_GIB: Unit = Unit { sign: "CPU s/GiB", better: Better::Lower };
/// Bytes kept for each GiB lent, in MiB.
pub const MIB_PER_GIB: Unit = Unit { sign: "MiB/GiB", better: Better::Lower };

/// CPU seconds of a group of threads.
pub const CPU_SECONDS: Unit = Unit { sign: "CPU s", better: Better::Lower };
/// The part of all CPUs' time that was idle.
pub const PER_CENT_IDLE: Unit = Unit { sign: "% idle", better: Better::Higher };
/// Pages that moved.
pub const PAGES: Unit = Unit { sign: "pages", better: Better::Lower };
/// Faults.
pub const FAULTS: Unit = Unit { sign: "faults", better: Better::Lower };
/// Faults as a multiple of those of the optimal order.
pub const TIMES_OPTIMAL: Unit = Unit { sign: "x optimal", better: Better::Lower };
/// Milliseconds that a program waited.
pub const MILLISECONDS_LOST: Unit = Unit { sign: "ms lost", better: Better::Lower };
/// A part of a whole.
pub const PER_CENT: Unit = Unit { sign: "%", better: Better::Higher };
/// A part of a whole that had better be small.
pub const PER_CENT_WASTE: Unit = Unit { sign: "% waste", better: Better::Lower };
/// Time beyond that of a run with all memory local, as a part of it.
pub const SLOWER: Unit = Unit { sign: "% slower", better: Better::Lower };

/// One amount as a multiple of another.
pub const TIMES: Unit = Unit { sign: "x", better: Better::Lower };

/// The unit with this sign.
pub fn unit_of(sign: &str) -> Option<Unit> {
    let all = [MICROSECONDS, SECONDS, MIB_PER_SECOND, MEBIBYTES, REQUESTS_PER_SECOND, CPU_SECONDS_PER_GIB, MIB_PER_GIB];
    all.into_iter().find(|unit| unit.sign == sign)
}

/// One subject's numbers in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What was done, such as `4 KiB read, depth 1`.
    pub case: String,
    /// What it was done with, such as `spillway shm`.
    pub subject: String,
    /// The sign of the unit.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// One number a round; null where the subject failed.
    pub samples: Vec<Option<f64>>,
    /// Median and quartiles of the samples.
    pub summary: Option<Summary>,
}

/// One subject relative to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The case of both.
    pub case: String,
    /// The numerator.
    pub subject: String,
    /// The denominator.
    pub baseline: String,
    /// Median and quartiles of the rounds' ratios.
    pub ratio: Summary,
}

/// A goal and what was reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// The goal in words.
    pub goal: String,
    /// The case it was looked at in.
    pub case: String,
    /// The ratio reached; null when a side of it is missing.
    pub ratio: Option<f64>,
    /// The bound of the ratio.
    pub bound: f64,
    /// Which side of the bound is good.
    pub better: Better,
    /// Whether it was met; null when it could not be measured.
    pub met: Option<bool>,
}

impl Goal {
    fn new(goal: &str, case: &str, ratio: Option<f64>, bound: f64, better: Better) -> Self {
        let met = ratio.map(|ratio| match better {
            Better::Lower => ratio <= bound,
            Better::Higher => ratio >= bound,
        });
        Self { goal: goal.to_owned(), case: case.to_owned(), ratio, bound, better, met }
    }

    /// `met`, `not met` or `not measured`.
    pub fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "NOT met",
            None => "not measured",
        }
    }
}

/// Something that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// The subject or case.
    pub what: String,
    /// Why, and what to do about it.
    pub reason: String,
}

/// A finished study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The study's name.
    pub study: String,
    /// What it answers.
    pub title: String,
    /// Whether it ran with small inputs and few rounds.
    pub quick: bool,
    /// Whether it came to its end; false after a failure or an interrupt.
    #[serde(default)]
    pub complete: bool,
    /// Where it ran.
    pub machine: Machine,
    /// All numbers.
    pub measures: Vec<Measure>,
    /// Ratios of subjects.
    pub comparisons: Vec<Comparison>,
    /// Goals with what was reached.
    pub goals: Vec<Goal>,
    /// What was left out.
    pub skipped: Vec<Skip>,
}

impl StudyResult {
    /// A study without numbers yet.
    pub fn new(study: &str, title: &str, quick: bool, machine: Machine) -> Self {
        Self {
            schema: SCHEMA,
            study: study.to_owned(),
            title: title.to_owned(),
            quick,
            complete: false,
            machine,
            measures: Vec::new(),
            comparisons: Vec::new(),
            goals: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Notes one number of round `round` (from 0).
    pub fn record(&mut self, round: usize, case: &str, subject: &str, unit: Unit, sample: f64) {
        let known = self.measures.iter().position(|measure| measure.case == case && measure.subject == subject);
        let index = known.unwrap_or_else(|| {
            self.measures.push(Measure {
                case: case.to_owned(),
                subject: subject.to_owned(),
                unit: unit.sign.to_owned(),
                better: unit.better,
                samples: Vec::new(),
                summary: None,
            });
            self.measures.len() - 1
        });
        let measure = &mut self.measures[index];
        assert_eq!(measure.unit, unit.sign, "one case has one unit");
        if measure.samples.len() <= round {
            measure.samples.resize(round + 1, None);
        }
        measure.samples[round] = Some(sample);
        measure.summary = Summary::of(&measure.samples.iter().flatten().copied().collect::<Vec<f64>>());
    }

    /// Notes that something was left out; once for each pair of what and why.
    pub fn skip(&mut self, what: &str, reason: &str) {
        let skip = Skip { what: what.to_owned(), reason: reason.to_owned() };
        if !self.skipped.contains(&skip) {
            self.skipped.push(skip);
        }
    }

    /// The numbers of one subject in one case.
    pub fn measure(&self, case: &str, subject: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.case == case && measure.subject == subject)
    }

    /// The median of one subject in one case.
    pub fn median(&self, case: &str, subject: &str) -> Option<f64> {
        self.measure(case, subject).and_then(|measure| measure.summary).map(|summary| summary.median)
    }

    /// Forms the ratio of each subject to `baseline` in each case that has both.
    pub fn compare_with(&mut self, baseline: &str) {
        let cases = self.cases();
        let subjects = self.subjects();
        for case in &cases {
            for subject in subjects.iter().filter(|subject| *subject != baseline) {
                self.compare(case, subject, baseline);
            }
        }
    }

    /// Forms the ratio of two subjects in one case; gives its median.
    pub fn compare(&mut self, case: &str, subject: &str, baseline: &str) -> Option<f64> {
        let (one, other) = (self.measure(case, subject)?, self.measure(case, baseline)?);
        let ratio = paired_ratio(&one.samples, &other.samples)?;
        let same = |comparison: &Comparison| {
            comparison.case == case && comparison.subject == subject && comparison.baseline == baseline
        };
        if !self.comparisons.iter().any(same) {
            let (case, subject, baseline) = (case.to_owned(), subject.to_owned(), baseline.to_owned());
            self.comparisons.push(Comparison { case, subject, baseline, ratio });
        }
        Some(ratio.median)
    }

    /// The median over rounds of a number formed from several measures of the same round.
    pub fn median_of<const COUNT: usize>(
        &self,
        operands: [(&str, &str); COUNT],
        formula: impl Fn([f64; COUNT]) -> f64,
    ) -> Option<f64> {
        let measures: Option<Vec<&Measure>> =
            operands.iter().map(|(case, subject)| self.measure(case, subject)).collect();
        let measures = measures?;
        let rounds = measures.iter().map(|measure| measure.samples.len()).max()?;
        let of_round = |round: usize| {
            let found: Option<Vec<f64>> =
                measures.iter().map(|measure| measure.samples.get(round).copied().flatten()).collect();
            Some(formula(found?.try_into().expect("there is one number for each operand")))
        };
        Summary::of(&(0..rounds).filter_map(of_round).collect::<Vec<f64>>()).map(|summary| summary.median)
    }

    /// Notes how the ratio of two subjects in one case stands to a goal.
    pub fn goal(&mut self, goal: &str, case: &str, subject: &str, baseline: &str, bound: f64, better: Better) {
        let ratio = self.compare(case, subject, baseline);
        self.goals.push(Goal::new(goal, case, ratio, bound, better));
    }

    /// Notes how a ratio formed elsewhere stands to a goal.
    pub fn goal_of(&mut self, goal: &str, case: &str, ratio: Option<f64>, bound: f64, better: Better) {
        self.goals.push(Goal::new(goal, case, ratio, bound, better));
    }

    /// All cases in the order they were first seen.
    pub fn cases(&self) -> Vec<String> {
        distinct(self.measures.iter().map(|measure| &measure.case))
    }

    /// All subjects in the order they were first seen.
    pub fn subjects(&self) -> Vec<String> {
        distinct(self.measures.iter().map(|measure| &measure.subject))
    }
}

fn distinct<'text>(texts: impl Iterator<Item = &'text String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for text in texts {
        if !found.contains(text) {
            found.push(text.clone());
        }
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A study with two subjects, two cases and a missing round.
    pub(crate) fn sample() -> StudyResult {
        let mut result = StudyResult::new("sample", "A sample", true, Machine::default());
        for (round, (fast, slow)) in [(10.0, 20.0), (11.0, 33.0), (12.0, 24.0)].into_iter().enumerate() {
            result.record(round, "read", "spillway", MICROSECONDS, fast);
            result.record(round, "read", "disk", MICROSECONDS, slow);
        }
        result.record(0, "write", "spillway", MICROSECONDS, 5.0);
        result.record(2, "write", "disk", MICROSECONDS, 50.0);
        result
    }

    #[test]
    fn samples_keep_their_rounds() {
        let result = sample();
        assert_eq!(result.measure("write", "disk").unwrap().samples, [None, None, Some(50.0)]);
        assert_eq!(result.median("read", "spillway"), Some(11.0));
        assert_eq!(result.median("read", "nothing"), None);
        assert_eq!(result.cases(), ["read", "write"]);
        assert_eq!(result.subjects(), ["spillway", "disk"]);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut result = sample();
        result.compare_with("disk");
        assert_eq!(result.comparisons.len(), 1, "no round of 'write' has both: {:?}", result.comparisons);
        assert_eq!(result.comparisons[0].ratio.median, 0.5);
        assert_eq!(result.compare("read", "spillway", "disk"), Some(0.5));
        assert_eq!(result.comparisons.len(), 1, "a ratio is kept once");
    }

    #[test]
    fn goals_say_what_was_reached() {
        let mut result = sample();
        result.goal("half of the disk", "read", "spillway", "disk", 0.5, Better::Lower);
        result.goal("a third of the disk", "read", "spillway", "disk", 0.33, Better::Lower);
        result.goal("twice as fast", "read", "disk", "spillway", 2.0, Better::Higher);
        result.goal("cannot be known", "write", "spillway", "disk", 1.0, Better::Lower);
        let verdicts: Vec<_> = result.goals.iter().map(Goal::verdict).collect();
        assert_eq!(verdicts, ["met", "NOT met", "met", "not measured"]);
    }

    #[test]
    fn formulas_take_numbers_of_one_round() {
        let result = sample();
        let double = result.median_of([("read", "spillway"), ("read", "disk")], |[one, other]| other - one);
        assert_eq!(double, Some(12.0), "of 10, 22 and 12");
        let partly = result.median_of([("write", "disk"), ("read", "disk")], |[write, read]| write + read);
        assert_eq!(partly, Some(74.0), "only the last round has both");
        assert_eq!(result.median_of([("write", "disk"), ("write", "spillway")], |[one, _]| one), None);
        assert_eq!(result.median_of([("none", "disk")], |[one]| one), None);
    }

    #[test]
    fn skips_are_kept_once() {
        let mut result = sample();
        result.skip("nbdkit", "not installed");
        result.skip("nbdkit", "not installed");
        assert_eq!(result.skipped.len(), 1);
    }

    #[test]
    fn json_survives_a_round_trip() {
        let mut result = sample();
        result.compare_with("disk");
        result.goal("half", "read", "spillway", "disk", 0.5, Better::Lower);
        let json = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<StudyResult>(&json).unwrap(), result);
        assert!(json.contains("\"better\":\"lower\""));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_order_of_recording_gives_the_same_result(numbers in proptest::collection::vec(0.1_f64..1e6, 1..12)) {
            let record = |order: &mut dyn Iterator<Item = usize>| {
                let mut result = StudyResult::new("s", "", true, Machine::default());
                order.for_each(|round| result.record(round, "case", "one", SECONDS, numbers[round]));
                result
            };
            let forwards = record(&mut (0..numbers.len()));
            prop_assert_eq!(&forwards, &record(&mut (0..numbers.len()).rev()));
            prop_assert_eq!(forwards.measures[0].samples.len(), numbers.len());
        }

        #[test]
        fn a_goal_and_its_inverse_agree(pairs in proptest::collection::vec((1.0_f64..100.0, 1.0_f64..100.0), 1..2), bound in 0.1_f64..10.0) {
            let mut result = StudyResult::new("s", "", true, Machine::default());
            for (round, (one, other)) in pairs.into_iter().enumerate() {
                result.record(round, "case", "one", SECONDS, one);
                result.record(round, "case", "other", SECONDS, other);
            }
            result.goal("at most", "case", "one", "other", bound, Better::Lower);
            result.goal("at least", "case", "other", "one", 1.0 / (bound * 1.000_001), Better::Higher);
            // With a bound that is a hair wider, the second is met whenever the first is.
            prop_assert!(result.goals[0].met != Some(true) || result.goals[1].met == Some(true));
        }
    }

    #[test]
    #[should_panic(expected = "one unit")]
    fn a_case_has_one_unit() {
        sample().record(1, "read", "disk", SECONDS, 1.0);
    }
}
