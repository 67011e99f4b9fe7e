//! Every bound of the fabric, with its origin. Relations between them are checked at compile time.

use std::time::Duration;

use crate::units::PAGE_SIZE_BYTES;

/// Largest request on the wire. HPBD's largest was 128 KiB; the loop driver and FUSE carry up to 1 MiB (FUSE's
/// `max_pages` is at most 256).
pub const REQUEST_SIZE_BYTES_MAX: usize = 1 << 20;

/// Requests in flight on one queue pair, all classes together. One I/O thread has at most 32 block requests of 1 MiB in
/// flight, each cut at slab boundaries and at changes of the source.
pub const QUEUE_DEPTH_MAX: usize = 256;

/// Credits that only demand requests may take.
pub const CREDITS_RESERVED_FOR_DEMAND: usize = 32;

/// Credits that discards, moves and refills may not take, besides those of demand: as many for prefetching.
pub const CREDITS_RESERVED_FOR_PREFETCH: usize = 32;

/// Slabs one donor lends to one borrower at most: with slabs of 1 GiB this is 4 TiB.
pub const SLABS_PER_SESSION_MAX: usize = 4096;

/// Slab sizes are powers of two between these: a smaller one costs more metadata than it saves, a larger one cannot be
/// addressed by a 32-bit offset.
pub const SLAB_SIZE_BYTES_MIN: u64 = 1 << 20;
/// See [`SLAB_SIZE_BYTES_MIN`].
pub const SLAB_SIZE_BYTES_MAX: u64 = 1 << 30;

/// A connection whose donor owes answers and sends nothing for so long is given up, with every request on it: if all
/// its pages have other copies, else see [`SOLE_COPY_PATIENCE`].
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(2);

/// A data connection that owes answers and brought nothing for so long makes its donor one that is not counted on: half
/// of what gives it up, so that of two donors whose answers stall together neither is given up for the other's copies.
pub const STALL_NOTICED: Duration = Duration::from_secs(1);

/// A whole handshake, control or data, takes at most so long.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(3);

/// A borrower reaches a donor within so long or tells why not: looking up its name, connecting, and both handshakes.
/// The rest of five seconds, after which a user takes a command for stuck, is left to starting and stopping the
/// process.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(4);

/// Both ends send something on the control channel at least this often.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// A control channel that brought nothing for so long is lost, if no page is lost with it: four heartbeats.
pub const SILENCE_DEADLINE: Duration = Duration::from_secs(2);

/// How long a silent peer is waited for, on both channels, when giving it up loses pages for certain: as long as a
/// donor keeps the slabs of a borrower that died. Donors on two CPUs that sixteen others wanted too were silent for
/// more than two seconds in four of ten runs; a switch that restarts a port, or a virtual machine that is moved, is
/// back within some ten seconds.
pub const SOLE_COPY_PATIENCE: Duration = Duration::from_secs(30);

/// How long a donor keeps a slab for a borrower that asked for its room: twice what the borrower has to make use of the
/// answer, so that its word arrives in time unless it takes as long on the way.
pub const RESERVATION_TIME: Duration = Duration::from_secs(2);

/// A data connection's silence is counted from one look to the next, at most so much of it each time: five times as
/// long as the longest sleep of a thread with requests in flight. A thread that looks more rarely did not get to run,
/// which is no fault of the donor's.
pub const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Longest control message: a recall or an activity report of [`SLABS_PER_SESSION_MAX`] slabs fits in several.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Slabs named by one recall, activity query or report.
pub const SLABS_PER_MESSAGE_MAX: usize = 512;

/// Longest name in a control message: a volume's, or the path of a UNIX socket (the kernel allows 108 bytes).
pub const NAME_BYTES_MAX: usize = 256;

/// Longest explanation in a control message; longer ones are cut.
pub const REASON_BYTES_MAX: usize = 512;

/// Shared memory is discarded in steps of so many bytes, between which other requests are served: 0.2 ms each
/// (measured, see docs/decisions/slabs.md), against 18 ms for a slab of 32 MiB at once.
pub const DISCARD_STEP_BYTES: usize = 1 << 20;

/// The kernel's buffers of a data connection, each way: two of the largest requests, so that one travels while the
/// next is made ready.
pub const SOCKET_BUFFER_BYTES: usize = 2 * REQUEST_SIZE_BYTES_MAX;

/// What a donor receives ahead of knowing where it belongs: three pages with their headers. Copying so much costs
/// less than the system call it saves; more would only be copied twice.
pub const STAGING_BYTES: usize = 16 * 1024;

