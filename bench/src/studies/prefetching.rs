//! Which page comes along: each prefetcher on each trace, with the default policy of replacement.
//!
//! It replays; no pager runs. *Accuracy*: of the pages brought along, the part that was used. *Coverage*: of the
//! pages that were needed from afar, the part that had been brought along. *Timeliness*: of those, the part that was
//! there in time. *Pollution*: by how much more pages were needed from afar than without.

use spillway_policy::prefetch::Prefetcher;
use spillway_testing::prefetch::AnyPrefetcher;
use spillway_testing::prefetch::none::NoPrefetch;
use spillway_testing::replacement::Policy;

use super::replacement::{LOCAL_PER_CENT, STAGING_THOUSANDTHS, budget, case, trace_size};
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::replay::accesses::Accesses;
use crate::replay::counts::Counts;
use crate::replay::memory::{Settings, replay};
use crate::replay::traces::sources;
use crate::result::{Better, MILLISECONDS_LOST, PER_CENT, PER_CENT_WASTE, StudyResult};

/// The product's default.
const DEFAULT: &str = "read-ahead";

const NONE: &str = "none";

const GOAL: &str = "read-ahead never loses more than a tenth to no prefetching";

/// See [`GOAL`]: DESIGN's rule that read-ahead must adapt; a fixed one made random access twelve times slower.
const GOAL_BOUND: f64 = 1.1;

/// The study of prefetching.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchingStudy;

impl Study for PrefetchingStudy {
    fn name(&self) -> &'static str {
        "prefetching"
    }

    fn title(&self) -> &'static str {
        "which page comes along, on recorded traces"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (20, 3)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        for source in sources() {
            context.shop.interrupt.check()?;
            eprintln!("prefetching: {}", source.name());
            match source.accesses(trace_size(context)) {
                Ok(accesses) => measure(&accesses, source.name(), result),
                Err(reason) => result.skip(source.name(), &reason),
            }
        }
        judge(result);
        Ok(())
    }
}

/// The default against none, on every trace.
pub fn judge(result: &mut StudyResult) {
    let timed = |case: &String| case.ends_with(": time") && result.measure(case, DEFAULT).is_some();
    for case in result.cases().into_iter().filter(timed).collect::<Vec<_>>() {
        result.goal(GOAL, &case, DEFAULT, NONE, GOAL_BOUND, Better::Lower);
    }
}

/// Replays one trace with every prefetcher, and records it under `trace`.
pub fn measure(accesses: &Accesses, trace: &str, result: &mut StudyResult) {
    for local in LOCAL_PER_CENT {
        let run = |prefetcher| {
            let settings = Settings {
                budget: budget(accesses, local),
                staging_thousandths: STAGING_THOUSANDTHS,
                stages_clean: true,
                policy: Policy::DEFAULT,
                prefetcher,
            };
            replay(accesses, &settings)
        };
        let without = run(AnyPrefetcher::None(NoPrefetch));
        for prefetcher in AnyPrefetcher::all() {
            record(result, &case(trace, local), prefetcher.name(), &run(prefetcher), &without);
        }
    }
}

fn record(result: &mut StudyResult, case: &str, name: &str, counts: &Counts, without: &Counts) {
    let mut rate = |what: &str, unit, rate: f64| result.record(0, &format!("{case}: {what}"), name, unit, 100.0 * rate);
    if counts.prefetched > 0 {
        rate("accuracy", PER_CENT, counts.accuracy());
        rate("coverage", PER_CENT, counts.coverage());
        rate("timeliness", PER_CENT, counts.timeliness());
        rate("pollution", PER_CENT_WASTE, counts.pollution(without));
    }
    result.record(0, &format!("{case}: time"), name, MILLISECONDS_LOST, counts.lost_ns as f64 / 1e6);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::replay::patterns::Pattern;
    use crate::replay::traces::Source;
    use crate::size::{MIB, Size};
    use crate::studies::tests::context;

    #[test]
    fn traces_are_measured_and_judged() {
        let mut result = StudyResult::new("prefetching", "", true, Machine::default());
        for pattern in [Pattern::Loop, Pattern::Random] {
            let source = Source::Pattern(pattern);
            measure(&source.accesses(Size(2 * MIB)).unwrap(), source.name(), &mut result);
        }
        judge(&mut result);
        assert_eq!(result.goals.len(), 2 * LOCAL_PER_CENT.len());
        let of = |name| result.median("loop L(25): time", name).unwrap();
        assert!(of("read-ahead") < of(NONE), "a loop is what read-ahead is for");
        assert!(result.median("loop L(25): coverage", "read-ahead").unwrap() > 50.0);
        assert_eq!(result.median("loop L(25): coverage", NONE), None);
    }

    #[test]
    fn an_interrupt_ends_it() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        context.shop.interrupt.raise();
        let mut result = StudyResult::new("prefetching", "", true, Machine::default());
        assert!(PrefetchingStudy.run(&context, &mut result).unwrap_err().is_interrupt());
    }

    #[test]
    fn the_default_is_one_of_them() {
        assert!(AnyPrefetcher::all().iter().any(|prefetcher| prefetcher.name() == DEFAULT));
    }
}
