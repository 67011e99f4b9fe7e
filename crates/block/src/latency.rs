//! Latency distributions: log-linear histograms of a fixed size, as HdrHistogram has them, that threads share.
//!
//! Each power of two of nanoseconds has sixteen buckets of equal width. So a histogram takes 5 KiB, whatever it
//! counts, and a quantile that it gives is wrong by at most 1/32 of its value ([`ERROR_MAX`]). Beside four numbers a
//! report has the buckets themselves, so that the whole distribution can be drawn.
//!
//! Invariants: recording allocates nothing and takes no lock; a latency is counted in exactly one bucket.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets of one power of two: two to the power of [`FRACTION_BITS`].
const BUCKETS_PER_OCTAVE: usize = 1 << FRACTION_BITS;

/// See [`BUCKETS_PER_OCTAVE`]. With four bits a bucket is a sixteenth of its values wide; HdrHistogram has three
/// decimal digits, which would take 64 times the memory for what no figure of ours needs.
const FRACTION_BITS: u32 = 4;

/// Powers of two with buckets, from 2^4 ns on: up to 2^44 ns, almost five hours. Less counts as 16 ns, more in the
/// last bucket.
const OCTAVES: usize = 40;

const BUCKETS: usize = BUCKETS_PER_OCTAVE * OCTAVES;

/// The middle of a bucket stands for all of its values, so a quantile is wrong by at most this part of its value.
pub const ERROR_MAX: f64 = 0.5 / BUCKETS_PER_OCTAVE as f64;

/// A latency distribution; bucket widths grow with the value.
/// ```
/// use std::time::Duration;
///
/// use spillway_block::latency::LatencyHistogram;
///
/// let histogram = LatencyHistogram::default();
/// histogram.record(Duration::from_nanos(1000));
/// histogram.record(Duration::from_nanos(1010));
/// assert_eq!(histogram.status().histogram_ns, [(1023, 2)].into(), "two of at most 1,023 ns");
/// ```
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }
}

fn bucket_of(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(BUCKETS_PER_OCTAVE as u64);
    let shift = value.ilog2() - FRACTION_BITS;
    let fraction = (value >> shift) as usize & (BUCKETS_PER_OCTAVE - 1);
    (shift as usize * BUCKETS_PER_OCTAVE + fraction).min(BUCKETS - 1)
}

/// The least and the largest value of a bucket, in nanoseconds. The last bucket has larger ones, too.
fn bounds_ns(bucket: usize) -> (u64, u64) {
    let (shift, fraction) = (bucket / BUCKETS_PER_OCTAVE, bucket % BUCKETS_PER_OCTAVE);
    let least = ((BUCKETS_PER_OCTAVE + fraction) as u64) << shift;
    (least, least + (1 << shift) - 1)
}

/// The middle of a bucket, in microseconds.
fn middle_us(bucket: usize) -> f64 {
    let (least, largest) = bounds_ns(bucket);
    (least as f64 + largest as f64) / 2.0 / 1e3
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
        let (mut counts, mut sum_ns, mut max_ns) = (vec![0; BUCKETS], 0, 0);
        for part in parts {
            counts.iter_mut().zip(&part.buckets).for_each(|(count, bucket)| *count += bucket.load(Ordering::Relaxed));
            sum_ns += part.sum_ns.load(Ordering::Relaxed);
            max_ns = part.max_ns.load(Ordering::Relaxed).max(max_ns);
        }
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return (LatencyStatus::default(), 0);
        }
        let filled = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let status = LatencyStatus {
            p50_us: quantile_us(&counts, total, 0.5),
            p99_us: quantile_us(&counts, total, 0.99),
            mean_us: sum_ns as f64 / total as f64 / 1e3,
            max_us: max_ns as f64 / 1e3,
            histogram_ns: filled.map(|(bucket, count)| (bounds_ns(bucket).1, *count)).collect(),
        };
        (status, total)
    }
}

