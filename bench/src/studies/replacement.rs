//! Which page leaves: each policy on each trace at L(75), L(50), L(25), against the fewest refaults that any order
//! allows.
//!
//! It replays; no pager runs. Refaults are those that ask a donor; a touch of a staged page is a cheap fault. The time
//! lost weighs both (`spillway_policy::replay::counts`). The default policy and its staging follow from this
//! (docs/decisions/replacement.md).

use spillway_policy::prefetch::read_ahead::ReadAhead;
use spillway_testing::prefetch::AnyPrefetcher;
use spillway_testing::prefetch::none::NoPrefetch;
use spillway_testing::replacement::Policy;

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::replay::traces::sources;
use crate::result::{Better, MILLISECONDS_LOST, StudyResult, TIMES_OPTIMAL};
use crate::size::{MIB, Size};
use crate::statistics::geometric_mean;
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::replay::counts::{Counts, EXCHANGE_NS, LOCAL_FAULT_NS};
use spillway_policy::replay::memory::{STAGING_THOUSANDTHS, Settings, replay};
use spillway_policy::replay::optimal::refaults_min;

/// Parts of the working set that are local, in per cent.
pub const LOCAL_PER_CENT: [u32; 3] = [75, 50, 25];

/// What the pager does: its write-back pool is the staging, a thirty-second of the budget (to 32 MiB), and clean
/// pages are not in it.
const POOL_THOUSANDTHS: u32 = 31;

/// The optimal order; its column in the table of times.
const OPTIMAL: &str = "optimal";

/// What a program waits without prefetching, and with what the pager does by default.
const TIME: &str = "time";
/// See [`TIME`].
const TIME_AHEAD: &str = "time with read-ahead";

/// The case that sums up all traces.
const MEAN: &str = "geometric mean";

/// The product's default.
const DEFAULT: Policy = Policy::DEFAULT;

const GOAL: &str = "the default policy never loses a tenth more time than another one";

/// See [`GOAL`]: no policy is the best on all traces; the default is to be the one that never is a bad choice.
const GOAL_BOUND: f64 = 1.1;

/// The study of replacement.
#[derive(Clone, Copy, Debug)]
pub struct ReplacementStudy;

/// A policy with its staging.
#[derive(Clone, Copy, Debug)]
struct Subject {
    policy: Policy,
    staging_thousandths: u32,
    stages_clean: bool,
}

impl Subject {
    fn name(self) -> String {
        let name = self.policy.name();
        match (self.staging_thousandths, self.stages_clean) {
            (STAGING_THOUSANDTHS, true) => name.to_owned(),
            (0, _) => format!("{name}, no staging"),
            (STAGING_THOUSANDTHS, false) => format!("{name}, dirty staged only"),
            (thousandths, false) => format!("{name}, {} % staging, dirty only", f64::from(thousandths) / 10.0),
            (thousandths, true) => format!("{name}, {} % staging", f64::from(thousandths) / 10.0),
        }
    }

    /// Every policy with the usual staging, and the default one with others.
    fn all() -> Vec<Self> {
        let usual = |policy| Self { policy, staging_thousandths: STAGING_THOUSANDTHS, stages_clean: true };
        let other = |staging_thousandths, stages_clean| Self { policy: DEFAULT, staging_thousandths, stages_clean };
        let clean_too = [0, POOL_THOUSANDTHS, 250].map(|thousandths| other(thousandths, true));
        let others =
            clean_too.into_iter().chain([STAGING_THOUSANDTHS, POOL_THOUSANDTHS].map(|part| other(part, false)));
        Policy::ALL.into_iter().map(usual).chain(others).collect()
    }

    fn replay(self, accesses: &Accesses, budget: u32, prefetcher: AnyPrefetcher) -> Counts {
        let Self { policy, staging_thousandths, stages_clean } = self;
        let policy = policy.builder();
        replay(accesses, &Settings { budget, staging_thousandths, stages_clean, policy, prefetcher })
    }
}

/// The case of a trace at L(`local`).
pub fn case(trace: &str, local: u32) -> String {
    format!("{trace} L({local})")
}

/// Pages of `per_cent` of a trace.
pub fn budget(accesses: &Accesses, per_cent: u32) -> u32 {
    (u64::from(accesses.pages()) * u64::from(per_cent) / 100) as u32
}

/// The working set of the traces.
pub fn trace_size(context: &Context) -> Size {
    Size(context.choose(16, 1) * MIB)
}

/// Has `measure` record all traces for the study of this name; one that cannot be had is skipped.
pub fn for_each_trace(
    context: &Context,
    study: &str,
    result: &mut StudyResult,
    measure: fn(&Accesses, &str, &mut StudyResult),
) -> Result<(), HarnessError> {
    for source in sources() {
        context.shop.interrupt.check()?;
        eprintln!("{study}: {}", source.name());
        match source.accesses(trace_size(context)) {
            Ok(accesses) => measure(&accesses, source.name(), result),
            Err(reason) => result.skip(source.name(), &reason),
        }
    }
    Ok(())
}

impl Study for ReplacementStudy {
    fn name(&self) -> &'static str {
        "replacement"
    }

    fn title(&self) -> &'static str {
        "which page leaves, on recorded traces"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (60, 6)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        for_each_trace(context, self.name(), result, measure)?;
        sum_up(result);
        judge(result);
        Ok(())
    }
}

