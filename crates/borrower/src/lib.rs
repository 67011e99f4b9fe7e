//! Uses memory that donors lend: the path of a page from the kernel to the fabric.
//!
//! In the order of the path:
//! - [`block`]: the request path that every front end shares.
//! - [`device`]: everything put together.

#![forbid(unsafe_code)]

pub mod block;
pub mod device;
