//! Pages programs through userfaultfd, without root and without swap: `spillway run --via pager` (docs/pager.md).
//!
//! One page-in, in order:
//! 1. [`threads`]: the fault thread reads the program's messages ([`fault::messages`]).
//! 2. `fault/answer.rs`: what the fault takes, by what the [`page_table`] says.
//! 3. [`page_table::volume_pages`] and [`evict::staging`]: where the content is.
//! 4. `fault/read.rs`: the read from the volume; [`fault::read_ahead`]: what comes along.
//! 5. `fault/fill.rs`: into the program's memory ([`process::memory`]).
//!
//! One page-out, in order:
//! 1. [`process`]: how much memory each program has, and which of it may be paged ([`mappings::maps`]).
//! 2. `evict/choose.rs`: which pages leave, by `spillway_policy::replacement`; the [`budget`] says how many.
//! 3. `evict/batch.rs`: the pages go to the [`evict::evictor`], which takes them out of the program.
//! 4. `evict/write_back.rs`: what left goes from [`evict::staging`] to the volume.
//!
//! Beside the path:
//! - [`mappings::events`]: changes of mappings whose order is not known yet.
//! - [`fork`]: forks that the kernel does not tell of.
//! - `held_up`: programs that let the pager wait.
//! - [`huge_pages`]: given back to programs where all pages of a block are there again.
//! - [`pager_state`]: what the threads share, and the order of locks; [`address_space`]: what is known of one
//!   program's memory.
//! - [`shared_memory`]: objects that several programs map, whose pages leave too, if the user wants that.
//! - [`pager`]: how everything starts and stops; [`config`], [`statistics`]; [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod address_space;
pub mod budget;
pub mod config;
pub mod error;
pub mod evict;
pub mod fault;
pub mod fork;
mod held_up;
pub mod huge_pages;
pub mod limits;
pub mod mappings;
pub mod page_table;
pub mod pager;
pub mod pager_state;
pub mod process;
pub mod shared_memory;
pub mod statistics;
pub mod threads;
