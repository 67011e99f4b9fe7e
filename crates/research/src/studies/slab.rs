//! The slab size, from 1 MiB to 256 MiB: what filling an empty device costs (slabs are mapped meanwhile), and what a
//! read costs afterwards. Infiniswap used 1 GB and left this experiment to future work; the product's default comes
//! from here.

use std::time::{Duration, Instant};

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::fio::{Job, Length, fill};
use spillway_bench::harness::spillway::{Storage, Transport};
use spillway_bench::plot::lines::{Line, LineChart};
use spillway_bench::result::{Better, MIB_PER_SECOND, MICROSECONDS, StudyResult};
use spillway_bench::studies::{Context, Study};
use spillway_workloads::size::{MIB, Size};

const SLAB_SIZES: [Size; 6] =
    [Size(MIB), Size(4 * MIB), Size(16 * MIB), Size(32 * MIB), Size(64 * MIB), Size(256 * MIB)];

const FILL: &str = "first fill";
const READ: &str = "4 KiB read, depth 4, p50";
const ATTACH: &str = "start of the device";

/// The product's default (`--slab-size`).
const DEFAULT: Size = Size(32 * MIB);

const GOAL: &str = "the default of 32M as good as each other slab size";

/// "As good" allows so much worse: about the spread of the sweep's rounds.
const BEST_GOAL: f64 = 1.15;

/// Donors, so that placement has a choice.
const DONORS: usize = 2;

/// The study of the slab size.
#[derive(Clone, Copy, Debug)]
pub struct SlabStudy;

fn size_name(size: Size) -> String {
    format!("slab {size}")
}

impl Study for SlabStudy {
    fn name(&self) -> &'static str {
        "slab"
    }

    fn title(&self) -> &'static str {
        "the slab size"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (22, 15)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(512, 64) * MIB);
        let outcome = context.interleave(result, &SLAB_SIZES, size_name, |round, slab_size, result| {
            measure(context, result, round, size, slab_size)
        });
        judge(result);
        outcome
    }

    fn plots(&self, result: &StudyResult) -> Vec<(String, String)> {
        [(FILL, "slab-fill"), (READ, "slab-read")].map(|(case, name)| (name.to_owned(), plot(result, case))).to_vec()
    }
}

/// The default against each other size: it is to be as good as the best of them.
fn judge(result: &mut StudyResult) {
    let default = size_name(DEFAULT);
    for other in SLAB_SIZES.into_iter().filter(|size| *size != DEFAULT).map(size_name) {
        for (case, one, another) in [(FILL, &other, &default), (READ, &default, &other)] {
            let ratio = result.compare(case, one, another);
            result.goal_of(GOAL, &format!("{case}, against {other}"), ratio, BEST_GOAL, Better::Lower);
        }
    }
}

fn measure(
    context: &Context,
    result: &mut StudyResult,
    round: usize,
    size: Size,
    slab_size: Size,
) -> Result<(), HarnessError> {
    let (shop, name) = (&context.shop, size_name(slab_size));
    // Each donor could hold all of it and two slabs more, so uneven placement never runs into a quota.
    let memory = Size(size.0 + 2 * slab_size.0);
    let donors: Result<Vec<_>, _> =
        (0..DONORS).map(|_| shop.product()?.donor(memory, Transport::SharedMemory, None, &shop.interrupt)).collect();
    let donors = donors?;
    let addresses = donors.iter().map(|donor| donor.address.clone()).collect();
    let storage = Storage {
        donors: addresses,
        redundancy: "none".to_owned(),
        backing: None,
        slab_size: Some(slab_size),
        ..Storage::default()
    };
    let start = Instant::now();
    let attached = shop.spillway_device(size, Some(&storage), None, donors)?;
    result.record(round, ATTACH, &name, MICROSECONDS, start.elapsed().as_secs_f64() * 1e6);
    let start = Instant::now();
    fill(&attached.path, size, &shop.interrupt)?;
    let rate = size.0 as f64 / MIB as f64 / start.elapsed().as_secs_f64();
    result.record(round, FILL, &name, MIB_PER_SECOND, rate);
    let job = Job { pattern: "randread", block_bytes: 4096, depth: 4 };
    let time = Length::Time(Duration::from_millis(context.choose(1000, 300)));
    let read = job.run(&attached.path, size, time, None, &shop.interrupt)?;
    result.record(round, READ, &name, MICROSECONDS, read.p50_us);
    Ok(())
}

fn plot(result: &StudyResult, case: &str) -> String {
    let measure = |size: Size| result.measure(case, &size_name(size));
    let unit = SLAB_SIZES.into_iter().find_map(measure).map_or(String::new(), |measure| measure.unit.clone());
    let values = SLAB_SIZES.map(|size| measure(size)?.summary).to_vec();
    LineChart {
        title: format!("{case} ({unit}) by slab size"),
        steps_title: "slab size".to_owned(),
        steps: SLAB_SIZES.map(|size| size.to_string()).to_vec(),
        lines: vec![Line { name: case.to_owned(), values }],
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_bench::machine::Machine;

    #[test]
    fn sizes_are_powers_of_two_and_ascend() {
        assert!(SLAB_SIZES.iter().all(|size| size.0.is_power_of_two()));
        assert!(SLAB_SIZES.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn the_default_is_judged_by_what_is_better_of_each() {
        let mut result = StudyResult::new("slab", "", true, Machine::default());
        for (size, fill, read) in [(DEFAULT, 500.0, 20.0), (Size(MIB), 400.0, 10.0), (Size(64 * MIB), 700.0, 21.0)] {
            result.record(0, FILL, &size_name(size), MIB_PER_SECOND, fill);
            result.record(0, READ, &size_name(size), MICROSECONDS, read);
        }
        judge(&mut result);
        let verdict = |case: &str| -> Vec<&str> {
            result
                .goals
                .iter()
                .filter(|goal| goal.case.starts_with(case) && goal.met.is_some())
                .map(|goal| goal.verdict())
                .collect()
        };
        assert_eq!(verdict(FILL), ["met", "NOT met"]);
        assert_eq!(verdict(READ), ["NOT met", "met"]);
    }

    #[test]
    fn plots_name_their_unit() {
        let mut result = StudyResult::new("slab", "", true, Machine::default());
        result.record(0, FILL, &size_name(Size(MIB)), MIB_PER_SECOND, 500.0);
        let plots = SlabStudy.plots(&result);
        assert_eq!(plots.len(), 2);
        assert!(plots[0].1.contains("first fill (MiB/s)") && plots[0].1.contains(">256M<"));
    }
}
