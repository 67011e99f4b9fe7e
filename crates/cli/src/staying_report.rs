//! What a run by the pager tells of memory that stays local, or was beyond its budget: in its `status` and at its end.

use serde_json::Value;
use spillway_pager::mappings::staying_kinds::{StayingBytes, StayingKind};
use spillway_pager::mappings::staying_tally::StayingProgram;
use spillway_pager::statistics::BudgetExcess;

/// Less of a kind is no news: each program has a stack and libraries.
const TOLD_BYTES_MIN: u64 = 1 << 20;

/// Programs that are named; the JSON form has more of them.
const PROGRAMS_NAMED_MAX: usize = 4;

/// Lines for people, by the pager's report and the name of its part, `staying` or `staying_peak`; none where nothing
/// stays that is worth a word.
pub(crate) fn describe(pager: &Value, part: &str) -> Vec<String> {
    let bytes: StayingBytes = read(pager, part).unwrap_or_default();
    let kinds = |is_in_budget: bool| bytes.describe(TOLD_BYTES_MIN, |kind| kind.is_in_budget() == is_in_budget);
    let places = [("in the budget", kinds(true)), ("beside the budget", kinds(false))];
    let told: Vec<String> = places
        .iter()
        .filter(|(_, words)| !words.is_empty())
        .map(|(place, words)| format!("{place}: {words}"))
        .collect();
    let mut lines: Vec<String> = describe_excess(pager).into_iter().collect();
    if told.is_empty() {
        return lines;
    }
    let what = if part == "staying" { "stays local" } else { "stayed local (most of each kind)" };
    lines.push(format!("{what}, {}", told.join("; ")));
    let programs: Vec<StayingProgram> = read(pager, "staying_programs").unwrap_or_default();
    for program in programs.iter().take(PROGRAMS_NAMED_MAX) {
        let words = program.bytes.describe(TOLD_BYTES_MIN, |_: StayingKind| true);
        if !words.is_empty() {
            lines.push(format!("of process {} ({}) at most: {words}", program.process, program.name));
        }
    }
    lines
}

fn describe_excess(pager: &Value) -> Option<String> {
    let excess: BudgetExcess = read(pager, "excess").filter(|excess: &BudgetExcess| excess.local_bytes_peak > 0)?;
    Some(format!(
        "the budget of {} MiB was exceeded for {:.1} s, by up to {} MiB: {}",
        excess.budget_bytes >> 20,
        excess.seconds,
        excess.local_bytes_peak.saturating_sub(excess.budget_bytes) >> 20,
        excess.cause,
    ))
}

fn read<T: serde::de::DeserializeOwned>(pager: &Value, part: &str) -> Option<T> {
    serde_json::from_value(pager.get(part)?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn people_read_how_far_the_budget_was_exceeded_and_why() {
        let excess = json!({"seconds": 0.44, "local_bytes_peak": 193 << 20, "budget_bytes": 32 << 20, "cause": "why"});
        let expected = "the budget of 32 MiB was exceeded for 0.4 s, by up to 161 MiB: why";
        assert_eq!(describe(&json!({"excess": excess}), "staying_peak"), [expected]);
        assert_eq!(describe(&json!({"excess": BudgetExcess::default()}), "staying_peak"), Vec::<String>::new());
    }

    #[test]
    fn people_read_kinds_and_programs_and_whether_they_count() {
        let pager = json!({
            "staying": {"memfd_bytes": 64 << 20, "main_stack_bytes": 8192},
            "staying_peak": {"memfd_bytes": 96 << 20, "no_access_bytes": 3 << 20},
            "staying_programs": [
                {"process": 41, "name": "java", "memfd_bytes": 96 << 20},
                {"process": 42, "name": "sh", "main_stack_bytes": 4096},
            ],
        });
        assert_eq!(
            describe(&pager, "staying"),
            [
                "stays local, beside the budget: 64 MiB of memfd objects",
                "of process 41 (java) at most: 96 MiB of memfd objects",
            ]
        );
        assert_eq!(
            describe(&pager, "staying_peak")[0],
            "stayed local (most of each kind), in the budget: 3 MiB of memory that may not be written (PROT_NONE); beside the budget: 96 MiB of memfd objects"
        );
        for nothing in [json!({}), json!({"staying": {"main_stack_bytes": 4096}}), Value::Null] {
            assert_eq!(describe(&nothing, "staying"), Vec::<String>::new());
        }
    }
}
