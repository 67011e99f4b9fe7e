//! Elastic blocks beside fixed ones: pages that come alone, groups of 32, blocks of 4 KiB to 2 MiB that grow and shrink
//! (DCM's), and the product's default.
//!
//! On traces by rule, replayed, with the time that a program would lose; and by the pager over TCP, with half of the
//! memory local, where a program's time is that of its phases without the first, which fills its memory.
//!
//! Invariant: every run of a program gives the checksum of its first one.

use std::collections::HashMap;

use spillway_pager::statistics::PagerStatistics;
use spillway_policy::replay::accesses::Accesses;
use spillway_policy::replay::memory::Settings;
use spillway_policy::replay::policies::ReplayPolicy;

use super::prefetching_live::figures::Figures;
use super::prefetching_live::paged::{Fabric, PagedRun, Policies};
use super::program_run::{own_program, run_workload, workload_command};
use super::replacement::{budget, case, trace_size};
use super::{Context, Study};
use crate::harness::HarnessError;
use crate::harness::spillway::{Donor, Transport};
use crate::replay::patterns::Pattern;
use crate::replay::traces::Source;
use crate::result::{Better, FAULTS, MILLISECONDS_LOST, PER_CENT, SECONDS, StudyResult};
use crate::size::{MIB, Size};
use crate::workloads::WorkloadReport;

/// Fixed blocks, of one page and of 32.
const FIXED: [&str; 2] = ["none", "blocks-32"];

const ELASTIC: &str = "elastic";

const GOAL: &str = "elastic blocks lose no more than a twentieth to the best of the fixed, replayed";

const GOAL_LIVE: &str = "elastic blocks are slower than the best of the fixed by no more than a twentieth";

/// See [`GOAL`].
const GOAL_BOUND: f64 = 1.05;

/// Shares of the replays' memory that are local.
const LOCAL_PER_CENT: [u32; 2] = [50, 25];

/// Of the live runs: the least that leaves room for large blocks.
const LIVE_LOCAL_PER_CENT: u64 = 50;

const LIVE_SIZE: Size = Size(64 * MIB);

/// What the donor lends to one run after the other.
const DONOR_SIZE: Size = Size(LIVE_SIZE.0 * 4);

/// The live programs: their names here, and the workloads. Keys of the last are by Zipf's law.
const PROGRAMS: [(&str, &str); 4] = [
    ("sequential", "fill-sequential-twice"),
    ("strided", "fill-strided"),
    ("random", "fill-random-twice"),
    ("skewed", "key-value"),
];

/// The study of elastic blocks.
#[derive(Clone, Copy, Debug)]
pub struct ElasticStudy;

impl Study for ElasticStudy {
    fn name(&self) -> &'static str {
        "elastic"
    }

    fn title(&self) -> &'static str {
        "elastic blocks beside fixed ones, on traces and by the pager"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn rounds_quick(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (45, 35)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        for pattern in Pattern::ALL {
            context.shop.interrupt.check()?;
            let source = Source::Pattern(pattern);
            match source.accesses(trace_size(context)) {
                Ok(accesses) => replay(&accesses, source.name(), result),
                Err(reason) => result.skip(source.name(), &reason),
            }
        }
        let outcome = match Live::new(context) {
            Ok(mut live) => live.measure(result),
            Err(error) if error.is_interrupt() => Err(error),
            Err(error) => {
                result.skip("pager", &error.to_string());
                Ok(())
            }
        };
        judge(result);
        outcome
    }
}

/// Replays one trace with every policy.
fn replay(accesses: &Accesses, trace: &str, result: &mut StudyResult) {
    let policies = [ReplayPolicy::None, ReplayPolicy::Blocks32, ReplayPolicy::Elastic, ReplayPolicy::Streams];
    for local in LOCAL_PER_CENT {
        for policy in policies {
            let counts = policy.replay(accesses, &Settings::usual(budget(accesses, local)));
            let case = format!("{}, replayed: time", case(trace, local));
            result.record(0, &case, policy.name(), MILLISECONDS_LOST, counts.lost_ns as f64 / 1e6);
        }
    }
}

/// Elastic blocks against the better of the fixed ones in every case.
fn judge(result: &mut StudyResult) {
    for case in result.cases().into_iter().filter(|case| case.ends_with(": time")) {
        let goal = if case.ends_with("replayed: time") { GOAL } else { GOAL_LIVE };
        let time = |name: &&str| result.median(&case, name);
        if let Some(best) = FIXED.into_iter().filter(|name| time(name).is_some()).min_by(|one, other| {
            let times = [one, other].map(|name| time(name).unwrap_or(f64::INFINITY));
            times[0].total_cmp(&times[1])
        }) {
            result.goal(goal, &case, ELASTIC, best, GOAL_BOUND, Better::Lower);
        }
    }
}

