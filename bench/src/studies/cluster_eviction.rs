//! Infiniswap's batch eviction (NSDI '17, figure 8): to free ten slabs, E' more are asked about, and the ten least
//! active leave. How often no busy slab is among them, by the product's Lender, against the formula of the authors and
//! against eviction at random.

use spillway_simulator::eviction::{WANTED, formula, run};

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::plot::lines::{Line, LineChart};
use crate::result::{Better, MESSAGES, PER_CENT, StudyResult};

/// Slabs that are asked about besides, E' of the paper.
const MORE: [usize; 5] = [0, 2, 5, 10, 20];

/// Busy slabs of a hundred.
const BUSY: [usize; 3] = [20, 35, 50];

/// Evictions of a round.
const EVICTIONS: usize = 2000;
/// The same of a quick run.
const EVICTIONS_QUICK: usize = 500;

const LENDER: &str = "Lender";
const FORMULA: &str = "formula";
const RANDOM: &str = "at random";

/// What the product asks about besides: as many as it wants.
const OURS: usize = WANTED;

const GOAL_FORMULA: &str = "the Lender evicts as well as the formula says";

/// Four standard deviations of the rounds' evictions together, of a chance of one half.
const AS_SAID: f64 = 0.93;

/// The study of batch eviction.
#[derive(Clone, Copy, Debug)]
pub struct ClusterEvictionStudy;

impl Study for ClusterEvictionStudy {
    fn name(&self) -> &'static str {
        "cluster-eviction"
    }

    fn title(&self) -> &'static str {
        "batch eviction: no busy slab among ten, by how many more are asked about"
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (3, 2)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let evictions = context.choose(EVICTIONS, EVICTIONS_QUICK);
        for round in 0..context.rounds {
            context.shop.interrupt.check()?;
            measure(evictions, round, result);
        }
        judge(result);
        Ok(())
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        vec![("cluster-eviction-good".to_owned(), plot(result))]
    }
}

fn case(busy: usize, more: usize) -> String {
    format!("no busy slab leaves; {busy} % busy, {more} more")
}

fn measure(evictions: usize, round: usize, result: &mut StudyResult) {
    for busy in BUSY {
        let light = 1.0 - busy as f64 / 100.0;
        for more in MORE {
            let case = case(busy, more);
            let found = run(more, busy, evictions, round as u64 + 1);
            result.record(round, &case, LENDER, PER_CENT, found.good * 100.0);
            result.record(round, &case, FORMULA, PER_CENT, formula(WANTED, more, light) * 100.0);
            result.record(round, &case, RANDOM, PER_CENT, formula(WANTED, 0, light) * 100.0);
            if busy == BUSY[0] {
                let messages = format!("messages of an eviction; {more} more");
                result.record(round, &messages, LENDER, MESSAGES, found.messages);
            }
        }
    }
}

fn judge(result: &mut StudyResult) {
    for busy in BUSY {
        result.goal(GOAL_FORMULA, &case(busy, OURS), LENDER, FORMULA, AS_SAID, Better::Higher);
    }
}

fn plot(result: &StudyResult) -> String {
    let line = |busy: usize, subject: &str| Line {
        name: format!("{subject}, {busy} % busy"),
        values: MORE.map(|more| result.measure(&case(busy, more), subject)?.summary).to_vec(),
    };
    LineChart {
        title: "Evictions of ten slabs without a busy one (%)".to_owned(),
        steps_title: "slabs asked about besides (E')".to_owned(),
        steps: MORE.map(|more| more.to_string()).to_vec(),
        lines: BUSY.into_iter().flat_map(|busy| [line(busy, LENDER), line(busy, FORMULA)]).collect(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn the_lender_is_as_good_as_the_formula_and_better_than_chance() {
        let mut result = StudyResult::new("cluster-eviction", "", true, Machine::default());
        measure(200, 0, &mut result);
        judge(&mut result);
        for busy in BUSY {
            let of = |subject: &str| result.median(&case(busy, OURS), subject).unwrap();
            assert!(of(LENDER) > 10.0 * of(RANDOM) || of(LENDER) > 5.0 + of(RANDOM), "{busy} % busy");
            assert!((of(LENDER) - of(FORMULA)).abs() < 14.0, "{busy} % busy: four standard deviations");
        }
        let svg = ClusterEvictionStudy.plots(&result).remove(0).1;
        assert!(svg.contains("Lender, 20 % busy") && svg.contains("formula, 50 % busy"));
    }
}
