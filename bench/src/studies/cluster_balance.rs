//! How evenly a cluster's memory is used, and what placement costs: Infiniswap's experiment with containers (NSDI '17,
//! section 6.3) in the simulator, with one, two, three and all donors asked for each slab, beside a planner that knows
//! everything. Each round is another seed. The machines are simulated; the decisions are those of the product.

use spillway_simulator::experiment::{ACTIVE_DONORS, Balance, Findings, run};
use spillway_volume::limits::PLACEMENT_CHOICES;

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::result::{Better, MESSAGES, MICROSECONDS, PER_CENT, StudyResult, TIMES};

/// Machines of the clusters.
const MACHINES: [u32; 2] = [32, 320];
/// The same of a quick run.
const MACHINES_QUICK: [u32; 1] = [32];

/// Larger clusters are placed by the product's choice only: one run of 3,200 machines takes minutes
/// (`spillway-simulator --experiment --machines 3200`).
const MACHINES_OF_ALL_CHOICES_MAX: u32 = 32;

/// What is local, without remote memory.
const LOCAL: &str = "local only";
/// A placement that no decentralised one can beat.
const PLANNER: &str = "planner";
/// The product's.
const OURS: &str = "three choices";
/// The paper's: the power of two choices.
const PAPER: &str = "two choices";

/// Donors asked for each slab, with the name of the subject.
const CHOICES: [(usize, &str); 4] =
    [(1, "one choice"), (2, PAPER), (PLACEMENT_CHOICES, OURS), (ACTIVE_DONORS, "all known donors")];

/// The goal for the mean, of the issue of a cluster without a coordinator.
const GOAL_MEAN: &str = "memory in use within 5 % of the planner's";
const GOAL_EVEN: &str = "the fullest machine nearer to the median one than without remote memory";
const GOAL_FLAT: &str = "messages of a machine as on 32 machines";

/// The study of placement in clusters.
#[derive(Clone, Copy, Debug)]
pub struct ClusterBalanceStudy;

impl Study for ClusterBalanceStudy {
    fn name(&self) -> &'static str {
        "cluster-balance"
    }

    fn title(&self) -> &'static str {
        "memory of a simulated cluster, by how many donors are asked for each slab"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (14, 10)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let machines = context.choose(&MACHINES[..], &MACHINES_QUICK[..]);
        for round in 0..context.rounds {
            for count in machines {
                measure(*count, round, result);
            }
        }
        judge(machines, result);
        Ok(())
    }
}

fn case(machines: u32, what: &str) -> String {
    format!("{machines} machines, {what}")
}

const MEAN: &str = "memory in use";
const MAX_TO_MEDIAN: &str = "fullest to median";
const MAX_TO_MIN: &str = "fullest to emptiest";
const MESSAGES_STEADY: &str = "messages of a machine and second";

fn record_balance(machines: u32, round: usize, subject: &str, balance: Balance, result: &mut StudyResult) {
    result.record(round, &case(machines, MEAN), subject, PER_CENT, balance.mean * 100.0);
    result.record(round, &case(machines, MAX_TO_MEDIAN), subject, TIMES, balance.max_to_median);
    // A machine without any container has nothing to be compared with.
    if balance.max_to_min.is_finite() {
        result.record(round, &case(machines, MAX_TO_MIN), subject, TIMES, balance.max_to_min);
    }
}

/// One seed on one cluster, with every number of choices.
fn measure(machines: u32, round: usize, result: &mut StudyResult) {
    for (choices, subject) in CHOICES {
        if machines > MACHINES_OF_ALL_CHOICES_MAX && subject != OURS {
            continue;
        }
        let Findings { without, with, planned, unplaced, messages_per_slab, messages_per_s, decision_ns, .. } =
            run(machines, choices, round as u64);
        assert_eq!(unplaced, 0, "there is room for every slab");
        if subject == OURS {
            record_balance(machines, round, LOCAL, without, result);
            record_balance(machines, round, PLANNER, planned, result);
        }
        record_balance(machines, round, subject, with, result);
        result.record(round, &case(machines, "messages for a slab"), subject, MESSAGES, messages_per_slab);
        result.record(round, &case(machines, MESSAGES_STEADY), subject, MESSAGES, messages_per_s);
        result.record(round, &case(machines, "time of a decision"), subject, MICROSECONDS, decision_ns / 1e3);
    }
}

fn judge(machines: &[u32], result: &mut StudyResult) {
    for count in machines {
        result.goal(GOAL_MEAN, &case(*count, MEAN), OURS, PLANNER, 0.95, Better::Higher);
        result.goal(GOAL_EVEN, &case(*count, MAX_TO_MEDIAN), OURS, LOCAL, 1.0, Better::Lower);
        let steady = |count: u32| result.median(&case(count, MESSAGES_STEADY), OURS);
        let ratio = steady(*count).zip(steady(machines[0])).map(|(here, there)| here / there);
        result.goal_of(GOAL_FLAT, &case(*count, MESSAGES_STEADY), ratio, 1.1, Better::Lower);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn more_choices_are_more_even_and_three_meet_the_goals() {
        let mut result = StudyResult::new("cluster-balance", "", true, Machine::default());
        (0..3).for_each(|round| measure(32, round, &mut result));
        judge(&[32], &mut result);
        let even = |subject: &str| result.median(&case(32, MAX_TO_MIN), subject).unwrap();
        let order = [PLANNER, "all known donors", OURS, PAPER, "one choice", LOCAL].map(even);
        assert!(order.is_sorted(), "{order:?}");
        assert!(result.goals.iter().all(|goal| goal.met == Some(true)), "{:?}", result.goals);
        let asked = |subject: &str| result.median(&case(32, "messages for a slab"), subject).unwrap();
        let order = ["one choice", PAPER, OURS, "all known donors"].map(asked);
        assert!(order.is_sorted(), "{order:?}");
    }
}
