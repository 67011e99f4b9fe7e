//! A block device put together: a volume, I/O threads and a front end; and prefetching for programs that swap to it.
//!
//! [`device`]: how it starts, stops and tells of itself; [`config`]: what it is started with; [`limits`]: every bound.
//! [`prefetch`]: pages are brought into the kernel's swap cache before programs fault on them.
//! [`fault_recording`]: page faults of such programs, for traces. `samples`: how both wait for what the kernel tells.

#![forbid(unsafe_code)]

pub mod config;
pub mod device;
pub mod fault_recording;
pub mod limits;
pub mod prefetch;
mod samples;
