//! What a pager did: counters shared by its threads, and their report for `run --stats`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_block::latency::{LatencyHistogram, LatencyStatus};

use crate::mappings::staying_kinds::StayingBytes;
use crate::mappings::staying_tally::{StayingProgram, StayingReport};

/// What a fault needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The page came from a donor or the disk.
    Fill,
    /// The page was still in the write-back pool.
    Staged,
    /// A page of zeroes: touched for the first time, or given up by the program before.
    Zero,
    /// The first write to a page that came in clean.
    Write,
}

/// Faults of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultStatistics {
    /// How many.
    pub count: u64,
    /// From reading the fault's message to its answer.
    pub latency: LatencyStatus,
}

/// How the budget was exceeded for longer than a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BudgetExcess {
    /// For how long in all.
    pub seconds: f64,
    /// The most local memory in that time, 0 if there was none.
    pub local_bytes_peak: u64,
    /// The budget then.
    pub budget_bytes: u64,
    /// Why, in words.
    pub cause: String,
}

/// A report, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PagerStatistics {
    /// See [`FaultKind::Fill`].
    pub fill: FaultStatistics,
    /// See [`FaultKind::Staged`].
    pub staged: FaultStatistics,
    /// See [`FaultKind::Zero`].
    pub zero: FaultStatistics,
    /// See [`FaultKind::Write`].
    pub write: FaultStatistics,
    /// Pages that came back because they were asked for, by how many pages had left since they did: `refaults[i]`
    /// counts distances from 4^i on.
    pub refaults: Vec<u64>,
    /// Time from reading faults' messages to their answers, all together; what the kernel took before, and a fault
    /// thread's waking up, are not in it.
    pub lost_seconds: f64,
    /// Bytes of local memory that programs have now, by the kernel's count, and the write-back pool.
    pub local_bytes: u64,
    /// The largest [`PagerStatistics::local_bytes`] seen.
    pub local_bytes_peak: u64,
    /// Time in which the budget was exceeded by more than a tenth or 16 MiB, whichever is more, and for longer than a
    /// moment.
    #[serde(default)]
    pub excess: BudgetExcess,
    /// The most memory of its own that one program had and that could not leave: of the kinds that count in the
    /// budget ([`StayingKind::is_in_budget`](crate::mappings::staying_kinds::StayingKind::is_in_budget)).
    #[serde(default)]
    pub staying_bytes_peak: u64,
    /// What stayed local of all programs when it was last counted, by kind; objects that several map count once.
    #[serde(default)]
    pub staying: StayingBytes,
    /// The most of each kind so far.
    #[serde(default)]
    pub staying_peak: StayingBytes,
    /// The programs of which most stayed local, also such as have ended; each when it had the most.
    #[serde(default)]
    pub staying_programs: Vec<StayingProgram>,
    /// Bytes whose only copy is not in the programs' memory.
    pub lent_bytes: u64,
    /// The budget now.
    pub budget_bytes: u64,
    /// The largest budget so far.
    pub budget_bytes_peak: u64,
    /// Batches of evictions.
    pub batches: u64,
    /// Of these, batches that were taken back from an evictor that was stopped.
    pub batches_withdrawn: u64,
    /// Pages that left and were written.
    pub pages_out_dirty: u64,
    /// Pages that left without a write, because their copy was valid.
    pub pages_out_clean: u64,
    /// Pages of zeroes that left: neither stored nor sent.
    #[serde(default)]
    pub pages_out_zero: u64,
    /// Pages that came along with another one before they were asked for.
    pub pages_prefetched: u64,
    /// Of these, pages of streams that left again before anything told that they were used. Some may have been: only
    /// markers and first writes tell.
    #[serde(default)]
    pub pages_prefetched_unused: u64,
    /// Blocks of 2 MiB that became huge pages again ([`crate::huge_pages`]).
    #[serde(default)]
    pub huge_pages_given_back: u64,
    /// Of these, huge pages that were split: a page of them left, or the program did it.
    #[serde(default)]
    pub huge_pages_split: u64,
    /// Blocks that the kernel did not make a huge page of.
    #[serde(default)]
    pub huge_pages_refused: u64,
    /// Evictions that the kernel refused (pinned, shared after a fork, changing).
    pub refused: u64,
    /// Faults that waited because the budget was exceeded.
    pub held_back: u64,
    /// Faults that another thread than the first answered, because many came at once.
    pub faults_helped: u64,
    /// Changes of mappings for which another one was waited for ([`crate::mappings::events`]).
    pub doubts: u64,
    /// Times that a program was held for a moment: it changed its mappings without a pause, or filled memory that no
    /// fault could hold back.
    pub pauses: u64,
    /// Forks that waited until all pages were back, because the kernel does not tell this user of forks.
    pub forks: u64,
    /// Such forks that failed with ENOMEM.
    pub forks_refused: u64,
    /// Whether programs are left whose forks wait for this pager, also such as are not paged.
    pub is_asked_before_forks: bool,
    /// Address spaces seen so far (a program, and one more for each fork and exec).
    pub programs: u64,
    /// Address spaces now.
    pub programs_now: u64,
    /// Objects of shared memory whose pages could leave, so far ([`crate::shared_memory`]).
    #[serde(default)]
    pub shared_objects: u64,
    /// Pages that could not be read any more; their programs got SIGBUS.
    pub pages_lost: u64,
    /// What went wrong so far, in words; the oldest first, at most a few.
    pub failures: Vec<String>,
}

/// Refault distances are counted in powers of four: 4^15 pages are 4 TiB.
const DISTANCES: usize = 16;

/// One kind's counters.
#[derive(Debug, Default)]
struct KindCounters {
    count: AtomicU64,
    latency: LatencyHistogram,
    sum_ns: AtomicU64,
}

