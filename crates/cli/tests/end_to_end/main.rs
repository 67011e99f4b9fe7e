//! Real programs on the real kernel with part of their memory lent, and everything that can go wrong meanwhile.
//!
//! All tests share the kernel's swap, so each takes one lock (see [`stage`]) and takes everything down when it ends, also on
//! failure. Nothing here depends on speed: every wait has a generous deadline.
//!
//! - [`programs`]: exact output at 50 and 25 % for programs of every kind; [`java`]: for collectors; [`servers`]: for servers with clients; [`shares`]: that they had so much and no more.
//! - [`peculiarities`]: what the kernel does with memory on the side, and all of it at random; [`dumps`]: core dumps.
//! - [`unmovable`]: memory that cannot leave.
//! - [`manners`]: exit status, signals and terminal; [`killed_runs`]: what a killed run leaves; [`left_behind`]: what a killed program leaves.
//! - [`plain_device`]: file systems and fio on a plain device; [`machine_swap`]: `swap on` and `off`.
//! - [`network_disk`]: a device that NBD clients use.
//! - [`crash`]: the device's own process dies, and another one goes on.
//! - [`chaos`]: donors die, stop and come back; [`cut_off`]: cables are pulled and disks are full; [`overcommit`]: many programs far beyond their budget.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

/// How memory reaches the programs of these tests.
const VIA: &str = "swap";

#[path = "../support/mod.rs"]
#[allow(dead_code)]
mod support;

mod at_random;
mod chaos;
mod crash;
mod cut_off;
mod dumps;
mod java;
mod killed_runs;
mod left_behind;
mod machine_swap;
mod manners;
mod network_disk;
mod overcommit;
mod peculiarities;
mod plain_device;
mod programs;
mod servers;
mod shares;
mod stage;
mod stress;
mod unmovable;
