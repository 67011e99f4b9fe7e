//! How long the kernel waits for a page that it swaps in: the block layer's own account, so that the whole way to the
//! device's thread and back counts, and not only what the device's thread sees.
//!
//! The kernel records events (tracefs), and a sample of the requests is measured one by one
//! ([`super::read_requests`]). What it records stays in its buffer until the program has ended, so that no process
//! reads while it is measured. Where there are no such events nothing is told but the reason.
//!
//! A page fault waits for such a request, and for what the kernel does before and after it: it enters, looks for
//! memory, maps the page, switches back to the program. Requests for pages that are read ahead, which no process waits
//! for yet, count too.

use std::path::{Path, PathBuf};

use spillway_machine::swap_list;

use super::HarnessError;
use super::interrupt::Interrupt;
use super::read_requests::{self, ReadRequests};
use super::trace::{TraceSession, device_number};

/// Each CPU's buffer holds some sixty thousand events of some sixty bytes: both ends of one of sixteen of half a
/// million requests. Of more the last ones count.
const BUFFER_KIB: u32 = 4 * 1024;

/// How long pages were waited for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    /// The median and the 99th percentile; missing where too few requests were seen.
    pub percentiles_us: Option<(f64, f64)>,
    /// Why no request was seen, where the kernel has no events.
    pub obstacle: Option<String>,
}

/// Watches the first swap device that is switched on after it began.
#[derive(Debug)]
pub struct FaultLatency {
    others: Vec<PathBuf>,
    is_watching: bool,
    trace: Result<TraceSession, HarnessError>,
}

/// Block devices that are swapped to.
fn swap_devices() -> Vec<PathBuf> {
    let areas = swap_list::read().unwrap_or_default().into_iter();
    areas.map(|area| area.path).filter(|path| path.starts_with("/dev")).collect()
}

impl FaultLatency {
    /// Before the program starts: areas that are on already are not its own.
    pub fn start(interrupt: &Interrupt) -> Self {
        Self { others: swap_devices(), is_watching: false, trace: TraceSession::open(BUFFER_KIB, interrupt) }
    }

    /// Takes a look: to be called every few hundredths of a second.
    pub fn look(&mut self) {
        if !self.is_watching
            && let Some(path) = swap_devices().into_iter().find(|path| !self.others.contains(path))
        {
            self.watch(&path);
        }
    }

    fn watch(&mut self, path: &Path) {
        let record = |session: &TraceSession| session.record(&read_requests::events(&device_number(path)?));
        if let Err(error) = self.trace.as_ref().map_or(Ok(()), record) {
            self.trace = Err(error);
        }
        self.is_watching = true;
    }

    /// After the program's end: what was seen.
    pub fn finish(self) -> Waits {
        match self.trace.and_then(TraceSession::finish) {
            Ok(events) => {
                let mut requests = ReadRequests::default();
                events.iter().for_each(|event| requests.take(event));
                Waits { percentiles_us: requests.percentiles(), obstacle: None }
            }
            Err(error) => Waits { percentiles_us: None, obstacle: Some(error.to_string()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::subject::Subject;
    use spillway_workloads::size::{MIB, Size};

    #[test]
    fn without_a_swap_device_nothing_is_told_and_nothing_is_left() {
        let latency = FaultLatency::start(&Interrupt::never());
        let instance = latency.trace.as_ref().ok().map(|session| session.instance().to_owned());
        assert!(instance.as_ref().is_none_or(|instance| instance.exists()));
        let waits = latency.finish();
        assert_eq!(waits.percentiles_us, None);
        match waits.obstacle {
            None => assert!(!instance.expect("there was a session").exists()),
            Some(reason) => spillway_sys::skipping::skip_because(format!("no events: {reason}")),
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
        latency.watch(&attached.path);
        // 2048 requests, of which 128 are looked at.
        let from = format!("if={}", attached.path.display());
        crate::harness::tool::run("dd", [&from, "of=/dev/null", "bs=4096", "iflag=direct"], &shop.interrupt).unwrap();
        let waits = latency.finish();
        if let Some(reason) = waits.obstacle {
            return spillway_sys::skipping::skip_because(format!("no events: {reason}"));
        }
        let (p50, p99) = waits.percentiles_us.expect("a hundred were seen");
        assert!(0.0 < p50 && p50 <= p99, "{p50} {p99}");
    }
}
