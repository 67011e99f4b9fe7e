//! The size of a slab in a cluster, from 1 MiB to 1 GiB: how evenly memory is used, how long a slab takes to be mapped
//! and to come back, what is lent and not used, and what the tables and messages take. Infiniswap left this experiment
//! to future work. The machines are simulated (`spillway_simulator::slab_sizes`); the decisions are those of the
//! product. Each round is another seed.

use std::time::Duration;

use spillway_simulator::slab_sizes::{Findings, Layout, run};

use super::{Context, Study};
use crate::harness::HarnessError;
use crate::plot::lines::{Line, LineChart};
use crate::result::{Better, MEBIBYTES, MESSAGES, MICROSECONDS, PER_CENT_WASTE, SECONDS, StudyResult, TIMES, Unit};
use crate::size::{MIB, Size};

const SIZES: [Size; 7] =
    [Size(MIB), Size(4 * MIB), Size(16 * MIB), Size(32 * MIB), Size(64 * MIB), Size(256 * MIB), Size(1024 * MIB)];
/// The same of a quick run: the smallest one takes most of the time.
const SIZES_QUICK: [Size; 5] = [Size(4 * MIB), Size(16 * MIB), Size(32 * MIB), Size(256 * MIB), Size(1024 * MIB)];

/// The product's default (`--slab-size`).
const DEFAULT: Size = Size(32 * MIB);

const FILL: &str = "until all is placed";
const MAPPING: &str = "wait for a slab, median";
const MAPPING_LONG: &str = "wait for a slab, p99";
const EVEN: &str = "fullest to median";
const RECALL: &str = "a recall, median";
const RECALL_LONGEST: &str = "a recall, longest";
const TAKEN: &str = "until a donor has 4 GiB back";
const ROUNDING: &str = "lent beyond what is stored";
const UNUSED_APART: &str = "the same after half of the programs, apart";
const UNUSED_MIXED: &str = "the same after half of the programs, mixed";
const PREPARED: &str = "made ahead at a donor";
const MESSAGES_PER_GIB: &str = "messages for each GiB";
const ENTRIES: &str = "slab entries of 1 TiB";

/// Each picture has these lines.
const PLOTS: [(&str, &str, &[&str]); 5] = [
    ("cluster-slab-size-mapping", "Wait for a slab", &[MAPPING, MAPPING_LONG]),
    ("cluster-slab-size-recall", "Slabs that donors want back", &[RECALL, RECALL_LONGEST, TAKEN]),
    ("cluster-slab-size-unused", "Lent and not used", &[ROUNDING, UNUSED_APART, UNUSED_MIXED]),
    ("cluster-slab-size-balance", "How evenly memory is used", &[EVEN]),
    ("cluster-slab-size-messages", "Control messages for each GiB placed", &[MESSAGES_PER_GIB]),
];

const GOAL_EVEN: &str = "memory used as evenly as with each smaller slab";
const GOAL_FILL: &str = "all placed as soon as with each other slab";
const GOAL_TAKEN: &str = "a donor has its memory as soon as with each larger slab";

/// "As" allows so much more: about the spread of seeds.
const AS_GOOD: f64 = 1.15;

/// The study of slab sizes in clusters.
#[derive(Clone, Copy, Debug)]
pub struct ClusterSlabSizeStudy;

impl Study for ClusterSlabSizeStudy {
    fn name(&self) -> &'static str {
        "cluster-slab-size"
    }

    fn title(&self) -> &'static str {
        "slabs of 1 MiB to 1 GiB in a simulated cluster of 16 machines"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (20, 8)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let sizes = context.choose(&SIZES[..], &SIZES_QUICK[..]);
        let outcome = context.interleave(result, sizes, name, |round, size, result| {
            measure(size, round, result);
            Ok(())
        });
        judge(sizes, result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        PLOTS.map(|(file, title, cases)| (file.to_owned(), plot(result, title, cases))).to_vec()
    }
}

fn name(size: Size) -> String {
    format!("slab {size}")
}

