//! Every bound of the command line, with its origin.

use std::time::Duration;

/// Slabs when none is asked for: small enough that a device of a few hundred MiB spreads over three donors, large
/// enough that a device of 1 TiB has 32 thousand of them; docs/decisions/slabs.md has the measurement.
pub(crate) const SLAB_SIZE_BYTES_DEFAULT: u64 = 32 << 20;

/// Largest device: what one session may lend ([`spillway_fabric::limits::SLABS_PER_SESSION_MAX`] slabs of 1 GiB).
pub(crate) const DEVICE_SIZE_BYTES_MAX: u64 = 4 << 40;

/// Donors that `run` starts when none is named: enough for three copies and to show that one may die.
pub(crate) const OWN_DONORS_DEFAULT: usize = 3;

/// Donors that `run` may start.
pub(crate) const OWN_DONORS_MAX: usize = 16;

/// How long no lender may have come or gone before the agent chooses donors for its swap devices, which keep them. A
/// list comes within two pulls of two seconds, and what 32 machines lend within some seconds
/// (docs/decisions/membership.md).
pub(crate) const LENDERS_SETTLE: Duration = Duration::from_secs(10);

/// A donor that is being drained and does not answer is asked again for so long.
pub(crate) const DRAIN_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Characters of an identity that mean a machine, at least: four hexadecimal digits tell 250 machines apart with even
/// odds, and `spillway cluster` shows eight.
pub(crate) const IDENTITY_CHARACTERS_MIN: usize = 4;

/// Memory left to local applications by a donor that was not told otherwise: Infiniswap keeps 8 of 64 GB, an eighth.
pub(crate) const HEADROOM_DIVISOR: u64 = 8;

/// A program keeps at least so much local memory whatever its budget says: below this it only swaps its own code.
pub(crate) const BUDGET_FLOOR_BYTES: u64 = 8 << 20;

/// A group that cannot go on gets this part of its limit more, or [`RELIEF_BYTES_MIN`], whichever is more: after ten
/// such steps it has three times as much, and each is there within a millisecond ([`BUDGET_INTERVAL_AT_LIMIT`]).
pub(crate) const RELIEF_DIVISOR: u64 = 8;
/// See [`RELIEF_DIVISOR`].
pub(crate) const RELIEF_BYTES_MIN: u64 = 4 << 20;
/// What a group got so shrinks by this part of itself at each look, so that what can leave again does within a second.
pub(crate) const RELIEF_DECAY_DIVISOR: u64 = 64;
/// No group gets more while the machine has less than this available: then the kernel ends a process of the group, as
/// it does without us.
pub(crate) const RELIEF_RESERVE_BYTES: u64 = 256 << 20;

/// What a page-in costs a program of `size` that was not told: by the pager, from a donor on the same machine
/// (docs/measurements.md: 7.7 and 8.3 us).
pub(crate) const SIZING_PAGE_IN_US: f64 = 8.0;

/// What `run --local auto` lets a program lose when it is not told: hardly noticed.
pub(crate) const SLOWDOWN: f64 = 0.05;

/// How long processes are looked at that run already: eight rounds of scans, the last ones of ten seconds.
pub(crate) const SIZING_SECONDS: f64 = 30.0;

/// How often the budget follows the footprint. The reclaim of a program that grows at 1 GiB/s is behind by 20 MiB then.
pub(crate) const BUDGET_INTERVAL: Duration = Duration::from_millis(20);

/// A search for processes that left the memory group may take one part in so many of the time.
pub(crate) const STRAY_SEARCH_SHARE: u32 = 50;

/// And comes after so long at the latest: to put a process back takes tens of milliseconds.
pub(crate) const STRAY_SEARCH_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Niceness of the thread that takes those looks: with fifteen others that want a CPU it came so late at 0 that the
/// kernel killed a program at its limit.
pub(crate) const WATCH_NICENESS: i32 = -15;

/// How often the statistics of a cgroup at its limit are read, which makes the kernel bring them up to date. With stale
/// ones its reclaim gives up and its out-of-memory killer comes while swap is free (seen on Linux 6.18, cgroup v1).
pub(crate) const BUDGET_INTERVAL_AT_LIMIT: Duration = Duration::from_millis(1);
/// Each look costs the kernel 100 us. The larger a group, the longer its pages take to become active, so a group is
/// looked at a millisecond later for so many bytes of its limit: 17 MiB were safe with 2 ms
/// (docs/decisions/limit-guard.md).
pub(crate) const BUDGET_BYTES_PER_INTERVAL: u64 = 16 << 20;
/// The longest such interval. A program that cannot go on waits so long for the first look that sees it.
pub(crate) const BUDGET_INTERVAL_AT_LIMIT_MAX: Duration = Duration::from_millis(10);

/// The same for the pager, whose count is never stale: often enough that a program growing at 1 GiB/s is 5 MiB ahead.
pub(crate) const PAGER_BUDGET_INTERVAL: Duration = Duration::from_millis(5);

/// A run has all that it may borrow when less than this part of it is left: the pager takes neighbouring pages, and
/// swap has a header.
pub(crate) const LEND_SPARE_DIVISOR: u64 = 64;

/// A program whose files' pages were read again for so many times its limit is told that they are what is short...
pub(crate) const THRASH_TIMES: u64 = 8;

/// ... but not for less than this, which a disk reads in a second.
pub(crate) const THRASH_BYTES_MIN: u64 = 256 << 20;

/// Processes that a program leaves behind for a moment (a shell's, that are just ending) are not worth a word.
pub(crate) const LEFT_BEHIND_NOTICE: Duration = Duration::from_secs(1);

/// Machines that `spillway cluster` shows in its table: the largest cluster that the simulation is made for.
pub(crate) const CLUSTER_ROWS_MAX: usize = 1024;

/// How often the thread that answers scrapes looks whether the agent ends.
pub(crate) const METRICS_TURN: Duration = Duration::from_millis(200);

/// A page that asks more often than this gets the figures of the last look.
pub(crate) const PAGE_LOOK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Largest trace, decompressed: some 300 million faults, which is more than an hour of nothing but faults. A replay
/// keeps 16 bytes of each event.
pub(crate) const TRACE_BYTES_MAX: u64 = 1 << 30;

/// The port of donors and clusters, unless told otherwise; documents and units have it too.
pub(crate) const DONOR_PORT: u16 = 7070;

/// What setup reads of a key: two keys of 64 digits, and line ends of any kind.
pub(crate) const KEY_TEXT_BYTES_MAX: u64 = 256;

/// How long setup waits for the service: the agent chooses among lenders once they stay the same for ten seconds, and
/// emulated machines take minutes.
pub(crate) const SETUP_DEADLINE: Duration = Duration::from_secs(180);

/// How often setup asks systemd meanwhile whether the service fails.
pub(crate) const SETUP_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// A service that was started again so often does not start: setup says why, and does not wait for the deadline.
pub(crate) const SETUP_RESTARTS_MAX: u32 = 3;

const _: () = {
    assert!(SLAB_SIZE_BYTES_DEFAULT >= spillway_fabric::limits::SLAB_SIZE_BYTES_MIN);
    assert!(SLAB_SIZE_BYTES_DEFAULT <= spillway_fabric::limits::SLAB_SIZE_BYTES_MAX);
    assert!(BUDGET_INTERVAL_AT_LIMIT.as_micros() <= BUDGET_INTERVAL.as_micros());
    assert!(OWN_DONORS_DEFAULT <= OWN_DONORS_MAX);
};
