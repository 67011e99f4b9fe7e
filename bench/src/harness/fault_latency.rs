//! How long the kernel waits for a page that it swaps in: the block layer's own account, so that the whole way to the
//! device's thread and back counts, and not only what the device's thread sees.
//!
//! Where the kernel can be asked to record events (tracefs), a sample of the requests is measured one by one
//! ([`super::read_requests`]): true percentiles. What it records stays in its buffer until the program has ended, so
//! that no process reads while it is measured.
//!
//! Besides, the kernel gives sums (requests, and milliseconds that they took): the mean of all requests. Looked at
//! every few hundredths of a second they give a mean for each such window. Where there are no events the distribution
//! is that of the requests, each taken as long as its window's mean. So a single slow request shows as its part of a
//! window only.
//!
//! A page fault waits for such a request, and for what the kernel does before and after it: it enters, looks for
//! memory, maps the page, switches back to the program. Requests for pages that are read ahead, which no process waits
//! for yet, count too.

use std::path::Path;

use spillway_block::latency::LatencyStatus;

use super::HarnessError;
use super::interrupt::Interrupt;
use super::read_requests::{self, ReadRequests};
use super::trace::{TraceSession, device_number};

/// The kernel's sum has whole milliseconds: a window with fewer of them waits for more, so that its mean is good to a
/// fifth.
const WINDOW_MILLISECONDS_MIN: u64 = 5;

/// Each CPU's buffer holds some sixty thousand events of some sixty bytes: both ends of one of sixteen of half a
/// million requests. Of more the last ones count.
const BUFFER_KIB: u32 = 4 * 1024;

/// Reads of a block device since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BlockReads {
    /// Requests that ended.
    requests: u64,
    /// Milliseconds from their start to their end, summed.
    milliseconds: u64,
}

impl BlockReads {
    /// Fields 4 and 7 of the device's line (`Documentation/admin-guide/iostats.rst`).
    fn parse(text: &str, name: &str) -> Option<Self> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        let fields = lines.find(|fields| fields.get(2) == Some(&name))?;
        Some(Self { requests: fields.get(3)?.parse().ok()?, milliseconds: fields.get(6)?.parse().ok()? })
    }
}

/// Block devices in the text of `/proc/swaps`, the one with the highest priority first.
fn swap_devices(swaps: &str) -> Vec<String> {
    let areas = swaps.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = Path::new(*fields.first()?).strip_prefix("/dev").ok()?.to_str()?.to_owned();
        Some((fields.last()?.parse::<i32>().ok()?, name))
    });
    let mut areas: Vec<(i32, String)> = areas.collect();
    areas.sort_by_key(|(priority, _)| -priority);
    areas.into_iter().map(|(_, name)| name).collect()
}

fn swap_devices_now() -> Vec<String> {
    swap_devices(&std::fs::read_to_string("/proc/swaps").unwrap_or_default())
}

/// Windows of one device.
#[derive(Clone, Debug, Default)]
struct Windows {
    last: Option<BlockReads>,
    /// Requests, and microseconds of each.
    windows: Vec<(u64, f64)>,
}

impl Windows {
    fn observe(&mut self, reads: BlockReads) {
        if let Some(last) = self.last {
            let requests = reads.requests.saturating_sub(last.requests);
            let milliseconds = reads.milliseconds.saturating_sub(last.milliseconds);
            if requests == 0 || milliseconds < WINDOW_MILLISECONDS_MIN {
                return;
            }
            self.windows.push((requests, milliseconds as f64 * 1e3 / requests as f64));
        }
        self.last = Some(reads);
    }

    /// What was seen; `None` when nothing was read.
    fn summary(&self) -> Option<LatencyStatus> {
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
        let mean_us = total / requests as f64;
        Some(LatencyStatus { p50_us: at(0.5)?, p99_us: at(0.99)?, mean_us, ..LatencyStatus::default() })
    }
}

/// Where percentiles come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// From requests, one of sixteen, each measured.
    #[default]
    Requests,
    /// From means of windows, for this reason.
    Windows(String),
}

impl Source {
    /// Why there are only windows.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Requests => None,
            Self::Windows(reason) => Some(reason),
        }
    }
}

/// How long pages were waited for. A part that too few requests tell of is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    /// The mean of all requests.
    pub mean_us: Option<f64>,
    /// The median and the 99th percentile.
    pub percentiles_us: Option<(f64, f64)>,
    /// Where those come from.
    pub source: Source,
}

/// Watches the first swap device that is switched on after it began.
#[derive(Debug)]
pub struct FaultLatency {
    others: Vec<String>,
    device: Option<String>,
    windows: Windows,
    trace: Result<TraceSession, HarnessError>,
}

impl FaultLatency {
    /// Before the program starts: areas that are on already are not its own.
    pub fn start(interrupt: &Interrupt) -> Self {
        let trace = TraceSession::open(BUFFER_KIB, interrupt);
        Self { others: swap_devices_now(), device: None, windows: Windows::default(), trace }
    }

