//! When a slab gets its donor: with its first write (the default), or once it is used a lot (Infiniswap's way). What
//! either costs in latency, and what it takes of donors' memory, under a skewed load: four fifths of the requests go
//! to a tenth of the device, at a rate at which the rest stays below Infiniswap's bound of 20 page I/Os per slab and
//! second.
//!
//! The rate is the same for both, so the latencies compare, and no rate is reported.

use std::time::Duration;

use spillway_bench::harness::HarnessError;
use spillway_bench::harness::fio::{Job, Length};
use spillway_bench::harness::spillway::{Storage, Transport};
use spillway_bench::result::{MEBIBYTES, MICROSECONDS, StudyResult};
use spillway_bench::studies::{Context, Study};
use spillway_workloads::size::{MIB, Size};

/// Small slabs, so that a tenth of the device is several of them.
const SLAB: Size = Size(4 * MIB);

/// Four fifths of the requests to a tenth of the device; 64 slabs of 256 MiB then get 128 and 3.6 requests per second
/// each.
const LOAD: [&str; 2] = ["--random_distribution=zoned:80/10:20/90", "--rate_iops=1000"];

const LENT: &str = "donors' memory in use at the end";

/// The study of mapping.
#[derive(Clone, Copy, Debug)]
pub struct MappingStudy;

/// When slabs are mapped, as the product names it.
const POLICIES: [&str; 2] = ["demand", "activity"];

/// The phases, in their order: case and fio's pattern. The second write phase meets slabs that are hot by then.
const PHASES: [(&str, &str); 3] = [
    ("4 KiB skewed write, from an empty device on", "randwrite"),
    ("4 KiB skewed write, later", "randwrite"),
    ("4 KiB skewed read, later", "randread"),
];

impl Study for MappingStudy {
    fn name(&self) -> &'static str {
        "mapping"
    }

    fn title(&self) -> &'static str {
        "slabs mapped on demand and by activity"
    }

    fn rounds(&self) -> usize {
        2
    }

    fn seconds_per_round(&self) -> (u64, u64) {
        (36, 12)
    }

    fn run(&self, context: &Context, result: &mut StudyResult) -> Result<(), HarnessError> {
        let size = Size(context.choose(256, 64) * MIB);
        let name = |policy: &'static str| policy.to_owned();
        context.interleave(result, &POLICIES, name, |round, policy, result| {
            measure(context, result, round, size, policy)
        })?;
        result.compare_with(POLICIES[0]);
        Ok(())
    }
}

fn measure(
    context: &Context,
    result: &mut StudyResult,
    round: usize,
    size: Size,
    policy: &'static str,
) -> Result<(), HarnessError> {
    let shop = &context.shop;
    let donor = shop.product()?.donor(Size(size.0 + size.0 / 4), Transport::SharedMemory, None, &shop.interrupt)?;
    let storage = Storage {
        donors: vec![donor.address.clone()],
        redundancy: "disk".to_owned(),
        backing: Some(shop.directory.path().join("mapping-backing")),
        slab_size: Some(SLAB),
        mapping: Some(policy.to_owned()),
        front_end: None,
        ..Storage::default()
    };
    let attached = shop.spillway_device(size, Some(&storage), None, vec![donor])?;
    let time = Length::Time(Duration::from_millis(context.choose(5000, 1500)));
    for (case, pattern) in PHASES {
        let job = Job { pattern, block_bytes: 4096, depth: 1 };
        let found = job.run_with(&LOAD, &attached.path, size, time, None, &shop.interrupt)?;
        result.record(round, &format!("{case}, median"), policy, MICROSECONDS, found.p50_us);
        result.record(round, &format!("{case}, 99 %"), policy, MICROSECONDS, found.p99_us);
    }
    let name = attached.device.as_deref().unwrap_or_default();
    let status = shop.product()?.device_status(name, &shop.interrupt)?;
    let slabs: u64 = status.donors.iter().map(|donor| donor.slabs).sum();
    result.record(round, LENT, policy, MEBIBYTES, (slabs * SLAB.0) as f64 / MIB as f64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Infiniswap's bound, page I/Os per slab and second.
    const HOT: f64 = 20.0;

    #[test]
    fn the_load_parts_hot_slabs_from_cold_ones() {
        let slabs = (256 * MIB / SLAB.0) as f64;
        let rate: f64 = LOAD[1].rsplit('=').next().unwrap().parse().unwrap();
        assert!(rate * 0.8 / (slabs * 0.1) > 2.0 * HOT, "a tenth of the slabs is hot");
        assert!(rate * 0.2 / (slabs * 0.9) < HOT / 2.0, "the rest is not");
    }

    #[test]
    fn a_study_without_the_product_is_left_out_with_its_reason() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let context = crate::studies::tests::context(directory.path(), 1);
        let mut result = StudyResult::new("mapping", "", true, spillway_bench::machine::Machine::default());
        MappingStudy.run(&context, &mut result).unwrap();
        assert!(result.measures.is_empty() && result.skipped.len() == POLICIES.len());
    }
}
