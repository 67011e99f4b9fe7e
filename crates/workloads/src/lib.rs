//! The workloads: programs with a known working set, fixed by their seed, that check their own results.
//!
//! | file | access pattern |
//! |---|---|
//! | [`fill`] | fill and checksum: sequential, strided, random, read-modify-write |
//! | [`quicksort`] | HPBD's: partitions that halve, so that locality grows as it proceeds |
//! | [`barnes_hut`] | HPBD's: a tree built at random, walked for each body |
//! | [`page_rank`] | a power-law graph: sequential edges, random ranks with hot ones |
//! | [`key_value`] | a hash table under Zipf's law: few hot pages, a long tail |
//! | [`visit`] | one word of each page, in sequence, at random, with a change: what a page-in costs and little else |
//! | [`overflow`] | an array at rest beyond the budget: what its pages take to leave |
//! | [`touch`] | one word of each page at random, a system call after each: for tracing |
//! | [`matrix`] | blocked multiplication: dense computation, strided reads |
//! | [`transpose`] | a matrix turned over in tiles: read by rows, written by columns |
//!
//! What they stand on: [`random`], [`permutation`], [`zipf`], [`checksum`], [`size`]; [`phase`] times their parts.
//!
//! Invariants: the checksum depends on workload, size and seed only, never on the number of threads, so any two runs
//! can be compared; a result that fails its check gives an error and no checksum.

#![forbid(unsafe_code)]

pub mod barnes_hut;
pub mod checksum;
pub mod fill;
pub mod key_value;
pub mod limits;
pub mod matrix;
pub mod overflow;
pub mod page_rank;
pub mod permutation;
pub mod phase;
pub mod quicksort;
pub mod random;
pub mod size;
pub mod touch;
pub mod transpose;
pub mod visit;
pub mod zipf;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use self::phase::{PhaseClock, PhaseReport};
use crate::checksum::Checksum;
use crate::limits::{THREADS_MAX, WORKLOAD_SIZE_BYTES_MIN};
use crate::size::{Size, format_bytes};

/// What a workload is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadSettings {
    /// Bytes of its working set; what it really touches is within a few per cent below.
    pub size: Size,
    /// Fixes the input and, with it, the checksum.
    pub seed: u64,
    /// Threads that work at once, where the workload can use them.
    pub threads: usize,
}

/// Why a workload gave no checksum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// There is none of that name.
    #[error("there is no workload '{0}'; choose one of: {names}", names = names().join(", "))]
    Unknown(String),
    /// A setting is out of bounds.
    #[error("{0}")]
    Setting(String),
    /// The memory did not hold what was written, or the result is not what it must be.
    #[error("{workload}: wrong result: {detail}")]
    Wrong {
        /// Which workload.
        workload: String,
        /// What was expected and what was found.
        detail: String,
    },
}

/// What a workload did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// Its name.
    pub workload: String,
    /// The working set that was asked for.
    pub size_bytes: u64,
    /// The seed.
    pub seed: u64,
    /// The threads.
    pub threads: usize,
    /// The checksum of the result, as 16 hexadecimal digits.
    pub checksum: String,
    /// From its first to its last instruction, set-up and checks included.
    pub elapsed_seconds: f64,
    /// Its parts in their order.
    pub phases: Vec<PhaseReport>,
}

/// A program under test.
pub trait Workload: Sync {
    /// How it is called on the command line.
    fn name(&self) -> &'static str;

    /// Computes, checks the result, and gives its checksum.
    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError>;
}

/// All of them.
pub const ALL: [&dyn Workload; 17] = [
    &fill::Fill::SEQUENTIAL,
    &fill::Fill::STRIDED,
    &fill::Fill::FAR_STRIDED,
    &fill::Fill::RANDOM,
    &fill::Fill::MODIFY,
    &fill::Fill::ALIKE,
    &fill::Fill::SEQUENTIAL_TWICE,
    &fill::Fill::RANDOM_TWICE,
    &quicksort::Quicksort,
    &barnes_hut::BarnesHut,
    &page_rank::PageRank,
    &key_value::KeyValue,
    &matrix::Matrix,
    &transpose::Transpose,
    &touch::Touch,
    &visit::Visit,
    &overflow::Overflow,
];