fn measure(size: Size, round: usize, result: &mut StudyResult) {
    let [apart, mixed] = [Layout::Apart, Layout::Mixed].map(|layout| run(size.0, layout, round as u64));
    let Findings { balance, fill, mapping, recall, taken, .. } = apart;
    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let found: [(&str, Unit, f64); 13] = [
        (EVEN, TIMES, balance.max_to_median),
        (FILL, SECONDS, fill.as_secs_f64()),
        (MAPPING, MICROSECONDS, microseconds(mapping.0)),
        (MAPPING_LONG, MICROSECONDS, microseconds(mapping.1)),
        (RECALL, MICROSECONDS, microseconds(recall.0)),
        (RECALL_LONGEST, MICROSECONDS, microseconds(recall.1)),
        (TAKEN, MICROSECONDS, microseconds(taken)),
        (ROUNDING, PER_CENT_WASTE, apart.rounding * 100.0),
        (UNUSED_APART, PER_CENT_WASTE, apart.unused * 100.0),
        (UNUSED_MIXED, PER_CENT_WASTE, mixed.unused * 100.0),
        (PREPARED, MEBIBYTES, mib(apart.prepared_bytes)),
        (MESSAGES_PER_GIB, MESSAGES, apart.messages_per_gib),
        (ENTRIES, MEBIBYTES, mib(apart.entries_bytes)),
    ];
    for (case, unit, sample) in found {
        result.record(round, case, &name(size), unit, sample);
    }
}

fn judge(sizes: &[Size], result: &mut StudyResult) {
    let default = name(DEFAULT);
    for other in sizes.iter().copied().filter(|size| *size != DEFAULT) {
        let subject = name(other);
        let mut goal = |goal: &str, case: &str| {
            let ratio = result.compare(case, &default, &subject);
            result.goal_of(goal, &format!("{case}, against {subject}"), ratio, AS_GOOD, Better::Lower);
        };
        goal(GOAL_FILL, FILL);
        if other.0 < DEFAULT.0 {
            goal(GOAL_EVEN, EVEN);
        } else {
            goal(GOAL_TAKEN, TAKEN);
        }
    }
}

fn plot(result: &StudyResult, title: &str, cases: &[&str]) -> String {
    let measure = |case: &str, size: Size| result.measure(case, &name(size));
    let unit = SIZES.into_iter().find_map(|size| measure(cases[0], size)).map_or("", |measure| measure.unit.as_str());
    let line = |case: &&str| Line {
        name: (*case).to_owned(),
        values: SIZES.map(|size| measure(case, size).and_then(|measure| measure.summary)).to_vec(),
    };
    LineChart {
        title: format!("{title} ({unit})"),
        steps_title: "slab size".to_owned(),
        steps: SIZES.map(|size| size.to_string()).to_vec(),
        lines: cases.iter().map(line).collect(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn larger_slabs_take_longer_to_map_and_fewer_messages_and_waste_more() {
        let mut result = StudyResult::new("cluster-slab-size", "", true, Machine::default());
        for size in [Size(16 * MIB), DEFAULT, Size(1024 * MIB)] {
            measure(size, 0, &mut result);
        }
        let of = |case: &str, size: u64| result.median(case, &name(Size(size * MIB))).unwrap();
        for case in [MAPPING_LONG, TAKEN, ROUNDING, UNUSED_APART, PREPARED] {
            assert!(of(case, 1024) > of(case, 32), "{case}");
        }
        for case in [MESSAGES_PER_GIB, ENTRIES] {
            assert!(of(case, 16) > of(case, 32) && of(case, 32) > of(case, 1024), "{case}");
        }
        assert!(of(UNUSED_MIXED, 32) > of(UNUSED_APART, 32));
        let plots = ClusterSlabSizeStudy.plots(&result);
        assert_eq!(plots.len(), PLOTS.len());
        assert!(plots[0].1.contains("Wait for a slab (us)") && plots[0].1.contains(">1G<"), "{}", plots[0].1);
    }
}
