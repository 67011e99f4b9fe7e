//! Every bound of a device, with its origin.

use std::time::Duration;

/// I/O threads of a device unless told otherwise; docs/decisions/io-threads.md has the measurement.
pub const IO_THREADS_DEFAULT: usize = 2;

/// How long stopping a device waits for others to close it (probing programs open every new device for a moment).
pub const DETACH_DEADLINE: Duration = Duration::from_secs(3);