/// The donor, and what the first run of each program gave.
struct Live<'context> {
    context: &'context Context,
    donor: Donor,
    checksums: HashMap<&'static str, String>,
}

impl<'context> Live<'context> {
    fn new(context: &'context Context) -> Result<Self, HarnessError> {
        let shop = &context.shop;
        let donor = shop.product()?.donor(DONOR_SIZE, Transport::Tcp, None, &shop.interrupt)?;
        Ok(Self { context, donor, checksums: HashMap::new() })
    }

    fn measure(&mut self, result: &mut StudyResult) -> Result<(), HarnessError> {
        let context = self.context;
        let name = |(program, _): (&str, &str)| case(program, LIVE_LOCAL_PER_CENT as u32);
        context.interleave(result, &PROGRAMS, name, |round, (program, workload), result| {
            let case = case(program, LIVE_LOCAL_PER_CENT as u32);
            for policies in Policies::BLOCKS {
                let (report, statistics) = self.run(workload, policies)?;
                let first = self.checksums.entry(program).or_insert_with(|| report.checksum.clone());
                if *first != report.checksum {
                    let detail = format!("checksum {} where the first run had {first}", report.checksum);
                    return Err(HarnessError::wrong(program, detail));
                }
                let seconds = report.phases.iter().skip(1).map(|phase| phase.seconds).sum();
                let figures = Figures::of(&statistics);
                let name = policies.name;
                result.record(round, &format!("{case}: time"), name, SECONDS, seconds);
                result.record(round, &format!("{case}: remote faults"), name, FAULTS, figures.remote_faults as f64);
                if let Some(accuracy) = figures.accuracy() {
                    result.record(round, &format!("{case}: accuracy"), name, PER_CENT, 100.0 * accuracy);
                }
            }
            Ok(())
        })
    }

    fn run(&self, workload: &str, policies: Policies) -> Result<(WorkloadReport, PagerStatistics), HarnessError> {
        let shop = &self.context.shop;
        let plain = workload_command(workload, LIVE_SIZE)?;
        let stats = shop.directory.path().join("elastic-stats.json");
        let run = PagedRun {
            fabric: Fabric::Tcp,
            policies,
            donor: self.donor.address.clone(),
            key: shop.product()?.key(),
            local: LIVE_SIZE.percent(LIVE_LOCAL_PER_CENT),
            lend: Size(LIVE_SIZE.0 * 2),
            stats: stats.clone(),
            program: std::iter::once(plain.get_program()).chain(plain.get_args()).map(Into::into).collect(),
        };
        let report = run_workload(workload, &mut run.command(&own_program()?), &shop.interrupt)?;
        let reading = || format!("reading the statistics of {workload}");
        let text = std::fs::read(&stats).map_err(HarnessError::system(reading()))?;
        Ok((report, serde_json::from_slice(&text).map_err(HarnessError::system(reading()))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::studies::tests::context;

    #[test]
    fn traces_are_replayed_and_judged_without_the_product() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut result = StudyResult::new("elastic", "", true, Machine::default());
        ElasticStudy.run(&context(directory.path(), 1), &mut result).unwrap();
        assert!(result.skipped.iter().any(|skip| skip.reason.contains("not built")), "{:?}", result.skipped);
        assert_eq!(result.goals.len(), Pattern::ALL.len() * LOCAL_PER_CENT.len());
        let of = |name| result.median("loop L(50), replayed: time", name).unwrap();
        assert!(of(ELASTIC) < of("none") && of("blocks-32") < of("none"), "blocks are for loops");
        let of = |name| result.median("random L(50), replayed: time", name).unwrap();
        let (elastic, blocks, none) = (of(ELASTIC), of("blocks-32"), of("none"));
        // What was learnt of fresh regions is a larger part of so short a trace.
        assert!(elastic < 1.1 * none && blocks > 1.3 * none, "and not for this: {elastic} {blocks} {none}");
    }

    #[test]
    fn elastic_blocks_are_compared_with_the_better_of_the_fixed() {
        let mut result = StudyResult::new("elastic", "", true, Machine::default());
        for (name, seconds) in [("none", 3.0), ("blocks-32", 2.0), ("elastic", 2.2), ("ours", 1.0)] {
            result.record(0, "sequential L(50): time", name, SECONDS, seconds);
        }
        judge(&mut result);
        assert_eq!((result.goals.len(), result.goals[0].met), (1, Some(false)), "ten per cent slower");
    }
}
