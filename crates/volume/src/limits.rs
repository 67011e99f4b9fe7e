//! Every bound of a volume, with its origin. Relations between them are checked at compile time.

use std::time::Duration;

use spillway_block::limits::{BLOCK_REQUEST_DEADLINE, EVENT_WAIT_MAX, EVENTS_MAX, REQUEST_PAGES_MAX, SLOTS_PER_THREAD};
use spillway_fabric::limits::{
    CREDITS_RESERVED_FOR_DEMAND, HEARTBEAT_INTERVAL, QUEUE_DEPTH_MAX, REQUEST_DEADLINE, REQUEST_SIZE_BYTES_MAX,
    RESERVATION_TIME, SILENCE_DEADLINE, SLAB_SIZE_BYTES_MIN,
};
use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::settings::redundancy::REPLICAS_MAX;

/// Messages of a donor that are kept while it is asked for queue pairs: recalls and questions, a few at most.
pub const EARLY_MESSAGES_MAX: usize = 16;

/// Copies of a slab that exist at one time: the replicas, and one more while a slab moves between donors.
pub const COPIES_MAX: usize = REPLICAS_MAX + 1;

/// Donors behind one device. HPBD measured up to 16 servers, Infiniswap 31.
pub const DONORS_MAX: usize = 64;

/// For how long donors are asked to keep slabs whose process died: it is started again within a second, and on a
/// machine without free memory within some more.
pub const LINGER: Duration = Duration::from_secs(30);

/// How long a process that goes on with a device waits until the last write of the dead one to the backing file has
/// ended: longer than any disk takes for the writes that can be in flight.
pub const BACKING_RELEASE_DEADLINE: Duration = Duration::from_secs(20);

/// How long a new device waits for a backing file that is in use, before it is refused: a process that was killed
/// just now has it until its guardian has ended and the kernel has taken its rings apart, 24 to 32 ms later on an
/// idle machine.
pub const BACKING_HANDOVER_DEADLINE: Duration = Duration::from_secs(3);

/// Pieces in flight per I/O thread: what its queue pairs can hold together is more, but a thread has few requests at
/// once.
pub const SUB_REQUESTS_MAX: usize = 1024;

/// Pieces that only demand requests may take, as with credits.
pub const SUB_REQUESTS_RESERVED: usize = CREDITS_RESERVED_FOR_DEMAND;

/// What a network of 10 Gbit/s carries.
pub const NETWORK_BYTES_PER_US: u64 = 1250;

/// A prefetch is posted while those in flight on its queue pair bring less than this. A fault finds so much, and one
/// request, ahead of it on a connection: 0.9 ms on a network of 10 Gbit/s (docs/decisions/traffic-order.md).
pub const PREFETCHED_BYTES_NEAR: u64 = 1 << 20;
/// The same for donors that are farther than that: the longest window of a stream, which is never held back there
/// (`spillway_policy::prefetch::WINDOW_FAR_MAX`).
pub const PREFETCHED_BYTES_FAR: u64 = 2 << 20;

/// How long a silent donor is waited for that has the only copy of a page of a volume *with* a disk (the backing file
/// failed): requests to such a volume have this much less time, and so does the thread that waits for them (the
/// kernel's NBD client).
pub const SOLE_COPY_PATIENCE_WITH_DISK: Duration =
    Duration::from_secs(BLOCK_REQUEST_DEADLINE.as_secs() - REQUEST_DEADLINE.as_secs());

/// How often it is looked again whether a donor that was silent still has the only copy of some page. The first time
/// so long after it spoke: over TCP its data connections speak up to some seconds later, as what was lost on the way
/// is sent again at growing intervals.
pub const SOLE_COPY_LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// A donor from which nothing came for so long is not counted on: two heartbeats, half of what gives it up, so that
/// of two donors that fall silent together (the machine is busy) neither is given up because of the other's copies.
pub const SILENCE_NOTICED: Duration = Duration::from_secs(1);

/// How long a write to an unmapped slab waits for a donor before it goes to the disk alone.
pub const MAPPING_WAIT: Duration = Duration::from_millis(500);

/// A donor that has owed an answer for so long is told of: half a second is five thousand times what a page takes on
/// a fast network.
pub const ANSWER_OWED_TOLD: Duration = Duration::from_millis(500);

/// A read waits for so many times the usual 99th percentile before another copy is asked.
pub const READ_PATIENCE_FACTOR: f64 = 10.0;

