//! What is told of prefetching from swap: by a run in its `status` and at its end, and by a swap device in its
//! `status`. Its JSON form is stable.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use spillway_device::prefetch::PrefetchCounts;
use spillway_policy::prefetch::selection::PrefetchPolicy;

/// See the module text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrefetchReport {
    /// As the user wrote it.
    pub(crate) policy: String,
    /// Whether pages are prefetched by us.
    pub(crate) is_active: bool,
    /// What the user should know: what is lacking, or which setting is changed.
    pub(crate) note: Option<String>,
    samples: Samples,
    advices: u64,
    pages_asked: u64,
    pages_used: u64,
    pages_late: u64,
    pages_left: u64,
    pages_held_back: u64,
    failures: u64,
}

/// Page faults that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Samples {
    major: u64,
    minor: u64,
    lost: u64,
}

impl PrefetchReport {
    /// What `policy` came to; `None` is the kernel's.
    pub(crate) fn new(
        policy: Option<PrefetchPolicy>,
        is_active: bool,
        note: Option<String>,
        counts: PrefetchCounts,
    ) -> Self {
        Self {
            policy: policy.map_or("kernel", PrefetchPolicy::name).to_owned(),
            is_active,
            note,
            samples: Samples { major: counts.major_samples, minor: counts.minor_samples, lost: counts.lost_samples },
            advices: counts.advices,
            pages_asked: counts.pages_asked,
            pages_used: counts.pages_used,
            pages_late: counts.pages_late,
            pages_left: counts.pages_left,
            pages_held_back: counts.pages_held_back,
            failures: counts.failures,
        }
    }
}

/// A line for people; none where the kernel's read-ahead is all that was asked for.
pub(crate) fn describe(report: &Value) -> Option<String> {
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let policy = report.get("policy").and_then(Value::as_str).filter(|policy| *policy != "kernel")?;
    let note = report.get("note").and_then(Value::as_str).map(|note| format!(" ({note})")).unwrap_or_default();
    if report.get("is_active") != Some(&Value::Bool(true)) {
        return Some(format!("prefetching: {policy}, no page is prefetched by us{note}"));
    }
    Some(format!(
        "prefetching: {policy}{note}; {} samples ({} waited, {} lost), {} advices for {} pages, {} used ({} late), {} held back, {} failures",
        number("/samples/major") + number("/samples/minor"),
        number("/samples/major"),
        number("/samples/lost"),
        number("/advices"),
        number("/pages_asked"),
        number("/pages_used"),
        number("/pages_late"),
        number("/pages_held_back"),
        number("/failures"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(policy: Option<PrefetchPolicy>, is_active: bool, note: Option<&str>) -> Option<String> {
        let counts =
            PrefetchCounts { major_samples: 2, minor_samples: 40, pages_asked: 64, ..PrefetchCounts::default() };
        let report = PrefetchReport::new(policy, is_active, note.map(str::to_owned), counts);
        describe(&serde_json::to_value(report).unwrap())
    }

    #[test]
    fn people_read_what_was_done_or_what_is_lacking() {
        assert_eq!(told(None, false, None), None);
        let text = told(Some(PrefetchPolicy::Streams), true, None).unwrap();
        assert!(text.contains("streams; 42 samples (2 waited, 0 lost), 0 advices for 64 pages"), "{text}");
        let text = told(Some(PrefetchPolicy::Streams), false, Some("no perf")).unwrap();
        assert!(text.contains("no page is prefetched by us (no perf)"), "{text}");
    }
}
