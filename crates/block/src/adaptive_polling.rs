//! How an I/O thread waits for its next request.
//!
//! Hybrid, as in HPBD: a thread that just worked looks again for a while before it sleeps, since waking a halted CPU
//! costs several times what serving a page does; where that brings nothing (the program needs this very CPU, the
//! burst is over) it stops by itself ([`HybridWait`]). One thread of a device spins at a time ([`SpinPermit`]). While
//! programs wait for one page after the other, idle CPUs are kept awake too ([`CpuIdleLimit`]): the program's and the
//! kernel's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_fabric::completion::{HybridWait, Step};

use crate::cpu_idle::CpuIdleLimit;
use crate::request::{BlockOperation, BlockRequest};

/// Which of a device's I/O threads may spin: two that spin take two CPUs from the programs that they serve.
#[derive(Clone, Debug, Default)]
pub struct SpinPermit {
    taken: Arc<AtomicBool>,
}

impl SpinPermit {
    fn try_take(&self) -> bool {
        !self.taken.swap(true, Ordering::Relaxed)
    }

    fn give_back(&self) {
        self.taken.store(false, Ordering::Relaxed);
    }
}

/// How a thread waits for its next request.
#[derive(Debug, Default)]
pub struct AdaptivePolling {
    permit: SpinPermit,
    cpu_idle: CpuIdleLimit,
    hybrid: HybridWait,
    is_spinning: bool,
}

impl AdaptivePolling {
    /// Spins with `permit`, and keeps CPUs awake as `cpu_idle` can.
    pub fn new(permit: SpinPermit, cpu_idle: CpuIdleLimit) -> Self {
        Self { permit, cpu_idle, hybrid: HybridWait::new(), is_spinning: false }
    }

    /// A request came.
    pub fn asked(&mut self, request: &BlockRequest, now: Instant) {
        // Pages that go out count too: programs wait for room, and for writes of their own to a plain device.
        if matches!(request.operation, BlockOperation::Read | BlockOperation::Write) {
            self.cpu_idle.asked(now);
        }
    }

    /// Something came: a wait, if one was going on, is over.
    pub fn worked(&mut self, now: Instant) {
        if self.is_spinning {
            self.hybrid.arrived(now);
            self.stop_spinning();
        }
    }

    /// Whether to look again instead of going to sleep.
    pub fn spins(&mut self, now: Instant) -> bool {
        let step = if self.is_spinning {
            self.hybrid.next(now)
        } else if self.permit.try_take() {
            self.is_spinning = true;
            self.hybrid.begin(now)
        } else {
            return false;
        };
        if step == Step::Sleep {
            self.stop_spinning();
        }
        step == Step::Spin
    }

    /// There is nothing to do: how long the thread may sleep before it asks again; `None` for ever.
    pub fn rest(&mut self, now: Instant) -> Option<Duration> {
        self.cpu_idle.rest(now)
    }

    fn stop_spinning(&mut self) {
        self.is_spinning = false;
        self.permit.give_back();
    }
}

impl Drop for AdaptivePolling {
    fn drop(&mut self) {
        // One that ends while it spins leaves the permit to the device's other threads.
        if self.is_spinning {
            self.stop_spinning();
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_fabric::units::Priority;

    use super::*;
    use crate::limits::BURST_REQUESTS_MIN;

    #[test]
    fn one_thread_of_a_device_spins_and_leaves_its_permit_when_it_ends() {
        let (permit, now) = (SpinPermit::default(), Instant::now());
        let mut first = AdaptivePolling::new(permit.clone(), CpuIdleLimit::default());
        let mut second = AdaptivePolling::new(permit, CpuIdleLimit::default());
        assert!(first.spins(now));
        assert!(!second.spins(now), "two would take two CPUs from the programs that they serve");
        drop(first);
        assert!(second.spins(now));
        second.worked(now);
        assert!(second.spins(now), "something came, and the next wait begins anew");
    }

    #[test]
    fn discards_and_flushes_make_no_burst() {
        let figures = Arc::default();
        let cpu_idle = CpuIdleLimit::new(crate::cpu_idle::KeepAwake::Bursts, Arc::clone(&figures));
        let mut adaptive_polling = AdaptivePolling::new(SpinPermit::default(), cpu_idle);
        let now = Instant::now();
        for operation in [BlockOperation::Discard, BlockOperation::Flush] {
            let request =
                BlockRequest { operation, slot: 0, offset_bytes: 0, length_bytes: 4096, priority: Priority::Demand };
            (0..BURST_REQUESTS_MIN).for_each(|_| adaptive_polling.asked(&request, now));
        }
        assert_eq!((figures.bursts(), adaptive_polling.rest(now)), (0, None));
    }
}
