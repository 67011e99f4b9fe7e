//! What a run by the pager tells of memory that stays local, or was beyond its budget: in its `status` and at its end.

use spillway_pager::mappings::staying_kinds::StayingKind;
use spillway_pager::statistics::{BudgetExcess, PagerStatistics};

/// Less of a kind is no news: each program has a stack and libraries.
const TOLD_BYTES_MIN: u64 = 1 << 20;

/// Programs that are named; the JSON form has more of them.
const PROGRAMS_NAMED_MAX: usize = 4;

/// Which figures are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// What stays local now.
    Now,
    /// The most of each kind so far.
    AtMost,
}

/// Lines for people, by the pager's report; none where nothing stays that is worth a word.
pub fn describe(pager: &PagerStatistics, when: When) -> Vec<String> {
    let (bytes, what) = match when {
        When::Now => (&pager.staying, "stays local"),
        When::AtMost => (&pager.staying_peak, "stayed local (most of each kind)"),
    };
    let kinds = |is_in_budget: bool| bytes.describe(TOLD_BYTES_MIN, |kind| kind.is_in_budget() == is_in_budget);
    let places = [("in the budget", kinds(true)), ("beside the budget", kinds(false))];
    let told: Vec<String> = places
        .iter()
        .filter(|(_, words)| !words.is_empty())
        .map(|(place, words)| format!("{place}: {words}"))
        .collect();
    let mut lines: Vec<String> = describe_excess(&pager.excess).into_iter().collect();
    if told.is_empty() {
        return lines;
    }
    lines.push(format!("{what}, {}", told.join("; ")));
    for program in pager.staying_programs.iter().take(PROGRAMS_NAMED_MAX) {
        let words = program.bytes.describe(TOLD_BYTES_MIN, |_: StayingKind| true);
        if !words.is_empty() {
            lines.push(format!("of process {} ({}) at most: {words}", program.process, program.name));
        }
    }
    lines
}

fn describe_excess(excess: &BudgetExcess) -> Option<String> {
    (excess.local_bytes_peak > 0).then(|| {
        format!(
            "the budget of {} MiB was exceeded for {:.1} s, by up to {} MiB: {}",
            excess.budget_bytes >> 20,
            excess.seconds,
            excess.local_bytes_peak.saturating_sub(excess.budget_bytes) >> 20,
            excess.cause,
        )
    })
}

#[cfg(test)]
mod tests {
    use spillway_pager::mappings::staying_kinds::StayingBytes;
    use spillway_pager::mappings::staying_tally::StayingProgram;

    use super::*;

    #[test]
    fn people_read_how_far_the_budget_was_exceeded_and_why() {
        let told = |excess| describe(&PagerStatistics { excess, ..PagerStatistics::default() }, When::AtMost);
        let cause = "why".to_owned();
        let excess = BudgetExcess { seconds: 0.44, local_bytes_peak: 193 << 20, budget_bytes: 32 << 20, cause };
        assert_eq!(told(excess), ["the budget of 32 MiB was exceeded for 0.4 s, by up to 161 MiB: why"]);
        assert_eq!(told(BudgetExcess::default()), Vec::<String>::new());
    }

    #[test]
    fn people_read_kinds_and_programs_and_whether_they_count() {
        let memfd = |memfd_bytes| StayingBytes { memfd_bytes, ..StayingBytes::default() };
        let stack = |main_stack_bytes| StayingBytes { main_stack_bytes, ..StayingBytes::default() };
        let program = |process, name: &str, bytes| StayingProgram { process, name: name.to_owned(), bytes };
        let pager = PagerStatistics {
            staying: StayingBytes { main_stack_bytes: 8192, ..memfd(64 << 20) },
            staying_peak: StayingBytes { no_access_bytes: 3 << 20, ..memfd(96 << 20) },
            staying_programs: vec![program(41, "java", memfd(96 << 20)), program(42, "sh", stack(4096))],
            ..PagerStatistics::default()
        };
        assert_eq!(
            describe(&pager, When::Now),
            [
                "stays local, beside the budget: 64 MiB of memfd objects",
                "of process 41 (java) at most: 96 MiB of memfd objects",
            ]
        );
        assert_eq!(
            describe(&pager, When::AtMost)[0],
            "stayed local (most of each kind), in the budget: 3 MiB of memory that may not be written (PROT_NONE); beside the budget: 96 MiB of memfd objects"
        );
        for staying in [StayingBytes::default(), stack(4096)] {
            let pager = PagerStatistics { staying, ..PagerStatistics::default() };
            assert_eq!(describe(&pager, When::Now), Vec::<String>::new());
        }
    }
}
