//! How long the kernel waits for a page that it swaps in: the block layer's own account, so that the whole way to the
//! device's thread and back counts, and not only what the device's thread sees.
//!
//! The kernel gives sums (requests, and milliseconds that they took). Looked at every few hundredths of a second they give
//! a mean for each such window; the distribution is that of the requests, each taken as long as its window's mean. So a
//! single slow request shows as its part of a window only.

use std::path::Path;

use super::spillway::Latency;

/// The kernel's sum has whole milliseconds: a window with fewer of them waits for more, so that its mean is good to a fifth.
const WINDOW_MILLISECONDS_MIN: u64 = 5;

/// Reads of a block device since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockReads {
    /// Requests that ended.
    pub requests: u64,
    /// Milliseconds from their start to their end, summed.
    pub milliseconds: u64,
}

impl BlockReads {
    /// Of the block device that the kernel swaps to first; `None` when it swaps to none, or to a file.
    pub fn of_swap_device() -> Option<(String, Self)> {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let name = swap_device(&read("/proc/swaps"))?;
        let reads = Self::parse(&read("/proc/diskstats"), &name)?;
        Some((name, reads))
    }

    /// Fields 4 and 7 of the device's line (`Documentation/admin-guide/iostats.rst`).
    fn parse(text: &str, name: &str) -> Option<Self> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        let fields = lines.find(|fields| fields.get(2) == Some(&name))?;
        Some(Self { requests: fields.get(3)?.parse().ok()?, milliseconds: fields.get(6)?.parse().ok()? })
    }
}

/// The name of the block device with the highest priority in the text of `/proc/swaps`.
fn swap_device(swaps: &str) -> Option<String> {
    let areas = swaps.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = Path::new(*fields.first()?).strip_prefix("/dev").ok()?.to_str()?.to_owned();
        Some((fields.last()?.parse::<i32>().ok()?, name))
    });
    areas.max_by_key(|(priority, _)| *priority).map(|(_, name)| name)
}

/// Collects windows of one device.
#[derive(Clone, Debug, Default)]
pub struct FaultLatency {
    last: Option<(String, BlockReads)>,
    /// Requests, and microseconds of each.
    windows: Vec<(u64, f64)>,
}

impl FaultLatency {
    /// Takes a look. Another device than before starts afresh.
    pub fn observe(&mut self, seen: Option<(String, BlockReads)>) {
        let Some((name, reads)) = seen else { return };
        if let Some((last_name, last)) = &self.last
            && *last_name == name
        {
            let requests = reads.requests.saturating_sub(last.requests);
            let milliseconds = reads.milliseconds.saturating_sub(last.milliseconds);
            if requests == 0 || milliseconds < WINDOW_MILLISECONDS_MIN {
                return;
            }
            self.windows.push((requests, milliseconds as f64 * 1e3 / requests as f64));
        }
        self.last = Some((name, reads));
    }

    /// What was seen; `None` when nothing was read.
    pub fn summary(&self) -> Option<Latency> {
        let mut windows = self.windows.clone();
        windows.sort_by(|one, other| one.1.total_cmp(&other.1));
        let requests: u64 = windows.iter().map(|(count, _)| count).sum();
        let total: f64 = windows.iter().map(|(count, each)| *count as f64 * each).sum();
        let at = |share: f64| {
            let mut seen = 0;
            let reached = |(count, _): &&(u64, f64)| {
                seen += count;
                seen as f64 >= share * requests as f64
            };
            windows.iter().find(reached).map(|(_, each)| *each)
        };
        Some(Latency { p50_us: at(0.5)?, p99_us: at(0.99)?, mean_us: total / requests as f64 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reads(requests: u64, milliseconds: u64) -> Option<(String, BlockReads)> {
        Some(("loop3".to_owned(), BlockReads { requests, milliseconds }))
    }

    fn observed(looks: &[(u64, u64)]) -> Option<Latency> {
        let mut latency = FaultLatency::default();
        looks.iter().for_each(|(requests, milliseconds)| latency.observe(reads(*requests, *milliseconds)));
        latency.summary()
    }

    #[test]
    fn the_kernels_files_are_read() {
        let stats = "  7  1 loop1 5 0 40 9 1 0 8 2 0 3 4\n  7 3 loop3 100 50 1200 7 2 0 16 30 0 1 2\n";
        assert_eq!(BlockReads::parse(stats, "loop3"), Some(BlockReads { requests: 100, milliseconds: 7 }));
        assert_eq!(BlockReads::parse(stats, "loop"), None);
        let swaps = "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 5\n/var/swap file 1 0 99\n/dev/loop3 partition 1 0 30000\n";
        assert_eq!(swap_device(swaps).as_deref(), Some("loop3"));
        assert_eq!(swap_device("Filename Type Size Used Priority\n/var/swap file 1 0 99\n"), None);
    }

    #[test]
    fn what_was_read_before_the_first_look_does_not_count() {
        assert_eq!(observed(&[(1000, 5000)]), None);
        let latency = observed(&[(1000, 5000), (1100, 5010)]).unwrap();
        assert_eq!((latency.p50_us, latency.p99_us, latency.mean_us), (100.0, 100.0, 100.0));
    }

    #[test]
    fn windows_weigh_as_many_requests_as_they_have() {
        // 98 requests of 50 us in the mean, then two of 5 ms.
        let latency = observed(&[(0, 0), (98, 5), (100, 15)]).unwrap();
        assert!((latency.p50_us - 51.02).abs() < 0.01, "{latency:?}");
        assert_eq!(latency.p99_us, 5000.0);
        assert_eq!(latency.mean_us, 150.0);
    }

    #[test]
    fn a_window_without_an_end_goes_into_the_next() {
        // The milliseconds of the second look belong to requests that end by the third.
        let latency = observed(&[(0, 0), (0, 6), (10, 9)]).unwrap();
        assert_eq!(latency.mean_us, 900.0);
        let latency = observed(&[(0, 0), (3, 1), (10, 2), (100, 8)]).unwrap();
        assert_eq!((latency.p50_us, latency.p99_us), (80.0, 80.0), "a millisecond is too coarse for three requests");
    }

    #[test]
    fn another_device_starts_afresh() {
        let mut latency = FaultLatency::default();
        latency.observe(reads(10, 10));
        latency.observe(Some(("loop4".to_owned(), BlockReads { requests: 5000, milliseconds: 9000 })));
        latency.observe(None);
        assert_eq!(latency.summary(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn the_distribution_is_in_order_and_the_mean_exact(steps in proptest::collection::vec((1_u64..100, 5_u64..50), 1..30)) {
            let mut looks = vec![(0, 0)];
            for (requests, milliseconds) in &steps {
                let last = looks[looks.len() - 1];
                looks.push((last.0 + requests, last.1 + milliseconds));
            }
            let latency = observed(&looks).expect("there were requests");
            let last = looks[looks.len() - 1];
            prop_assert!((latency.mean_us - last.1 as f64 * 1e3 / last.0 as f64).abs() < 1e-6 * latency.mean_us.max(1.0));
            prop_assert!(latency.p50_us <= latency.p99_us);
        }
    }
}
