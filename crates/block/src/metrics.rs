//! Counters and latency distributions of a device, shared by its I/O threads without locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::cpu_idle::AwakeFigures;
use crate::request::{BlockOperation, BlockRequest};

/// Buckets per power of two: a figure is exact to 1/16.
const BUCKETS_PER_OCTAVE: usize = 16;
/// Octaves of nanoseconds: up to 2^40 ns, 18 minutes.
const OCTAVES: usize = 40;

/// A latency distribution; bucket widths grow with the value (as in HdrHistogram).
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let buckets = (0..BUCKETS_PER_OCTAVE * OCTAVES).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }
}

fn bucket_of(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(BUCKETS_PER_OCTAVE as u64);
    let octave = value.ilog2() as usize;
    let fraction = (value >> (octave - 4)) as usize & (BUCKETS_PER_OCTAVE - 1);
    ((octave - 4) * BUCKETS_PER_OCTAVE + fraction).min(BUCKETS_PER_OCTAVE * OCTAVES - 1)
}

/// The middle of a bucket, in nanoseconds.
fn value_of(bucket: usize) -> f64 {
    let (octave, fraction) = (bucket / BUCKETS_PER_OCTAVE, bucket % BUCKETS_PER_OCTAVE);
    (fraction as f64 + 16.5) * (1u64 << octave) as f64
}

