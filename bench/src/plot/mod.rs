//! Plots of results, drawn with `spillway_plot`.
//!
//! - [`bars`]: one group of bars a case, with quartiles as whiskers.
//! - [`stages`]: stacked bars, a part for each stage of one thing.
//! - [`lines`]: a number over another one, such as time over slab size.

pub mod bars;
pub mod lines;
pub mod stages;

use crate::result::{Measure, StudyResult};

/// Bars of all numbers of a study that have the given unit; `None` when there are none.
pub fn study_bars(result: &StudyResult, unit: &str) -> Option<String> {
    let measures: Vec<&Measure> = result.measures.iter().filter(|measure| measure.unit == unit).collect();
    let case_is_there = |case: &String| measures.iter().any(|measure| measure.case == *case);
    let groups: Vec<String> = result.cases().into_iter().filter(case_is_there).collect();
    let subject_is_there = |subject: &String| measures.iter().any(|measure| measure.subject == *subject);
    let series: Vec<bars::Series> = result
        .subjects()
        .into_iter()
        .filter(subject_is_there)
        .map(|name| {
            let value = |case: &String| result.measure(case, &name).filter(|one| one.unit == unit)?.summary;
            bars::Series { values: groups.iter().map(value).collect(), name }
        })
        .collect();
    let chart = bars::BarChart { title: format!("{} ({unit})", result.title), unit: unit.to_owned(), groups, series };
    (!measures.is_empty()).then(|| chart.svg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::SECONDS;
    use crate::result::tests::sample;

    #[test]
    fn a_study_has_one_plot_for_each_unit() {
        let mut result = sample();
        result.record(0, "whole", "spillway", SECONDS, 3.0);
        let (times, wholes) = (study_bars(&result, "us").unwrap(), study_bars(&result, "s").unwrap());
        assert!(times.contains(">read<") && !times.contains(">whole<"));
        assert!(wholes.contains(">whole<") && !wholes.contains(">disk<"));
        assert_eq!(study_bars(&result, "MiB/s"), None);
    }
}