/// It waits no less: a thread that sleeps looks no sooner, and a CPU that is wanted by others keeps a thread waiting
/// as long.
pub const READ_PATIENCE_MIN: Duration = EVENT_WAIT_MAX;

/// It waits no longer, whatever is usual.
pub const READ_PATIENCE_MAX: Duration = Duration::from_secs(1);

/// How long it waits before anything is known.
pub const READ_PATIENCE_DEFAULT: Duration = Duration::from_millis(50);

/// Reads of a donor, lately, from which its 99th percentile can be told.
pub const USUAL_READS_MIN: u64 = 100;

/// What lately means: between one and two of these.
pub const LATENCY_WINDOW: Duration = Duration::from_secs(10);

/// How long a donor that let a read wait is avoided at first: as long as a hiccup of a machine or a network lasts.
pub const AVOIDANCE_MIN: Duration = Duration::from_millis(100);

/// How long it is avoided at most before it is tried again, which costs one read its patience.
pub const AVOIDANCE_MAX: Duration = Duration::from_secs(30);

/// A pause that has grown so long, after five tries in some three seconds, is told.
pub const AVOIDANCE_TOLD: Duration = Duration::from_millis(1600);

/// Pages that the disk copy may lag behind: 64 MiB of locked memory.
pub const BACKLOG_PAGES: usize = 16 * 1024;

/// Writers that keep their turn while the backlog is full: every request of 64 I/O threads.
pub const WRITERS_WAITING_MAX: usize = 64 * SLOTS_PER_THREAD;

/// Backlog from which the disk thread starts at once; below it, it waits [`BACKLOG_DELAY`] for more, so that a burst
/// runs at the fabric's speed and neighbouring pages go out in one write.
pub const BACKLOG_EAGER_PAGES: usize = BACKLOG_PAGES / 2;

/// See [`BACKLOG_EAGER_PAGES`].
pub const BACKLOG_DELAY: Duration = Duration::from_millis(100);

/// Pages that the disk thread takes at once, to sort and join them.
pub const BACKLOG_BATCH_PAGES: usize = 4096;

/// Pages of one write to the disk: 256 buffers fit the kernel's limit for one vectored write (1024).
pub const DISK_RUN_PAGES_MAX: usize = 256;

/// Writes to the disk in flight.
pub const DISK_WRITES_MAX: usize = 16;

/// Pages that the mover copies between two looks at the world.
pub const MOVE_BATCH_PAGES: usize = 64;

/// How often the manager looks after slabs without being asked.
pub const SLAB_SCAN_INTERVAL: Duration = Duration::from_millis(200);

/// The manager's looks at all slabs take at most one part in so many of a CPU (measured: a look takes 10 to 20 ms for a
/// device of 64 GiB). Larger devices are looked after less often than every [`SLAB_SCAN_INTERVAL`].
pub const SLAB_SCAN_SHARE: u32 = 20;

/// A mapped slab without a stored page is given back after two looks of this interval.
pub const EMPTY_SLAB_INTERVAL: Duration = Duration::from_secs(1);

/// A donor has so long to answer a request on the control channel before another one is asked.
pub const CONTROL_REPLY_DEADLINE: Duration = Duration::from_millis(500);

/// A lease may take longer than [`CONTROL_REPLY_DEADLINE`] by so much for each GiB of its slab: a donor without a
/// prepared one makes it then (measured: 300 ms; a donor short of memory is slower).
pub const LEASE_DEADLINE_PER_GIBIBYTE: Duration = Duration::from_secs(8);

/// Pause between attempts to reach a donor; doubles up to [`RECONNECT_PAUSE_MAX`].
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`RECONNECT_PAUSE_MIN`].
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);

/// How often a link thread without a session looks whether its donor is removed or the device stops: no person notices
/// it, and it costs nothing against a pause of [`RECONNECT_PAUSE_MIN`].
pub const LINK_IDLE_PAUSE: Duration = Duration::from_millis(10);

/// Donors are asked for their room so often, as long as some donor has any; the answer of a placement comes on top.
pub const FREE_INTERVAL: Duration = Duration::from_secs(1);

/// The same while no donor has room: writes may wait for memory then.
pub const FREE_INTERVAL_FULL: Duration = Duration::from_millis(200);

/// Donors that are drawn and asked for each copy. Two are the power of two choices (Infiniswap, NSDI'17, section 4.3;
/// Mitzenmacher); three even memory out better for about 1.4 % more messages (docs/decisions/steward.md).
pub const PLACEMENT_CHOICES: usize = 3;

