//! Latency distributions as Prometheus has them: few buckets with fixed bounds.
//!
//! The bounds are powers of two of nanoseconds. Those are borders of the buckets in a report, too
//! ([`spillway_block::latency`]), so no latency is counted in a wrong bucket.

use spillway_block::latency::LatencyStatus;

/// The least bound is 2^10 ns, a microsecond: no fault over any fabric is faster.
const FIRST_POWER: u32 = 10;
/// The largest is 2^34 ns, 17 s: longer than the deadline of a request. More is counted without a bound.
const LAST_POWER: u32 = 34;

/// Buckets with a bound.
pub(crate) const BUCKETS: usize = (LAST_POWER - FIRST_POWER + 1) as usize;

/// A distribution since its source began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// Latencies in each bucket, not summed up.
    counts: [u64; BUCKETS],
    /// Latencies beyond the last bound.
    beyond: u64,
    /// All of them together.
    sum_seconds: f64,
}

/// The bound of a bucket, in seconds.
fn bound_seconds(bucket: usize) -> f64 {
    f64::from(1 << bucket) * f64::from(1 << FIRST_POWER) / 1e9
}

impl Histogram {
    /// The distribution in a report.
    pub(crate) fn of(latency: &LatencyStatus) -> Self {
        let mut histogram = Self::default();
        for (largest_ns, count) in &latency.histogram_ns {
            // The bounds of a report are the largest values of its buckets: 2^power - 1 at the end of an octave.
            let power = u64::BITS - largest_ns.leading_zeros();
            let bucket = power.saturating_sub(FIRST_POWER) as usize;
            *histogram.counts.get_mut(bucket).unwrap_or(&mut histogram.beyond) += count;
        }
        histogram.sum_seconds = latency.mean_us * histogram.count() as f64 / 1e6;
        histogram
    }

    /// All latencies.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.beyond
    }

    /// All of them together, in seconds.
    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_seconds
    }

    /// Bounds in seconds, and what lies below each and above the one before.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        self.counts.iter().enumerate().map(|(bucket, count)| (bound_seconds(bucket), *count)).collect()
    }

    /// What came since `before`; all of it if the source began anew.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let pairs = self.counts.iter().zip(&before.counts).chain([(&self.beyond, &before.beyond)]);
        if pairs.into_iter().any(|(now, then)| now < then) {
            return self.clone();
        }
        let mut since = self.clone();
        since.counts.iter_mut().zip(&before.counts).for_each(|(now, then)| *now -= then);
        since.beyond -= before.beyond;
        // It comes from a mean, and may be off by a rounding.
        since.sum_seconds = (self.sum_seconds - before.sum_seconds).max(0.0);
        since
    }

    /// Counts another one's latencies, too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, others)| *own += others);
        self.beyond += other.beyond;
        self.sum_seconds += other.sum_seconds;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spillway_block::latency::LatencyHistogram;

    use super::*;

    fn of(nanoseconds: &[u64]) -> Histogram {
        let histogram = LatencyHistogram::default();
        nanoseconds.iter().for_each(|value| histogram.record(Duration::from_nanos(*value)));
        Histogram::of(&histogram.status())
    }

    #[test]
    fn no_latency_is_in_a_wrong_bucket() {
        for power in FIRST_POWER..=LAST_POWER {
            let bound = 1_u64 << power;
            let (below, from) = (of(&[bound - 1]), of(&[bound]));
            let bucket = (power - FIRST_POWER) as usize;
            assert_eq!(below.counts[bucket], 1, "2^{power} - 1");
            assert_eq!(from.counts[bucket], 0, "2^{power}");
            assert!((bound_seconds(bucket) - bound as f64 / 1e9).abs() < 1e-12);
        }
        assert_eq!((of(&[20]).counts[0], of(&[1 << 36]).beyond), (1, 1));
    }

    #[test]
    fn differences_and_sums_fit_together() {
        let (before, after) = (of(&[1_500, 3_000]), of(&[1_500, 3_000, 3_000, 1 << 40]));
        let mut sum = before.clone();
        sum.add(&after.since(&before));
        assert_eq!((sum.count(), sum.counts), (after.count(), after.counts));
        assert!((sum.sum_seconds() - after.sum_seconds()).abs() < 1e-6 * after.sum_seconds());
        assert_eq!(before.since(&after), before, "it began anew");
        assert_eq!(sum.buckets().iter().map(|(_, count)| count).sum::<u64>() + sum.beyond, 4);
    }
}
