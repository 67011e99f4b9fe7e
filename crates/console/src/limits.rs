//! Every bound of what commands tell, with its origin.

use std::time::Duration;

/// Work that takes no longer is over before a line about it is read.
pub(crate) const PROGRESS_BEGIN: Duration = Duration::from_secs(1);

/// How often a line tells how far something is, where standard error is no terminal: a log stays short.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// How often the line on a terminal is drawn anew: as often as a reader sees.
pub(crate) const PROGRESS_REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Memory that is to move and does not for so long: people are told. A slab of 1 GiB takes 9 s at 1 Gbit/s.
pub(crate) const MOVE_STALL_TOLD: Duration = Duration::from_secs(10);

/// How often a device looks what to write to the log of changes: a reader's second; a look goes over all its slabs.
pub(crate) const STATE_LOOK_INTERVAL: Duration = Duration::from_secs(1);