/// The names of all workloads.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|workload| workload.name()).collect()
}

/// Runs the workload called `name`.
pub fn run(name: &str, settings: &WorkloadSettings) -> Result<WorkloadReport, WorkloadError> {
    let workload = ALL.iter().find(|workload| workload.name() == name);
    let workload = workload.ok_or_else(|| WorkloadError::Unknown(name.to_owned()))?;
    check(settings)?;
    let mut clock = PhaseClock::default();
    let start = Instant::now();
    let checksum = workload.run(settings, &mut clock)?;
    Ok(WorkloadReport {
        workload: name.to_owned(),
        size_bytes: settings.size.0,
        seed: settings.seed,
        threads: settings.threads,
        checksum: checksum.to_string(),
        elapsed_seconds: start.elapsed().as_secs_f64(),
        phases: clock.into_reports(),
    })
}

fn check(settings: &WorkloadSettings) -> Result<(), WorkloadError> {
    if settings.size.0 < WORKLOAD_SIZE_BYTES_MIN {
        let least = format_bytes(WORKLOAD_SIZE_BYTES_MIN);
        return Err(WorkloadError::Setting(format!("--size {} is too small; give at least {least}", settings.size)));
    }
    if settings.threads == 0 || settings.threads > THREADS_MAX {
        return Err(WorkloadError::Setting(format!("--threads takes a number from 1 to {THREADS_MAX}")));
    }
    Ok(())
}

/// An error of `workload` about a wrong result.
fn wrong(workload: &dyn Workload, detail: String) -> WorkloadError {
    WorkloadError::Wrong { workload: workload.name().to_owned(), detail }
}

/// The length of the parts when `items` are shared among `threads`; at least one.
fn part_length(items: usize, threads: usize) -> usize {
    items.div_ceil(threads).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::size::MIB;

    /// Small enough for tests without optimisation, large enough for several pages per thread.
    const SMALL: Size = Size(256 * 1024);

    fn checksum(name: &str, size: Size, seed: u64, threads: usize) -> String {
        run(name, &WorkloadSettings { size, seed, threads }).unwrap().checksum
    }

    #[test]
    fn names_are_distinct() {
        let mut names = names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn equal_runs_agree_and_threads_do_not_matter() {
        for name in names() {
            let first = checksum(name, SMALL, 1, 1);
            assert_eq!(first, checksum(name, SMALL, 1, 1), "{name} again");
            assert_eq!(first, checksum(name, SMALL, 1, 3), "{name} with 3 threads");
        }
    }

    #[test]
    fn seeds_and_sizes_matter() {
        for name in names() {
            let first = checksum(name, SMALL, 1, 1);
            assert_ne!(first, checksum(name, SMALL, 2, 1), "{name} with another seed");
            assert_ne!(first, checksum(name, Size(SMALL.0 * 2), 1, 1), "{name} with another size");
        }
    }

    #[test]
    fn reports_name_their_phases() {
        for name in names() {
            let report = run(name, &WorkloadSettings { size: SMALL, seed: 1, threads: 1 }).unwrap();
            assert!(report.phases.len() >= 2, "{name}");
            assert!(report.phases.iter().all(|phase| phase.pages > 0 && phase.seconds >= 0.0), "{name}");
            let phases: f64 = report.phases.iter().map(|phase| phase.seconds).sum();
            assert!(phases <= report.elapsed_seconds, "{name}");
            let json = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<WorkloadReport>(&json).unwrap().checksum, report.checksum);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let settings = WorkloadSettings { size: Size(MIB), seed: 0, threads: 1 };
        let unknown = run("bubblesort", &settings).unwrap_err();
        assert!(unknown.to_string().contains("quicksort"), "{unknown}");
        for settings in [WorkloadSettings { size: Size(10), ..settings }, WorkloadSettings { threads: 0, ..settings }] {
            assert!(matches!(run("matrix", &settings), Err(WorkloadError::Setting(_))));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]

        #[test]
        fn odd_sizes_and_threads_work(size in WORKLOAD_SIZE_BYTES_MIN..300_000, seed: u64, threads in 1_usize..5) {
            for name in names() {
                let settings = WorkloadSettings { size: Size(size), seed, threads };
                prop_assert!(run(name, &settings).is_ok(), "{}", name);
            }
        }
    }
}
