//! The manager's thread: tells the [`Steward`](crate::steward) which slabs are wanted and what a look at all of them
//! found, and puts leases in place.

pub mod findings;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_fabric::units::SlabIndex;

use crate::limits::{COPIES_MAX, SLAB_SCAN_INTERVAL, SLAB_SCAN_SHARE};
use crate::manager::decisions::PlaceJob;
use crate::manager::mapping::place;
use crate::manager::{ManagerState, link};
use crate::slab_map::slab_entry::Location;
use crate::slab_map::trust::FailureNews;
use crate::steward::Input;
use crate::steward::care::Finding;

/// Looks at a slab. A copy whose donor is not `connected`, a bit each, does not count, though its copy index may not be
/// emptied yet.
pub fn examine(shared: &ManagerState, slab: SlabIndex, connected: u64) -> Finding {
    let alive = |location: &Location| connected & (1 << location.donor.0) != 0;
    let locations = shared.volume.slab(slab).locations().map(|copy_index| copy_index.filter(alive));
    let mut finding = Finding { copies: locations.iter().flatten().count(), ..Finding::default() };
    for first in shared.volume.geometry.words(slab) {
        let word = shared.volume.bits.word(first);
        let stored = word.stored();
        let missed =
            |copy_index: usize| if locations[copy_index].is_some() { stored & !word.copies[copy_index] } else { 0 };
        finding.stored += u64::from(stored.count_ones());
        let missing = (0..COPIES_MAX).fold(shared.volume.in_doubt(first), |all, copy_index| all | missed(copy_index));
        finding.missing += u64::from(missing.count_ones());
        finding.lost += u64::from((word.lost & !stored).count_ones());
    }
    finding
}

/// Works until the device stops.
pub fn run(shared: &ManagerState) {
    let mut next_look = Instant::now();
    while !shared.is_stopping() {
        wait(shared, next_look);
        for donor in shared.volume.take_trouble() {
            if let Some(donor) = shared.donors.get(donor) {
                link::reset(&donor, "requests to it failed");
            }
        }
        tell_wrong_pages(shared);
        tell_wanted(shared);
        if shared.decisions.wake_at().is_some_and(|at| at <= Instant::now()) {
            shared.decide(Input::Tick);
        }
        while let Some(PlaceJob { slab, leases, copies_max }) = shared.decisions.take_place() {
            let copy_indexes = place(shared, slab, &leases, copies_max);
            shared.decide(Input::Placed { slab, copy_indexes });
        }
        shared.volume.latencies.tick(Instant::now());
        if Instant::now() >= next_look {
            shared.queue_pairs.iter().for_each(|holder| holder.mailbox.sweep());
            let started = Instant::now();
            let findings = shared.slab_findings.recent(shared);
            let rest = rest_after(started.elapsed());
            shared.decide(Input::Looked { findings });
            next_look = Instant::now() + rest;
        }
    }
}

/// Waits until there is something to do.
fn wait(shared: &ManagerState, next_look: Instant) {
    let until = shared.decisions.wake_at().map_or(next_look, |at| at.min(next_look));
    let patience = until.saturating_duration_since(Instant::now()).min(SLAB_SCAN_INTERVAL);
    let timeout = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
    let mut waits = [PollFd::new(&shared.volume.manager_event, PollFlags::IN)];
    // An interrupted wait is a short one.
    let _ = poll(&mut waits, Some(&timeout));
    shared.volume.manager_event.clear();
}

/// Says which donors sent pages that are not what was written, and has slabs moved away from those that are not
/// trusted any more.
fn tell_wrong_pages(shared: &ManagerState) {
    for FailureNews { donor, pages, page, is_distrusted } in shared.volume.trust.take_news() {
        let Some(donor) = donor else {
            tracing::error!("{pages} pages from the backing file are not what was written, the last one page {page}");
            continue;
        };
        let address = shared.donors.get(donor).map_or_else(String::new, |donor| donor.address.to_string());
        tracing::error!("donor {address} sent {pages} pages that are not what was written, the last one page {page}");
        if is_distrusted {
            tracing::error!("donor {address} is not trusted any more: its slabs are moved to others");
            shared.decide(Input::Distrusted { donor });
        }
    }
}

/// Tells the Steward which slabs requests wait for.
fn tell_wanted(shared: &ManagerState) {
    if !shared.volume.take_wanted() {
        return;
    }
    for slab in shared.volume.geometry.slabs().filter(|slab| shared.volume.slab(*slab).take_want()) {
        shared.decide(Input::Wanted { slab });
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