/// The value that the `share` of all `total` latencies does not exceed.
fn quantile_us(counts: &[u64], total: u64, share: f64) -> f64 {
    let rank = (share * total as f64).ceil() as u64;
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    });
    middle_us(bucket.unwrap_or(0))
}

/// A latency distribution. Median and 99th percentile are the middles of their buckets: exact to about 3 %.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Largest.
    pub max_us: f64,
    /// All of it: how many latencies lie between the bucket below and this largest value of theirs, in nanoseconds.
    /// Buckets without any are left out. A bucket is at most a sixteenth of its values wide.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histogram_ns: BTreeMap<u64, u64>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_one_another_without_a_gap() {
        for bucket in 0..BUCKETS - 1 {
            let ((least, largest), (next, _)) = (bounds_ns(bucket), bounds_ns(bucket + 1));
            assert_eq!(largest + 1, next);
            assert_eq!([least, largest].map(bucket_of), [bucket; 2]);
        }
        assert_eq!([0, 16, u64::MAX].map(bucket_of), [0, 0, BUCKETS - 1]);
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
    fn threads_that_share_one_and_threads_with_one_each_count_the_same() {
        let (shared, own) = (LatencyHistogram::default(), [(); 4].map(|()| LatencyHistogram::default()));
        std::thread::scope(|scope| {
            for (thread, own) in own.iter().enumerate() {
                let shared = &shared;
                scope.spawn(move || {
                    for latency in (0..5000).map(|step| Duration::from_nanos(100 + 997 * step * (thread as u64 + 1))) {
                        shared.record(latency);
                        own.record(latency);
                    }
                });
            }
        });
        let (merged, count) = LatencyHistogram::merged(own.iter());
        assert_eq!((&merged, count), (&shared.status(), 20_000));
        assert_eq!(merged.histogram_ns.values().sum::<u64>(), count);
    }

    #[test]
    fn the_buckets_are_in_the_json_only_if_there_are_any() {
        let histogram = LatencyHistogram::default();
        let text = serde_json::to_string(&histogram.status()).unwrap();
        assert_eq!(text, r#"{"p50_us":0.0,"p99_us":0.0,"mean_us":0.0,"max_us":0.0}"#, "as it was before");
        assert_eq!(serde_json::from_str::<LatencyStatus>(&text).unwrap(), LatencyStatus::default());
        [5, 100, 100].into_iter().for_each(|microseconds| histogram.record(Duration::from_micros(microseconds)));
        let status = histogram.status();
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.ends_with(r#""histogram_ns":{"5119":1,"102399":2}}"#), "{text}");
        assert_eq!(serde_json::from_str::<LatencyStatus>(&text).unwrap(), status);
        let value = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<LatencyStatus>(value).unwrap(), status, "by way of a value, too");
    }

    proptest! {
        #[test]
        fn quantiles_are_within_their_bound(
            mut nanoseconds in prop::collection::vec((4_u32..40, any::<u64>()), 1..300),
        ) {
            let histogram = LatencyHistogram::default();
            // Of every power of two equally many: a plain range would hardly ever give a small one.
            let mut nanoseconds: Vec<u64> =
                nanoseconds.drain(..).map(|(power, rest)| (1 << power) + rest % (1 << power)).collect();
            nanoseconds.iter().for_each(|value| histogram.record(Duration::from_nanos(*value)));
            nanoseconds.sort_unstable();
            let status = histogram.status();
            for (share, found_us) in [(0.5, status.p50_us), (0.99, status.p99_us)] {
                let rank = (share * nanoseconds.len() as f64).ceil() as usize;
                let exact_us = nanoseconds[rank - 1] as f64 / 1e3;
                prop_assert!((found_us / exact_us - 1.0).abs() <= ERROR_MAX, "{found_us} for {exact_us}");
            }
            for bound_ns in status.histogram_ns.keys() {
                let up_to: u64 = status.histogram_ns.range(..=bound_ns).map(|(_, count)| count).sum();
                prop_assert_eq!(up_to as usize, nanoseconds.partition_point(|value| value <= bound_ns));
            }
        }
    }
}
