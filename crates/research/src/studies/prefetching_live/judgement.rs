//! The goals of the study, and its plots: how long needed pages were waited for, and the life of a fault.

use super::figures::SHARES;
use super::paged::{Fabric, Policies};
use super::{Row, SWAP};
use spillway_bench::plot::lines::{Line, LineChart};
use spillway_bench::plot::stages::StageChart;
use spillway_bench::result::{Better, StudyResult};

/// Where the time of a fault goes.
pub const STAGES: [&str; 3] = ["kernel and waking", "pager and fabric", "modelled fabric"];

const GOAL_NONE: &str = "five times as fast as without prefetching";
/// See [`GOAL_NONE`]: the issue's, for sequences and strides at L(50) over TCP.
const GOAL_NONE_BOUND: f64 = 5.0;

const GOAL_LEAP: &str = "ours takes no longer than Leap's";
/// See [`GOAL_LEAP`]: two runs of the same policy differ by as much on the development machine.
const GOAL_LEAP_BOUND: f64 = 1.05;

const GOAL_THREADS: &str = "two threads 1.5 times as fast as by Leap's history of a process";
/// See [`GOAL_THREADS`].
const GOAL_THREADS_BOUND: f64 = 1.5;

const GOAL_RANDOM: &str = "random access within 2 % of no prefetching";
/// See [`GOAL_RANDOM`].
const GOAL_RANDOM_BOUND: f64 = 1.02;

/// The rows whose waits are drawn, as Leap's slides 31 and 36 do.
const DRAWN: [&str; 3] = ["sequential", "stride 10", "stride 400"];

/// What so many thousandths of the needed pages took at most.
pub fn wait_case(thousandths: u32) -> String {
    format!("wait at {} %", f64::from(thousandths) / 10.0)
}

/// The case of a fault's stages.
pub fn fault_case(fabric: Fabric) -> String {
    format!("one fault, {}", fabric.name())
}

/// Notes how the goals stand.
pub fn judge(result: &mut StudyResult, rows: &[Row]) {
    let [none, ours, leap, by_process] =
        [Policies::NONE, Policies::OURS, Policies::LEAP, Policies::LEAP_BY_PROCESS].map(|policies| policies.name);
    for row in rows {
        let (case, is_half) = (row.case("time"), row.per_cent == 50);
        if row.load.has_parts && row.fabric == Fabric::Tcp && is_half {
            result.goal(GOAL_NONE, &case, none, ours, GOAL_NONE_BOUND, Better::Higher);
        }
        result.goal(GOAL_LEAP, &case, ours, leap, GOAL_LEAP_BOUND, Better::Lower);
        match row.load.name {
            "two threads" if is_half => {
                result.goal(GOAL_THREADS, &case, by_process, ours, GOAL_THREADS_BOUND, Better::Higher);
            }
            "random" => result.goal(GOAL_RANDOM, &case, ours, none, GOAL_RANDOM_BOUND, Better::Lower),
            _ => {}
        }
        result.compare(&case, none, SWAP);
        result.compare(&case, Policies::OURS_NOT_EAGER.name, none);
        result.compare(&case, ours, Policies::OURS_NOT_EAGER.name);
    }
}

/// The waits of the drawn rows, and the stages of a fault.
pub fn plots(result: &StudyResult) -> Vec<(String, String)> {
    let drawn = |row: &Row| DRAWN.contains(&row.load.name) && row.per_cent == 50;
    let waits = Row::all(false).into_iter().filter(drawn).filter_map(|row| {
        let chart = waits_chart(result, row)?;
        let name = format!("waits-{}-{}", row.load.name, row.fabric.name()).replace(' ', "-");
        Some((name, chart.svg()))
    });
    waits.chain(stages_chart(result).map(|chart| ("fault".to_owned(), chart.svg()))).collect()
}

