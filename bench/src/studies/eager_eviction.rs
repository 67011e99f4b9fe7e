//! What eager eviction brings alone: the time that a program loses when pages that streams have passed leave by chance
//! as others do, when most of them leave first (the pager's way), and when all do (Leap's).
//!
//! It replays; no pager runs. The study `prefetching-live` has the same switch in the pager
//! (docs/decisions/replacement.md).

use spillway_policy::prefetch::leap::Leap;
use spillway_policy::prefetch::read_around::ReadAround;
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::replay::memory::{STAGING_THOUSANDTHS, Settings, replay};
use spillway_testing::prefetch::AnyPrefetcher;
use spillway_testing::replacement::Policy;

use super::replacement::{LOCAL_PER_CENT, budget, case, for_each_trace};
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::result::{Better, MILLISECONDS_LOST, StudyResult};
use crate::statistics::geometric_mean;

/// The case that sums up all traces.
const MEAN: &str = "geometric mean";

const GOAL: &str = "eager eviction never loses more than a tenth";

/// See [`GOAL`]: a switch that is on by default must not be a bad choice for any program.
const GOAL_BOUND: f64 = 1.1;

/// The study of eager eviction.
#[derive(Clone, Copy, Debug)]
pub struct EagerEvictionStudy;

impl Study for EagerEvictionStudy {
    fn name(&self) -> &'static str {
        "eager-eviction"
    }

    fn title(&self) -> &'static str {
        "pages that streams have passed leave first, on recorded traces"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (45, 6)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        for_each_trace(context, self.name(), result, measure)?;
        sum_up(result);
        judge(result);
        Ok(())
    }
}

/// The pager's prefetcher, and Leap's with pages mapped.
fn prefetchers() -> [(&'static str, AnyPrefetcher); 2] {
    [("ours", AnyPrefetcher::ReadAround(ReadAround::default())), ("leap-mapped", AnyPrefetcher::Leap(Leap::mapped()))]
}

/// Replays one trace with every prefetcher and every kind of eager eviction.
fn measure(accesses: &Accesses, trace: &str, result: &mut StudyResult) {
    for local in LOCAL_PER_CENT {
        for (name, prefetcher) in prefetchers() {
            let case = format!("{}, {name}", case(trace, local));
            for policy in Policy::EAGERNESS {
                let staging_thousandths = STAGING_THOUSANDTHS;
                let budget = budget(accesses, local);
                let builder = policy.builder();
                let settings =
                    Settings { budget, staging_thousandths, stages_clean: true, policy: builder, prefetcher };
                let lost_ms = replay(accesses, &settings).lost_ns as f64 / 1e6;
                result.record(0, &case, policy.name(), MILLISECONDS_LOST, lost_ms);
            }
        }
    }
}

/// The geometric means over all traces.
fn sum_up(result: &mut StudyResult) {
    let cases = result.cases();
    for local in LOCAL_PER_CENT {
        for (name, _) in prefetchers() {
            let end = format!("L({local}), {name}");
            for policy in Policy::EAGERNESS {
                let found = cases.iter().filter(|case| case.ends_with(&end));
                let times = found.filter_map(|case| result.median(case, policy.name()));
                // A trace that never waits has nothing to be compared.
                let times: Vec<f64> = times.filter(|time| *time > 0.0).collect();
                if let Some(mean) = geometric_mean(&times) {
                    result.record(0, &format!("{MEAN} {end}"), policy.name(), MILLISECONDS_LOST, mean);
                }
            }
        }
    }
}

fn judge(result: &mut StudyResult) {
    let [without, ours, _] = Policy::EAGERNESS.map(Policy::name);
    for case in result.cases().into_iter().filter(|case| case.ends_with(", ours")) {
        result.goal(GOAL, &case, ours, without, GOAL_BOUND, Better::Lower);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::replay::patterns::Pattern;
    use crate::replay::traces::Source;
    use crate::size::{MIB, Size};

    #[test]
    fn what_a_loop_has_passed_had_better_leave_first() {
        let mut result = StudyResult::new("eager-eviction", "", true, Machine::default());
        for pattern in [Pattern::Loop, Pattern::Random] {
            let source = Source::Pattern(pattern);
            measure(&source.accesses(Size(2 * MIB)).unwrap(), source.name(), &mut result);
        }
        sum_up(&mut result);
        judge(&mut result);
        let of = |case: &str| Policy::EAGERNESS.map(|policy| result.median(case, policy.name()).unwrap());
        let [without, ours, _] = of("loop L(50), ours");
        assert!(ours < without, "{ours} < {without}");
        let [without, ours, _] = of("random L(50), leap-mapped");
        assert!((ours / without - 1.0).abs() < 0.05, "hardly a page comes along: {ours}, {without}");
        assert!(of("geometric mean L(25), ours").iter().all(|mean| *mean > 0.0));
        assert_eq!(result.goals.len(), 3 * LOCAL_PER_CENT.len(), "two traces and their mean");
    }
}
