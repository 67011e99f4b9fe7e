//! The manager's thread: maps slabs that are wanted, and looks after all of them from time to time.
//!
//! Mapping is on demand (a write to an unmapped slab asks for it) or by activity ([`crate::manager::heat`]). A look
//! finds slabs with too few copies or with copies that miss pages (and asks the mover to refill them). It finds
//! mapped slabs without a page (and gives them back), and whether donors have room at all.

pub mod findings;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_fabric::units::SlabIndex;

use crate::limits::{COPIES_MAX, EMPTY_SLAB_INTERVAL, SLAB_SCAN_INTERVAL, SLAB_SCAN_SHARE};
use crate::manager::donors::{DonorEntry, Phase};
use crate::manager::heat::Heat;
use crate::manager::mapping::drop_covered_copy;
use crate::manager::mover::Work;
use crate::manager::{ManagerState, link};
use crate::settings::mapping::MappingPolicy;
use crate::slab_map::slab_entry::Location;

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

/// Looks at a slab. A copy whose donor's session ended does not count, though its copy index may not be emptied yet.
pub fn examine(shared: &ManagerState, slab: SlabIndex) -> Finding {
    let alive = |location: &Location| shared.donors[usize::from(location.donor.0)].phase() == Phase::Connected;
    let locations = shared.volume.slab(slab).locations().map(|copy_index| copy_index.filter(alive));
    let mut finding = Finding { copies: locations.iter().flatten().count(), ..Finding::default() };
    for first in shared.volume.geometry.words(slab) {
        let word = shared.volume.bits.word(first);
        let stored = word.stored();
        let missed =
            |copy_index: usize| if locations[copy_index].is_some() { stored & !word.copies[copy_index] } else { 0 };
        finding.stored += u64::from(stored.count_ones());
        finding.missing += u64::from((0..COPIES_MAX).fold(0, |all, copy_index| all | missed(copy_index)).count_ones());
        finding.lost += u64::from((word.lost & !stored).count_ones());
    }
    finding
}

/// Works until the device stops.
pub fn run(shared: &ManagerState) {
    let mut empty_since: Vec<Option<Instant>> = vec![None; shared.volume.geometry.slab_count as usize];
    let mut heat = Heat::new(shared.volume.geometry.slab_count);
    let mut next_look = Instant::now();
    while !shared.is_stopping() {
        wait(shared, next_look.saturating_duration_since(Instant::now()));
        for donor in shared.volume.take_trouble() {
            link::reset(&shared.donors[usize::from(donor.0)], "requests to it failed");
        }
        if shared.volume.mapping == MappingPolicy::ByActivity && heat.is_due(Instant::now()) {
            want_hot_slabs(shared, &mut heat);
        }
        map_wanted(shared);
        shared.volume.latencies.tick(Instant::now());
        if Instant::now() >= next_look {
            refresh_donors(shared);
            let started = Instant::now();
            let findings = shared.slab_findings.recent(shared);
            let rest = rest_after(started.elapsed());
            look_after_slabs(shared, &findings, &mut empty_since);
            next_look = Instant::now() + rest;
        }
    }
}

fn wait(shared: &ManagerState, patience: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: patience.min(SLAB_SCAN_INTERVAL).subsec_nanos().into() };
    let mut waits = [PollFd::new(&shared.volume.manager_event, PollFlags::IN)];
    // An interrupted wait is a short one.
    let _ = poll(&mut waits, Some(&timeout));
    shared.volume.manager_event.clear();
}

fn want_hot_slabs(shared: &ManagerState, heat: &mut Heat) {
    let volume = &shared.volume;
    let want = |slab| {
        if volume.slab(slab).is_unmapped() {
            volume.want(slab);
        }
    };
    heat.look(Instant::now(), |slab| volume.slab(slab).accesses(), want);
}

