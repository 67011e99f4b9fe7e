//! What a whole run of the benchmarks comes to: each goal with how often it was met and where it was missed most.
//! Written to `summary.json` after each study, so that an interrupted run has one too, and printed at the end.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::result::{Better, Goal, SCHEMA, StudyResult};
use crate::table::{Table, format_number};

/// A goal over all cases in which it was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalSummary {
    /// The goal in words.
    pub goal: String,
    /// The bound of its ratio.
    pub bound: f64,
    /// Which side of the bound is good.
    pub better: Better,
    /// Cases with a ratio.
    pub measured: usize,
    /// Of them, those within the bound.
    pub met: usize,
    /// Cases without a ratio.
    pub not_measured: usize,
    /// The median of the cases' ratios; null without any.
    pub ratio_median: Option<f64>,
    /// The ratio farthest on the bad side.
    pub ratio_worst: Option<f64>,
    /// Its case.
    pub worst_case: Option<String>,
}

/// One study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudySummary {
    /// Its name.
    pub study: String,
    /// What it answers.
    pub title: String,
    /// False when a failure or an interrupt ended it early.
    pub complete: bool,
    /// Its goals, those of one name together.
    pub goals: Vec<GoalSummary>,
    /// How much was left out; the study's own result says what and why.
    pub left_out: usize,
}

/// All studies of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Where it ran.
    pub machine: Machine,
    /// Whether inputs were small.
    pub quick: bool,
    /// The studies in the order in which they ran.
    pub studies: Vec<StudySummary>,
}

impl GoalSummary {
    fn of(goals: &[&Goal]) -> Self {
        let first = goals[0];
        let mut ratios: Vec<(f64, &Goal)> = goals.iter().filter_map(|goal| Some((goal.ratio?, *goal))).collect();
        ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
        let worst = if first.better == Better::Lower { ratios.last() } else { ratios.first() };
        let values: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
        Self {
            goal: first.goal.clone(),
            bound: first.bound,
            better: first.better,
            measured: ratios.len(),
            met: goals.iter().filter(|goal| goal.met == Some(true)).count(),
            not_measured: goals.len() - ratios.len(),
            ratio_median: crate::statistics::Summary::of(&values).map(|summary| summary.median),
            ratio_worst: worst.map(|(ratio, _)| *ratio),
            worst_case: worst.map(|(_, goal)| goal.case.clone()),
        }
    }

    /// `met`, `NOT met`, how many of the cases, or `not measured`.
    pub fn verdict(&self) -> String {
        match (self.met, self.measured) {
            (_, 0) => "not measured".to_owned(),
            (met, measured) if met == measured => "met".to_owned(),
            (0, _) => "NOT met".to_owned(),
            (met, measured) => format!("met in {met} of {measured}"),
        }
    }
}

impl StudySummary {
    /// The goals of `result` by name, in the order in which they first stand there.
    pub fn of(result: &StudyResult) -> Self {
        let mut groups: Vec<Vec<&Goal>> = Vec::new();
        for goal in &result.goals {
            match groups.iter_mut().find(|group| group[0].goal == goal.goal) {
                Some(group) => group.push(goal),
                None => groups.push(vec![goal]),
            }
        }
        Self {
            study: result.study.clone(),
            title: result.title.clone(),
            complete: result.complete,
            goals: groups.iter().map(|group| GoalSummary::of(group)).collect(),
            left_out: result.skipped.len(),
        }
    }
}

impl RunSummary {
    /// A run without studies yet.
    pub fn new(machine: Machine, quick: bool) -> Self {
        Self { schema: SCHEMA, machine, quick, studies: Vec::new() }
    }

    /// Adds a study.
    pub fn push(&mut self, result: &StudyResult) {
        self.studies.push(StudySummary::of(result));
    }

    /// The table for people.
    pub fn text(&self) -> String {
        let mut table = Table::new(["study", "goal", "bound", "median", "worst", "where", "verdict"]);
        for study in &self.studies {
            study.goals.iter().for_each(|goal| table.row(row(study, goal)));
        }
        let machine = &self.machine;
        let mode = if self.quick { "; quick run, for a look only" } else { "" };
        let mut text = format!(
            "# Summary\n\nLinux {}, {}, {} CPUs{mode}. Ratios of medians of each case.\n\n",
            machine.kernel, machine.processor, machine.cpus
        );
        if !table.is_empty() {
            text += &table.markdown();
        }
        for study in self.studies.iter().filter(|study| !study.complete || study.left_out > 0) {
            let part = if study.complete { "" } else { "; it did not come to its end" };
            text += &format!("{}: {} left out, see its own table{part}\n", study.study, study.left_out);
        }
        text
    }
}

