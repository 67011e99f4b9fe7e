//! How sessions end, and that whatever ends them, every slab comes back.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_donor::limits::{PATIENCE_MAX, UNPROVEN_MAX, UNPROVEN_PER_SOURCE_MAX};
use spillway_donor::{Donor, DonorConfig, DonorError, ListenAddress};
use spillway_fabric::control::ControlError;
use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::key::ClusterKey;
use spillway_fabric::queue_pair::RequestError;
use spillway_fabric::tcp::TcpQueuePair;
use spillway_fabric::units::SlabHandle;
use spillway_fabric::wire::{SessionToken, preface};

use crate::support::{Borrower, PATIENCE, SLAB_SIZE_BYTES, TestDonor, hello};

#[test]
fn a_killed_borrowers_slabs_come_back_at_once() {
    let donor = TestDonor::start(8, None);
    for connect in [TestDonor::borrower_unix, TestDonor::borrower_tcp] {
        let mut borrower = connect(&donor);
        (0..5).for_each(|_| drop(borrower.lease()));
        let mut data = borrower.data(donor.dial_tcp());
        assert_eq!(donor.donor.status().lent_bytes, 5 * SLAB_SIZE_BYTES);
        // What the kernel does for a process that is killed: the control socket closes.
        drop((borrower.sender, borrower.receiver));
        donor.wait_until("slabs return", |status| status.lent_bytes == 0 && status.sessions.is_empty());
        assert!(data.read(SlabHandle(0), 0).is_err(), "its data connections end with it");
    }
}

#[test]
fn goodbye_and_nonsense_end_a_session_with_its_leases() {
    let donor = TestDonor::start(8, None);
    let farewell = Message::Goodbye { reason: "done".to_owned() };
    let nonsense =
        [Message::Release { slab: SlabHandle(9) }, Message::Hello(hello(true)), Message::Lease { request: 0 }];
    for last in [farewell].into_iter().chain(nonsense.into_iter().take(2)) {
        let mut borrower = donor.borrower_unix();
        borrower.lease();
        borrower.sender.send(&last, None).unwrap();
        assert!(matches!(borrower.hear(), Err(ControlError::Closed)), "{last:?}");
        donor.wait_until("slabs return", |status| status.lent_bytes == 0);
    }
}

#[test]
fn a_silent_borrower_loses_its_slabs_and_a_quiet_one_that_answers_does_not() {
    let donor = TestDonor::start(8, None);
    let mut silent = donor.borrower_tcp();
    let mut quiet = donor.borrower_tcp();
    silent.lease();
    quiet.lease();
    // The quiet one answers heartbeats until the silent one is gone.
    let deadline = Instant::now() + PATIENCE;
    while donor.donor.status().sessions.len() == 2 {
        assert!(Instant::now() < deadline);
        match quiet.receiver.receive(Duration::from_millis(50)) {
            Ok((Message::Ping, _)) => quiet.sender.send(&Message::Pong, None).unwrap(),
            Err(ControlError::TimedOut) => {}
            other => panic!("{other:?}"),
        }
    }
    let status = donor.donor.status();
    assert_eq!((status.sessions.len(), status.lent_bytes), (1, SLAB_SIZE_BYTES));
    assert_eq!(quiet.lease().0, SlabHandle(1), "it was the silent one that went");
}

#[test]
fn a_borrower_that_asked_for_patience_gets_it_while_its_connection_is_open() {
    let donor = TestDonor::start(8, None);
    let asking = Hello { patience_seconds: PATIENCE_MAX.as_secs() as u16, ..hello(true) };
    let mut patient = Borrower::greet(donor.dial_unix(), None, &asking).unwrap().unwrap();
    let mut other = donor.borrower_unix();
    patient.lease();
    other.lease();
    // Neither says a word any more.
    donor.wait_until("the other one is given up", |status| status.lent_bytes == SLAB_SIZE_BYTES);
    assert_eq!(donor.donor.status().sessions.len(), 1);
    assert_eq!(patient.lease().0, SlabHandle(1), "it is the patient one that is left");
    drop((patient.sender, patient.receiver));
    donor.wait_until("a closed connection is given up at once", |status| status.lent_bytes == 0);
}

