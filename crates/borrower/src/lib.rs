//! Uses memory that donors lend: the path of a page from the kernel to the fabric.
//!
//! In the order of the path:
//! - [`frontend`]: how the kernel reaches a device.
//! - [`block`]: the request path that every front end shares; [`service`]: what answers it.
//! - [`io_thread`]: the loop between the two; [`downfall`]: when one panics.
//! - [`engine`]: what happens to a request, one state machine per I/O thread.
//! - [`volume`]: which copies of a page are valid, shared by all threads.
//! - [`device`]: everything put together; [`state`]: what of it outlives its process.
//!
//! Away from the path: [`manager`] (connections to donors, placement, moving, recovery) and [`disk_writer`].
//!
//! The [`pager`] pages programs without the block layer (userfaultfd), over the same volume and engine.
//!
//! Beside it: [`limits`], [`metrics`], [`local_memory`] (a yardstick).

#![forbid(unsafe_code)]

// Tests in here and beside `src` share `tests/support`, which names this crate as others do.
#[cfg(test)]
extern crate self as spillway_borrower;

pub mod pager;