/// A counter that threads share.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn set_max(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The shared counters; names as in [`PagerStatistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    kinds: [KindCounters; 4],
    refaults: [Counter; DISTANCES],
    pub(crate) local_bytes: Counter,
    pub(crate) local_bytes_peak: Counter,
    pub(crate) staying_bytes_peak: Counter,
    pub(crate) budget_bytes_peak: Counter,
    pub(crate) lent_pages: Counter,
    pub(crate) batches: Counter,
    pub(crate) batches_withdrawn: Counter,
    pub(crate) pages_out_dirty: Counter,
    pub(crate) pages_out_clean: Counter,
    pub(crate) pages_out_zero: Counter,
    pub(crate) pages_prefetched: Counter,
    pub(crate) pages_prefetched_unused: Counter,
    pub(crate) huge_pages_given_back: Counter,
    pub(crate) huge_pages_split: Counter,
    pub(crate) huge_pages_refused: Counter,
    pub(crate) refused: Counter,
    pub(crate) held_back: Counter,
    pub(crate) faults_helped: Counter,
    pub(crate) doubts: Counter,
    pub(crate) pauses: Counter,
    pub(crate) forks: Counter,
    pub(crate) forks_refused: Counter,
    pub(crate) fork_listeners: Counter,
    pub(crate) shared_objects: Counter,
    pub(crate) programs: Counter,
    pub(crate) programs_now: Counter,
    pub(crate) pages_lost: Counter,
}

impl Counters {
    /// Counts a fault that was answered.
    pub(crate) fn fault(&self, kind: FaultKind, latency: Duration) {
        let counters = &self.kinds[kind as usize];
        counters.count.fetch_add(1, Ordering::Relaxed);
        counters.latency.record(latency);
        counters.sum_ns.fetch_add(latency.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a page that came back after `distance` others had left.
    pub(crate) fn refault(&self, distance: u32) {
        let power = distance.max(1).ilog2() as usize / 2;
        self.refaults[power.min(DISTANCES - 1)].add(1);
    }

    /// Everything so far.
    pub(crate) fn report(
        &self,
        budget_bytes: u64,
        excess: &BudgetExcess,
        staying: &StayingReport,
        failures: Vec<String>,
    ) -> PagerStatistics {
        let kind = |kind: FaultKind| {
            let counters = &self.kinds[kind as usize];
            FaultStatistics { count: counters.count.load(Ordering::Relaxed), latency: counters.latency.status() }
        };
        let lost_ns: u64 = self.kinds.iter().map(|counters| counters.sum_ns.load(Ordering::Relaxed)).sum();
        PagerStatistics {
            fill: kind(FaultKind::Fill),
            staged: kind(FaultKind::Staged),
            zero: kind(FaultKind::Zero),
            write: kind(FaultKind::Write),
            refaults: self.refaults.iter().map(Counter::get).collect(),
            lost_seconds: lost_ns as f64 / 1e9,
            local_bytes: self.local_bytes.get(),
            local_bytes_peak: self.local_bytes_peak.get(),
            excess: excess.clone(),
            staying_bytes_peak: self.staying_bytes_peak.get(),
            staying: staying.now,
            staying_peak: staying.peak,
            staying_programs: staying.programs.clone(),
            lent_bytes: self.lent_pages.get() * spillway_fabric::units::PAGE_SIZE_BYTES as u64,
            budget_bytes,
            budget_bytes_peak: self.budget_bytes_peak.get(),
            batches: self.batches.get(),
            batches_withdrawn: self.batches_withdrawn.get(),
            pages_out_dirty: self.pages_out_dirty.get(),
            pages_out_clean: self.pages_out_clean.get(),
            pages_out_zero: self.pages_out_zero.get(),
            pages_prefetched: self.pages_prefetched.get(),
            pages_prefetched_unused: self.pages_prefetched_unused.get(),
            huge_pages_given_back: self.huge_pages_given_back.get(),
            huge_pages_split: self.huge_pages_split.get(),
            huge_pages_refused: self.huge_pages_refused.get(),
            refused: self.refused.get(),
            held_back: self.held_back.get(),
            faults_helped: self.faults_helped.get(),
            doubts: self.doubts.get(),
            pauses: self.pauses.get(),
            forks: self.forks.get(),
            forks_refused: self.forks_refused.get(),
            is_asked_before_forks: self.fork_listeners.get() > 0,
            programs: self.programs.get(),
            programs_now: self.programs_now.get(),
            shared_objects: self.shared_objects.get(),
            pages_lost: self.pages_lost.get(),
            failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_apart_by_kind() {
        let counters = Counters::default();
        counters.fault(FaultKind::Fill, Duration::from_micros(10));
        counters.fault(FaultKind::Fill, Duration::from_micros(30));
        counters.fault(FaultKind::Write, Duration::from_micros(2));
        let report = counters.report(0, &BudgetExcess::default(), &StayingReport::default(), Vec::new());
        assert_eq!((report.fill.count, report.staged.count, report.zero.count, report.write.count), (2, 0, 0, 1));
        assert!((report.lost_seconds - 42e-6).abs() < 1e-9);
        assert!(report.fill.latency.max_us > report.fill.latency.p50_us / 2.0);
    }

    #[test]
    fn refault_distances_are_counted_in_powers_of_four() {
        let counters = Counters::default();
        [0, 1, 3, 4, 15, 16, u32::MAX].into_iter().for_each(|distance| counters.refault(distance));
        let refaults = counters.report(0, &BudgetExcess::default(), &StayingReport::default(), Vec::new()).refaults;
        assert_eq!(&refaults[..4], &[3, 2, 1, 0]);
        assert_eq!(refaults[15], 1);
    }
}