/// Replays one trace with every subject, and records it under `trace`.
pub fn measure(accesses: &Accesses, trace: &str, result: &mut StudyResult) {
    for local in LOCAL_PER_CENT {
        let budget = budget(accesses, local);
        let optimal = refaults_min(accesses, budget);
        let case = case(trace, local);
        // Without a refault of the optimal order there is nothing to compare with.
        let ratio = |counts: &Counts| (optimal > 0).then(|| counts.refaults as f64 / optimal as f64);
        for subject in Subject::all() {
            let (name, counts) = (subject.name(), subject.replay(accesses, budget, AnyPrefetcher::None(NoPrefetch)));
            if let Some(ratio) = ratio(&counts) {
                result.record(0, &format!("{case}: refaults"), &name, TIMES_OPTIMAL, ratio);
            }
            let ahead = subject.replay(accesses, budget, AnyPrefetcher::ReadAhead(ReadAhead::default()));
            for (what, counts) in [(TIME, counts), (TIME_AHEAD, ahead)] {
                let lost_ms = counts.lost_ns as f64 / 1e6;
                result.record(0, &format!("{case}: {what}"), &name, MILLISECONDS_LOST, lost_ms);
            }
        }
        let lost_ms = (optimal * (LOCAL_FAULT_NS + EXCHANGE_NS)) as f64 / 1e6;
        result.record(0, &format!("{case}: time"), OPTIMAL, MILLISECONDS_LOST, lost_ms);
    }
}

/// The geometric means over all traces at each L, of refaults over optimal and of time over the default's.
pub fn sum_up(result: &mut StudyResult) {
    let default = Subject::all().into_iter().find(|subject| subject.policy == DEFAULT).map(Subject::name);
    let default = default.expect("the default is a subject");
    for local in LOCAL_PER_CENT {
        for subject in result.subjects() {
            for (what, over_default) in [("refaults", false), (TIME, true), (TIME_AHEAD, true)] {
                let ending = format!("L({local}): {what}");
                let cases: Vec<String> = result.cases().into_iter().filter(|case| case.ends_with(&ending)).collect();
                let number = |case: &String| {
                    let base = if over_default { result.median(case, &default)? } else { 1.0 };
                    Some(result.median(case, &subject)? / base).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
                };
                let numbers: Vec<f64> =
                    cases.iter().filter(|case| !case.starts_with(MEAN)).filter_map(number).collect();
                let Some(mean) = geometric_mean(&numbers) else { continue };
                let unit = if over_default { TIMES_DEFAULT } else { TIMES_OPTIMAL };
                result.record(0, &format!("{MEAN} {ending}"), &subject, unit, mean);
            }
        }
    }
}

/// The default policy against each other one.
pub fn judge(result: &mut StudyResult) {
    let cases = LOCAL_PER_CENT.iter().flat_map(|local| [TIME, TIME_AHEAD].map(|what| (local, what)));
    for (local, what) in cases {
        let case = format!("{MEAN} L({local}): {what}");
        for policy in Policy::ALL.into_iter().filter(|policy| *policy != DEFAULT) {
            result.goal(GOAL, &case, DEFAULT.name(), policy.name(), GOAL_BOUND, Better::Lower);
        }
    }
}

/// Time as a multiple of the default policy's.
const TIMES_DEFAULT: crate::result::Unit = crate::result::Unit { sign: "x default", better: Better::Lower };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::replay::patterns::Pattern;
    use crate::replay::traces::Source;
    use crate::replay::traces::tests::accesses;
    use crate::studies::tests::context;

    #[test]
    fn traces_are_measured_summed_up_and_judged() {
        let mut result = StudyResult::new("replacement", "", true, Machine::default());
        for pattern in [Pattern::Loop, Pattern::ScanAndHot] {
            let source = Source::Pattern(pattern);
            measure(&source.accesses(Size(MIB)).unwrap(), source.name(), &mut result);
            let case = format!("{}: time", case(source.name(), 50));
            assert!(result.median(&case, OPTIMAL).is_some() && result.median(&case, "sieve").is_some(), "{case}");
        }
        sum_up(&mut result);
        judge(&mut result);
        assert!((result.median("geometric mean L(50): time", DEFAULT.name()).unwrap() - 1.0).abs() < 1e-9);
        assert!(result.median("geometric mean L(50): refaults", "fifo").unwrap() > 1.0);
        assert_eq!(result.goals.len(), 2 * LOCAL_PER_CENT.len() * (Policy::ALL.len() - 1));
        assert!(result.goals.iter().all(|goal| goal.met.is_some()));
    }

    #[test]
    fn an_interrupt_ends_it() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        context.shop.interrupt.raise();
        let mut result = StudyResult::new("replacement", "", true, Machine::default());
        assert!(ReplacementStudy.run(&context, &mut result).unwrap_err().is_interrupt());
    }

    #[test]
    fn a_trace_that_fits_has_no_ratio() {
        let mut result = StudyResult::new("replacement", "", true, Machine::default());
        measure(&accesses(&[(0, true), (100, false), (200, false), (300, false)]), "once", &mut result);
        sum_up(&mut result);
        assert_eq!(result.median("once L(50): refaults", "fifo"), None);
        assert_eq!(result.median("once L(50): time", "fifo"), Some(0.0));
        assert_eq!(result.median("geometric mean L(50): time", "fifo"), None);
    }

    #[test]
    fn subjects_have_distinct_names() {
        let names: std::collections::HashSet<String> = Subject::all().into_iter().map(Subject::name).collect();
        assert_eq!(names.len(), Subject::all().len());
        assert!(names.contains(&format!("{}, 25 % staging", DEFAULT.name())));
        assert!(names.contains(&format!("{}, 3.1 % staging, dirty only", DEFAULT.name())), "as the pager has it");
    }
}
