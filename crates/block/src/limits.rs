//! Every bound of the request path, with its origin. Relations between them are checked at compile time.

use std::time::Duration;

use spillway_fabric::limits::{
    LOOK_INTERVAL_MAX, QUEUE_DEPTH_MAX, REQUEST_DEADLINE, REQUEST_SIZE_BYTES_MAX, SOLE_COPY_PATIENCE,
};
use spillway_fabric::units::PAGE_SIZE_BYTES;

/// Descriptors that a service may wait on: one for each donor of a volume.
pub const EVENTS_MAX: usize = 64;

/// Requests that one I/O thread holds at a time, 1 MiB of locked buffer each: as deep as the deepest queue that is
/// measured (fio at depth 16). Further requests wait in the kernel.
pub const SLOTS_PER_THREAD: usize = 16;

/// Pages of the largest request.
pub const REQUEST_PAGES_MAX: usize = REQUEST_SIZE_BYTES_MAX / PAGE_SIZE_BYTES;

/// A request that could not be answered for so long fails. Longer than the time in which a silent donor is found and
/// its pages are taken over by other copies.
pub const BLOCK_REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// The same for a volume without a disk, where a silent donor may have the only copy, or be the only one that can
/// take a write: it is waited for, and then there is as much time for the rest as others have.
pub const BLOCK_REQUEST_DEADLINE_SOLE: Duration =
    Duration::from_secs(SOLE_COPY_PATIENCE.as_secs() + BLOCK_REQUEST_DEADLINE.as_secs());

/// How often parked requests are tried again.
pub const PARKED_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Longest sleep of an I/O thread with sub-requests in flight: it must notice that the manager took a donor away.
pub const EVENT_WAIT_MAX: Duration = Duration::from_millis(20);

/// Requests that make a burst of page-ins: one program that faults at random shows them within a millisecond or two,
/// a single look into swapped memory does not.
pub const BURST_REQUESTS_MIN: u32 = 8;

/// Requests further apart are no burst: two or three wake-ups of halted CPUs (measured: 40 to 60 us each) are then
/// less than a sixth of what the program waits and works.
pub const BURST_GAP_MAX: Duration = Duration::from_millis(1);

/// The sleep that idle CPUs of a real machine may take during a burst: C1 and C1E (intel_idle and ACPI tables tell 1
/// to 10 us), but none that costs more than a page.
pub const SHALLOW_SLEEP_US: u16 = 10;

/// Virtual CPUs cannot sleep lightly, only spin. In a larger machine too many of them would spin for the one that
/// waits.
pub const POLLING_CPUS_MAX: usize = 16;

const _: () = {
    assert!(REQUEST_PAGES_MAX <= QUEUE_DEPTH_MAX, "the sub-requests of one request fit a queue pair");
    assert!(BLOCK_REQUEST_DEADLINE.as_millis() > 2 * REQUEST_DEADLINE.as_millis());
    assert!(LOOK_INTERVAL_MAX.as_millis() >= 5 * EVENT_WAIT_MAX.as_millis(), "a thread that runs looks often enough");
};