/// A distribution as its quantiles: a line begins at the share of pages that had come along, which nothing waited for.
fn waits_chart(result: &StudyResult, row: Row) -> Option<LineChart> {
    let of = |policies: Policies| {
        let values = SHARES.map(|thousandths| {
            let measure = result.measure(&row.case(&wait_case(thousandths)), policies.name)?;
            measure.summary.filter(|summary| summary.median > 0.0)
        });
        Line { name: policies.name.to_owned(), values: values.to_vec() }
    };
    let lines: Vec<Line> = Policies::ALL.map(of).into();
    let has_values = lines.iter().any(|line| line.values.iter().any(Option::is_some));
    has_values.then(|| LineChart {
        title: format!(
            "us that a needed page is waited for: {} L({}), {}",
            row.load.name,
            row.per_cent,
            row.fabric.name()
        ),
        steps_title: "share of the pages that were needed from afar".to_owned(),
        steps: SHARES.map(|thousandths| format!("{} %", f64::from(thousandths) / 10.0)).to_vec(),
        lines,
    })
}

fn stages_chart(result: &StudyResult) -> Option<StageChart> {
    let bars: Vec<_> = Fabric::ALL
        .into_iter()
        .filter_map(|fabric| {
            let times: Option<Vec<f64>> =
                STAGES.iter().map(|stage| result.median(&fault_case(fabric), stage)).collect();
            Some((fabric.name().to_owned(), times?))
        })
        .collect();
    let stages = STAGES.map(str::to_owned).to_vec();
    (!bars.is_empty()).then(|| StageChart { title: "The life of a fault (us)".to_owned(), stages, bars })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_bench::machine::Machine;
    use spillway_bench::result::{MICROSECONDS, SECONDS};
    use spillway_testing::svg::is_well_formed;

    fn result() -> StudyResult {
        StudyResult::new("prefetching-live", "", true, Machine::default())
    }

    #[test]
    fn goals_are_judged_by_their_rows() {
        let (mut result, rows) = (result(), Row::all(false));
        for row in &rows {
            for (policies, seconds) in Policies::ALL.into_iter().zip([10.0, 1.0, 1.5, 2.0, 3.0]) {
                result.record(0, &row.case("time"), policies.name, SECONDS, seconds);
            }
        }
        judge(&mut result, &rows);
        let of = |goal: &str| result.goals.iter().filter(|found| found.goal == goal).collect::<Vec<_>>();
        assert_eq!([of(GOAL_NONE).len(), of(GOAL_LEAP).len()], [3, rows.len()]);
        assert_eq!([of(GOAL_THREADS).len(), of(GOAL_RANDOM).len()], [3, 6]);
        assert!(of(GOAL_NONE).iter().all(|goal| goal.ratio == Some(10.0)));
        assert!(of(GOAL_THREADS).iter().all(|goal| goal.ratio == Some(3.0)));
        assert!(result.goals.iter().all(|goal| goal.met == Some(true)));
    }

    #[test]
    fn lines_begin_where_pages_were_waited_for() {
        let mut result = result();
        let row = Row::all(false)[0];
        for thousandths in SHARES {
            let wait_us = if thousandths < 900 { 0.0 } else { 20.0 };
            result.record(0, &row.case(&wait_case(thousandths)), Policies::OURS.name, MICROSECONDS, wait_us);
        }
        for (stage, time_us) in STAGES.into_iter().zip([3.0, 2.0, 4.9]) {
            result.record(0, &fault_case(Fabric::Rdma), stage, MICROSECONDS, time_us);
        }
        let plots = plots(&result);
        assert_eq!(plots.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["waits-sequential-shm", "fault"]);
        assert!(plots.iter().all(|(_, svg)| is_well_formed(svg)));
        assert_eq!(plots[0].1.matches("<circle").count(), SHARES.iter().filter(|share| **share >= 900).count());
        assert_eq!(super::plots(&super::tests::result()).len(), 0);
    }
}
