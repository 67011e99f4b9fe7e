//! A bound of page traffic (`run --bandwidth`) as people read it, in `status` and at the end of a run.

use spillway_machine::size::human;
use spillway_volume::status::BandwidthStatus;

/// A bound of page traffic and what it did, for people.
pub fn describe(bound: &BandwidthStatus) -> String {
    let BandwidthStatus { bytes_per_second, requests_held, held_us } = *bound;
    let (rate, seconds) = (human(bytes_per_second), held_us as f64 / 1e6);
    format!("page traffic bounded to {rate}/s: {requests_held} requests waited for that, {seconds:.2} s together")
}
