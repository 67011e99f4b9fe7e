//! Any result becomes sound JSON, a table with all its numbers, and plots; ratios agree with a plain model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use spillway_bench::machine::Machine;
use spillway_bench::plot::study_bars;
use spillway_bench::result::{Better, MIB_PER_SECOND, MICROSECONDS, StudyResult, Unit};
use spillway_bench::statistics::{Summary, paired_ratio};
use spillway_bench::table::document;

/// One number of a study: round, case, subject, value.
type Record = ((usize, usize, usize), f64);

const CASES: [(&str, Unit); 3] =
    [("read | small", MICROSECONDS), ("write <large>", MIB_PER_SECOND), ("random & stride", MICROSECONDS)];
const SUBJECTS: [&str; 3] = ["spillway", "disk \"file\"", "zram"];

fn records() -> impl Strategy<Value = Vec<Record>> {
    let place = (0_usize..4, 0..CASES.len(), 0..SUBJECTS.len());
    proptest::collection::btree_map(place, 0.01_f64..1e6, 1..30)
        .prop_map(|map: BTreeMap<_, _>| map.into_iter().collect())
}

fn study(records: &[Record]) -> StudyResult {
    let mut result = StudyResult::new("study", "Any", false, Machine::default());
    for ((round, case, subject), value) in records {
        let (case, unit) = CASES[*case];
        result.record(*round, case, SUBJECTS[*subject], unit, *value);
    }
    result
}

/// The numbers of one case and subject, in the order of rounds.
fn numbers(records: &[Record], case: usize, subject: usize) -> Vec<f64> {
    let is_wanted = |record: &&Record| record.0.1 == case && record.0.2 == subject;
    records.iter().filter(is_wanted).map(|record| record.1).collect()
}

/// The median as one would take it by hand.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len() % 2 == 1 { numbers[middle] } else { f64::midpoint(numbers[middle - 1], numbers[middle]) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn medians_are_those_taken_by_hand(records in records()) {
        let result = study(&records);
        for (case, (case_name, _)) in CASES.iter().enumerate() {
            for (subject, subject_name) in SUBJECTS.iter().enumerate() {
                let numbers = numbers(&records, case, subject);
                let found = result.median(case_name, subject_name);
                match (numbers.is_empty(), found) {
                    (true, found) => prop_assert_eq!(found, None),
                    (false, Some(found)) => {
                        let expected = median(numbers);
                        prop_assert!((found - expected).abs() <= expected * 1e-12);
                    }
                    (false, None) => prop_assert!(false, "numbers without a median"),
                }
            }
        }
    }

    #[test]
    fn ratios_are_those_of_rounds_that_both_have(records in records()) {
        let mut result = study(&records);
        let by_place: BTreeMap<_, _> = records.iter().copied().collect();
        for (case, (case_name, _)) in CASES.iter().enumerate() {
            let ratio = |round| Some(by_place.get(&(round, case, 0))? / by_place.get(&(round, case, 1))?);
            let ratios: Vec<f64> = (0..4).filter_map(ratio).collect();
            let found = result.compare(case_name, SUBJECTS[0], SUBJECTS[1]);
            prop_assert_eq!(found.is_some(), !ratios.is_empty());
            if let Some(found) = found {
                let expected = median(ratios);
                prop_assert!((found - expected).abs() <= expected * 1e-12);
            }
        }
    }

    #[test]
    fn documents_and_plots_hold_everything(records in records()) {
        let mut result = study(&records);
        result.compare_with(SUBJECTS[1]);
        result.goal("be fast", CASES[0].0, SUBJECTS[0], SUBJECTS[1], 1.0, Better::Lower);
        result.skip("tape", "no drive");
        let text = document(&result);
        for case in result.cases() {
            prop_assert!(text.contains(&case.replace('|', "\\|")), "{} is missing", case);
        }
        prop_assert!(text.contains("be fast") && text.contains("no drive"));
        for unit in [MICROSECONDS.sign, MIB_PER_SECOND.sign] {
            let count = result.measures.iter().filter(|measure| measure.unit == unit).count();
            let svg = study_bars(&result, unit);
            prop_assert_eq!(svg.is_some(), count > 0);
            let whiskers = svg.map_or(0, |svg| svg.matches(r#"stroke-width="1.2""#).count());
            prop_assert_eq!(whiskers, count, "a bar with its whisker for each measure");
        }
    }

    #[test]
    fn json_loses_nothing(records in records()) {
        let mut result = study(&records);
        result.compare_with(SUBJECTS[1]);
        let json = serde_json::to_value(&result).expect("a result is plain data");
        prop_assert_eq!(&json["schema"], 1);
        let measures = json["measures"].as_array().map_or(0, Vec::len);
        prop_assert_eq!(measures, result.measures.len());
        let back: StudyResult = serde_json::from_value(json).expect("what was written can be read");
        prop_assert_eq!(back.cases(), result.cases());
        prop_assert_eq!(back.comparisons.len(), result.comparisons.len());
    }

    #[test]
    fn a_common_factor_moves_medians_and_not_ratios(numbers in proptest::collection::vec(0.1_f64..1e3, 1..10), factor in 0.1_f64..10.0) {
        let scaled: Vec<f64> = numbers.iter().map(|number| number * factor).collect();
        let (plain, large) = (Summary::of(&numbers), Summary::of(&scaled));
        let medians = plain.zip(large).map(|(plain, large)| (plain.median * factor, large.median));
        prop_assert!(medians.is_some_and(|(one, other)| (one - other).abs() < 1e-6 * other));
        let some = |numbers: &[f64]| numbers.iter().copied().map(Some).collect::<Vec<_>>();
        let ratio = paired_ratio(&some(&scaled), &some(&numbers));
        prop_assert!(ratio.is_some_and(|ratio| (ratio.median - factor).abs() < 1e-9 * factor && (ratio.high - ratio.low).abs() < 1e-8 * factor));
    }
}
