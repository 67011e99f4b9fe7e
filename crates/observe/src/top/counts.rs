//! What a program or device has counted, and what came between two looks.
//!
//! Invariant: a source that began anew (its process died and another one serves) never gives a negative rate; what it
//! counted since then is what came.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_report::kind::Report;

use crate::observation::Thing;

/// Counters of one thing, since it began or between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pages_in: u64,
    pages_out: u64,
    pages_from_disk: u64,
    /// Latencies of faults (by the pager those that came from afar) or of page-ins, as reports have them.
    latency: BTreeMap<u64, u64>,
}

/// What passes in a second, and how long a page takes to come in.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Flow {
    /// Pages that come in, each second.
    pub(crate) pages_in: f64,
    /// The same in bytes.
    pub(crate) bytes_in: f64,
    /// Pages that go out, each second.
    pub(crate) pages_out: f64,
    /// The same in bytes.
    pub(crate) bytes_out: f64,
    /// Bytes that come from the copy on disk, each second.
    pub(crate) bytes_from_disk: f64,
    /// Half of the pages came sooner; none came, none is told.
    pub(crate) p50_us: Option<f64>,
    /// 99 of 100 came sooner.
    pub(crate) p99_us: Option<f64>,
}

impl Counts {
    /// What a thing has counted, if it has a volume.
    pub(crate) fn of(thing: &Thing) -> Option<Self> {
        let traffic = &thing.volume()?.traffic;
        let faults = match &thing.report {
            Report::Run(run) => run.pager.as_ref().map(|pager| &pager.pager.fill.latency),
            _ => None,
        };
        Some(Self {
            pages_in: traffic.pages_in,
            pages_out: traffic.pages_out,
            pages_from_disk: traffic.pages_in_from_disk,
            latency: faults.unwrap_or(&traffic.read_latency).histogram_ns.clone(),
        })
    }

    /// What came since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let has_begun_anew = self.pages_in < before.pages_in
            || self.pages_out < before.pages_out
            || before.latency.iter().any(|(bound, count)| self.latency.get(bound).is_none_or(|now| now < count));
        if has_begun_anew {
            return self.clone();
        }
        let latency =
            self.latency.iter().map(|(bound, count)| (*bound, count - before.latency.get(bound).copied().unwrap_or(0)));
        Self {
            pages_in: self.pages_in - before.pages_in,
            pages_out: self.pages_out - before.pages_out,
            pages_from_disk: self.pages_from_disk.saturating_sub(before.pages_from_disk),
            latency: latency.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Counts what another one has, too.
    pub(crate) fn add(&mut self, other: &Self) {
        self.pages_in += other.pages_in;
        self.pages_out += other.pages_out;
        self.pages_from_disk += other.pages_from_disk;
        other.latency.iter().for_each(|(bound, count)| *self.latency.entry(*bound).or_default() += count);
    }

    /// As rates, of what came in `time`.
    pub(crate) fn flow(&self, time: Duration) -> Flow {
        let seconds = time.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let bytes = |pages: u64| rate(pages * PAGE_SIZE_BYTES as u64);
        Flow {
            pages_in: rate(self.pages_in),
            bytes_in: bytes(self.pages_in),
            pages_out: rate(self.pages_out),
            bytes_out: bytes(self.pages_out),
            bytes_from_disk: bytes(self.pages_from_disk),
            p50_us: self.quantile_us(0.5),
            p99_us: self.quantile_us(0.99),
        }
    }

    /// The latency that the `share` of all does not exceed: the middle of its bucket, which is a sixteenth wide.
    fn quantile_us(&self, share: f64) -> Option<f64> {
        let total: u64 = self.latency.values().sum();
        let rank = (share * total as f64).ceil() as u64;
        let mut seen = 0;
        let bucket = self.latency.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        bucket.map(|(largest_ns, _)| *largest_ns as f64 / 1e3 * (1.0 - spillway_block::latency::ERROR_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::examples;

    fn counts(pages_in: u64) -> Counts {
        Counts::of(&examples::run("1", pages_in)).unwrap()
    }

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let flow = counts(300).since(&counts(100)).flow(Duration::from_secs(2));
        assert_eq!((flow.pages_in, flow.pages_out), (100.0, 200.0));
        assert_eq!(flow.bytes_in, 100.0 * 4096.0);
        let (p50, p99) = (flow.p50_us.unwrap(), flow.p99_us.unwrap());
        assert!((9.0..11.0).contains(&p50) && (9.0..11.0).contains(&p99), "{p50} and {p99}");
        // Two of 200 took 500 us: one in a hundred, and no more.
        let slow = counts(300).since(&counts(199)).flow(Duration::from_secs(1));
        assert!((470.0..530.0).contains(&slow.p99_us.unwrap()), "{slow:?}");
    }

    #[test]
    fn a_thing_that_began_anew_is_not_negative_and_one_at_rest_has_no_latency() {
        assert_eq!(counts(50).since(&counts(100)), counts(50));
        let rest = counts(100).since(&counts(100)).flow(Duration::from_secs(1));
        assert_eq!(rest, Flow::default());
        assert_eq!(counts(100).flow(Duration::ZERO).pages_in, 0.0, "no time, no rate");
    }

    #[test]
    fn things_add_up() {
        let mut both = counts(100);
        both.add(&counts(200));
        assert_eq!(both.flow(Duration::from_secs(1)).pages_in, 300.0);
        assert_eq!(both.latency.values().sum::<u64>(), 300);
    }
}
