//! Real programs on the real kernel with part of their memory lent, and everything that can go wrong meanwhile.
//!
//! All tests share the kernel's swap, so each takes one lock (see `both_ways/stage.rs`) and takes everything down
//! when it ends, also on failure. Nothing here depends on speed: every wait has a generous deadline.
//!
//! - `both_ways/programs.rs`: exact output at 50 and 25 % for programs of every kind; `both_ways/java.rs`: for
//!   collectors; `both_ways/servers.rs`: for servers with clients; `both_ways/shares.rs`: that they had so much and
//!   no more.
//! - `both_ways/automatic.rs`: a budget that follows what the program loses to page-ins.
//! - `both_ways/bounds.rs`: how much one run borrows, and how fast its pages move.
//! - `both_ways/peculiarities.rs`: what the kernel does with memory on the side, and all of it at random;
//!   `both_ways/dumps.rs`: core dumps.
//! - `end_to_end/java_heap.rs`: a heap of shared memory (ZGC).
//! - `end_to_end/unmovable.rs`: memory that cannot leave; `both_ways/traces.rs`: page faults, recorded and replayed.
//! - `both_ways/manners.rs`: exit status, signals and terminal; `end_to_end/killed_runs.rs`: what a killed run
//!   leaves; `both_ways/left_behind.rs`: what a killed program leaves.
//! - `end_to_end/plain_device.rs`: file systems and fio on a plain device; `end_to_end/machine_swap.rs`: `swap on`
//!   and `off`.
//! - `both_ways/clusters.rs`, `end_to_end/clusters.rs`: donors that a run, a device and an agent find in the cluster.
//! - `end_to_end/prefetching.rs`: pages that come from swap before the program faults on them.
//! - `end_to_end/recipes.rs`: the files of `docs/recipes.md`.
//! - `end_to_end/network_disk.rs`: a device that NBD clients use.
//! - `end_to_end/crash.rs`: the device's own process dies, and another one goes on.
//! - `both_ways/chaos.rs`: donors die, stop and come back; `both_ways/cut_off.rs`: cables are pulled and disks are
//!   full; `both_ways/overcommit.rs`: many programs far beyond their budget.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

/// How memory reaches the programs of these tests.
const VIA: &str = "swap";

#[allow(dead_code)]
mod support;

#[allow(dead_code)]
mod both_ways;

mod end_to_end {
    mod clusters;
    mod crash;
    mod donor_changes;
    mod java_heap;
    mod killed_runs;
    mod machine_swap;
    mod network_disk;
    mod plain_device;
    mod prefetching;
    mod recipes;
    mod stalled_donors;
    mod unmovable;
}
