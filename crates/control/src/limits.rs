//! Every bound of how processes of ours find, ask and mend each other, with its origin.

use std::time::Duration;

/// Machines of a cluster that are tried as donors though they have not answered this machine's agent, beside those that
/// have: a machine with the cluster's key can name any number.
pub(crate) const NAMED_DONORS_MAX: usize = 8;

/// Machines that a user is told by name when the cluster's are used: more than a line holds.
pub(crate) const DONORS_TOLD_MAX: usize = 8;

/// Smallest device: the kernel's swap needs ten pages, a file system some megabytes; below this nothing is gained.
pub const DEVICE_SIZE_BYTES_MIN: u64 = 16 << 20;

/// Memory that `run` never lends from its own machine, besides a tenth of all: the desktop or shell must stay usable.
pub(crate) const LEND_RESERVE_BYTES: u64 = 256 << 20;

/// A device or donor process that is not ready by then has failed: donors' deadline, mounting, and a loaded machine.
pub const START_DEADLINE: Duration = Duration::from_secs(60);

/// A process that was told to stop and has not by then is killed, unless pages would be lost.
pub const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// A device's process whose launcher gave up while it was starting has so long to undo what it did.
pub const GIVE_UP_DEADLINE: Duration = Duration::from_secs(5);

/// A status socket that does not answer within this belongs to a hung process; `status` says so.
pub const STATUS_DEADLINE: Duration = Duration::from_secs(5);

/// Longest line on a status socket: a status with hundreds of donors is below 200 KiB.
pub const STATUS_LINE_BYTES_MAX: u64 = 4 << 20;

/// An empty memory group without an owner is removed when it is older than this: the process that made it moves in
/// within moments.
pub(crate) const STRAY_GROUP_AGE: Duration = Duration::from_secs(60);

/// Longest device or donor name: it becomes part of socket paths, of which the kernel takes 107 bytes.
pub(crate) const NAME_LENGTH_MAX: usize = 32;

/// Logs of devices that are gone and did not end well: more than a user looks at.
pub(crate) const LOGS_KEPT_MAX: usize = 16;
