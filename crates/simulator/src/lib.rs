//! A cluster of machines in one thread: the [`Lender`](spillway_donor::lender) of every donor and the
//! [`Steward`](spillway_volume::steward) of every borrower, as they are shipped, over a clock, a network, memory and
//! programs that are made up. A seed decides everything, so a run that fails can be run again.
//!
//! - [`settings`]: how large a cluster is, and how rough its life.
//! - [`cluster`]: the machines, and what happens next. - `events`: what is to come, in the order of time.
//! - `machine`: the donor's side, with slabs that have a content. - `borrower`: the other side, with a volume whose
//!   slabs have a version instead of pages (`volume`).
//! - `links`: sessions between the two. - [`report`]: what a run came to.
//! - [`experiment`]: memory of containers on many machines, as Infiniswap measured it.
//! - In `cluster`: `sessions`: how they begin and end, and what the network holds back; `program`: what borrowers'
//!   programs do; `copies`: what their threads do; `faults`: what goes wrong; `calm`: what holds at the end.
//!
//! What is not simulated: single pages, data connections (a read or write happens at once, waits while its donor is
//! cut off, or fails), shared memory, and the clock's drift.
//!
//! Checked in every step: a slab is in one lease; a read finds what was written last; a slab without a live copy has
//! lost as many copies as it was promised to survive, or more; no message goes to a session that is over. When all
//! faults are over: every copy comes back, every recall ends, and no lease is left over.

#![forbid(unsafe_code)]

mod borrower;
pub mod cluster;
mod events;
pub mod experiment;
mod links;
mod machine;
pub mod report;
pub mod settings;
mod volume;