fn map_wanted(shared: &ManagerState) {
    if !shared.volume.take_wanted() {
        return;
    }
    for slab in shared.volume.geometry.slabs() {
        let entry = shared.volume.slab(slab);
        if entry.take_want() {
            let first_copies = shared.copies(slab) == 0;
            if first_copies {
                entry.turn_mapping();
            }
            add_missing_copies(shared, slab);
            if first_copies {
                entry.turn_mapping();
            }
        }
    }
    shared.volume.set_mapping_possible(has_room(shared));
}

fn add_missing_copies(shared: &ManagerState, slab: SlabIndex) -> bool {
    let mut added = false;
    let wanted = usize::from(shared.volume.redundancy.replicas);
    while shared.copies(slab) < wanted {
        if shared.mapper.add_copy(shared, slab, None, wanted).is_none() {
            return added;
        }
        added = true;
    }
    added
}

fn refresh_donors(shared: &ManagerState) {
    for donor in &shared.donors {
        // A silent donor is passed over for a while by `room`, so this waits for each at most once in a while.
        if donor.room(Instant::now()).is_some_and(|(_, refused)| !refused) {
            let _ = donor.query();
        }
    }
    shared.volume.set_mapping_possible(has_room(shared));
    for holder in &shared.queue_pairs {
        holder.mailbox.sweep();
    }
}

fn has_room(shared: &ManagerState) -> bool {
    let now = Instant::now();
    let slab_size_bytes = shared.volume.geometry.slab_size_bytes();
    // Without a disk a write can only wait for a donor that says nothing for a moment.
    let waits = |donor: &DonorEntry| !shared.volume.redundancy.disk && shared.volume.is_silent(donor.slot);
    let room = |donor: &DonorEntry| {
        donor.room(now).is_some_and(|(free, refused)| (!refused || waits(donor)) && free >= slab_size_bytes)
    };
    shared.donors.iter().any(room)
}

fn look_after_slabs(shared: &ManagerState, findings: &[Finding], empty_since: &mut [Option<Instant>]) {
    let now = Instant::now();
    // The slab after one with pages was mapped ahead, and is kept.
    let mut ahead = false;
    for (slab, finding) in shared.volume.geometry.slabs().zip(findings.iter().copied()) {
        let empty = &mut empty_since[slab.0 as usize];
        let kept = std::mem::replace(&mut ahead, finding.stored > 0);
        if finding.stored > 0 || (finding.copies > 0 && kept) {
            *empty = None;
            restore(shared, slab, finding);
        } else if finding.copies > 0 {
            let since = *empty.get_or_insert(now);
            if now.saturating_duration_since(since) >= EMPTY_SLAB_INTERVAL {
                *empty = None;
                give_back(shared, slab);
            }
        }
    }
}

fn restore(shared: &ManagerState, slab: SlabIndex, finding: Finding) {
    let wanted = usize::from(shared.volume.redundancy.replicas);
    let deserves = shared.volume.mapping == MappingPolicy::OnDemand || finding.copies > 0;
    let lacks = deserves && finding.copies < wanted;
    let added = lacks && shared.volume.mapping_possible() && add_missing_copies(shared, slab);
    if added || (finding.copies > 0 && finding.missing > 0) {
        shared.work.add(Work::Refill(slab));
    }
}

fn give_back(shared: &ManagerState, slab: SlabIndex) {
    // A page written since the look keeps its copy; one written from here on finds none, and asks.
    for copy_index in 0..COPIES_MAX {
        drop_covered_copy(shared, slab, copy_index);
    }
}

/// How long to rest after a look that took `took`.
pub fn rest_after(took: Duration) -> Duration {
    SLAB_SCAN_INTERVAL.max(took * (SLAB_SCAN_SHARE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_look_is_followed_by_a_long_rest() {
        assert_eq!(rest_after(Duration::ZERO), SLAB_SCAN_INTERVAL);
        assert_eq!(rest_after(Duration::from_millis(1)), SLAB_SCAN_INTERVAL);
        let took = Duration::from_millis(500);
        assert_eq!((took + rest_after(took)) / SLAB_SCAN_SHARE, took);
    }
}
