//! Every bound of the front ends, with its origin. Relations between them are checked at compile time.

use std::time::Duration;

use spillway_block::limits::{BLOCK_REQUEST_DEADLINE_SOLE, SLOTS_PER_THREAD};
use spillway_fabric::limits::REQUEST_SIZE_BYTES_MAX;
use spillway_fabric::units::PAGE_SIZE_BYTES;

/// Pages of one FUSE request: the kernel's own bound (`fs.fuse.max_pages_limit`), 1 MiB.
pub const FUSE_PAGES_MAX: u16 = 256;

/// Queues of the kernel that one I/O thread serves at most, where requests pass through rings. More CPUs get more
/// threads.
pub const RING_QUEUES_PER_THREAD_MAX: usize = 4;

/// CPUs of a machine whose requests pass through rings. Each queue has slots of its own, of 1 MiB each, whether its
/// CPU has requests or not, and larger machines have kernels with ublk or NBD.
pub const RING_CPUS_MAX: u16 = 16;

/// Largest request that the loop device's queue may build. A request has at most 128 segments (`BLK_MAX_SEGMENTS`),
/// each of which may start in the middle of a page and then touches one page more than it has bytes for: 512 KiB of
/// them touch at most 128 + 128 = [`FUSE_PAGES_MAX`] pages, so FUSE never cuts a request, least of all in the middle
/// of a page.
pub const QUEUE_REQUEST_KIB_MAX: usize = 512;

/// I/O threads of one device.
pub const THREADS_MAX: usize = 64;

/// Slots of one I/O thread at most, 1 MiB each.
pub const SLOTS_PER_THREAD_MAX: usize = 64;

/// Characters of a device's name, so that it fits with its owner into a loop device's name of 63 bytes.
pub const NAME_LENGTH_MAX: usize = 24;

/// How long the kernel may take for the first FUSE request after a mount; it is queued within the mount call.
pub const MOUNT_DEADLINE: Duration = Duration::from_secs(5);

/// How long a device that is dropped without a detach may stay busy before it is left to its users: longer than a
/// prober such as udev keeps it open.
pub const DROP_DEADLINE: Duration = Duration::from_secs(1);

/// Pause between attempts while the device is open.
pub const DETACH_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Data of one NBD request: what a slot holds. Told to ordinary clients, and set as the limit of the kernel's queue.
pub const NBD_REQUEST_BYTES_MAX: usize = REQUEST_SIZE_BYTES_MAX;

/// Data of a refused write that is read and thrown away so that the connection can go on: what clients may send to a
/// server that told them nothing (the protocol's "block size constraints"). A client that sends more loses its
/// connection.
pub const NBD_SKIPPED_BYTES_MAX: u64 = 32 << 20;

/// Bytes that an NBD channel reads ahead, to take several requests, or one with its page, from the socket at once:
/// the headers of a full set of slots, or three pages. Data beyond them lands straight in its slot.
pub const NBD_AHEAD_BYTES: usize = 16 * 1024;

/// Data of an option during the handshake: an export name may have 4096 bytes, and what is asked about it a few more.
pub const NBD_OPTION_BYTES_MAX: usize = 8 * 1024;

/// A client that has not finished its handshake by then makes way for another.
pub const NBD_HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// A request that the kernel's NBD client sent is answered so long after the service must have done so, or its
/// connection is given up: only a server that is stopped or dead is meant. Timers of the kernel are coarse; the whole
/// is 15 seconds for a volume with a disk, 45 for others.
pub const NBD_TIMEOUT_MARGIN: Duration = Duration::from_secs(3);

/// How long the requests of a recoverable NBD device wait for another process.
pub const NBD_RECOVERY_WAIT: Duration = Duration::from_secs(60);

/// How long the kernel may take to notice that a connection's other end is gone.
pub const NBD_RECONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// A client on the network that says nothing for so long is asked whether it is still there.
pub const NBD_KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// How often, and how many times without an answer, before it is taken for gone: a minute after its last sign.
pub const NBD_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// See [`NBD_KEEPALIVE_INTERVAL`].
pub const NBD_KEEPALIVE_PROBES_MAX: u32 = 3;

/// What a client's socket takes of answers before the client reads: the largest one.
pub const NBD_SEND_BUFFER_BYTES: usize = NBD_REQUEST_BYTES_MAX;

/// Connections that an NBD server holds at a time unless told otherwise: twice what `nbdcopy` opens.
pub const NBD_CONNECTIONS_DEFAULT: usize = 8;

/// Requests that a server's connection holds at a time, 1 MiB each: less than a kernel's client gets, because many
/// connections may be idle.
pub const NBD_SERVER_SLOTS: usize = 8;

/// How long the ublk driver may take for one command: what it does at once, and a start, which waits for the I/O
/// threads' first look at their channels.
pub const UBLK_COMMAND_DEADLINE: Duration = Duration::from_secs(5);

/// How long the removal of a ublk block device may take: it waits for the requests in flight, which end by their own
/// deadline.
pub const UBLK_STOP_DEADLINE: Duration = Duration::from_secs(2 * BLOCK_REQUEST_DEADLINE_SOLE.as_secs());

/// How long a deletion waits for our own threads to let go of their channels. The device goes in any case, when they
/// do.
pub const UBLK_DELETE_DEADLINE: Duration = Duration::from_secs(1);

/// How often the kernel looks after a request that is being served. A server that dies with every slot of a queue in
/// hand is noticed only then (seen with Linux 6.12, where it took the block layer's default of 30 s); one that lives
/// is left alone.
pub const UBLK_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the kernel may take to notice that the last server of a ublk device is dead: it ends that process's rings
/// on workers of its own, or looks after a request ([`UBLK_REQUEST_TIMEOUT`], 30 s where that could not be set).
pub const UBLK_RECOVERY_DEADLINE: Duration = Duration::from_secs(40);

/// The largest discard that a ublk device takes at once; longer ones are cut by the kernel. An engine passes over a
/// slab's pages one by one, so this bounds how long other requests of the thread wait for it.
pub const UBLK_DISCARD_SIZE_BYTES_MAX: u64 = 64 << 20;

const _: () = {
    assert!(NBD_OPTION_BYTES_MAX + 16 <= NBD_AHEAD_BYTES, "an option is decoded where it was received");
    assert!(NBD_CONNECTIONS_DEFAULT <= THREADS_MAX && NBD_SERVER_SLOTS <= SLOTS_PER_THREAD_MAX);
    assert!(NBD_REQUEST_BYTES_MAX as u64 <= NBD_SKIPPED_BYTES_MAX);
    assert!(FUSE_PAGES_MAX as usize * PAGE_SIZE_BYTES == REQUEST_SIZE_BYTES_MAX);
    assert!(RING_CPUS_MAX as usize / RING_QUEUES_PER_THREAD_MAX <= THREADS_MAX);
    assert!(RING_QUEUES_PER_THREAD_MAX < SLOTS_PER_THREAD);
    assert!(QUEUE_REQUEST_KIB_MAX * 1024 <= REQUEST_SIZE_BYTES_MAX);
    assert!(SLOTS_PER_THREAD <= SLOTS_PER_THREAD_MAX);
    assert!(SLOTS_PER_THREAD_MAX * REQUEST_SIZE_BYTES_MAX < u32::MAX as usize);
    // The kernel counts requests in the background with 16 bits.
    assert!(THREADS_MAX * SLOTS_PER_THREAD_MAX <= u16::MAX as usize);
};