impl LatencyHistogram {
    /// Counts one latency.
    pub fn record(&self, latency: Duration) {
        let nanoseconds = latency.as_nanos().min(u128::from(u64::MAX)) as u64;
        self.buckets[bucket_of(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
        self.max_ns.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// Forgets everything. What others count meanwhile may be forgotten too.
    pub fn clear(&self) {
        self.buckets.iter().chain([&self.sum_ns, &self.max_ns]).for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    /// The distribution so far.
    pub fn status(&self) -> LatencyStatus {
        Self::merged([self].into_iter()).0
    }

    /// The distribution of several together, and how many latencies it has.
    pub fn merged<'a>(parts: impl Iterator<Item = &'a Self>) -> (LatencyStatus, u64) {
        let (mut counts, mut sum_ns, mut max_ns) = (vec![0; BUCKETS_PER_OCTAVE * OCTAVES], 0, 0);
        for part in parts {
            counts.iter_mut().zip(&part.buckets).for_each(|(count, bucket)| *count += bucket.load(Ordering::Relaxed));
            sum_ns += part.sum_ns.load(Ordering::Relaxed);
            max_ns = part.max_ns.load(Ordering::Relaxed).max(max_ns);
        }
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return (LatencyStatus::default(), 0);
        }
        let quantile = |share: f64| {
            let rank = (share * total as f64).ceil() as u64;
            let mut seen = 0;
            let bucket = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            value_of(bucket.unwrap_or(0)) / 1e3
        };
        let status = LatencyStatus {
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            mean_us: sum_ns as f64 / total as f64 / 1e3,
            max_us: max_ns as f64 / 1e3,
        };
        (status, total)
    }
}

/// All counters of a device.
#[derive(Debug, Default)]
pub struct Metrics {
    pages_in: AtomicU64,
    pages_out: AtomicU64,
    pages_discarded: AtomicU64,
    pages_in_from_disk: AtomicU64,
    read_requests: AtomicU64,
    write_requests: AtomicU64,
    failed_requests: AtomicU64,
    read_latency: LatencyHistogram,
    write_latency: LatencyHistogram,
    awake: Arc<AwakeFigures>,
}

impl Metrics {
    /// Counts a request that ended.
    pub fn record(&self, request: &BlockRequest, succeeded: bool, latency: Duration) {
        let add = |counter: &AtomicU64, count: u64| counter.fetch_add(count, Ordering::Relaxed);
        let pages = request.length_bytes / PAGE_SIZE_BYTES as u64;
        if !succeeded {
            add(&self.failed_requests, 1);
            return;
        }
        match request.operation {
            BlockOperation::Read => {
                add(&self.pages_in, pages);
                add(&self.read_requests, 1);
                self.read_latency.record(latency);
            }
            BlockOperation::Write => {
                add(&self.pages_out, pages);
                add(&self.write_requests, 1);
                self.write_latency.record(latency);
            }
            BlockOperation::Discard => {
                add(&self.pages_discarded, pages);
            }
            BlockOperation::Flush => {}
        }
    }

    /// Counts pages that were read from the disk copy.
    pub fn count_disk_pages(&self, pages: u64) {
        if pages > 0 {
            self.pages_in_from_disk.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// Where threads count how long they kept CPUs awake.
    pub fn awake(&self) -> Arc<AwakeFigures> {
        Arc::clone(&self.awake)
    }

    /// Everything so far.
    pub fn status(&self) -> TrafficStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficStatus {
            pages_in: get(&self.pages_in),
            pages_out: get(&self.pages_out),
            pages_discarded: get(&self.pages_discarded),
            pages_in_from_disk: get(&self.pages_in_from_disk),
            read_requests: get(&self.read_requests),
            write_requests: get(&self.write_requests),
            failed_requests: get(&self.failed_requests),
            read_latency: self.read_latency.status(),
            write_latency: self.write_latency.status(),
            cpu_seconds: process_cpu_seconds(),
            bursts: self.awake.bursts(),
            awake_seconds: self.awake.awake().as_secs_f64(),
        }
    }
}

/// CPU time of this process.
fn process_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Counters and latencies since the device started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// Pages read by the kernel (page-ins).
    pub pages_in: u64,
    /// Pages written by the kernel (page-outs).
    pub pages_out: u64,
    /// Pages discarded by the kernel.
    pub pages_discarded: u64,
    /// Pages that were read from the disk copy.
    pub pages_in_from_disk: u64,
    /// Read requests.
    pub read_requests: u64,
    /// Write requests.
    pub write_requests: u64,
    /// Requests that failed.
    pub failed_requests: u64,
    /// Latency of read requests inside the device.
    pub read_latency: LatencyStatus,
    /// Latency of write requests inside the device.
    pub write_latency: LatencyStatus,
    /// CPU time of the device's process so far.
    pub cpu_seconds: f64,
    /// Bursts of page-ins during which idle CPUs were kept awake.
    #[serde(default)]
    pub bursts: u64,
    /// How long in all, over all I/O threads.
    #[serde(default)]
    pub awake_seconds: f64,
}

/// A latency distribution in microseconds; bucketed, so each figure is exact to about 6 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Largest.
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_to_a_sixteenth() {
        for nanoseconds in [16u64, 100, 1_000, 12_345, 1_000_000, 999_999_999] {
            let value = value_of(bucket_of(nanoseconds));
            assert!((value / nanoseconds as f64 - 1.0).abs() < 0.07, "{nanoseconds} -> {value}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS_PER_OCTAVE * OCTAVES - 1);
    }

    #[test]
    fn quantiles_come_from_the_right_end() {
        let histogram = LatencyHistogram::default();
        (0..98).for_each(|_| histogram.record(Duration::from_micros(10)));
        (0..2).for_each(|_| histogram.record(Duration::from_micros(500)));
        let status = histogram.status();
        assert!((9.0..11.0).contains(&status.p50_us));
        assert!((470.0..530.0).contains(&status.p99_us));
        assert_eq!(status.max_us, 500.0);
        assert_eq!(LatencyHistogram::default().status(), LatencyStatus::default());
    }

    #[test]
    fn failed_requests_count_as_nothing_else() {
        let metrics = Metrics::default();
        let request = BlockRequest { slot: 0, operation: BlockOperation::Read, offset_bytes: 0, length_bytes: 8192 };
        metrics.record(&request, true, Duration::from_micros(1));
        metrics.record(&request, false, Duration::from_micros(1));
        let status = metrics.status();
        assert_eq!((status.pages_in, status.read_requests, status.failed_requests), (2, 1, 1));
    }
}
