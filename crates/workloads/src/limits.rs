//! Every bound of the workloads, with its origin.

use crate::size::PAGE_SIZE_BYTES;

/// Threads of a workload at most: more than any machine this is meant for has CPUs.
pub const THREADS_MAX: usize = 256;

/// Smallest working set: below it a matrix has hardly a row and a graph hardly a vertex.
pub const WORKLOAD_SIZE_BYTES_MIN: u64 = 16 * PAGE_SIZE_BYTES;
