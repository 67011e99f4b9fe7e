//! What tests of several crates share; never shipped.
//!
//! [`block_devices`]: block devices of this machine, and direct I/O with them.

#![forbid(unsafe_code)]

pub mod block_devices;