fn row(study: &StudySummary, goal: &GoalSummary) -> [String; 7] {
    let number = |ratio: Option<f64>| ratio.map_or("-".to_owned(), format_number);
    let sign = if goal.better == Better::Lower { "<=" } else { ">=" };
    [
        study.study.clone(),
        goal.goal.clone(),
        format!("{sign} {}", format_number(goal.bound)),
        number(goal.ratio_median),
        number(goal.ratio_worst),
        goal.worst_case.clone().unwrap_or_default(),
        goal.verdict(),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::result::tests::sample;

    fn result(ratios: &[Option<f64>], better: Better) -> StudyResult {
        let mut result = sample();
        for (index, ratio) in ratios.iter().enumerate() {
            result.goal_of("be good", &format!("case {index}"), *ratio, 2.0, better);
        }
        result
    }

    fn summary(ratios: &[Option<f64>], better: Better) -> GoalSummary {
        StudySummary::of(&result(ratios, better)).goals.remove(0)
    }

    #[test]
    fn the_worst_case_is_on_the_bad_side() {
        let ratios = [Some(1.5), Some(3.0), None, Some(1.0)];
        let low = summary(&ratios, Better::Lower);
        assert_eq!((low.ratio_worst, low.worst_case.as_deref()), (Some(3.0), Some("case 1")));
        assert_eq!((low.met, low.measured, low.not_measured), (2, 3, 1));
        assert_eq!((low.ratio_median, low.verdict().as_str()), (Some(1.5), "met in 2 of 3"));
        let high = summary(&ratios, Better::Higher);
        assert_eq!((high.ratio_worst, high.worst_case.as_deref(), high.met), (Some(1.0), Some("case 3"), 1));
    }

    #[test]
    fn verdicts_are_of_all_cases() {
        let verdict = |ratios: &[Option<f64>]| summary(ratios, Better::Lower).verdict();
        assert_eq!(verdict(&[Some(1.0), Some(2.0)]), "met");
        assert_eq!(verdict(&[Some(2.1)]), "NOT met");
        assert_eq!(verdict(&[None]), "not measured");
        assert_eq!(verdict(&[None, Some(1.0)]), "met");
    }

    #[test]
    fn goals_of_one_name_stand_together_in_their_order() {
        let mut result = result(&[Some(1.0)], Better::Lower);
        result.goal_of("another", "x", Some(1.0), 1.0, Better::Lower);
        result.goal_of("be good", "later", Some(9.0), 2.0, Better::Lower);
        let study = StudySummary::of(&result);
        let names: Vec<_> = study.goals.iter().map(|goal| (goal.goal.as_str(), goal.measured)).collect();
        assert_eq!(names, [("be good", 2), ("another", 1)]);
    }

    #[test]
    fn the_text_tells_of_all_studies_and_of_what_is_missing() {
        let mut run = RunSummary::new(Machine::default(), true);
        run.push(&result(&[Some(1.0), Some(4.0)], Better::Lower));
        let mut broken = sample();
        (broken.study, broken.complete) = ("broken".to_owned(), false);
        broken.skip("tape", "no drive");
        run.push(&broken);
        let text = run.text();
        for part in
            ["be good", "<= 2.00", "4.00", "case 1", "met in 1 of 2", "quick run", "broken: 1 left out", "its end"]
        {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn json_survives_a_round_trip() {
        let mut run = RunSummary::new(Machine::here(), false);
        run.push(&result(&[Some(1.0), None], Better::Higher));
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<RunSummary>(&json).unwrap(), run);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn counts_add_up_and_the_worst_decides(
            ratios in proptest::collection::vec(proptest::option::of(0.1_f64..4.0), 1..12),
            lower in any::<bool>()
        ) {
            let better = if lower { Better::Lower } else { Better::Higher };
            let found = summary(&ratios, better);
            prop_assert_eq!(found.measured + found.not_measured, ratios.len());
            prop_assert!(found.met <= found.measured);
            if let Some(worst) = found.ratio_worst {
                let within = if lower { worst <= 2.0 } else { worst >= 2.0 };
                prop_assert_eq!(within, found.met == found.measured, "the worst is met only if all are");
            }
        }
    }
}
