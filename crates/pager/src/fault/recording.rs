//! Records the faults that are answered, for `trace record`.
//!
//! Which faults: with [`Kind::MajorFaults`] those on pages that had left, whether they came from a donor or were still
//! staged; with [`Kind::Faults`] also first touches and first writes. Never those of the pager's own threads, nor pages
//! that no thread waits for. A page that comes along leaves no trace, so what is prefetched hides faults. A thread that
//! waits for a page which another one has asked for already is not recorded either.
//!
//! Its lock is the last of all ([`crate::pager_state`]), and held for less than a microsecond.

use std::sync::Mutex;
use std::time::Instant;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_policy::prefetch::PageNumber;
use spillway_policy::trace::Kind;
use spillway_policy::trace::fault_log::{FaultLog, NotedFault};
use spillway_sys::userfaultfd::Fault;

use crate::page_table::page_indexes::SpaceId;
use crate::statistics::FaultKind;
use crate::threads::lock::lock;

/// What is to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingConfig {
    /// Which faults.
    pub kind: Kind,
    /// Memory for their events.
    pub room_bytes: usize,
}

/// See the module text.
#[derive(Debug)]
pub struct FaultRecording {
    kind: Kind,
    started: Instant,
    log: Mutex<FaultLog>,
}

impl FaultRecording {
    /// Begins at `now`.
    pub fn new(config: RecordingConfig, now: Instant) -> Self {
        let log = Mutex::new(FaultLog::new(config.kind, config.room_bytes));
        Self { kind: config.kind, started: now, log }
    }

    /// A fault of `space` was answered that arrived at `arrived`.
    pub(super) fn note(&self, space: SpaceId, fault: Fault, answered: FaultKind, arrived: Instant) {
        let had_left = matches!(answered, FaultKind::Fill | FaultKind::Staged);
        if self.kind == Kind::MajorFaults && !had_left {
            return;
        }
        let page = PageNumber(fault.address / PAGE_SIZE_BYTES as u64);
        let time_us = arrived.saturating_duration_since(self.started).as_micros() as u64;
        let noted = NotedFault { space: space.0, thread: fault.thread, page, write: fault.is_write };
        lock(&self.log).note(noted, time_us);
    }

    /// Hands over what was recorded so far.
    pub fn with_log<Result>(&self, look: impl FnOnce(&FaultLog) -> Result) -> Result {
        look(&lock(&self.log))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn recorded(kind: Kind) -> u64 {
        let start = Instant::now();
        let recording = FaultRecording::new(RecordingConfig { kind, room_bytes: 1000 }, start);
        let fault = Fault { address: 0x7000, is_write: false, is_write_protected: false, thread: 4 };
        for answered in [FaultKind::Fill, FaultKind::Staged, FaultKind::Zero, FaultKind::Write] {
            recording.note(SpaceId(2), fault, answered, start + Duration::from_micros(50));
        }
        recording.with_log(|log| {
            assert_eq!((log.counts().threads, log.counts().spaces, log.counts().last_time_us), (1, 1, 50));
            log.counts().recorded
        })
    }

    #[test]
    fn major_faults_are_those_on_pages_that_had_left() {
        assert_eq!([recorded(Kind::MajorFaults), recorded(Kind::Faults)], [2, 4]);
    }
}
