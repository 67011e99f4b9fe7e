//! A cluster of machines in one thread: the [`Lender`](spillway_donor::lender) of every donor and the
//! [`Steward`](spillway_volume::steward) of every borrower, as they are shipped, over a clock, a network, memory and
//! programs that are made up. A seed decides everything, so a run that fails can be run again.
//!
//! - [`settings`]: how large a cluster is, and how rough its life.
//! - [`cluster`]: the machines, and what happens next. - `events`: what is to come, in the order of time.
//! - `machine`: the donor's side, with slabs that have a content. - `borrower`: the other side, with a volume whose
//!   slabs have a version instead of pages (`volume`).
//! - `links`: sessions between the two. - `recall_watch`: what is asked back, and until when. - [`report`]: what a run
//!   came to.
//! - `community`: the membership of every machine, by which borrowers find donors. - [`membership`]: the same alone, on
//!   clusters of thousands of machines.
//! - In `cluster`: `sessions`: how they begin and end, and what the network holds back; `members`: how machines find
//!   each other; `program`: what borrowers' programs do; `copies`: what their threads do; `changes`: other donors;
//!   `faults`: what goes wrong; `recalls`: what bounds a recall; `shortages`: how long a slab lacks copies; `calm`:
//!   what holds at the end; `trials`: single troubles.
//!
//! What is not simulated: single pages, data connections (a read or write happens at once, waits while its donor is
//! cut off, or fails), the network's bandwidth, shared memory, and the clock's drift.
//!
//! Checked in every step: a slab is in one lease; a read finds what was written last; a slab without a live copy has
//! lost as many copies as it was promised to survive, or more; no message goes to a session that is over; every
//! recall is over within its bound, or its borrower's user is told; a slab that lacks copies and could have them gets
//! them. When all faults are over: every machine knows every other one, every copy comes back, every recall ends, and
//! no lease is left over.

#![forbid(unsafe_code)]

mod borrower;
pub mod cluster;
mod community;
mod events;
mod links;
mod machine;
pub mod membership;
mod recall_watch;
pub mod report;
pub mod settings;
mod volume;