#[test]
fn stopping_says_goodbye_and_removes_the_socket() {
    let test_donor = TestDonor::start(4, None);
    let path = test_donor.donor.unix_path().unwrap().to_owned();
    let mut borrower = test_donor.borrower_unix();
    let mut data = borrower.data(test_donor.dial_unix());
    borrower.lease();
    test_donor.donor.stop();
    assert!(matches!(borrower.hear(), Ok((Message::Goodbye { .. }, None))));
    assert!(matches!(borrower.hear(), Err(ControlError::Closed)));
    assert_eq!(data.read(SlabHandle(0), 0), Err(RequestError::Down));
    assert!(!path.exists());
}

#[test]
fn a_second_donor_at_the_same_socket_is_refused_and_leaves_the_first_alone() {
    let first = TestDonor::start(4, None);
    let config = DonorConfig {
        memory_bytes: 4 * SLAB_SIZE_BYTES,
        headroom_bytes: 0,
        listen: vec![ListenAddress::Unix(first.donor.unix_path().unwrap().to_owned())],
        unix_path: None,
        key: None,
        machine_limit_bytes: None,
        weights: spillway_fabric::tcp::Weights::default(),
        site: spillway_fabric::site::Site::default(),
        slab_prepared_count: 0,
        slab_size_hint_bytes: SLAB_SIZE_BYTES,
    };
    assert!(matches!(Donor::start(config), Err(DonorError::AlreadyRunning(_))));
    first.borrower_unix().lease();
}

#[test]
fn only_the_clusters_key_opens_a_session() {
    let key = ClusterKey::from_bytes([3; 32]);
    let donor = TestDonor::start(4, Some(key.clone()));
    for wrong in [None, Some(ClusterKey::from_bytes([4; 32]))] {
        let error = Borrower::open(donor.dial_tcp(), wrong.as_ref(), false).err().unwrap();
        assert!(matches!(error, ControlError::NoAnswer), "{error}");
    }
    donor.wait_until("both were turned away", |status| status.counters.connections_refused == 2);
    Borrower::open(donor.dial_tcp(), Some(&key), false).unwrap().lease();
}

#[test]
fn a_data_connection_without_a_sessions_token_is_refused() {
    let donor = TestDonor::start(4, None);
    let borrower = donor.borrower_tcp();
    let pool = spillway_fabric::buffer_pool::BufferPool::new(1, 4096).unwrap();
    let guessed = TcpQueuePair::connect(donor.dial_tcp(), &SessionToken([0; 32]), pool.clone(), Arc::default());
    assert_eq!(guessed.err().unwrap().kind(), std::io::ErrorKind::PermissionDenied);
    let token = borrower.welcome.token;
    drop((borrower.sender, borrower.receiver));
    donor.wait_until("the session ends", |status| status.sessions.is_empty());
    assert!(
        TcpQueuePair::connect(donor.dial_tcp(), &token, pool, Arc::default()).is_err(),
        "a token ends with its session"
    );
}

