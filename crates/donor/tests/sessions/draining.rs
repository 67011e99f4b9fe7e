//! A donor that operators drain over the network, by the control channel's key.

use crate::support::{Borrower, PATIENCE, SLAB_SIZE_BYTES, TestDonor, hello};
use spillway_fabric::control::ControlChannel;
use spillway_fabric::control::message::{DrainOrder, Message};
use spillway_fabric::key::ClusterKey;

fn order(donor: &TestDonor, key: Option<&ClusterKey>, order: DrainOrder) -> Option<(bool, u64, String)> {
    let (sender, mut receiver) = ControlChannel::connect(donor.dial_tcp(), key).ok()?.split();
    sender.send(&Message::Drain { order }, None).ok()?;
    match receiver.receive(PATIENCE).ok()?.0 {
        Message::Draining { is_draining, quota_bytes, lent_bytes, holders } => {
            assert_eq!(quota_bytes, 4 * SLAB_SIZE_BYTES);
            Some((is_draining, lent_bytes, holders))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn everything_is_asked_back_and_lent_again_when_that_is_undone() {
    let key = ClusterKey::from_bytes([7; 32]);
    let donor = TestDonor::start(4, Some(key.clone()));
    let mut borrower = Borrower::open(donor.dial_tcp(), Some(&key), false).unwrap();
    let slab = borrower.lease().0;
    assert!(!order(&donor, Some(&key), DrainOrder::Look).unwrap().0);
    let (is_draining, lent_bytes, holders) = order(&donor, Some(&key), DrainOrder::Drain).unwrap();
    assert!(is_draining && lent_bytes == SLAB_SIZE_BYTES && holders.contains(&hello(false).volume), "{holders}");
    match borrower.hear().unwrap().0 {
        Message::Recall { slabs, .. } => assert_eq!(slabs, [slab]),
        other => panic!("{other:?}"),
    }
    borrower.sender.send(&Message::Lease { request: 77 }, None).unwrap();
    assert!(matches!(borrower.hear().unwrap().0, Message::Refused { request: 77, full: true, .. }));
    borrower.sender.send(&Message::Release { slab }, None).unwrap();
    assert!(matches!(borrower.hear().unwrap().0, Message::Released { .. }));
    assert_eq!(order(&donor, Some(&key), DrainOrder::Look), Some((true, 0, String::new())));
    assert_eq!(order(&donor, Some(&key), DrainOrder::Undo), Some((false, 0, String::new())));
    borrower.lease();
    assert_eq!(donor.donor.status().sessions.len(), 1, "operators have no session");
}

#[test]
fn what_was_asked_back_may_stay_when_the_drain_is_undone() {
    let key = ClusterKey::from_bytes([7; 32]);
    let donor = TestDonor::start(4, Some(key.clone()));
    let mut borrower = Borrower::open(donor.dial_tcp(), Some(&key), false).unwrap();
    let (gone, stays) = (borrower.lease().0, borrower.lease().0);
    assert!(order(&donor, Some(&key), DrainOrder::Drain).unwrap().0);
    let Message::Recall { slabs, .. } = borrower.hear().unwrap().0 else { panic!("it asks for all") };
    assert_eq!(slabs, [gone, stays]);
    borrower.sender.send(&Message::Release { slab: gone }, None).unwrap();
    assert!(matches!(borrower.hear().unwrap().0, Message::Released { .. }));
    let (is_draining, lent_bytes, _) = order(&donor, Some(&key), DrainOrder::Undo).unwrap();
    assert!(!is_draining && lent_bytes == SLAB_SIZE_BYTES);
    assert_eq!(borrower.hear().unwrap().0, Message::RecallWithdrawn { slabs: vec![stays] });
    let recalls = donor.donor.status().recalls;
    assert_eq!((recalls.asked, recalls.returned, recalls.withdrawn), (2, 1, 1));
}

#[test]
fn without_the_key_nothing_is_drained() {
    let key = ClusterKey::from_bytes([7; 32]);
    let donor = TestDonor::start(4, Some(key));
    assert_eq!(order(&donor, Some(&ClusterKey::from_bytes([8; 32])), DrainOrder::Drain), None);
    assert_eq!(order(&donor, None, DrainOrder::Drain), None);
    assert!(!donor.donor.status().draining);
}