/// How far a machine may be ahead of others that have work, in bytes for a weight of one: one of the longest reads of
/// the pager. Less would have threads sleep between any two requests.
pub const SHARE_LEAD_BYTES: u64 = 128 << 10;

/// Largest weight of a machine. One of weight 64 among others of weight 1 may send 8 MiB before they go on, which takes
/// 7 ms at 10 Gb/s.
pub const SHARE_WEIGHT_MAX: u64 = 64;

/// Machines that have weights of their own: as many as a donor has sessions.
pub const WEIGHTS_MAX: usize = 256;

/// Bytes of answers in one turn of a machine that has rivals: 20 us at 100 Gb/s, 60 us of copying.
pub const SHARE_TURN_BYTES: usize = 256 << 10;

/// Bytes that a donor has on their way to all machines together, while several move pages: twice what 10 Gb/s
/// carries in a round trip of 0.2 ms. At 1 Gb/s a page waits 4 ms behind so much.
pub const SHARE_IN_FLIGHT_BYTES: usize = 512 << 10;

/// What a connection may have on its way in any case: one segment of the loopback's, the largest there is. At 1 Gb/s a
/// page waits 0.5 ms behind it.
pub const SHARE_IN_FLIGHT_BYTES_MIN: usize = 64 << 10;

/// For so long after its last request a machine counts as one that moves pages: a program that faults ten times a
/// second would notice.
pub const SHARE_MEMORY: Duration = Duration::from_millis(100);

/// The slowest link of a donor by which shares hold: 160 Mb/s. A machine that is behind is waited for as long as such
/// a link takes.
pub const SHARE_LINK_BYTES_PER_SECOND_MIN: u64 = 20_000_000;

/// A machine that is behind is waited for at least so long: its thread has to be scheduled.
pub const SHARE_PATIENCE_MIN: Duration = Duration::from_millis(5);

/// And at most so long, whatever the weights.
pub const SHARE_PATIENCE_MAX: Duration = Duration::from_millis(100);

/// A machine that did not catch up is not waited for again until so many times as long have passed, so that at
/// most a tenth of the donor's time is lost to it.
pub const SHARE_EXCUSE_FACTOR: u32 = 10;

/// A donor's thread that waits for requests looks so often whether it shall stop.
pub const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// An RDMA packet without an acknowledgement is sent again after 4.096 us times two to this power: 268 ms...
pub const RDMA_TIMEOUT_EXPONENT: u8 = 16;

/// ... so many times: a queue pair whose peer is gone fails after 1.2 s, before [`REQUEST_DEADLINE`]. With the largest
/// count, 7, soft-RoCE never gives up.
pub const RDMA_RETRIES: u8 = 3;

/// Soft-RoCE sends nothing again: after it has, it may say of a READ that it succeeded, which it did not
/// (`docs/rdma.md`). A lost packet breaks the queue pair, after about as long as the others are waited for: 1.07 s.
pub const SOFT_ROCE_TIMEOUT_EXPONENT: u8 = 18;

/// Reads of one RDMA connection in flight on the network, a usual limit of adapters; others wait in the device.
pub const RDMA_READS_IN_FLIGHT_MAX: u8 = 16;

/// RDMA connections of one session: one for each I/O thread of the borrower.
pub const RDMA_CONNECTIONS_PER_SESSION_MAX: u32 = 64;

/// A backing file is filled with zeroes in steps of this size: long enough for a disk's full speed, short enough that
/// pages do not wait for it.
pub const FILL_STEP_BYTES: usize = 1 << 20;

/// Direct I/O moves whole blocks of this size, in the file and in memory: the largest logical block of disks is a page.
pub const DIRECT_ALIGNMENT_BYTES: usize = PAGE_SIZE_BYTES;

/// Buffers in one run of the background writer: 1 MiB of single pages, which a disk writes at its full speed.
pub const RUN_PIECES_MAX: usize = 256;

/// A waiter spins at most so long before it sleeps. Between two page-ins of one program the kernel wakes up to two
/// halted CPUs (its loop worker's and the program's; measured: 40 to 60 us each) and the program works 15 us: a
/// waiter that gives up before that always spins without success, and the next page-in wakes a third CPU, ours.
pub const SPIN_DURATION_MAX: Duration = Duration::from_micros(150);
/// A waiter that spins does so at least this long: a loopback round trip (measured: 5 to 10 us) with some slack.
pub const SPIN_DURATION_MIN: Duration = Duration::from_micros(20);