#[test]
fn what_travelled_on_a_data_connection_opens_no_other() {
    let donor = TestDonor::start(4, None);
    let mut borrower = donor.borrower_tcp();
    let (slab, _) = borrower.lease();
    // A listener on the way copies everything that a borrower's data connection sends, and says it again.
    let (near, on_the_way) = std::os::unix::net::UnixStream::pair().unwrap();
    let (mut heard, mut to_donor) = (Vec::new(), donor.dial_tcp());
    let from_donor = to_donor.try_clone().unwrap();
    let mut back = on_the_way.try_clone().unwrap();
    let answers = std::thread::spawn(move || std::io::copy(&mut { from_donor }, &mut back));
    let token = borrower.welcome.token;
    let session = std::thread::spawn(move || {
        let mut data = crate::support::DataConnection::open(near, &token);
        data.write(slab, 0, 0x5a).unwrap();
    });
    let mut bytes = [0; 8192];
    loop {
        match (&on_the_way).read(&mut bytes).unwrap() {
            0 => break,
            count => {
                heard.extend_from_slice(&bytes[..count]);
                to_donor.write_all(&bytes[..count]).unwrap();
            }
        }
    }
    session.join().unwrap();
    to_donor.shutdown(Shutdown::Both).unwrap();
    let _ = answers.join().unwrap();
    assert!(!heard.windows(token.0.len()).any(|window| window == token.0), "the token was heard");
    let refused = donor.donor.status().counters.connections_refused;
    let mut thief = donor.dial_tcp();
    thief.set_read_timeout(Some(PATIENCE)).unwrap();
    // The donor may hang up before all of it is sent.
    let _ = thief.write_all(&heard);
    donor.wait_until("the thief is turned away", |status| status.counters.connections_refused == refused + 1);
    assert_eq!(borrower.data(donor.dial_tcp()).read(slab, 0).unwrap(), vec![0x5a; 4096]);
}

#[test]
fn other_programs_get_no_answer_and_change_nothing() {
    let donor = TestDonor::start(4, None);
    let mut borrower = donor.borrower_unix();
    for bytes in [&b"GET / HTTP/1.1\r\nHost: donor\r\n\r\n"[..], b"SPLW\x63\x00\x02\x00", b"SPLW", b""] {
        let mut stream = donor.dial_tcp();
        stream.write_all(bytes).unwrap();
        // The donor may have hung up already, which resets the connection; either way nothing is answered.
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, []);
    }
    donor.wait_until("all were turned away", |status| status.counters.connections_refused == 4);
    borrower.lease();
}

#[test]
fn peers_that_say_nothing_or_half_a_handshake_are_dropped() {
    let donor = TestDonor::start(4, None);
    let (mut mute, mut half) = (donor.dial_tcp(), donor.dial_unix());
    half.write_all(&preface::encode(preface::Role::Control)).unwrap();
    half.write_all(b"half").unwrap();
    let mut answer = Vec::new();
    mute.set_read_timeout(Some(PATIENCE)).unwrap();
    half.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(mute.read_to_end(&mut answer).unwrap_or(0), 0);
    let _ = half.read_to_end(&mut answer);
    assert_eq!(answer, []);
    donor.borrower_unix().lease();
}

#[test]
fn a_crowd_that_says_nothing_keeps_no_other_out() {
    let donor = TestDonor::start(4, None);
    let mut early = donor.borrower_tcp();
    let mut data = early.data(donor.dial_tcp());
    let (slab, _) = early.lease();
    // An answer proves that the donor knows whose connection it is; before that it is one of the crowd.
    data.write(slab, 0, 6).unwrap();
    // More than one source may have, and more than all may have; each waits for its turn to be looked at.
    let mut crowd: Vec<_> = (0..3 * UNPROVEN_MAX).map(|_| donor.dial_tcp()).collect();
    let deadline = Instant::now() + PATIENCE;
    while donor.donor.status().counters.connections_refused < (crowd.len() - UNPROVEN_PER_SOURCE_MAX) as u64 {
        assert!(Instant::now() < deadline, "the oldest gave way");
        early.keep_alive();
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut answer = [0];
    crowd[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(crowd[0].read(&mut answer).unwrap_or(0), 0);
    early.keep_alive();
    data.write(slab, 0, 7).unwrap();
    let mut late = donor.borrower_tcp();
    late.lease();
    late.data(donor.dial_tcp());
    assert_eq!(data.read(slab, 0).unwrap(), vec![7; 4096]);
}

#[test]
fn stopping_does_not_wait_for_peers_that_say_nothing() {
    let donor = TestDonor::start(4, None);
    let _mute = donor.dial_tcp();
    let _other = donor.dial_unix();
    let _borrower = donor.borrower_tcp();
    donor.donor.stop();
}
