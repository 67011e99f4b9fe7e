//! Every bound of the donor, with its origin. Relations between them are checked at compile time.

use std::time::Duration;

use spillway_fabric::limits::{HANDSHAKE_DEADLINE, SILENCE_DEADLINE, SLABS_PER_SESSION_MAX, SOLE_COPY_PATIENCE};

/// Borrowers served at once. Infiniswap ran 32 machines, each both borrower and donor, with several containers each.
pub const SESSIONS_MAX: usize = 256;

/// Connections of sessions at once, control and data together: each session has one control and, without shared memory,
/// some 16 data connections; each connection is a thread.
pub const CONNECTIONS_MAX: usize = 1024;

/// How long a new connection waits for one that gave way to leave; that has been shut down, and has only to be
/// scheduled.
pub const ROOM_PATIENCE: Duration = Duration::from_secs(1);

/// Connections that have not proven themselves, at once: those of four borrowers with [`UNPROVEN_PER_SOURCE_MAX`].
/// Those on their way out count, as each is a thread. A handshake takes two round trips, so they make way faster than
/// honest peers come.
pub const UNPROVEN_MAX: usize = 64;

/// Of those, from one source: what one borrower opens, if all of its connections started at once.
pub const UNPROVEN_PER_SOURCE_MAX: usize = 16;

/// Handshakes that one source may begin at once and not finish well: twice what a machine with four volumes opens.
pub const HANDSHAKES_AT_ONCE_MAX: u32 = 128;

/// Later one source may begin one such handshake in so long: a process with a wrong key tries again in seconds.
pub const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(31);

/// The same for all sources together that have proven nothing lately: a cluster of 256 machines that starts at once.
pub const STRANGERS_AT_ONCE_MAX: u32 = 256;

/// Later strangers may begin one handshake in so long. One costs some 0.1 ms of a CPU, so a flood costs 2 % of one.
pub const STRANGERS_INTERVAL: Duration = Duration::from_millis(5);

/// Sources whose handshakes are counted: four for each session, in 64 KiB.
pub const SOURCES_MAX: usize = 1024;

/// How long a source that has proven itself is no stranger: a borrower that lost its donor comes back sooner.
pub const PROVEN_FOR: Duration = Duration::from_secs(3600);

/// So many times the handshakes of a stranger are a proven source's, whose address a hostile program may share: as
/// many as cost 3 % of a CPU.
pub const PROVEN_FACTOR: u32 = 10;

/// Connections that come too often and wait until they show something: at 10,000 strangers a second one of these stays
/// with a chance of 9 in 10 for 0.6 ms, in which its first bytes come.
pub const DOOR_MAX: usize = 64;

/// How often these are looked at, if none sends anything.
pub const DOOR_TURN: Duration = Duration::from_millis(10);

/// First bytes that are remembered, as they count once: those of all sessions four times, in 56 KiB.
pub const SHOWN_MAX: usize = 1024;

/// Connections of sessions from one source: with this, one machine leaves half of [`CONNECTIONS_MAX`] to others.
pub const CONNECTIONS_PER_SOURCE_MAX: usize = CONNECTIONS_MAX / 2;

/// Sessions from one source, for the same reason.
pub const SESSIONS_PER_SOURCE_MAX: usize = SESSIONS_MAX / 2;

/// How often the machine's memory is looked at: a fall is believed after two of these, a rise, with
/// [`AVAILABLE_WEIGHT`], within some seconds.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Weight of the newest sample of available memory (Infiniswap's beta).
pub const AVAILABLE_WEIGHT: f64 = 0.2;

/// Share of the last ten seconds in which some task waited for memory, in percent, from which on the headroom is kept
/// twice as large. Below it, a container at its own limit makes such a pressure although the machine has memory.
pub const PRESSURE_PERCENT_MAX: f64 = 10.0;

/// Volumes that an operator who drains a donor is told by name: more than a line holds.
pub const HOLDERS_TOLD_MAX: usize = 8;

/// How soon recalled slabs are wanted back: moving 1 GiB at 1 Gb/s takes 9 s, and a borrower moves several.
pub const RECALL_DEADLINE: Duration = Duration::from_secs(30);