/// An answer to a question for room is used for so long since it was asked, for this slab or for a later one: half of
/// what the donor keeps the slab.
pub const OFFER_USED_TIME: Duration = Duration::from_secs(1);

/// A donor that can lend fewer slabs than this besides the one that is kept is told when that one is not needed.
/// Others may want it; where there is more, the reservation ends by itself.
pub const OFFER_KEPT_ROOM_SLABS: u64 = 8;

/// Placements that go on at one time. More would draw by answers that the other placements are about to change.
pub const PLACEMENTS_MAX: usize = 4;

/// A copy that leaves for the disk waits at most so long for pages in the backlog, while no write reaches the copy: a
/// full backlog (64 MiB) takes as long on a disk of 32 MB/s. Readers of such a page wait too.
pub const BACKLOG_AWAITED: Duration = Duration::from_secs(2);

/// A recalled slab that could not leave its donor is tried again so often: the disk thread, which often is what it
/// waits for, empties a full backlog in about this time.
pub const RECALL_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// After a donor refused a slab it is not asked again for so long, unless no other is left.
pub const REFUSAL_PAUSE: Duration = Duration::from_millis(500);

/// Threads that change proofs of pages: an engine for each I/O thread.
pub const PROOF_WRITERS_MAX: usize = 256;

/// Proofs of contents that are on their way to donors, at most, where no disk copy tells after a crash which content a
/// page has: 192 KiB of words, for as many pages as eight I/O threads have in flight.
pub const INTENTS_MAX: usize = 8192;

/// The same at least: two requests of the largest size.
pub const INTENTS_MIN: usize = 2 * REQUEST_PAGES_MAX;

/// Between these, one intent for so many pages of the volume.
pub const PAGES_PER_INTENT: usize = 16;

/// A donor from which so many pages failed their check is not trusted any more: broken memory shows again and again,
/// and one page may be a bit that a cosmic ray flipped.
pub const DISTRUSTED_AFTER_PAGES: u64 = 8;

/// Most squares in the picture of a volume's slabs: 16 rows of 32, and 6 KiB of a report.
pub const SLAB_SQUARES_MAX: usize = 512;

/// Bytes of pages that a volume with a bound moves ahead of its rate: one request of the largest size.
pub const BANDWIDTH_BURST_BYTES: u64 = REQUEST_SIZE_BYTES_MAX as u64;

/// Least bound of a volume's traffic. 32 requests of the largest size, which an I/O thread has under way at most, take
/// 4 s then: less than the kernel's front ends wait for an answer (NBD: 30 s).
pub const BANDWIDTH_BYTES_PER_SECOND_MIN: u64 = 8 << 20;

/// Largest volume: page numbers and slab numbers stay far from their types' ends.
pub const VOLUME_SIZE_BYTES_MAX: u64 = 1 << 44;

const _: () = {
    assert!(COPIES_MAX == 4, "page_bits has room for four copies");
    assert!(SUB_REQUESTS_MAX >= QUEUE_DEPTH_MAX && SUB_REQUESTS_RESERVED < SUB_REQUESTS_MAX);
    assert!(SLAB_SIZE_BYTES_MIN.is_multiple_of(64 * PAGE_SIZE_BYTES as u64), "a word of page bits lies in one slab");
    assert!(SILENCE_NOTICED.as_millis() >= 2 * HEARTBEAT_INTERVAL.as_millis());
    assert!(2 * SILENCE_NOTICED.as_millis() <= SILENCE_DEADLINE.as_millis());
    assert!(BACKLOG_EAGER_PAGES < BACKLOG_PAGES && BACKLOG_BATCH_PAGES <= BACKLOG_PAGES);
    assert!(SLAB_SCAN_SHARE > 1);
    assert!(DONORS_MAX <= EVENTS_MAX, "a thread waits for the answers of every donor");
    assert!(REQUEST_PAGES_MAX <= BACKLOG_PAGES);
    assert!(DISK_RUN_PAGES_MAX <= 1024);
    assert!(2 * OFFER_USED_TIME.as_millis() <= RESERVATION_TIME.as_millis(), "a lease by an offer has time to arrive");
    assert!(OFFER_USED_TIME.as_millis() + CONTROL_REPLY_DEADLINE.as_millis() < RESERVATION_TIME.as_millis());
};
