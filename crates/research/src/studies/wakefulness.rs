//! What it brings that idle CPUs are kept awake while a burst of page-ins lasts, and what the same would bring a peer
//! whose user thinks of it: so that one can tell the shorter path from the awake one.

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::subject::Subject;
use spillway_bench::result::StudyResult;
use spillway_bench::studies::pinning::Pinning;
use spillway_bench::studies::{Context, Study, swap};
use spillway_workloads::size::{MIB, Size};

const SUBJECTS: [Subject; 4] =
    [Subject::SpillwayShm, Subject::SpillwayShmAsleep, Subject::Nbdkit, Subject::NbdkitAwake];

/// The study of wakefulness.
#[derive(Clone, Copy, Debug)]
pub struct WakefulnessStudy;

impl Study for WakefulnessStudy {
    fn name(&self) -> &'static str {
        "wakefulness"
    }

    fn title(&self) -> &'static str {
        "page-ins with idle CPUs awake and asleep"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (45, 20)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let pinnings = Pinning::possible(result.machine.cpus);
        let size = Size(context.choose(96, 32) * MIB);
        context.interleave_devices(result, &SUBJECTS, |round, subject, result| {
            pinnings.iter().try_for_each(|pinning| swap::measure(context, result, (round, subject), size, *pinning))
        })?;
        compare(result);
        Ok(())
    }
}

/// Every subject with the product as it comes, and the two that sleep, whose difference is the path alone.
fn compare(result: &mut StudyResult) {
    let ours = Subject::SpillwayShm.name();
    let mut cases: Vec<String> = result.measures.iter().map(|measure| measure.case.clone()).collect();
    cases.dedup();
    for case in cases {
        for other in &SUBJECTS[1..] {
            result.compare(&case, other.name(), ours);
        }
        result.compare(&case, Subject::Nbdkit.name(), Subject::SpillwayShmAsleep.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_bench::machine::Machine;
    use spillway_bench::result::MICROSECONDS;

    #[test]
    fn every_case_is_compared_once_with_each() {
        let mut result = StudyResult::new("wakefulness", "", true, Machine::default());
        for case in ["random swap-in, same CPU", "swap-out, same CPU"] {
            for (subject, time) in SUBJECTS.iter().zip([10.0, 20.0, 60.0, 30.0]) {
                result.record(0, case, subject.name(), MICROSECONDS, time);
            }
        }
        compare(&mut result);
        let ratios: Vec<f64> = result.comparisons.iter().map(|comparison| comparison.ratio.median).collect();
        assert_eq!(ratios, [2.0, 6.0, 3.0, 3.0, 2.0, 6.0, 3.0, 3.0]);
    }
}
