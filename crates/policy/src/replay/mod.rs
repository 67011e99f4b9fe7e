//! Replays recorded page accesses against policies of replacement and prefetching, without a pager.
//!
//! - [`accesses`]: a trace, made ready: pages as the pager would number them, and when each is used next.
//! - [`memory`]: the pager's local memory, which tells a policy what a pager would learn and nothing else.
//! - [`policies`]: the policies of prefetching that are compared by name.
//! - [`counts`]: what a replay found.
//! - [`detection`]: which faults are sequential, strides or neither.
//!
//! # What a trace of faults can tell
//! A trace of touches has all that a program did. A trace of faults has only what was not resident when it was
//! recorded, so a replay of it takes each fault for an access and knows of no other.
//! - Told well: which faults belong together as sequences and strides, and which of them a policy would have foreseen.
//! - Missing: hits on resident pages, so which page leaves is decided by faults alone. With as much memory as the
//!   recording had, or more, little is lost: what faults then faults in a smaller memory too (the inclusion property of
//!   LRU; Puzak's trace stripping, 1985). With less there would be faults that the trace does not have.
//! - Hidden: whatever was prefetched when it was recorded never faulted.
//!
//! Invariant: a replay is a function of the trace and the settings; it has no clock and no randomness.

pub mod accesses;
pub mod counts;
pub mod detection;
pub mod memory;
pub mod policies;
