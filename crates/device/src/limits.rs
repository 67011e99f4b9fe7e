//! Every bound of a device, with its origin.

use std::time::Duration;

/// I/O threads of a device unless told otherwise (docs/decisions/io-threads.md).
pub const IO_THREADS_DEFAULT: usize = 2;

/// How long stopping a device waits for others to close it (probing programs open every new device for a moment).
pub const DETACH_DEADLINE: Duration = Duration::from_secs(3);

/// How long a page that was asked for counts as on its way, unless the program comes to it: far donors answer within
/// 10 ms, and what is late for longer is the patience's to deal with
/// ([`spillway_fabric::patience`]). In nanoseconds of the samples' clock.
pub const ARRIVAL_NS: u64 = 100_000_000;

/// Pages that were asked for and are remembered: more than [`IN_FLIGHT_PAGES_MAX`], so that a marker is known when the
/// program comes to it late.
pub const ASKED_MAX: usize = 16 * 1024;

/// Pages on their way at a time: 16 MiB, two windows for each of 32 streams.
pub const IN_FLIGHT_PAGES_MAX: usize = 4096;

/// This part of what can leave a cgroup may be on its way into it. In trials without a cap programs were killed when
/// nearly all that their cgroup held was on its way; an eighth is two windows for four streams in 32 MiB.
pub const IN_FLIGHT_DIVISOR: u64 = 8;

/// A window is at most this part of the room: a stream has one while the next comes.
pub const WINDOW_ROOM_DIVISOR: usize = 2;

/// The smallest window, with which a stream begins ([`spillway_policy::prefetch::read_ahead`]).
pub const WINDOW_PAGES_MIN: usize = 4;

/// Windows that a stream looks at beyond local pages, as the pager's does
/// (`spillway_pager::limits`).
pub const WINDOWS_BEYOND_MAX: usize = 4;

/// Processes whose page tables are kept open: two descriptors each, of the 1024 that a process has at least.
pub const PROCESSES_MAX: usize = 128;

/// How long the prefetching thread sleeps without a sample before it looks whether it is to stop, and whether pages
/// in flight have arrived.
pub const QUIET: Duration = Duration::from_millis(100);

const _: () = {
    assert!(IN_FLIGHT_PAGES_MAX < ASKED_MAX);
    assert!(QUIET.as_nanos() >= ARRIVAL_NS as u128, "after a quiet time all pages have arrived");
};
