//! Writes what left to the volume, and frees pages of the volume that nothing needs any more.

use std::time::Instant;

use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::Waiting;
use spillway_fabric::units::Priority;

use super::{Eviction, PAGE};
use crate::evict::staging::RunId;
use crate::limits::{DISCARD_PAUSE, WRITE_RETRY_PAUSE};
use crate::page_table::volume_pages::VolumePageRun;

impl Eviction {
    pub(super) fn poll_engine(&mut self, now: Instant) -> Waiting {
        let mut ended = std::mem::take(&mut self.ended);
        let waiting = self.engine.poll(now, &mut |slot, result| ended.push((slot, result)));
        for (slot, result) in ended.drain(..) {
            self.request_ended(slot, result, now);
        }
        self.ended = ended;
        let due: Vec<RunId> = self.retries.iter().filter(|(_, at)| *at <= now).map(|(id, _)| *id).collect();
        self.retries.retain(|(_, at)| *at > now);
        for id in due {
            let run = self.staging.writing(id).expect("what is tried again is still to be written");
            self.write(id, run, now);
        }
        waiting
    }

    fn request_ended(&mut self, slot: usize, result: Result<(), BlockError>, now: Instant) {
        if slot == self.discard_slot {
            let run = self.discarding.take().expect("one discard was under way");
            // Donors that cannot be reached forget by themselves.
            self.shared.page_indexes().volume_pages.end_discard(run);
            return;
        }
        self.writes -= 1;
        let id = RunId(slot as u32);
        match result {
            Ok(()) => self.staging.written(id, &mut self.shared.page_indexes().volume_pages),
            Err(error) => {
                self.shared.fail(format!("pages cannot be stored: {error}; they stay in local memory meanwhile"));
                self.retries.push((id, now + WRITE_RETRY_PAUSE));
            }
        }
    }

    pub(super) fn write(&mut self, id: RunId, run: VolumePageRun, now: Instant) {
        let request = BlockRequest {
            slot: id.0 as usize,
            operation: BlockOperation::Write,
            offset_bytes: u64::from(run.first.0) * PAGE,
            length_bytes: u64::from(run.count) * PAGE,
            priority: Priority::Demand,
        };
        self.writes += 1;
        self.engine.submit(request, now);
    }

    pub(super) fn discard(&mut self, now: Instant) {
        if self.discarding.is_some() || now < self.discard_at {
            return;
        }
        let Some(run) = self.shared.page_indexes().volume_pages.begin_discard() else {
            self.discard_at = now + DISCARD_PAUSE;
            return;
        };
        self.discarding = Some(run);
        let request = BlockRequest {
            slot: self.discard_slot,
            operation: BlockOperation::Discard,
            offset_bytes: u64::from(run.first.0) * PAGE,
            length_bytes: u64::from(run.count) * PAGE,
            priority: Priority::Demand,
        };
        self.engine.submit(request, now);
    }
}
