//! What a borrower gets from a donor, over shared memory and over TCP.

use std::time::{Duration, Instant};

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::queue_pair::RequestError;
use spillway_fabric::units::SlabHandle;

use crate::support::{Borrower, PATIENCE, SLAB_SIZE_BYTES, TestDonor, hello};

#[test]
fn slabs_are_zeroed_and_no_borrower_sees_anothers_bytes() {
    let donor = TestDonor::start(8, None);
    let (mut one, mut other) = (donor.borrower_unix(), donor.borrower_unix());
    let (_, ours) = one.lease_mapped();
    let (_, theirs) = other.lease_mapped();
    let mut seen = vec![1; SLAB_SIZE_BYTES as usize];
    theirs.read(0, &mut seen);
    assert!(seen.iter().all(|byte| *byte == 0));
    ours.write(0, &[7; 4096]);
    theirs.write(0, &[9; 4096]);
    let mut first = [0; 4096];
    ours.read(0, &mut first);
    assert_eq!(first, [7; 4096]);
}

#[test]
fn a_released_slab_is_lent_again_without_its_old_bytes() {
    let donor = TestDonor::start(1, None);
    let mut one = donor.borrower_tcp();
    let mut data = one.data(donor.dial_tcp());
    let (slab, _) = one.lease();
    data.write(slab, 8192, 0x5a).unwrap();
    assert_eq!(data.read(slab, 8192).unwrap(), [0x5a; 4096]);
    one.release(slab);
    assert_eq!(data.read(slab, 8192), Err(RequestError::NotLent));
    let mut other = donor.borrower_tcp();
    let mut other_data = other.data(donor.dial_tcp());
    let (slab, _) = other.lease();
    assert_eq!(other_data.read(slab, 8192).unwrap(), [0; 4096]);
    assert_eq!(data.read(slab, 8192), Err(RequestError::NotLent), "another session's handle means nothing here");
}

#[test]
fn borrowers_over_tcp_with_equal_handles_reach_their_own_slabs() {
    let donor = TestDonor::start(4, None);
    let (mut one, mut other) = (donor.borrower_tcp(), donor.borrower_tcp());
    let (mut one_data, mut other_data) = (one.data(donor.dial_tcp()), other.data(donor.dial_unix()));
    let (slab, _) = one.lease();
    assert_eq!(other.lease().0, slab, "handles are small numbers in every session");
    one_data.write(slab, 0, 1).unwrap();
    other_data.write(slab, 0, 2).unwrap();
    assert_eq!(one_data.read(slab, 0).unwrap(), [1; 4096]);
    assert_eq!(other_data.read(slab, 0).unwrap(), [2; 4096]);
    assert_eq!(one_data.read(SlabHandle(77), 0), Err(RequestError::NotLent));
}

#[test]
fn a_full_donor_says_so_and_lends_again_when_slabs_return() {
    let donor = TestDonor::start(3, None);
    let mut borrower = donor.borrower_unix();
    let slabs: Vec<SlabHandle> = (0..3).map(|_| borrower.lease().0).collect();
    let refused = borrower.try_lease().unwrap_err();
    assert!(matches!(*refused, Message::Refused { full: true, .. }), "{refused:?}");
    let status = donor.donor.status();
    assert_eq!((status.lent_bytes, status.free_to_lend_bytes), (3 * SLAB_SIZE_BYTES, 0));
    borrower.release(slabs[1]);
    assert_eq!(borrower.lease().0, slabs[1]);
    assert_eq!(donor.donor.status().counters.leases_refused, 1);
}

#[test]
fn hundreds_of_leases_and_releases_leave_nothing_behind() {
    let donor = TestDonor::start(4, None);
    for connect in [TestDonor::borrower_unix, TestDonor::borrower_tcp] {
        let mut borrower = connect(&donor);
        for _ in 0..150 {
            let slabs: Vec<SlabHandle> = (0..3).map(|_| borrower.lease().0).collect();
            slabs.into_iter().for_each(|slab| borrower.release(slab));
        }
    }
    let status = donor.donor.status();
    assert_eq!((status.lent_bytes, status.counters.leases_granted), (0, 900));
}

