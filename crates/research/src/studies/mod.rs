//! Studies that run as the benchmarks do, and compare what the product does with what it could do instead.
//!
//! | file | question |
//! |---|---|
//! | [`wakefulness`] | what it brings that idle CPUs are kept awake during bursts, and what it would bring a peer |
//! | [`isolation`] | page-ins of one borrower beside the flood of another one, by a donor's shares |
//! | [`neighbour`] | a server on a donor that has to give its memory back for it (Memtrade) |
//! | [`slab`] | the slab size (never published for Infiniswap) |
//! | [`sizing`] | what `spillway size` says that less local memory costs, by each of its ways, beside what it costs |
//! | [`mapping`] | slabs mapped with their first write, or once they are used a lot |
//! | [`pager_peers`] | what a visit costs by the pager, and by other pagers in user space |
//! | [`prefetching_live`] | the pager with each prefetcher, over shared memory, TCP and a model of RDMA |
//! | [`dcm`] | DCM's Grep and GroupBy in a JVM at L(100), L(80), L(70), L(60), and the collector's time |
//! | [`guest_swap`] | a guest extended from outside, beside guests that swap to a disk or a ramdisk (DCM) |
//! | [`hpbd`] | HPBD's own experiments: quicksort and Barnes-Hut at 25 %, two at once, 1 to 16 donors |

pub mod dcm;
pub mod guest_swap;
pub mod hpbd;
pub mod isolation;
pub mod mapping;
pub mod neighbour;
pub mod pager_peers;
pub mod prefetching_live;
pub mod sizing;
pub mod slab;
pub mod wakefulness;

use spillway_bench::studies::Study;

/// All of them; the longest last, as each writes its result when it ends.
pub const ALL: [&dyn Study; 11] = [
    &pager_peers::PagerPeersStudy,
    &wakefulness::WakefulnessStudy,
    &isolation::IsolationStudy,
    &neighbour::NeighbourStudy,
    &slab::SlabStudy,
    &mapping::MappingStudy,
    &prefetching_live::PrefetchingLiveStudy,
    &sizing::SizingStudy,
    &dcm::DcmStudy,
    &guest_swap::GuestSwapStudy,
    &hpbd::HpbdStudy,
];

#[cfg(test)]
pub(crate) mod tests {
    use spillway_bench::harness::interrupt::Interrupt;
    use spillway_bench::harness::storage::PrivateDirectory;
    use spillway_bench::harness::subject::Workshop;
    use spillway_bench::machine::Machine;
    use spillway_bench::result::StudyResult;
    use spillway_bench::schedule::Schedule;
    use spillway_bench::studies::Context;

    use super::*;

    /// A context without the product, in a directory on a disk.
    pub(crate) fn context(directory: &std::path::Path, rounds: usize) -> Context {
        let shop = Workshop {
            interrupt: Interrupt::never(),
            spillway: Err("the product is not built".to_owned()),
            directory: PrivateDirectory::on_disk(Some(directory)).unwrap(),
        };
        Context { shop, quick: true, rounds, schedule: Schedule::default(), rdma_device: None }
    }

    #[test]
    fn names_are_distinct_and_in_the_readme() {
        let readme = include_str!("../../README.md");
        let names: std::collections::HashSet<_> = ALL.iter().map(|study| study.name()).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(names.iter().all(|name| readme.contains(&format!("| `{name}` |"))));
    }

    #[test]
    fn without_the_product_a_study_says_so() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let study = ALL.iter().find(|study| study.name() == "mapping").unwrap();
        let mut result = StudyResult::new(study.name(), study.title(), true, Machine::default());
        study.run(&context(directory.path(), 1), &mut result).unwrap();
        assert!(result.skipped.iter().any(|skip| skip.reason.contains("not built")));
    }
}
