//! What Spillway asks of the machine that it runs on, and sets there: memory, swap, cgroups, processes.
//!
//! Nothing here knows of donors, devices or the pager, and nothing reads a command line. The kernel's interfaces
//! themselves are in [`spillway_sys`]; here is what Spillway means by them, and what it puts back.
//!
//! - [`memory`]: how much there is. [`size`]: sizes as people write and read them.
//! - [`cgroup`]: memory cgroups of both versions, which bound a program's local memory.
//! - [`swap_list`]: which swap areas are on. [`swap_area`]: one of ours, switched on, and off with all its pages.
//! - [`held_setting`]: settings of the kernel that are held at a value and put back. [`reserve`]: free pages that the
//!   kernel keeps back while the machine swaps to us; [`swap_read_ahead`]: pages that it reads ahead from swap.
//! - [`process`]: which processes are alive, safely against reused process ids. [`interruption`]: signals that ask
//!   this one to end. [`lock`]: locks between processes of one user. [`waiting`]: for what no process tells of.
//! - [`executable`]: whether the pager's library can be loaded into a program.
//! - [`filesystem`]: what a path lies on. [`user_group`]: the number of a group of users.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod executable;
pub mod filesystem;
pub mod held_setting;
pub mod interruption;
pub mod limits;
pub mod lock;
pub mod memory;
pub mod process;
pub mod reserve;
pub mod size;
pub mod swap_area;
pub mod swap_list;
pub mod swap_read_ahead;
pub mod user_group;
pub mod waiting;
