//! Real programs under the pager, as an ordinary user where that matters, and everything that can go wrong meanwhile.
//!
//! The programs are those of `tests/end_to_end`, which run over a swap device there. Nothing here depends on speed:
//! every wait has a generous deadline.
//!
//! - `both_ways/programs.rs`, `both_ways/java.rs`, `both_ways/servers.rs`, `both_ways/peculiarities.rs`,
//!   `both_ways/dumps.rs`, `both_ways/overcommit.rs`: exact output at 50 and 25 %, shared with the other test binary;
//!   `both_ways/shares.rs`: that they had so much and no more.
//! - `both_ways/bounds.rs`: how much one run borrows, and how fast its pages move.
//! - `both_ways/automatic.rs`: a budget that follows what the program loses, shared too.
//! - `both_ways/clusters.rs`: donors that a run finds by itself, shared too.
//! - `both_ways/manners.rs`: exit status, signals and terminal; `both_ways/traces.rs`: faults recorded; shared too.
//! - `pager/emulator.rs`: a guest in QEMU; `pager/forks.rs`: what children share; `pager/hostile.rs`: programs that
//!   mean harm; `pager/calls.rs`: system calls that the pager has to hear of; `pager/debugged.rs`: programs that a
//!   debugger stops; `pager/ordinary_user.rs`: without root, `pager/users_forks.rs`: forks that the kernel tells
//!   no process of, `pager/users_programs.rs`: programs that start others in unusual ways, `pager/users_shares.rs`: at
//!   half and a quarter; `pager/descriptors.rs`: many programs at once; `pager/bare_exits.rs`: programs whose ends no
//!   library hears of; `pager/threads.rs`: what they have more than they started; `pager/back_pressure.rs`: who
//!   writes faster than pages leave; `pager/told.rs`: what a run tells of its faults; `pager/staying.rs`: and of
//!   memory that stays local; `pager/shared_memory.rs`: shared memory that leaves; `pager/refused.rs`: programs
//!   that the pager cannot serve; `pager/sanitizers.rs`: programs whose library wants to be the first;
//!   `pager/strangers.rs`: what other users hold, flood or leave in the way;
//!   `pager/surroundings.rs`: namespaces, mounts and
//!   directories of programs;
//!   `pager/prefetching.rs`: pages that come along; `pager/huge_pages.rs`: huge pages that are given back.
//! - `pager/key_change.rs`: a cluster moves to another key; `pager/hardened.rs`: donors in a sandbox, and one that is
//!   killed under sealed memory.
//! - `pager/many_machines.rs`: a cluster in network namespaces, whose donors suffer, one or two at a time.
//! - `both_ways/chaos.rs`, `both_ways/cut_off.rs`: donors die, stop and come back, cables are pulled and disks are
//!   full, shared too; `pager/lost_copies.rs`: no other process had them; `pager/violence.rs`, `pager/families.rs`: the
//!   pager and programs are killed, alone and with forked children; `both_ways/left_behind.rs`: a program alone,
//!   shared.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

/// How memory reaches the programs of these tests.
const VIA: &str = "pager";

#[allow(dead_code)]
mod support;

#[allow(dead_code)]
mod both_ways;

mod pager {
    mod at_random;
    mod back_pressure;
    mod bare_exits;
    mod calls;
    mod debugged;
    mod descriptors;
    mod emulator;
    mod families;
    mod forks;
    mod free_pages;
    mod hardened;
    mod hostile;
    mod huge_pages;
    mod key_change;
    mod locked;
    mod lost_copies;
    mod many_machines;
    mod ordinary_user;
    mod prefetching;
    mod refused;
    mod residency;
    mod sanitizers;
    mod shared_memory;
    mod slow_donors;
    mod staying;
    mod strangers;
    mod surroundings;
    mod threads;
    mod told;
    mod users_forks;
    mod users_programs;
    mod users_shares;
    mod violence;
    mod waiting;
}
