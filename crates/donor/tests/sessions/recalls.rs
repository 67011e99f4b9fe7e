//! How a donor gets its memory back from borrowers.

use std::time::{Duration, Instant};

use spillway_donor::DonorError;
use spillway_donor::limits::ACTIVITY_DEADLINE;
use spillway_fabric::control::message::Message;
use spillway_fabric::units::SlabHandle;

use crate::support::{Borrower, PATIENCE, SLAB_SIZE_BYTES, TestDonor};

/// Hears an activity query and answers that a slab is as active as its handle is large.
fn answer_activity(borrower: &mut Borrower) -> Vec<SlabHandle> {
    let (Message::ActivityQuery { request, slabs }, None) = borrower.hear().unwrap() else {
        panic!("an activity query was expected");
    };
    let values = slabs.iter().map(|slab| (*slab, u64::from(slab.0))).collect();
    borrower.sender.send(&Message::Activity { request, values }, None).unwrap();
    slabs
}

fn hear_recall(borrower: &mut Borrower) -> Vec<SlabHandle> {
    let (Message::Recall { slabs, deadline_ms }, None) = borrower.hear().unwrap() else {
        panic!("a recall was expected");
    };
    assert!(deadline_ms > 0);
    slabs
}

#[test]
fn a_smaller_quota_recalls_the_least_active_of_a_sample() {
    // Without answers the donor chooses after [`ACTIVITY_DEADLINE`], and a busy machine may hold up this borrower so
    // long.
    let was_in_time = (0..20).any(|_| {
        let donor = TestDonor::start(12, None);
        let mut borrower = donor.borrower_unix();
        (0..12).for_each(|_| drop(borrower.lease()));
        let started = Instant::now();
        donor.donor.set_memory(9 * SLAB_SIZE_BYTES);
        let mut asked = answer_activity(&mut borrower);
        let mut recalled = hear_recall(&mut borrower);
        if started.elapsed() >= ACTIVITY_DEADLINE {
            return false;
        }
        assert_eq!(asked.len(), 6, "E + E' with E' = E = 3");
        asked.sort_unstable();
        recalled.sort_unstable();
        assert_eq!(recalled, asked[..3]);
        let status = donor.donor.status();
        assert_eq!((status.recalls.asked, status.recalls.returned), (3, 0));
        assert_eq!(status.lent_bytes, 12 * SLAB_SIZE_BYTES, "a recalled slab stays lent until it is released");
        recalled.into_iter().for_each(|slab| borrower.release(slab));
        let status = donor.donor.status();
        assert_eq!((status.lent_bytes, status.recalls.returned), (9 * SLAB_SIZE_BYTES, 3));
        assert!(matches!(*borrower.try_lease().unwrap_err(), Message::Refused { full: true, .. }));
        true
    });
    assert!(was_in_time, "not one of twenty recalls came before the donor's deadline");
}

#[test]
fn a_borrower_that_does_not_tell_activity_is_recalled_from_all_the_same() {
    let donor = TestDonor::start(4, None);
    let mut borrower = donor.borrower_tcp();
    (0..4).for_each(|_| drop(borrower.lease()));
    donor.donor.set_memory(3 * SLAB_SIZE_BYTES);
    assert!(matches!(borrower.hear(), Ok((Message::ActivityQuery { .. }, None))));
    assert_eq!(hear_recall(&mut borrower).len(), 1);
}

#[test]
fn draining_recalls_everything_and_ends_when_it_is_back() {
    let donor = TestDonor::start(6, None);
    let mut borrower = donor.borrower_unix();
    (0..5).for_each(|_| drop(borrower.lease()));
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| donor.donor.drain(PATIENCE));
        for slab in hear_recall(&mut borrower) {
            borrower.release(slab);
        }
        draining.join().unwrap().unwrap();
    });
    assert!(matches!(*borrower.try_lease().unwrap_err(), Message::Refused { full: true, .. }));
    donor.wait_until("prepared slabs are given up", |status| status.prepared_bytes == 0);
    let status = donor.donor.status();
    assert!(status.draining);
    assert_eq!((status.lent_bytes, status.free_to_lend_bytes, status.recalls.returned), (0, 0, 5));
}

#[test]
fn a_drain_that_borrowers_do_not_follow_says_how_much_is_still_lent() {
    let donor = TestDonor::start(4, None);
    let mut borrower = donor.borrower_unix();
    (0..2).for_each(|_| drop(borrower.lease()));
    let error = donor.donor.drain(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, DonorError::DrainIncomplete { slabs: 2 }));
    assert_eq!(donor.donor.status().lent_bytes, 2 * SLAB_SIZE_BYTES, "nothing is taken from a borrower");
}

#[test]
fn a_session_that_ends_while_slabs_are_recalled_returns_them() {
    let donor = TestDonor::start(4, None);
    let mut borrower = donor.borrower_unix();
    (0..4).for_each(|_| drop(borrower.lease()));
    assert!(donor.donor.drain(Duration::ZERO).is_err());
    assert_eq!(hear_recall(&mut borrower).len(), 4);
    drop(borrower);
    donor.donor.drain(PATIENCE).unwrap();
    assert_eq!(donor.donor.status().recalls.returned, 4);
}
