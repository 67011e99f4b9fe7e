//! What it costs that machines know each other, by the size of the cluster: datagrams and bytes of each machine, and
//! how soon all know all, hear of a dead one, and are together again after a cut. Simulated, with the product's
//! membership (`spillway_simulator::membership`). Each round is another seed.

use spillway_simulator::membership::{Findings, run};

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::plot::lines::{Line, LineChart};
use crate::result::{BYTES_PER_SECOND, Better, MESSAGES, SECONDS, StudyResult};

/// Machines of the clusters. One of 1,000 takes minutes (`spillway-simulator --members 1000`), because foca's cost of
/// all machines together is their square (docs/decisions/membership.md).
const MACHINES: [usize; 3] = [32, 100, 320];
/// The same of a quick run.
const MACHINES_QUICK: [usize; 2] = [32, 100];

const OURS: &str = "membership";
const DATAGRAMS: &str = "datagrams of a machine and second";
const BYTES: &str = "bytes of a machine and second";
const TOGETHER: &str = "all know all";
const DEAD: &str = "all have heard of a dead one";
const HEALED: &str = "together after a cut of a quarter";

const GOAL_FLAT: &str = "datagrams of a machine as on 32 machines";

/// The study of membership.
#[derive(Clone, Copy, Debug)]
pub struct ClusterMembershipStudy;

impl Study for ClusterMembershipStudy {
    fn name(&self) -> &'static str {
        "cluster-membership"
    }

    fn title(&self) -> &'static str {
        "traffic and times of the membership, by the size of a simulated cluster"
    }

    fn rounds(&self) -> usize {
        1
    }

    fn rounds_quick(&self) -> usize {
        1
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (25, 5)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let machines = context.choose(&MACHINES[..], &MACHINES_QUICK[..]);
        for round in 0..context.rounds {
            for count in machines {
                context.shop.interrupt.check()?;
                measure(*count, round, result);
            }
        }
        judge(machines, result);
        Ok(())
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        vec![
            ("cluster-membership-datagrams".to_owned(), plot(result, "Datagrams a second", &[DATAGRAMS])),
            ("cluster-membership-bytes".to_owned(), plot(result, "Bytes a second", &[BYTES])),
            ("cluster-membership-times".to_owned(), plot(result, "Seconds until", &[TOGETHER, DEAD, HEALED])),
        ]
    }
}

fn case(machines: usize, what: &str) -> String {
    format!("{machines} machines, {what}")
}

fn measure(machines: usize, round: usize, result: &mut StudyResult) {
    let Findings { together, traffic, dead_told, healed, .. } = run(machines, round as u64 + 1, true);
    let mut record = |what, unit, sample| result.record(round, &case(machines, what), OURS, unit, sample);
    record(DATAGRAMS, MESSAGES, traffic.datagrams_per_s);
    record(BYTES, BYTES_PER_SECOND, traffic.bytes_per_s);
    record(TOGETHER, SECONDS, together.as_secs_f64());
    record(DEAD, SECONDS, dead_told.as_secs_f64());
    if let Some(healed) = healed {
        record(HEALED, SECONDS, healed.as_secs_f64());
    }
}

fn judge(machines: &[usize], result: &mut StudyResult) {
    for count in machines {
        let of = |count: usize| result.median(&case(count, DATAGRAMS), OURS);
        let ratio = of(*count).zip(of(machines[0])).map(|(here, there)| here / there);
        result.goal_of(GOAL_FLAT, &case(*count, DATAGRAMS), ratio, 1.2, Better::Lower);
    }
}

fn plot(result: &StudyResult, title: &str, cases: &[&str]) -> String {
    let line = |what: &&str| Line {
        name: (*what).to_owned(),
        values: MACHINES.map(|count| result.measure(&case(count, what), OURS)?.summary).to_vec(),
    };
    LineChart {
        title: title.to_owned(),
        steps_title: "machines".to_owned(),
        steps: MACHINES.map(|count| count.to_string()).to_vec(),
        lines: cases.iter().map(line).collect(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn a_small_cluster_is_measured_and_drawn() {
        let mut result = StudyResult::new("cluster-membership", "", true, Machine::default());
        measure(32, 0, &mut result);
        judge(&[32], &mut result);
        assert!(result.goals.iter().all(|goal| goal.met == Some(true)), "{:?}", result.goals);
        let plots = ClusterMembershipStudy.plots(&result);
        assert!(plots[2].1.contains(HEALED) && plots[2].1.matches("<circle").count() == 3, "{}", plots[2].1);
    }
}
