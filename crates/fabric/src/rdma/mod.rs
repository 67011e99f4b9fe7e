//! The donor is reached by RDMA: InfiniBand, RoCE, or soft-RoCE in tests. Pages move by one-sided READ and WRITE, so
//! the donor's CPU does nothing.
//!
//! Each I/O thread has one reliable connection, and one TCP connection of the same session beside it: for discards,
//! and for slabs that the donor could not register. Both ends make their queue pairs and tell each other their numbers
//! over the encrypted control channel; no connection manager is needed.
//!
//! A registered slab is never punched: the device goes on with the pages that were pinned, and both views would diverge
//! silently. Therefore a discard zeroes a registered slab in place, and memory returns with the whole slab.
//!
//! - [`port`]: which device and port, by the address of the control channel; regions of buffer pools.
//! - [`Endpoint`]: what both ends tell each other.
//! - [`remote_slabs`]: the borrower's table of lent slabs and their keys.
//! - [`queue_pair`]: the borrower's requests. [`repair`]: a queue pair that broke is connected anew.
//! - [`lent_regions`]: the donor's end of a session.

pub mod lent_regions;
pub mod port;
pub mod queue_pair;
pub mod remote_slabs;
pub mod repair;

pub use crate::endpoint::Endpoint;
pub use lent_regions::LentRegions;
pub use port::{RdmaPort, RdmaUnavailable};
pub use queue_pair::RdmaQueuePair;
pub use remote_slabs::RemoteSlabs;
pub use repair::Repair;
