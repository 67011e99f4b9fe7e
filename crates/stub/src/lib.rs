//! What the pager has inside the programs that it pages (docs/pager.md).
//!
//! - [`protocol`]: what both sides agree on.
//! - `preload/`: the library inside programs, without the standard library; built by `build.rs`.
//!
//! The pager's side, safe code:
//!
//! - [`arena`]: memory shared with programs, and its seats.
//! - [`seat`]: batches for one agent, and their results.
//! - [`greeting`]: programs and agents that say hello.

#![deny(unsafe_code)]

pub mod arena;
pub mod greeting;
pub mod protocol;
#[cfg(test)]
mod protocol_tests;
pub mod seat;
