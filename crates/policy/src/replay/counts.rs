//! What a replay found, and what that would cost.

/// A cheap fault, in nanoseconds: the bare userfaultfd floor with the handler on the faulting CPU was measured at 3.4
/// to 4 us.
pub const LOCAL_FAULT_NS: u64 = 4000;

/// What a fault that asks a donor costs beyond a cheap one: a raw exchange of 4 KiB over TCP on one host, waking
/// included, was measured at 15 to 20 us; the network of the papers takes 4 to 10, a busy one more.
pub const EXCHANGE_NS: u64 = 16_000;

/// What each page after the first of one request adds to its time: 4 KiB at 4 GB/s.
pub const TRANSFER_NS: u64 = 1000;

/// What a page that is brought along takes of the pager's time, and so of the program's when both share a CPU.
pub const MAPPING_NS: u64 = 600;

/// Counters of one replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses.
    pub accesses: u64,
    /// Faults that had to ask a donor.
    pub refaults: u64,
    /// Faults on pages that had left the program and were still local.
    pub staged_hits: u64,
    /// Write-protect faults.
    pub write_faults: u64,
    /// Pages that left the program.
    pub evicted: u64,
    /// Pages that left local memory with a write.
    pub written: u64,
    /// Requests that these writes took: neighbours go together.
    pub write_requests: u64,
    /// Pages that were brought along.
    pub prefetched: u64,
    /// Of those, used before they left.
    pub prefetch_used: u64,
    /// Of those, asked for before they had arrived.
    pub prefetch_late: u64,
    /// Cheap faults on markers.
    pub marker_faults: u64,
    /// What the program waited, in nanoseconds.
    pub lost_ns: u64,
}

impl Counts {
    /// Of the pages brought along, the part that was used.
    pub fn accuracy(&self) -> f64 {
        part(self.prefetch_used, self.prefetched)
    }

    /// Of the pages that were needed from afar, the part that had been brought along.
    pub fn coverage(&self) -> f64 {
        part(self.prefetch_used, self.prefetch_used + self.refaults)
    }

    /// Of the pages that were brought along and used, the part that was there in time.
    pub fn timeliness(&self) -> f64 {
        part(self.prefetch_used - self.prefetch_late, self.prefetch_used)
    }

    /// By how much more pages were needed from afar than `without` prefetching, as a part of those: they had made
    /// room for pages that was not asked for, or asked for later.
    pub fn pollution(&self, without: &Self) -> f64 {
        part((self.prefetch_used + self.refaults).saturating_sub(without.refaults), without.refaults)
    }
}

/// `one` of `all`; 0 when there is nothing.
fn part(one: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { one as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_counts() {
        let without = Counts { refaults: 100, ..Counts::default() };
        let with = Counts { refaults: 30, prefetched: 160, prefetch_used: 80, prefetch_late: 20, ..Counts::default() };
        assert_eq!((with.accuracy(), with.timeliness()), (0.5, 0.75));
        assert!((with.coverage() - 80.0 / 110.0).abs() < 1e-9);
        assert!((with.pollution(&without) - 0.1).abs() < 1e-9);
        assert_eq!(without.pollution(&without), 0.0);
    }

    #[test]
    fn nothing_is_no_part_of_nothing() {
        let none = Counts::default();
        assert_eq!([none.accuracy(), none.coverage(), none.timeliness()], [0.0; 3]);
        assert_eq!(none.pollution(&none), 0.0);
    }
}
