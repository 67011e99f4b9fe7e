//! What tests of several crates and benches share; never shipped.
//!
//! - [`block_devices`]: block devices of this machine, and direct I/O with them.
//! - [`fuzz`]: arbitrary bytes for decoders.
//! - [`programs`]: scripts that stand in for programs.
//! - [`svg`]: whether a picture is well-formed.

#![forbid(unsafe_code)]

pub mod block_devices;
pub mod fuzz;
pub mod programs;
pub mod svg;
