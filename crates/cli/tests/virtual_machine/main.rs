//! The product on stock kernels that we did not build, in virtual machines: real memory pressure, cgroup version 2, two machines.
//!
//! What depends on the front end runs once for each (see [`front_ends`]); what takes minutes is for `make soak` (CONTRIBUTING.md
//! lists both). Guests are emulated where the processor does not help, so working sets are some tens of MiB; nothing depends on
//! speed.
//!
//! - [`automatic`]: which front end is taken unless told otherwise.
//! - [`guest`]: a machine with our programs in it; [`front_ends`]: what is tested, and on which kernel.
//! - [`each_front_end`]: what one guest tests after another: [`programs`], exact output under a limit of half the working set;
//!   [`plain_device`], fio with verification; [`network_disk`], the kernel's own NBD client; and some of the others.
//! - [`overcommit`]: a whole machine far beyond its memory while donors die, stop and come back; [`two_machines`]: the same
//!   over a network, which also breaks.
//! - [`crash`]: the process that serves swap is killed while all of that goes on; [`agent`]: the agent is; [`swap_off`]: the same
//!   without a process that could serve any more.
//! - [`pager`]: programs without a block device, where the kernel has what that takes, and the words where it has not.
//! - [`service`]: the agent as systemd starts, restarts and stops it.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
#[allow(dead_code)]
mod support;

#[macro_use]
mod front_ends;

mod agent;
mod automatic;
mod crash;
mod each_front_end;
mod guest;
mod network_disk;
mod overcommit;
mod pager;
mod plain_device;
mod programs;
mod service;
mod swap_off;
mod two_machines;