/// Two polls of a spinning waiter that lie further apart mean that other work took the CPU: many times what a poll
/// takes (below 1 us), below a scheduler's slice (milliseconds).
pub const SPIN_GAP_MAX: Duration = Duration::from_micros(200);

/// Where spinning does not pay, one wait in so many tries it again: 150 us in 1024 waits is lost in the noise.
pub const WAITS_WITHOUT_SPIN_MAX: u32 = 1023;

/// Longest datagram of the membership: what IPv6 carries unbroken everywhere (1280 bytes, RFC 8200) without the headers
/// of IPv6 and UDP.
pub const DATAGRAM_BYTES_MAX: usize = 1280 - 40 - 8;
/// Before the message of a datagram: mark, version, kind (8 bytes) and the nonce (24).
pub const DATAGRAM_HEADER_BYTES: usize = 8 + 24;
/// Behind it: the tag of Poly1305.
pub const DATAGRAM_TAG_BYTES: usize = 16;
/// Longest message of foca's, after the byte that says its kind; pages are as long.
pub const MEMBERSHIP_MESSAGE_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - DATAGRAM_HEADER_BYTES - DATAGRAM_TAG_BYTES - 1;

/// Machines of a cluster, living and dead: four times the thousand that the simulation is made for.
pub const MEMBERS_MAX: usize = 4096;
/// Machines with one identity that are told, and addresses of each: more than a line holds.
pub const TWINS_TOLD_MAX: usize = 8;
/// Updates and rumors that wait to be passed on: one for each machine of the largest cluster.
pub const RUMORS_WAITING_MAX: usize = MEMBERS_MAX;
/// Senders whose repeated datagrams are known: every machine of the largest cluster.
pub const SENDERS_REMEMBERED_MAX: usize = MEMBERS_MAX;
/// Seeds: one datagram is sent to each at the start.
pub const SEEDS_MAX: usize = 64;
/// Members in one page: those without an announcement fill a datagram with as many.
pub const PAGE_ENTRIES_MAX: usize = 32;
/// Longest name, zone, rack and release in an announcement.
pub const LABEL_BYTES_MAX: usize = 32;

/// Every machine probes one other per period: SWIM's and memberlist's second.
pub const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// A probe without an answer goes through others after so long: memberlist's half second, less the way back.
pub const PROBE_PATIENCE: Duration = Duration::from_millis(400);
/// So many others (memberlist's three).
pub const PROBES_INDIRECT: usize = 3;
/// As long as there are rumors, so many members hear them at each interval: four datagrams a second, against
/// memberlist's fifteen, as probes and their answers carry rumors too.
pub const GOSSIP_INTERVAL: Duration = Duration::from_millis(500);
/// See [`GOSSIP_INTERVAL`].
pub const GOSSIP_FANOUT: usize = 2;
/// A member that is taken for dead is greeted so often, one at a time: after a partition, all machines have met one of
/// the other side within a few intervals.
pub const DOWN_ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);
/// A dead member is remembered for a day (foca's own choice): no late rumor brings it back.
pub const DOWN_REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// A machine tells changes of itself at most so often...
pub const ANNOUNCE_INTERVAL_MIN: Duration = Duration::from_secs(5);
/// ... and more rarely in a large cluster, by so much for each member and each repetition of a rumor: with 32 machines
/// every five seconds, with 1000 every 300.
pub const ANNOUNCE_INTERVAL_PER_REPETITION: Duration = Duration::from_millis(23);
/// Pages are pulled so often while they bring new members: a list of 1000 is there after some ten seconds.
pub const PULL_INTERVAL_FAST: Duration = Duration::from_millis(200);
/// And so often when they do not.
pub const PULL_INTERVAL_SLOW: Duration = Duration::from_secs(2);