/// How long borrowers have to tell their slabs' activity before the least active of the known ones are recalled.
pub const ACTIVITY_DEADLINE: Duration = Duration::from_millis(500);

/// Percent of the bytes wanted that are sampled at random for an eviction: E + E' with E' = E, where Infiniswap's
/// analysis finds enough lightly active slabs with a probability of 0.999 while 20 % are busy; measured in
/// docs/decisions/lender.md.
pub const EVICTION_SAMPLE_PERCENT: u64 = 200;

/// A machine that found no room counts as in need for so long: borrowers tell it every second.
pub const NEED_TIME: Duration = Duration::from_secs(3);

/// So much is asked back at once for one machine in need: some seconds at 1 Gb/s.
pub const NEED_BYTES_MAX: u64 = 512 << 20;

/// Most slabs prepared ahead, of each size.
pub const SLABS_PREPARED_MAX: usize = 256;

/// Bytes of a slab that are allocated before others are offered the CPU, if it is made ahead: 0.1 ms. A slab of 32
/// MiB takes 20 ms and more, in turns of the scheduler of 1 to 2 ms. A pager on the same CPU waited for them in the
/// middle of its evictions (docs/decisions/pager-eviction.md).
pub const PREPARE_STEP_BYTES: usize = 256 << 10;

/// Slab sizes that slabs are prepared of at once: devices of one cluster rarely have more than two.
pub const PREPARED_SIZES_MAX: usize = 4;

/// Slabs kept for the questions of one session at a time: a borrower has four placements under way, and an answer or
/// two left over.
pub const RESERVATIONS_PER_SESSION_MAX: usize = 16;

/// After a failed `accept` (no descriptors left) the listener rests so long instead of spinning.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Longest time for which slabs of a borrower that ended without a goodbye are kept, whatever it asks for: its
/// process starts again within seconds, and others may need the memory.
pub const LINGER_MAX: Duration = Duration::from_secs(60);

/// Longest time for which a borrower of another machine is waited for that says nothing while its connection stays
/// open, whatever it asks for: the slabs of one whose machine vanished are no other process's until then. One of this
/// machine is not told anything more after so long.
pub const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// How long a borrower that comes back waits until the threads of its old connections have left: they were woken
/// before.
pub const RESUME_DEADLINE: Duration = Duration::from_secs(2);

/// Stopping waits at most so long for connections' threads, which were woken before.
pub const STOP_DEADLINE: Duration = Duration::from_secs(5);

const _: () = {
    assert!(SESSIONS_MAX < CONNECTIONS_MAX);
    assert!(4 * UNPROVEN_PER_SOURCE_MAX <= UNPROVEN_MAX);
    assert!(UNPROVEN_MAX < CONNECTIONS_MAX);
    assert!(HANDSHAKES_AT_ONCE_MAX as usize >= UNPROVEN_PER_SOURCE_MAX, "the older ones give way first");
    assert!(STRANGERS_AT_ONCE_MAX >= HANDSHAKES_AT_ONCE_MAX && SOURCES_MAX >= SESSIONS_MAX);
    assert!(SESSIONS_PER_SOURCE_MAX <= CONNECTIONS_PER_SOURCE_MAX);
    assert!(SLABS_PREPARED_MAX <= SLABS_PER_SESSION_MAX);
    assert!(RESERVATIONS_PER_SESSION_MAX < SLABS_PER_SESSION_MAX);
    assert!(EVICTION_SAMPLE_PERCENT >= 100, "no fewer are asked about than are wanted");
    assert!(ACTIVITY_DEADLINE.as_millis() < RECALL_DEADLINE.as_millis());
    assert!(PATIENCE_MAX.as_millis() >= SOLE_COPY_PATIENCE.as_millis(), "what borrowers ask for is granted");
    assert!(PATIENCE_MAX.as_millis() >= SILENCE_DEADLINE.as_millis());
    assert!(RESUME_DEADLINE.as_millis() <= HANDSHAKE_DEADLINE.as_millis(), "the borrower waits for a welcome so long");
    assert!(STOP_DEADLINE.as_millis() > HANDSHAKE_DEADLINE.as_millis());
};
