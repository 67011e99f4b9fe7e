//! What the statistics of a pager say of its prefetching: coverage, accuracy, pollution, and how long the program
//! waited for a page that it needed from afar.
//!
//! A page that came along and was used is one that was needed and did not have to be waited for. Whether a page was
//! used is known by markers and first writes only, so accuracy is a lower bound and pollution is by what was seen.

use std::collections::BTreeMap;

use spillway_pager::statistics::PagerStatistics;

/// The shares of needed pages at which the time that they took is told, in thousandths.
pub const SHARES: [u32; 10] = [100, 250, 500, 750, 900, 950, 980, 990, 995, 999];

/// What one run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Faults of all kinds.
    pub faults: u64,
    /// Faults that waited for a donor.
    pub remote_faults: u64,
    /// Pages that came along.
    pub brought: u64,
    /// Of these, those that did not leave unused, as far as is known.
    pub used: u64,
    /// How many of the waits lie below each bound in nanoseconds, and above the one before.
    pub waits_ns: BTreeMap<u64, u64>,
}

impl Figures {
    /// Of a run's pager.
    pub fn of(statistics: &PagerStatistics) -> Self {
        let kinds = [&statistics.fill, &statistics.staged, &statistics.zero, &statistics.write];
        Self {
            faults: kinds.iter().map(|kind| kind.count).sum(),
            remote_faults: statistics.fill.count,
            brought: statistics.pages_prefetched,
            used: statistics.pages_prefetched.saturating_sub(statistics.pages_prefetched_unused),
            waits_ns: statistics.fill.latency.histogram_ns.clone(),
        }
    }

    /// Pages that the program needed from afar.
    fn needed(&self) -> u64 {
        self.remote_faults + self.used
    }

    /// Of the pages that were needed, the part that had come along.
    pub fn coverage(&self) -> Option<f64> {
        share(self.used, self.needed())
    }

    /// Of the pages that came along, the part that was used.
    pub fn accuracy(&self) -> Option<f64> {
        share(self.used, self.brought)
    }

    /// How many more pages came from afar than `without` prefetching, as a part of those.
    pub fn pollution(&self, without: &Self) -> Option<f64> {
        share((self.remote_faults + self.brought).saturating_sub(without.remote_faults), without.remote_faults)
    }

    /// What so many thousandths of the needed pages took at most, in microseconds, from the pager's reading of a
    /// fault's message to its answer. Zero for a page that was there already; `None` if none was needed.
    pub fn wait_us(&self, thousandths: u32) -> Option<f64> {
        let rank = (self.needed() * u64::from(thousandths)).div_ceil(1000);
        let mut seen = self.used;
        if self.needed() == 0 || rank <= seen {
            return (self.needed() > 0).then_some(0.0);
        }
        let bound = self.waits_ns.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        bound.map(|(bound_ns, _)| *bound_ns as f64 / 1e3)
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spillway_block::latency::LatencyHistogram;
    use spillway_pager::statistics::FaultStatistics;

    use super::*;

    /// A run with these waits in microseconds, and so many pages that came along and left unused.
    fn run(waits_us: &[u64], brought: u64, unused: u64) -> Figures {
        let histogram = LatencyHistogram::default();
        waits_us.iter().for_each(|microseconds| histogram.record(Duration::from_micros(*microseconds)));
        let fill = FaultStatistics { count: waits_us.len() as u64, latency: histogram.status() };
        let counts =
            PagerStatistics { pages_prefetched: brought, pages_prefetched_unused: unused, fill, ..Default::default() };
        Figures::of(&counts)
    }

    #[test]
    fn rates_follow_from_counts() {
        let (without, with) = (run(&[20; 100], 0, 0), run(&[20; 30], 90, 20));
        assert_eq!((without.coverage(), without.accuracy()), (Some(0.0), None));
        assert_eq!((with.coverage(), with.accuracy()), (Some(0.7), Some(70.0 / 90.0)));
        assert_eq!((with.pollution(&without), without.pollution(&without)), (Some(0.2), Some(0.0)));
        let nothing = Figures::default();
        assert_eq!((nothing.coverage(), nothing.pollution(&nothing), nothing.wait_us(500)), (None, None, None));
    }

    #[test]
    fn pages_that_came_along_were_not_waited_for() {
        let with = run(&[10, 10, 10, 10, 10, 10, 10, 10, 10, 1000], 90, 0);
        assert_eq!((with.wait_us(500), with.wait_us(900)), (Some(0.0), Some(0.0)));
        let near = |share, expected: f64| (with.wait_us(share).unwrap() / expected - 1.0).abs() < 0.07;
        assert!(near(950, 10.0) && near(990, 10.0) && near(999, 1000.0), "{with:?}");
    }
}