/// A machine that knows no member greets its seeds so often at first...
pub const JOIN_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// ... and so often in the end.
pub const JOIN_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// A machine that knows members greets one seed that is none of them so often.
pub const SEED_INTERVAL: Duration = Duration::from_secs(30);
/// Names are looked up again after so long: a usual lifetime of DNS records in clusters (Kubernetes: 30 s).
pub const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// A machine that was taken for dead returns with a generation so much higher, and with twice as much each time that
/// this did not help. Generations are milliseconds of the clock at the start.
pub const GENERATION_STEP: u64 = 60_000;
/// Doublings of [`GENERATION_STEP`]: after so many, a step is longer than a century.
pub const GENERATION_DOUBLINGS_MAX: u32 = 26;
/// A generation so far above this machine's clock is not believed: a hundred years. Clocks that are wrong say a year
/// from 1970 to 2099. Because the bound rises with time, no generation that is believed stays the highest one.
pub const GENERATION_AHEAD_MAX: u64 = 100 * 365 * 24 * 3_600_000;
/// A clock that says an earlier time than the beginning of 2026 is wrong, and counts as that time.
pub const CLOCK_MS_MIN: u64 = 1_767_225_600_000;
/// A machine that was taken for dead returns at once, and again only after so long...
pub const REJOIN_PAUSE_MIN: Duration = Duration::from_secs(1);
/// ... which doubles up to this: what two machines with one address, or a hostile one, can cause.
pub const REJOIN_PAUSE_MAX: Duration = Duration::from_secs(30);
/// An announcement of a number so high leaves its machine no room to contradict, so that it begins a new life: at one
/// announcement in five seconds this is reached after centuries.
pub const SEQUENCE_MAX: u32 = u32::MAX - (1 << 20);
/// A suspicion of an incarnation so high, of 65,536, is answered by a new life at its pace, and not by a higher
/// incarnation: the protocol would begin new lives without a pace at the last one.
pub const INCARNATION_MAX: u16 = u16::MAX - 1;
/// What strangers cause is written into the log once in so long: some hundred bytes, so 1 MB a day at most.
pub const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

const _: () = {
    assert!(SPIN_DURATION_MIN.as_micros() < SPIN_DURATION_MAX.as_micros());
    assert!(SPIN_DURATION_MAX.as_micros() < SPIN_GAP_MAX.as_micros());
    assert!(REQUEST_SIZE_BYTES_MAX.is_multiple_of(PAGE_SIZE_BYTES));
    assert!(DISCARD_STEP_BYTES.is_multiple_of(PAGE_SIZE_BYTES));
    assert!(SHARE_IN_FLIGHT_BYTES_MIN < SHARE_IN_FLIGHT_BYTES && SHARE_IN_FLIGHT_BYTES < SOCKET_BUFFER_BYTES);
    assert!(SHARE_PATIENCE_MIN.as_micros() < SHARE_PATIENCE_MAX.as_micros());
    assert!(SHARE_PATIENCE_MAX.as_micros() <= STOP_CHECK_INTERVAL.as_micros());
    assert!(CREDITS_RESERVED_FOR_DEMAND + CREDITS_RESERVED_FOR_PREFETCH < QUEUE_DEPTH_MAX);
    assert!(SLAB_SIZE_BYTES_MIN >= REQUEST_SIZE_BYTES_MAX as u64);
    assert!(SLAB_SIZE_BYTES_MAX <= u32::MAX as u64);
    assert!(NAME_BYTES_MAX + REASON_BYTES_MAX + 128 <= CONTROL_MESSAGE_BYTES_MAX);
    assert!(CONTROL_MESSAGE_BYTES_MAX + 16 <= u16::MAX as usize);
    assert!(SLABS_PER_MESSAGE_MAX * 16 + 64 <= CONTROL_MESSAGE_BYTES_MAX);
    assert!(SILENCE_DEADLINE.as_millis() >= 4 * HEARTBEAT_INTERVAL.as_millis());
    assert!(SOLE_COPY_PATIENCE.as_millis() > SILENCE_DEADLINE.as_millis());
    assert!(SOLE_COPY_PATIENCE.as_millis() > REQUEST_DEADLINE.as_millis());
    assert!(REQUEST_DEADLINE.as_millis() >= 10 * LOOK_INTERVAL_MAX.as_millis());
    assert!(STALL_NOTICED.as_millis() + HEARTBEAT_INTERVAL.as_millis() < REQUEST_DEADLINE.as_millis());
    assert!(2 * PROBE_PATIENCE.as_millis() < PROBE_PERIOD.as_millis());
    assert!(PAGE_ENTRIES_MAX <= u8::MAX as usize && LABEL_BYTES_MAX <= u8::MAX as usize);
    assert!(SENDERS_REMEMBERED_MAX >= MEMBERS_MAX);
    assert!(GENERATION_STEP << GENERATION_DOUBLINGS_MAX > GENERATION_AHEAD_MAX);
    assert!(REJOIN_PAUSE_MIN.as_millis() < REJOIN_PAUSE_MAX.as_millis());
};
