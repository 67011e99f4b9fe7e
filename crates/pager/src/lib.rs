//! Pages programs through userfaultfd: `spillway run --via pager` (docs/pager.md).
//!
//! One fault, in this order: `threads` (who waits for what) -> [`faults`] (what is done) -> [`space`] (what the page table says)
//! -> [`slots`] and [`staging`] (where the content is) -> the engine of the volume -> [`program`] (into the program's memory);
//! [`ahead`]: what comes along.
//!
//! One eviction: [`survey`] (how much there is, and what may be paged) -> [`eviction`] (who leaves) -> [`agent`] (out of the
//! program) -> [`staging`] -> the engine.
//!
//! One fork, where the kernel tells nobody of forks: [`survey`] (who forks) -> [`gathering`] (every page comes back first) -> [`claims`] (if there is
//! memory for all).
//!
//! [`unsettled`]: changes of mappings whose order is not known yet, [`doubt`]: and how long a late one is waited for; [`shared`]: what the threads share, and the order of locks; [`bell`]: how they wake one another;
//! [`directory`]: numbers of pages, and news for the policy;
//! [`maps`] and [`process`]: what `/proc` tells; [`config`], [`statistics`]; [`limits`]: every bound.

#![forbid(unsafe_code)]

pub mod agent;
pub mod ahead;
pub mod bell;
pub mod claims;
pub mod config;
pub mod courteous_lock;
pub mod directory;
pub mod doubt;
pub mod eviction;
pub mod faults;
pub mod gathering;
pub mod limits;
pub mod maps;
pub mod pager;
mod placement;
pub mod process;
pub mod program;
pub mod rechecked;
pub mod rescue;
pub mod shared;
pub mod slots;
pub mod space;
mod spin;
pub mod staging;
pub mod statistics;
pub mod survey;
mod threads;
pub mod unsettled;
mod waiting;

#[cfg(test)]
mod simulation;
