//! What the pager has inside the programs that it pages (docs/pager.md).
//!
//! - [`protocol`]: what both sides agree on.
//! - `preload/`: the library inside programs, without the standard library; built by `build.rs`.
//!
//! The pager's side, safe code:
//!
//! - [`head`]: what all programs of a run see.
//! - [`seat`]: memory shared with one evictor: batches, their results, and the pages that it takes out.
//! - [`greeting`]: programs and evictors that say hello.
//! - [`late_start`]: an evictor for a program that runs already.

#![deny(unsafe_code)]

#[cfg(test)]
mod decoders_tests;
pub mod greeting;
pub mod head;
#[cfg(target_arch = "x86_64")]
pub mod late_start;
pub mod protocol;
pub mod seat;

/// The library that programs carry, to be written to a file and named in `LD_PRELOAD`. Empty on machines whose
/// programs cannot be paged ([`IS_SUPPORTED`]).
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libspillway.so"));

/// The same for programs whose forks wait for the pager: its `fork` takes the place of libc's, so that no signal
/// interrupts one.
pub static LIBRARY_TELLING_FORKS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libspillway_telling_forks.so"));

/// Whether programs can be paged on this kind of machine at all.
pub const IS_SUPPORTED: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));