    /// Takes a look: to be called every few hundredths of a second.
    pub fn look(&mut self) {
        if self.device.is_none() {
            let new = swap_devices_now().into_iter().find(|name| !self.others.contains(name));
            let Some(name) = new else { return };
            self.watch(name);
        }
        let Some(name) = &self.device else { return };
        if let Some(reads) = BlockReads::parse(&std::fs::read_to_string("/proc/diskstats").unwrap_or_default(), name) {
            self.windows.observe(reads);
        }
    }

    fn watch(&mut self, name: String) {
        let record = |session: &TraceSession| {
            let device = device_number(&Path::new("/dev").join(&name))?;
            session.record(&read_requests::events(&device))
        };
        if let Err(error) = self.trace.as_ref().map_or(Ok(()), record) {
            self.trace = Err(error);
        }
        self.device = Some(name);
    }

    /// After the program's end: what was seen.
    pub fn finish(self) -> Waits {
        let windows = self.windows.summary();
        let mean_us = windows.as_ref().map(|latency| latency.mean_us);
        match self.trace.and_then(TraceSession::finish) {
            Ok(events) => {
                let mut requests = ReadRequests::default();
                events.iter().for_each(|event| requests.take(event));
                Waits { mean_us, percentiles_us: requests.percentiles(), source: Source::Requests }
            }
            Err(error) => {
                let percentiles_us = windows.map(|latency| (latency.p50_us, latency.p99_us));
                Waits { mean_us, percentiles_us, source: Source::Windows(error.to_string()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::harness::subject::Subject;
    use spillway_workloads::size::{MIB, Size};

    fn observed(looks: &[(u64, u64)]) -> Option<LatencyStatus> {
        let mut windows = Windows::default();
        let reads = looks.iter().map(|(requests, milliseconds)| (*requests, *milliseconds));
        reads.for_each(|(requests, milliseconds)| windows.observe(BlockReads { requests, milliseconds }));
        windows.summary()
    }

    #[test]
    fn the_kernels_files_are_read() {
        let stats = "  7  1 loop1 5 0 40 9 1 0 8 2 0 3 4\n  7 3 loop3 100 50 1200 7 2 0 16 30 0 1 2\n";
        assert_eq!(BlockReads::parse(stats, "loop3"), Some(BlockReads { requests: 100, milliseconds: 7 }));
        assert_eq!(BlockReads::parse(stats, "loop"), None);
        let swaps = "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 5\n/var/swap file 1 0 99\n/dev/loop3 partition 1 0 30000\n";
        assert_eq!(swap_devices(swaps), ["loop3", "zram0"]);
        assert!(swap_devices("Filename Type Size Used Priority\n/var/swap file 1 0 99\n").is_empty());
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
    fn without_a_swap_device_nothing_is_told_and_nothing_is_left() {
        let latency = FaultLatency::start(&Interrupt::never());
        let instance = latency.trace.as_ref().ok().map(|session| session.instance().to_owned());
        assert!(instance.as_ref().is_none_or(|instance| instance.exists()));
        let waits = latency.finish();
        assert_eq!((waits.mean_us, waits.percentiles_us), (None, None));
        match waits.source {
            Source::Requests => assert!(!instance.expect("there was a session").exists()),
            Source::Windows(reason) => spillway_sys::skipping::skip_because(format!("no events: {reason}")),
        }
    }

    #[test]
    fn requests_of_a_device_are_measured_one_by_one() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let shop = crate::studies::tests::context(directory.path(), 1).shop;
        let attached = match Subject::DiskLoop.attach(&shop, Size(8 * MIB), None) {
            Ok(attached) => attached,
            Err(error) => return spillway_sys::skipping::skip_because(format!("no loop device: {error}")),
        };
        let mut latency = FaultLatency::start(&shop.interrupt);
        latency.watch(attached.path.file_name().unwrap().to_str().unwrap().to_owned());
        latency.look();
        // 2048 requests, of which 128 are looked at.
        let from = format!("if={}", attached.path.display());
        crate::harness::tool::run("dd", [&from, "of=/dev/null", "bs=4096", "iflag=direct"], &shop.interrupt).unwrap();
        latency.look();
        let waits = latency.finish();
        if let Source::Windows(reason) = waits.source {
            return spillway_sys::skipping::skip_because(format!("no events: {reason}"));
        }
        let (p50, p99) = waits.percentiles_us.expect("a hundred were seen");
        assert!(0.0 < p50 && p50 <= p99, "{p50} {p99}");
    }

    #[test]
    fn without_events_there_are_windows_and_the_reason() {
        let mut latency = FaultLatency {
            others: Vec::new(),
            device: None,
            windows: Windows::default(),
            trace: Err(HarnessError::Missing("no tracefs".to_owned())),
        };
        for (requests, milliseconds) in [(0, 0), (98, 5), (100, 15)] {
            latency.windows.observe(BlockReads { requests, milliseconds });
        }
        let waits = latency.finish();
        assert_eq!((waits.mean_us, waits.percentiles_us.unwrap().1), (Some(150.0), 5000.0));
        assert_eq!(waits.source, Source::Windows("no tracefs".to_owned()));
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
