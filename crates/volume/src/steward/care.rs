//! Looking after all slabs: which have too few copies, which copies miss pages, and which are mapped for nothing.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::time::Instant;

use spillway_fabric::units::SlabIndex;

use super::Steward;
use super::pages::Pages;
use crate::limits::EMPTY_SLAB_INTERVAL;
use crate::settings::mapping::MappingPolicy;
use crate::slab_map::slab_entry::{DonorSlot, Location};

/// What one look at a slab found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// Copies at donors.
    pub copies: usize,
    /// Pages with a content somewhere.
    pub stored: u64,
    /// Pages that some copy misses.
    pub missing: u64,
    /// Pages without any copy.
    pub lost: u64,
}

/// What is remembered between two looks.
#[derive(Debug)]
pub struct Care {
    /// Since when a slab has copies and no page.
    empty_since: Vec<Option<Instant>>,
}

impl Care {
    /// Of so many slabs.
    pub fn new(slab_count: u32) -> Self {
        Self { empty_since: vec![None; slab_count as usize] }
    }

    /// Whether a slab that holds no page was found so for [`EMPTY_SLAB_INTERVAL`].
    fn stays_empty(&mut self, now: Instant, slab: SlabIndex) -> bool {
        let since = &mut self.empty_since[slab.0 as usize];
        let is_over = now.saturating_duration_since(*since.get_or_insert(now)) >= EMPTY_SLAB_INTERVAL;
        if is_over {
            *since = None;
        }
        is_over
    }
}

impl Steward {
    /// Every slab was looked at.
    pub(super) fn look(&mut self, now: Instant, findings: &[Finding], pages: &dyn Pages) {
        let has_room = self.donors.has_room(now, pages.slab_size_bytes(), self.config.has_disk);
        // The slab after one with pages was mapped ahead, and is kept.
        let mut ahead = false;
        for (slab, finding) in (0..).map(SlabIndex).zip(findings) {
            if finding.copies > 0 && self.donors.has_distrusted() {
                self.leave_distrusted(slab, pages);
            }
            let kept = std::mem::replace(&mut ahead, finding.stored > 0);
            if finding.stored > 0 || (finding.copies > 0 && kept) {
                self.care.empty_since[slab.0 as usize] = None;
                self.restore(slab, finding, has_room, pages);
            } else if finding.copies > 0 && self.care.stays_empty(now, slab) {
                // A page written since the look keeps its copy; one written from here on finds none, and asks.
                let copies = pages.locations(slab).into_iter().flatten();
                copies.for_each(|location| self.moving.give_back(slab, location));
            }
        }
    }

    fn restore(&mut self, slab: SlabIndex, finding: &Finding, has_room: bool, pages: &dyn Pages) {
        let deserves = self.config.mapping == MappingPolicy::OnDemand || finding.copies > 0;
        let lacks = deserves && finding.copies < self.config.replicas;
        if lacks && has_room {
            self.placing.restore(slab);
        } else if lacks {
            let holders: Vec<DonorSlot> = pages.locations(slab).iter().flatten().map(|it| it.donor).collect();
            self.donors.need(&holders);
        }
        if finding.copies > 0 && finding.missing > 0 {
            self.moving.refill(slab);
        }
        let is_settled = finding.missing == 0 && !self.placing.is_busy(slab) && !self.moving.is_recalled(slab);
        if is_settled && finding.copies > self.config.replicas {
            self.give_back_excess(slab, pages);
        }
    }

    /// A slab has a copy too many: a move whose old copy could not leave, and was not wanted back any more. The donor
    /// with the least room gets its memory back.
    fn give_back_excess(&mut self, slab: SlabIndex, pages: &dyn Pages) {
        let room = |location: &Location| self.donors.view(location.donor).map_or(0, |view| view.free_bytes);
        if let Some(location) = pages
            .locations(slab)
            .into_iter()
            .flatten()
            .min_by_key(|location| (!self.donors.is_distrusted(location.donor), room(location)))
        {
            self.moving.give_back(slab, location);
        }
    }
}
