//! What a device says of itself: the content of `spillway status`, `swap status` and `run --stats`.

use serde::{Deserialize, Serialize};
use spillway_block::latency::LatencyStatus;
use spillway_block::metrics::TrafficStatus;

/// A device and everything behind it, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The name it was started with.
    pub name: String,
    /// The block device, such as `/dev/loop0`, or the address of an NBD server.
    pub path: String,
    /// How it reaches the kernel (`loop-fuse`), and why that one was taken.
    pub frontend: String,
    /// Bytes of the device.
    pub size_bytes: u64,
    /// Bytes of a slab.
    pub slab_size_bytes: u64,
    /// The setting, as text.
    pub redundancy: String,
    /// When slabs get their donor: `demand` or `activity`.
    pub mapping: String,
    /// How pages are protected: `sealed` (encrypted and authenticated), `checked` (a checksum) or `plain`.
    #[serde(default)]
    pub protection: String,
    /// Pages written that did not leave, as each was one word over and over.
    #[serde(default)]
    pub pages_same_filled: u64,
    /// `ok`, or why it is less safe or slower than asked, in words (disk only, a copy missing, backing file failing).
    pub health: String,
    /// An I/O thread panicked, with this message, and every request fails; null while all is well.
    #[serde(default)]
    pub failure: Option<String>,
    /// Slabs by state.
    pub slabs: SlabCounts,
    /// Every donor known to this device.
    pub donors: Vec<DonorLinkStatus>,
    /// Pages stored now (written and not discarded).
    pub pages_stored: u64,
    /// Pages whose every copy was lost; reading one fails.
    pub pages_lost: u64,
    /// The copy on disk.
    pub disk: Option<DiskStatus>,
    /// Traffic since the start.
    pub traffic: TrafficStatus,
}

/// Slabs by state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlabCounts {
    /// No donor holds them; nothing was written, or only the disk has it.
    pub unmapped: u64,
    /// All copies in place.
    pub mapped: u64,
    /// Fewer copies than the setting asks for, or a copy is being filled.
    pub degraded: u64,
    /// Being moved to another donor.
    pub migrating: u64,
    /// Hold pages that no copy has any more.
    pub lost: u64,
}

/// One donor as this device sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DonorLinkStatus {
    /// The address that was given.
    pub address: String,
    /// The donor's identity; empty until it answered once.
    pub donor: String,
    /// `connected`, `connecting`, or `lost`.
    pub state: String,
    /// `shm`, `rdma` or `tcp`; empty until connected.
    pub transport: String,
    /// Slabs that are reached over TCP although the session has RDMA: the donor could not register them.
    #[serde(default)]
    pub slabs_by_tcp: u64,
    /// Why that one, where another was wished for or is faster; else empty.
    #[serde(default)]
    pub transport_reason: String,
    /// Slabs of this device that it holds.
    pub slabs: u64,
    /// Memory that it said it can still lend.
    pub free_bytes: u64,
    /// Its zone, if it said one.
    #[serde(default)]
    pub zone: String,
    /// Its rack, if it said one.
    #[serde(default)]
    pub rack: String,
    /// The last reason for a lost connection or a refusal.
    pub last_error: String,
    /// Whether it is being removed: its slabs go elsewhere, and then it is used no more.
    #[serde(default)]
    pub is_leaving: bool,
    /// Pages from it that were not what was written.
    #[serde(default)]
    pub wrong_pages: u64,
    /// There were too many of them: its slabs are moved to other donors, and it gets no more.
    #[serde(default)]
    pub is_distrusted: bool,
    /// How fast it answers; of donors that are reached over sockets.
    #[serde(default)]
    pub latency: DonorLatencyStatus,
}

/// How fast one donor answers this device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DonorLatencyStatus {
    /// Reads of the last ten to twenty seconds, from post to answer. Nothing of a donor whose memory is mapped here.
    pub reads: LatencyStatus,
    /// How long it has owed an answer and sent none, in microseconds; zero when it owes none.
    pub waiting_us: f64,
    /// Whether reads avoid it, again and again: it let them wait for ten times as long as is usual.
    pub is_slow: bool,
    /// Reads that waited for so long that another copy was asked.
    pub reads_taken_elsewhere: u64,
}

/// The backing file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its path.
    pub path: String,
    /// Pages accepted and not yet on disk.
    pub backlog_pages: u64,
    /// The bound of the backlog.
    pub backlog_pages_max: u64,
    /// Pages written since the start.
    pub pages_written: u64,
    /// How far the file has all its blocks before they are needed: a percentage, `all`, why not, or `not reserved` (a
    /// device that is not the machine's swap takes them as pages are written, so a disk that others fill may lack
    /// them).
    #[serde(default)]
    pub blocks: String,
    /// Why pages go through the page cache, if they do: that takes memory for each page that is to be freed.
    #[serde(default)]
    pub buffered_reason: Option<String>,
    /// Pages from it that were not what was written.
    #[serde(default)]
    pub wrong_pages: u64,
    /// Writes that failed (full, I/O error); their pages live at donors only.
    pub write_errors: u64,
    /// The last error, in words.
    pub last_error: String,
}
