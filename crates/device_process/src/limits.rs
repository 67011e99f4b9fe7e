//! Every bound of the processes of a device, with its origin.

use std::time::Duration;

/// What is known of a process that faults is looked up again so often: a service that starts under another name, or
/// moves to its cgroup, does so in its first second.
pub(crate) const SUBJECT_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is looked how much may be on its way into a cgroup, and onto the machine. A look costs the kernel
/// 100 us a cgroup; a limit that is lowered meanwhile leaves an eighth of the old one on its way.
pub(crate) const ROOM_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Processes, and cgroups, that are remembered; those beyond that are looked up each time.
pub(crate) const SUBJECTS_MAX: usize = 4096;

/// How often the process that prefetches for the machine writes down what it did, for `status`.
pub(crate) const PREFETCH_REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// How long to wait for the first donor of a device: an attempt's
/// [`CONNECT_DEADLINE`](spillway_fabric::limits::CONNECT_DEADLINE) and a little. A donor on a loaded machine answers
/// within a second; a user is told what failed within five.
pub(crate) const DONOR_WAIT: Duration = Duration::from_millis(4200);

/// Heap that a device's process has before memory is short: control messages, handshakes and what its threads keep for
/// thousands of slabs take about 2 MiB.
pub(crate) const HEAP_RESERVE_BYTES: usize = 8 << 20;

/// Free space that a backing file leaves on its file system.
pub const BACKING_RESERVE_BYTES: u64 = 256 << 20;

/// Lives of a device's process in a row that served nothing, after which it is not started again: what ended them will
/// end the next one. Their pauses are 7 s together, in which a machine that is short of memory gets over the worst, and
/// after which requests fail in place of waiting.
pub(crate) const RESTARTS_MAX: u32 = 8;

/// How long `swap off` and `doctor --mend` wait for the process of a device that was given up: for all [`RESTARTS_MAX`]
/// starts, whose pauses are 7 s together.
pub(crate) const REVIVAL_DEADLINE: Duration = Duration::from_secs(30);

/// A process that lived so long did not die of its start.
pub(crate) const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// Pause before a process that died is started again; doubles with each quick death up to [`RESTART_PAUSE_MAX`], or
/// [`RESTART_PAUSE_SERVED_MAX`]. The shortest is noise beside the time that the start takes.
pub(crate) const RESTART_PAUSE_MIN: Duration = Duration::from_millis(50);

/// See [`RESTART_PAUSE_MIN`].
pub(crate) const RESTART_PAUSE_MAX: Duration = Duration::from_secs(2);

/// The same after a life that served: requests wait meanwhile, and a process that serves a little and dies must not
/// keep a CPU busy.
pub(crate) const RESTART_PAUSE_SERVED_MAX: Duration = Duration::from_millis(400);

const _: () = {
    assert!(DONOR_WAIT.as_millis() > spillway_fabric::limits::CONNECT_DEADLINE.as_millis(), "an attempt ends in time");
};
