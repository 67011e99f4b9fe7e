//! Which page comes along: each prefetcher on each trace, with the default policy of replacement.
//!
//! It replays; no pager runs. *Accuracy*: of the pages brought along, the part that was used. *Coverage*: of the
//! pages that were needed from afar, the part that had been brought along. *Timeliness*: of those, the part that was
//! there in time. *Pollution*: by how much more pages were needed from afar than without. *Runs*: which of the faults
//! are sequential or a stride, seen strictly and by majority. *A decision*: what asking a prefetcher takes.

use std::time::Instant;

use spillway_policy::prefetch::streams::{Faulter, Streams};
use spillway_policy::prefetch::{Candidates, PageNumber, Prefetcher};
use spillway_testing::prefetch::AnyPrefetcher;
use spillway_testing::prefetch::none::NoPrefetch;

use super::replacement::{LOCAL_PER_CENT, budget, case, for_each_trace};
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::random::Random;
use crate::result::{Better, MILLISECONDS_LOST, PER_CENT, PER_CENT_WASTE, StudyResult, Unit};
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::replay::counts::Counts;
use spillway_policy::replay::detection::{Look, shares};
use spillway_policy::replay::memory::{Settings, refaulted, replay};

/// The product's default.
const DEFAULT: &str = "read-around";

const NONE: &str = "none";

const GOAL: &str = "read-around never loses more than a tenth to no prefetching";

/// See [`GOAL`]: DESIGN's rule that read-ahead must adapt; a fixed one made random access twelve times slower.
const GOAL_BOUND: f64 = 1.1;

/// Leap's, as it is published, by thread, and with pages mapped.
const LEAP: [&str; 3] = ["leap", "leap-thread", "leap-mapped"];

const GOAL_LEAP: &str = "read-around loses no more than Leap's policy";

/// See [`GOAL_LEAP`]: what two replays of the same program differ by.
const GOAL_LEAP_BOUND: f64 = 1.02;

const GOAL_DECISION: &str = "a decision of read-around takes 100 ns at most";

/// See [`GOAL_DECISION`]: the issue's. Leap's takes 340.
const GOAL_DECISION_NS: f64 = 100.0;

/// The case of the time that asking takes.
const DECISION: &str = "a decision";

/// Decisions that are timed together, so that reading the clock does not count, and how often: the least time counts,
/// as the machine may do something else.
const DECISIONS: u64 = 200;
/// See [`DECISIONS`].
const DECISION_TRIALS: u64 = 2000;

/// Nanoseconds of one decision.
const NANOSECONDS: Unit = Unit { sign: "ns", better: Better::Lower };

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
        (120, 8)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        for_each_trace(context, self.name(), result, measure)?;
        time_decisions(result);
        judge(result);
        Ok(())
    }
}

/// The default against none, on every trace.
pub fn judge(result: &mut StudyResult) {
    let timed = |case: &String| case.ends_with(": time") && result.measure(case, DEFAULT).is_some();
    for case in result.cases().into_iter().filter(timed).collect::<Vec<_>>() {
        result.goal(GOAL, &case, DEFAULT, NONE, GOAL_BOUND, Better::Lower);
        LEAP.iter().for_each(|leap| result.goal(GOAL_LEAP, &case, DEFAULT, leap, GOAL_LEAP_BOUND, Better::Lower));
    }
    for case in result.cases().into_iter().filter(|case| case.starts_with(DECISION)).collect::<Vec<_>>() {
        let ratio = result.median(&case, DEFAULT).map(|nanoseconds| nanoseconds / GOAL_DECISION_NS);
        result.goal_of(GOAL_DECISION, &case, ratio, 1.0, Better::Lower);
    }
}

/// Replays one trace with every prefetcher, and records it under `trace`.
pub fn measure(accesses: &Accesses, trace: &str, result: &mut StudyResult) {
    for local in LOCAL_PER_CENT {
        let settings = |prefetcher| Settings::usual(budget(accesses, local)).with(prefetcher);
        let run = |prefetcher| replay(accesses, &settings(prefetcher));
        let without = run(AnyPrefetcher::None(NoPrefetch));
        let faults = refaulted(accesses, &settings(AnyPrefetcher::None(NoPrefetch)));
        let faults: Vec<PageNumber> = faults.iter().map(|fault| fault.page).collect();
        for (look, name) in [(Look::Strict, "strict"), (Look::Majority, "majority")] {
            let (shares, case) = (shares(&faults, look), case(trace, local));
            let mut part = |what: &str, part: f64| {
                result.record(0, &format!("{case}: {what}"), name, PER_CENT, 100.0 * part);
            };
            part("sequential faults", shares.sequential);
            part("strided faults", shares.stride);
        }
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

/// What asking each prefetcher takes: along a sequence, by columns, and at random.
fn time_decisions(result: &mut StudyResult) {
    for prefetcher in AnyPrefetcher::all() {
        let mut time = |what: &str, next: &mut dyn FnMut(u64) -> u64| {
            let nanoseconds = decision_ns(prefetcher, next);
            result.record(0, &format!("{DECISION}, {what}"), prefetcher.name(), NANOSECONDS, nanoseconds);
        };
        time("sequence", &mut |index| index);
        time("columns", &mut |index| index % 4096 * 400 + index / 4096);
        let mut random = Random::new(1);
        time("random", &mut |_| random.below(1 << 20));
    }
}

/// The least time of a decision when the program goes to the pages of `next`. It goes on at markers where there are
/// some, as a program whose pages have come.
fn decision_ns(prefetcher: AnyPrefetcher, next: &mut dyn FnMut(u64) -> u64) -> f64 {
    let (mut streams, mut candidates) = (Streams::new(prefetcher), Candidates::default());
    let faulter = Faulter { space: 0, thread: 1 };
    let (mut least_ns, mut index) = (f64::INFINITY, 0);
    for _ in 0..DECISION_TRIALS {
        let begun = Instant::now();
        for _ in 0..DECISIONS {
            if let Some(marker) = candidates.marker() {
                let passed = candidates.pages().iter().take_while(|page| **page != marker).count();
                index += passed as u64 + 1;
                streams.on_hit(faulter, marker, &mut candidates);
            } else {
                streams.on_fault(faulter, PageNumber(next(index)), &|_| true, &mut candidates);
                index += 1;
            }
        }
        least_ns = least_ns.min(begun.elapsed().as_nanos() as f64 / DECISIONS as f64);
    }
    least_ns
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
        assert_eq!(result.goals.len(), 2 * LOCAL_PER_CENT.len() * (1 + LEAP.len()));
        assert!(result.median("loop L(25): sequential faults", "majority").unwrap() > 50.0);
        assert!(result.median("random L(25): sequential faults", "majority").unwrap() < 1.0);
        let of = |name| result.median("loop L(25): time", name).unwrap();
        assert!(of(DEFAULT) < of("leap") && of("leap") < of(NONE), "a loop is what read-ahead is for");
        assert!(result.median("loop L(25): coverage", "read-ahead").unwrap() > 50.0);
        assert_eq!(result.median("loop L(25): coverage", NONE), None);
    }

    #[test]
    fn every_prefetcher_has_its_time() {
        let mut result = StudyResult::new("prefetching", "", true, Machine::default());
        time_decisions(&mut result);
        for prefetcher in AnyPrefetcher::all() {
            assert!(result.median("a decision, random", prefetcher.name()).is_some_and(|time| time > 0.0));
        }
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
