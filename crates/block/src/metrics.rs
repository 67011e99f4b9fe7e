//! Counters and latencies of a device, shared by its I/O threads without locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_fabric::units::PAGE_SIZE_BYTES;

use crate::cpu_idle::AwakeFigures;
use crate::latency::{LatencyHistogram, LatencyStatus};
use crate::request::{BlockOperation, BlockRequest};

/// All counters of a device.
#[derive(Debug, Default)]
pub struct Metrics {
    pages_in: AtomicU64,
    pages_out: AtomicU64,
    pages_discarded: AtomicU64,
    pages_in_from_disk: AtomicU64,
    read_requests: AtomicU64,
    write_requests: AtomicU64,
    failed_requests: AtomicU64,
    read_latency: LatencyHistogram,
    write_latency: LatencyHistogram,
    awake: Arc<AwakeFigures>,
}

impl Metrics {
    /// Counts a request that ended.
    pub fn record(&self, request: &BlockRequest, succeeded: bool, latency: Duration) {
        let add = |counter: &AtomicU64, count: u64| counter.fetch_add(count, Ordering::Relaxed);
        let pages = request.length_bytes / PAGE_SIZE_BYTES as u64;
        if !succeeded {
            add(&self.failed_requests, 1);
            return;
        }
        match request.operation {
            BlockOperation::Read => {
                add(&self.pages_in, pages);
                add(&self.read_requests, 1);
                self.read_latency.record(latency);
            }
            BlockOperation::Write => {
                add(&self.pages_out, pages);
                add(&self.write_requests, 1);
                self.write_latency.record(latency);
            }
            BlockOperation::Discard => {
                add(&self.pages_discarded, pages);
            }
            BlockOperation::Flush => {}
        }
    }

    /// Counts pages that were read from the disk copy.
    pub fn count_disk_pages(&self, pages: u64) {
        if pages > 0 {
            self.pages_in_from_disk.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// Where threads count how long they kept CPUs awake.
    pub fn awake(&self) -> Arc<AwakeFigures> {
        Arc::clone(&self.awake)
    }

    /// Everything so far.
    pub fn status(&self) -> TrafficStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficStatus {
            pages_in: get(&self.pages_in),
            pages_out: get(&self.pages_out),
            pages_discarded: get(&self.pages_discarded),
            pages_in_from_disk: get(&self.pages_in_from_disk),
            read_requests: get(&self.read_requests),
            write_requests: get(&self.write_requests),
            failed_requests: get(&self.failed_requests),
            read_latency: self.read_latency.status(),
            write_latency: self.write_latency.status(),
            cpu_seconds: process_cpu_seconds(),
            bursts: self.awake.bursts(),
            awake_seconds: self.awake.awake().as_secs_f64(),
        }
    }
}

/// CPU time of this process.
fn process_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Counters and latencies since the device started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// Pages read by the kernel (page-ins).
    pub pages_in: u64,
    /// Pages written by the kernel (page-outs).
    pub pages_out: u64,
    /// Pages discarded by the kernel.
    pub pages_discarded: u64,
    /// Pages that were read from the disk copy.
    pub pages_in_from_disk: u64,
    /// Read requests.
    pub read_requests: u64,
    /// Write requests.
    pub write_requests: u64,
    /// Requests that failed.
    pub failed_requests: u64,
    /// Latency of read requests inside the device.
    pub read_latency: LatencyStatus,
    /// Latency of write requests inside the device.
    pub write_latency: LatencyStatus,
    /// CPU time of the device's process so far.
    pub cpu_seconds: f64,
    /// Bursts of page-ins during which idle CPUs were kept awake.
    #[serde(default)]
    pub bursts: u64,
    /// How long in all, over all I/O threads.
    #[serde(default)]
    pub awake_seconds: f64,
}

#[cfg(test)]
mod tests {
    use spillway_fabric::units::Priority;

    use super::*;

    #[test]
    fn failed_requests_count_as_nothing_else() {
        let metrics = Metrics::default();
        let request = BlockRequest {
            slot: 0,
            operation: BlockOperation::Read,
            offset_bytes: 0,
            length_bytes: 8192,
            priority: Priority::Demand,
        };
        metrics.record(&request, true, Duration::from_micros(1));
        metrics.record(&request, false, Duration::from_micros(1));
        let status = metrics.status();
        assert_eq!((status.pages_in, status.read_requests, status.failed_requests), (2, 1, 1));
    }
}
