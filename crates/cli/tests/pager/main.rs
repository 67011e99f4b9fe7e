//! Real programs under the pager, as an ordinary user where that matters, and everything that can go wrong meanwhile.
//!
//! The programs are those of `tests/end_to_end`, which run over a swap device there. Nothing here depends on speed: every wait
//! has a generous deadline.
//!
//! - [`programs`], [`java`], [`servers`], [`peculiarities`], [`dumps`], [`overcommit`]: exact output at 50 and 25 %, shared with the other test binary; [`shares`]: that they had so much and no more.
//! - [`manners`]: exit status, signals and terminal, shared too.
//! - [`emulator`]: a guest in QEMU; [`forks`]: what children share; [`hostile`]: programs that mean harm; [`calls`]: system calls that the pager has to hear of; [`debugged`]: programs that a debugger stops; [`ordinary_user`]: without root, [`users_forks`]: forks that the kernel tells nobody of, [`users_programs`]: programs that start others in unusual ways, [`users_shares`]: at half and a quarter; [`descriptors`]: many programs at once; [`bare_exits`]: programs whose ends no library hears of; [`threads`]: what they have more than they started; [`back_pressure`]: who writes faster than pages leave; [`told`]: what a run tells of its faults; [`refused`]: programs that the pager cannot serve; [`sanitizers`]: programs whose library wants to be the first.
//! - [`chaos`], [`cut_off`]: donors die, stop and come back, cables are pulled and disks are full, shared too; [`lost_copies`]: nobody else had them; [`violence`], [`families`]: the pager and programs are killed, alone and with forked children; [`left_behind`]: a program alone, shared.

// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

/// How memory reaches the programs of these tests.
const VIA: &str = "pager";

#[path = "../support/mod.rs"]
#[allow(dead_code)]
mod support;

#[path = "../end_to_end/stage.rs"]
#[allow(dead_code)]
mod stage;

#[path = "../end_to_end/chaos.rs"]
mod chaos;
#[path = "../end_to_end/cut_off.rs"]
mod cut_off;
#[path = "../end_to_end/dumps.rs"]
mod dumps;
#[path = "../end_to_end/java.rs"]
mod java;
#[path = "../end_to_end/left_behind.rs"]
mod left_behind;
#[path = "../end_to_end/manners.rs"]
mod manners;
#[path = "../end_to_end/overcommit.rs"]
mod overcommit;
#[path = "../end_to_end/peculiarities.rs"]
mod peculiarities;
#[path = "../end_to_end/programs.rs"]
mod programs;
#[path = "../end_to_end/servers.rs"]
mod servers;
#[path = "../end_to_end/shares.rs"]
mod shares;
#[path = "../end_to_end/stress.rs"]
mod stress;

mod at_random;
mod back_pressure;
mod bare_exits;
mod calls;
mod debugged;
mod descriptors;
mod emulator;
mod families;
mod forks;
mod hostile;
mod locked;
mod lost_copies;
mod ordinary_user;
mod refused;
mod sanitizers;
mod slow_donors;
mod threads;
mod told;
mod users_forks;
mod users_programs;
mod users_shares;
mod violence;
mod waiting;
