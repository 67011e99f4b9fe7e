//! What a device says of itself: the content of `spillway status`, `swap status` and `run --stats`.

use serde::{Deserialize, Serialize};
use spillway_block::latency::LatencyStatus;
use spillway_block::metrics::TrafficStatus;

use crate::limits::SLAB_SQUARES_MAX;

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
    /// Where the slabs are, and how much they were used.
    #[serde(default)]
    pub slab_map: SlabMapStatus,
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
    /// The bound of its page traffic; null for none.
    #[serde(default)]
    pub bandwidth: Option<BandwidthStatus>,
}

/// A bound of page traffic, and what it did since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthStatus {
    /// The bound: bytes of pages a second, both directions together.
    pub bytes_per_second: u64,
    /// Requests that had to wait for it; prefetches that waited are not counted.
    pub requests_held: u64,
    /// How long these waited together, in microseconds.
    pub held_us: u64,
}

/// The slabs in order, as squares of a picture: at most [`SLAB_SQUARES_MAX`], each of neighbouring slabs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabMapStatus {
    /// Slabs that share a square; the last square may have fewer.
    pub slabs_per_square: u64,
    /// Page I/Os of each square since the start: two looks tell how hot it is.
    pub accesses: Vec<u64>,
    /// The place in [`DeviceStatus::donors`] of the donor that has the first copy of the square's first slab with one;
    /// null without a copy at a donor.
    pub donors: Vec<Option<u16>>,
}

impl SlabMapStatus {
    /// Of all slabs in order: their page I/Os, and the place of their donor.
    pub fn new(slabs: impl ExactSizeIterator<Item = (u64, Option<u16>)>) -> Self {
        let slabs_per_square = slabs.len().div_ceil(SLAB_SQUARES_MAX).max(1);
        let square_count = slabs.len().div_ceil(slabs_per_square);
        let (mut accesses, mut donors) = (vec![0; square_count], vec![None; square_count]);
        for (slab, (of_slab, donor)) in slabs.enumerate() {
            let square = slab / slabs_per_square;
            accesses[square] += of_slab;
            donors[square] = donors[square].or(donor);
        }
        Self { slabs_per_square: slabs_per_square as u64, accesses, donors }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(slabs: &[(u64, Option<u16>)]) -> SlabMapStatus {
        SlabMapStatus::new(slabs.iter().copied())
    }

    #[test]
    fn a_small_volume_has_a_square_for_each_slab() {
        let map = squares(&[(5, Some(1)), (0, None), (7, Some(0))]);
        assert_eq!((map.slabs_per_square, map.accesses), (1, vec![5, 0, 7]));
        assert_eq!(map.donors, [Some(1), None, Some(0)]);
        assert!(squares(&[]).accesses.is_empty());
    }

    #[test]
    fn squares_are_bounded_and_nothing_is_left_out() {
        for count in [SLAB_SQUARES_MAX, SLAB_SQUARES_MAX + 1, 10 * SLAB_SQUARES_MAX + 3] {
            let slabs: Vec<_> = (0..count).map(|slab| (1, (slab == count - 1).then_some(3))).collect();
            let map = squares(&slabs);
            assert!(map.accesses.len() <= SLAB_SQUARES_MAX && map.donors.len() == map.accesses.len());
            assert_eq!(map.accesses.iter().sum::<u64>(), count as u64);
            assert_eq!(map.donors.iter().flatten().collect::<Vec<_>>(), [&3]);
        }
    }
}
