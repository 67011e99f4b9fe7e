//! What a donor tells about itself.

use serde::{Deserialize, Serialize};

/// A donor's state at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorStatus {
    /// The donor's id, in hexadecimal digits; another one after each start.
    pub id: String,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Most it may lend.
    pub quota_bytes: u64,
    /// What it lends.
    pub lent_bytes: u64,
    /// What it holds ready for the next leases.
    pub prepared_bytes: u64,
    /// What it leaves to the machine's own programs.
    pub headroom_bytes: u64,
    /// The machine's available memory, smoothed.
    pub available_bytes: u64,
    /// What it could lend now.
    pub free_to_lend_bytes: u64,
    /// Whether it lends nothing any more.
    pub draining: bool,
    /// Borrowers that ended without a goodbye and whose slabs are kept for a while.
    #[serde(default)]
    pub sessions_lingering: u64,
    /// Its borrowers.
    pub sessions: Vec<SessionStatus>,
    /// How recalls went.
    pub recalls: RecallCounts,
    /// What happened since the start.
    pub counters: Counters,
}

/// One borrower.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its id, in hexadecimal digits.
    pub borrower: String,
    /// The volume's name.
    pub volume: String,
    /// Where it connected from.
    pub peer: String,
    /// How its pages travel: `shm`, `rdma` or `tcp`.
    pub transport: String,
    /// Slabs it holds.
    pub slabs: usize,
    /// Bytes of those.
    pub lent_bytes: u64,
    /// Bytes of pages it has read. `None` over shared memory and RDMA, where the donor sees nothing of it: the
    /// borrower's own figures tell.
    pub read_bytes: Option<u64>,
    /// Bytes of pages it has written; like `read_bytes`.
    pub written_bytes: Option<u64>,
    /// What its machine gets of the bandwidth over TCP, in relation to others. `None` over shared memory and RDMA,
    /// where the donor moves no page and can share nothing out.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// What happened since the donor's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Sessions that went on with the slabs of one that had ended without a goodbye.
    #[serde(default)]
    pub sessions_resumed: u64,
    /// Connections that were turned away: no key, another version, another program, too many.
    pub connections_refused: u64,
    /// Slabs lent.
    pub leases_granted: u64,
    /// Slabs not lent for lack of memory.
    pub leases_refused: u64,
    /// Leases that had to wait for their slab to be made.
    pub leases_unprepared: u64,
    /// Slabs lent that are not locked in memory: this machine may swap them out.
    pub slabs_unlocked: u64,
}

/// How recalls went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecallCounts {
    /// Slabs asked back; a repeated request counts once.
    pub asked: u64,
    /// Of those, released or lost with their session.
    pub returned: u64,
    /// Of those asked back, the ones that may stay: a drain was undone.
    #[serde(default)]
    pub withdrawn: u64,
    /// Of those not returned, past their deadline now.
    pub overdue: u64,
}
