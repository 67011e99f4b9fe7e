//! The product on stock kernels that we did not build, in virtual machines: real memory pressure, cgroup version 2,
//! two machines.
//!
//! What depends on the front end runs once for each (see `virtual_machine/front_ends.rs`); what takes minutes is for
//! `make soak` (CONTRIBUTING.md lists both). Guests are emulated where the processor does not help, so working sets
//! are some tens of MiB; nothing depends on speed.
//!
//! - `virtual_machine/automatic.rs`: which front end is taken unless told otherwise.
//! - `virtual_machine/guest.rs`: a machine with our programs in it; `virtual_machine/front_ends.rs`: what is tested,
//!   and on which kernel.
//! - `virtual_machine/each_front_end.rs`: what one guest tests after another: `virtual_machine/programs.rs`, exact
//!   output under a limit of half the working set; `virtual_machine/plain_device.rs`, fio with verification;
//!   `virtual_machine/network_disk.rs`, the kernel's own NBD client; and some of the others.
//! - `virtual_machine/overcommit.rs`: a whole machine far beyond its memory while donors die, stop and come back;
//!   `virtual_machine/two_machines.rs`: the same over a network, which also breaks.
//! - `virtual_machine/crash.rs`: the process that serves swap is killed while all of that goes on;
//!   `virtual_machine/agent.rs`: the agent is; `virtual_machine/swap_off.rs`: the same without a process that could
//!   serve any more.
//! - `virtual_machine/pager.rs`: programs without a block device, where the kernel has what that takes, and the words
//!   where it has not.
//! - `virtual_machine/rdma.rs`: pages that travel by RDMA, by swap and by pager;
//!   `virtual_machine/rdma_machines.rs`: between two machines, through every fault.
//! - `virtual_machine/service.rs`: the agent as systemd starts, restarts and stops it.
//! - `virtual_machine/newcomer.rs`: two machines from the package to swap by the README's lines, an upgrade, a purge.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

mod virtual_machine {
    #[macro_use]
    mod front_ends;
    mod agent;
    mod automatic;
    mod crash;
    mod each_front_end;
    mod guest;
    mod network_disk;
    mod newcomer;
    mod overcommit;
    mod pager;
    mod plain_device;
    mod programs;
    mod rdma;
    mod rdma_machines;
    mod service;
    mod swap_off;
    mod two_machines;
}
