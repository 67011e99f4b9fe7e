//! Tests that run both ways, over a swap device and under the pager: `crate::VIA` says which.
//!
//! - [`stage`]: what a test stands on.
//! - [`programs`], [`java`], [`servers`], [`peculiarities`], [`dumps`], [`overcommit`], [`stress`]: exact output at
//!   50 and 25 %.
//! - [`traces`]: page faults, recorded and replayed.
//! - [`bounds`]: how much one run borrows, and how fast its pages move.
//! - [`shares`]: that the programs had so much and no more.
//! - [`virtio_fs`]: a guest in shared memory, and a process of the host that serves its files there.
//! - [`clusters`]: donors that a run finds by itself.
//! - [`manners`]: exit status, signals and terminal; [`left_behind`]: what a killed program leaves.
//! - [`chaos`]: donors die, stop and come back; [`cut_off`]: cables are pulled and disks are full.

pub(crate) mod automatic;
pub(crate) mod bounds;
pub(crate) mod chaos;
pub(crate) mod clusters;
pub(crate) mod cut_off;
pub(crate) mod dumps;
pub(crate) mod java;
pub(crate) mod left_behind;
pub(crate) mod manners;
pub(crate) mod overcommit;
pub(crate) mod peculiarities;
pub(crate) mod programs;
pub(crate) mod servers;
pub(crate) mod shares;
pub(crate) mod stage;
pub(crate) mod stress;
pub(crate) mod traces;
pub(crate) mod virtio_fs;
