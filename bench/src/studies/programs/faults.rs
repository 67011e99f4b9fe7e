//! How many pages come back to each program by the pager, and by how many faults, against the fewest that any order
//! of replacement allows.
//!
//! The fewest are those of the optimal order (`spillway_policy::replay::optimal`) on the trace of the same run with the
//! same budget. It knows the future, has the whole budget for the workload's data, where the pager has the program
//! itself in it too, and keeps none of it free for pages on their way. Programs that are no workloads of ours have no
//! trace of all they do: their counts stand alone.
//!
//! A page that came along and was never used counts as one that came back, and so does one that had not gone yet.
//! Faults are those on pages that had left, not those on fresh memory or on write-protected pages.

use std::collections::HashMap;

use super::{Context, Trial, WORKLOADS, case};
use crate::harness::HarnessError;
use crate::harness::spillway::{PagerReport, Via};
use crate::replay::traces;
use crate::result::{FAULTS, PAGES, StudyResult};
use crate::studies::job::Job;
use crate::studies::program_run::SEED;
use crate::workloads::WorkloadSettings;
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::replay::optimal::refaults_min;

/// Shares at which something has to come back.
const SHARES_PERCENT: [u64; 3] = [75, 50, 25];

const OPTIMAL: &str = "optimal order";

fn pager_name() -> String {
    super::Kind::Spillway(Via::Pager).name()
}

fn pages_case(case: &str) -> String {
    format!("{case}: pages that came back")
}

/// What `job`, a workload of ours, touches in the study's runs.
fn accesses(job: &Job) -> Result<Accesses, String> {
    let settings = WorkloadSettings { size: job.size, seed: SEED, threads: 1 };
    traces::accesses(&traces::record(job.name, &settings).map_err(|error| error.to_string())?)
}

/// A program's name, and the share of its memory that is local.
pub(super) type At = (&'static str, u64);

/// Records what the pager did in a program's run.
pub(super) fn record_faults(result: &mut StudyResult, round: usize, (program, percent): At, told: &PagerReport) {
    let case = case(program, percent);
    let faults = told.fill.count + told.staged.count;
    let pages = faults + told.pages_prefetched;
    result.record(round, &pages_case(&case), &pager_name(), PAGES, pages as f64);
    result.record(round, &format!("{case}: faults on pages that had left"), &pager_name(), FAULTS, faults as f64);
}

/// How the pages that came back in `case` stand to the fewest, if those are known.
pub(super) fn compare(result: &mut StudyResult, case: &str) {
    result.compare(&pages_case(case), &pager_name(), OPTIMAL);
}

/// The fewest pages that have to come back.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    refaults: HashMap<At, u64>,
}

impl Bounds {
    /// Of those `trials` that are workloads of ours; a trace that does not fit is left out.
    pub(super) fn of(context: &Context, trials: &[Trial], result: &mut StudyResult) -> Result<Self, HarnessError> {
        let mut bounds = Self::default();
        for Trial { job, footprint } in trials.iter().filter(|trial| WORKLOADS.contains(&trial.job.name)) {
            context.shop.interrupt.check()?;
            eprintln!("programs: the optimal order of {}", job.name);
            let accesses = match accesses(job) {
                Ok(accesses) => accesses,
                Err(reason) => {
                    result.skip(&format!("{OPTIMAL} of {}", job.name), &reason);
                    continue;
                }
            };
            for percent in SHARES_PERCENT {
                let budget = footprint.percent(percent).pages() as u32;
                bounds.refaults.insert((job.name, percent), refaults_min(&accesses, budget));
            }
        }
        Ok(bounds)
    }

    /// Puts the fewest beside what came back in a round's run.
    pub(super) fn record(&self, result: &mut StudyResult, round: usize, at: At) {
        if let Some(refaults) = self.refaults.get(&at) {
            result.record(round, &pages_case(&case(at.0, at.1)), OPTIMAL, PAGES, *refaults as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::spillway::FaultCount;
    use crate::machine::Machine;
    use crate::size::{MIB, Size};
    use crate::studies::tests::context;

    #[test]
    fn what_came_back_is_compared_with_the_fewest_pages_where_those_are_known() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = context(directory.path(), 1);
        let mut result = StudyResult::new("programs", "", true, Machine::default());
        let size = Size(MIB);
        let workload = Trial { job: Job::workload("fill-modify", size).unwrap(), footprint: size };
        let bounds = Bounds::of(&context, &[workload], &mut result).unwrap();
        let least = bounds.refaults[&("fill-modify", 50)];
        assert!(
            bounds.refaults[&("fill-modify", 75)] < least && least < bounds.refaults[&("fill-modify", 25)],
            "{bounds:?}"
        );
        assert!(least > 128, "half of 256 pages, each time that it goes through them: {bounds:?}");
        let count = |count| FaultCount { count };
        let told =
            PagerReport { fill: count(least), staged: count(least), pages_prefetched: least, ..PagerReport::default() };
        for at in [("fill-modify", 50), ("fill-modify", 100), ("redis", 50)] {
            record_faults(&mut result, 0, at, &told);
            bounds.record(&mut result, 0, at);
            compare(&mut result, &case(at.0, at.1));
        }
        let ratios: Vec<_> = result.comparisons.iter().map(|found| (found.case.as_str(), found.ratio.median)).collect();
        assert_eq!(ratios, [("fill-modify L(50): pages that came back", 3.0)]);
        let faults = result.measure("redis L(50): faults on pages that had left", &pager_name()).unwrap();
        assert_eq!(faults.samples, [Some(2.0 * least as f64)]);
    }
}
