//! A loop device with direct I/O over a FUSE filesystem of one file: every kernel has both.
//!
//! In the order of a request:
//! - [`device`]: the loop device over the file; how both are made and taken apart.
//! - [`protocol`]: bytes of FUSE requests and replies, without I/O.
//! - [`channel`]: one I/O thread's end of the filesystem, over `/dev/fuse`.
//! - [`ring_channel`]: the same through a ring (Linux 6.14); `ring_switch`: whether the kernel has that.
//! - [`leftovers`]: mounts and loop devices that a killed process left, and their removal.

pub mod channel;
pub mod device;
pub mod leftovers;
pub mod protocol;
pub mod ring_channel;
mod ring_switch;