#[test]
fn status_and_queries_tell_the_truth() {
    let donor = TestDonor::start(10, None);
    let mut borrower = donor.borrower_unix();
    (0..4).for_each(|_| drop(borrower.lease()));
    borrower.sender.send(&Message::Query { request: 5 }, None).unwrap();
    let free = Message::Free { request: 5, free_bytes: 6 * SLAB_SIZE_BYTES, slabs_held: 4 };
    assert_eq!(borrower.hear().unwrap().0, free);
    let status = donor.donor.status();
    assert_eq!(status.id, borrower.welcome.donor.to_string());
    assert_eq!(status.sessions.len(), 1);
    assert_eq!((status.sessions[0].slabs, status.sessions[0].transport.as_str()), (4, "shm"));
    assert_eq!(status.sessions[0].lent_bytes, status.lent_bytes);
    assert_eq!(status.addresses.len(), 2);
    donor.wait_until("slabs are prepared", |status| status.prepared_bytes == 2 * SLAB_SIZE_BYTES);
}

#[test]
fn slabs_of_another_size_are_lent_too() {
    let donor = TestDonor::start(16, None);
    let mut greeting = hello(true);
    greeting.slab_size_bytes = 4 * SLAB_SIZE_BYTES;
    let mut borrower = Borrower::greet(donor.dial_unix(), None, &greeting).unwrap().unwrap();
    let (_, file) = borrower.lease();
    assert_eq!(file.unwrap().length_bytes(), 4 * SLAB_SIZE_BYTES);
    assert_eq!(donor.donor.status().lent_bytes, 4 * SLAB_SIZE_BYTES);
    donor.wait_until("slabs of that size are prepared", |status| status.prepared_bytes == 8 * SLAB_SIZE_BYTES);
}

#[test]
fn sessions_that_cannot_work_are_rejected_with_a_reason() {
    let donor = TestDonor::start(4, None);
    let mut odd = hello(false);
    odd.slab_size_bytes = 12345;
    let mut newer = hello(false);
    newer.version += 1;
    for (greeting, expected) in [(odd, "12345"), (newer, "wire version"), (hello(true), "UNIX socket")] {
        let Ok(Err(Message::Rejected { reason })) = Borrower::greet(donor.dial_tcp(), None, &greeting) else {
            panic!("{expected} was not rejected");
        };
        assert!(reason.contains(expected), "{reason}");
    }
    assert_eq!(donor.donor.status().sessions, []);
}

#[test]
fn bytes_are_counted_where_the_donor_sees_them_and_nowhere_else() {
    let donor = TestDonor::start(4, None);
    let mut remote = donor.borrower_tcp();
    let (slab, _) = remote.lease();
    let (mut one, mut other) = (remote.data(donor.dial_tcp()), remote.data(donor.dial_tcp()));
    one.write(slab, 0, 1).unwrap();
    other.write(slab, 4096, 2).unwrap();
    other.read(slab, 0).unwrap();
    // An answer is counted once it was sent, which may be just after it came.
    donor.wait_until("the bytes are counted", |status| {
        let session = &status.sessions[0];
        (session.read_bytes, session.written_bytes) == (Some(4096), Some(8192))
    });
    drop((one, other, remote));
    donor.wait_until("the session ends", |status| status.sessions.is_empty());
    let mut local = donor.borrower_unix();
    let (_, memory) = local.lease_mapped();
    memory.write(0, &[1; 4096]);
    let status = donor.donor.status();
    assert_eq!((status.sessions[0].read_bytes, status.sessions[0].written_bytes), (None, None));
}

#[test]
fn borrowers_with_different_slab_sizes_do_not_take_each_others_prepared_slabs() {
    let donor = TestDonor::start(32, None);
    let mut small = donor.borrower_unix();
    let larger = Hello { slab_size_bytes: 4 * SLAB_SIZE_BYTES, ..hello(true) };
    let mut large = Borrower::greet(donor.dial_unix(), None, &larger).unwrap().unwrap();
    // Two of each size are kept ready, whichever came last.
    let both = 2 * (1 + 4) * SLAB_SIZE_BYTES;
    let ready = |mut borrowers: [&mut Borrower; 2]| {
        let deadline = Instant::now() + PATIENCE;
        while donor.donor.status().prepared_bytes != both {
            assert!(Instant::now() < deadline, "{:?}", donor.donor.status());
            borrowers.iter_mut().for_each(|borrower| borrower.keep_alive());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    ready([&mut small, &mut large]);
    let unprepared = donor.donor.status().counters.leases_unprepared;
    for _ in 0..3 {
        small.lease();
        large.lease();
        ready([&mut small, &mut large]);
    }
    assert_eq!(donor.donor.status().counters.leases_unprepared, unprepared);
}
