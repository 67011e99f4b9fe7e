//! What is told of prefetching from swap, as people read it: by a run in its `status` and at its end, and by a swap
//! device in its `status`.

use spillway_report::prefetch::PrefetchReport;

/// A line for people; none where the kernel's read-ahead is all that was asked for.
pub fn describe(report: &PrefetchReport) -> Option<String> {
    let policy = Some(&report.policy).filter(|policy| *policy != "kernel")?;
    let note = report.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    if !report.is_active {
        return Some(format!("prefetching: {policy}, no page is prefetched by us{note}"));
    }
    let samples = &report.samples;
    Some(format!(
        "prefetching: {policy}{note}; {} samples ({} waited, {} lost), {} advices for {} pages, {} used ({} late), {} held back, {} failures",
        samples.major + samples.minor,
        samples.major,
        samples.lost,
        report.advices,
        report.pages_asked,
        report.pages_used,
        report.pages_late,
        report.pages_held_back,
        report.failures,
    ))
}

#[cfg(test)]
mod tests {
    use spillway_device::prefetch::PrefetchCounts;
    use spillway_policy::prefetch::selection::PrefetchPolicy;

    use super::*;

    fn told(policy: Option<PrefetchPolicy>, is_active: bool, note: Option<&str>) -> Option<String> {
        let counts =
            PrefetchCounts { major_samples: 2, minor_samples: 40, pages_asked: 64, ..PrefetchCounts::default() };
        describe(&PrefetchReport::new(policy, is_active, note.map(str::to_owned), counts))
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
