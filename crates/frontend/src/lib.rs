//! How the kernel reaches a device: front ends that turn its requests into
//! [`BlockChannel`](spillway_block::channel::BlockChannel)s.
//!
//! - [`front_end`]: what every front end does; [`choice`]: which one a device gets, and why.
//! - [`ublk`]: a device of the kernel's ublk driver.
//! - [`nbd`]: a device of the kernel's NBD driver, and a server for ordinary NBD clients.
//! - [`fuse`]: a loop device over a FUSE filesystem of one file, for kernels without ublk and NBD.
//! - [`identity`]: which block device a dead process left.
//! - [`ownership`]: the names by which mounts and loop devices tell who made them.
//! - `block_queue`: settings of a block device's queue; `openers`: the processes that have it open; [`limits`]: every
//!   bound.

#![forbid(unsafe_code)]

mod block_queue;
pub mod choice;
#[cfg(test)]
mod decoders_tests;
pub mod front_end;
pub mod fuse;
pub mod identity;
pub mod limits;
pub mod nbd;
mod openers;
pub mod ownership;
pub mod ublk;
