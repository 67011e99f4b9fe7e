//! Replays recorded page accesses against policies of replacement and prefetching, without a pager.
//!
//! - [`accesses`]: a trace, made ready: pages as the pager would number them, and when each is used next.
//! - [`optimal`]: the fewest faults that any order of eviction allows (Belady 1966); it knows the future.
//! - [`memory`]: the pager's local memory, which tells a policy what a pager would learn and nothing else.
//! - [`counts`]: what a replay found.
//! - [`traces`]: the traces of the studies: the workloads' own, and [`patterns`].
//!
//! Invariant: a replay is a function of the trace and the settings; it has no clock and no randomness.

pub mod accesses;
pub mod counts;
pub mod memory;
pub mod optimal;
pub mod patterns;
pub mod traces;
