//! A bound of page traffic (`run --bandwidth`) as people read it, in `status` and at the end of a run.

use serde_json::Value;
use spillway_machine::size::human;

/// A bound of page traffic and what it did, for people; `None` for none.
pub(crate) fn describe(bound: &Value) -> Option<String> {
    let number = |name: &str| bound.get(name).and_then(Value::as_u64);
    let (rate, held) = (human(number("bytes_per_second")?), number("requests_held")?);
    let seconds = number("held_us")? as f64 / 1e6;
    Some(format!("page traffic bounded to {rate}/s: {held} requests waited for that, {seconds:.2} s together"))
}
