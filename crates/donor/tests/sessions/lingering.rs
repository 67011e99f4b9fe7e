//! Slabs of a borrower that went without a goodbye wait for it, if it asked for that, and for no other process.

use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::units::SlabHandle;
use spillway_fabric::wire::SessionToken;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;

use crate::support::{Borrower, SLAB_SIZE_BYTES, TestDonor, hello};

/// Long enough for every test; what is to expire asks for a second.
const LONG: u16 = 60;

fn asking(linger_seconds: u16, shares: bool) -> Hello {
    Hello { linger_seconds, ..hello(shares) }
}

fn open(donor: &TestDonor, hello: &Hello) -> Borrower {
    let greeted = if hello.wants_shared_memory {
        Borrower::greet(donor.dial_unix(), None, hello)
    } else {
        Borrower::greet(donor.dial_tcp(), None, hello)
    };
    greeted.unwrap().unwrap()
}

fn say_goodbye(borrower: &Borrower) {
    borrower.sender.send(&Message::Goodbye { reason: "done".to_owned() }, None).unwrap();
}

/// As a killed process does: its sockets close, and nothing is said.
fn die(borrower: &Borrower) {
    borrower.sender.close();
}

fn back(hello: &Hello, token: SessionToken) -> Hello {
    Hello { resume: Some(token), ..hello.clone() }
}

/// The slabs that a resumed session begins with.
fn held(borrower: &mut Borrower) -> Vec<(SlabHandle, Option<Memfd>)> {
    (0..borrower.welcome.held)
        .map(|_| {
            let (message, file) = borrower.hear().unwrap();
            let Message::Held { slab, .. } = message else { panic!("{message:?}") };
            (slab, file.map(|file| Memfd::open(file).unwrap()))
        })
        .collect()
}

#[test]
fn a_borrower_that_comes_back_finds_its_pages() {
    let donor = TestDonor::start(4, None);
    let hello = asking(LONG, true);
    let mut borrower = open(&donor, &hello);
    assert_eq!(borrower.welcome.held, 0);
    let (slab, memory) = borrower.lease_mapped();
    let (other, _) = borrower.lease();
    borrower.release(other);
    memory.write(4096, b"page");
    let token = borrower.welcome.resume;
    die(&borrower);
    donor.wait_until("it lingers", |status| status.sessions_lingering == 1 && status.sessions.is_empty());
    assert_eq!(donor.donor.status().lent_bytes, SLAB_SIZE_BYTES);

    let mut borrower = open(&donor, &back(&hello, token));
    assert!(borrower.welcome.resume == token, "the secret stays");
    let held = held(&mut borrower);
    assert_eq!(held.iter().map(|(slab, _)| *slab).collect::<Vec<_>>(), [slab]);
    let mut seen = [0; 4];
    Mapping::shared(held[0].1.as_ref().unwrap(), SLAB_SIZE_BYTES as usize).unwrap().read(4096, &mut seen);
    assert_eq!(&seen, b"page");
    assert_ne!(borrower.lease().0, slab, "a held handle is not given out again");
    let status = donor.donor.status();
    assert_eq!((status.counters.sessions_resumed, status.sessions_lingering), (1, 0));
    say_goodbye(&borrower);
    donor.wait_until("a goodbye returns everything", |status| status.lent_bytes == 0);
}

#[test]
fn a_peer_that_did_not_ask_or_says_goodbye_leaves_nothing() {
    let donor = TestDonor::start(4, None);
    for (linger_seconds, goodbye) in [(0, false), (LONG, true)] {
        let mut borrower = open(&donor, &asking(linger_seconds, true));
        borrower.lease();
        if goodbye {
            say_goodbye(&borrower);
        } else {
            die(&borrower);
        }
        donor.wait_until("slabs are back", |status| status.lent_bytes == 0 && status.sessions.is_empty());
        assert_eq!(donor.donor.status().sessions_lingering, 0);
    }
}

#[test]
fn slabs_are_taken_back_when_no_borrower_comes() {
    let donor = TestDonor::start(4, None);
    let mut borrower = open(&donor, &asking(1, true));
    borrower.lease();
    let (hello, token) = (asking(1, true), borrower.welcome.resume);
    die(&borrower);
    donor.wait_until("it lingers", |status| status.sessions_lingering == 1);
    donor.wait_until("slabs are back", |status| status.lent_bytes == 0 && status.sessions_lingering == 0);
    assert_eq!(open(&donor, &back(&hello, token)).welcome.held, 0, "too late is a fresh start");
}

#[test]
fn a_wrong_secret_or_another_borrower_gets_nothing() {
    let donor = TestDonor::start(4, None);
    let owner = asking(LONG, true);
    let mut borrower = open(&donor, &owner);
    borrower.lease();
    let token = borrower.welcome.resume;
    die(&borrower);
    donor.wait_until("it lingers", |status| status.sessions_lingering == 1);
    let mut wrong = token;
    wrong.0[31] ^= 1;
    let thieves = [back(&owner, wrong), back(&asking(LONG, true), token)];
    for thief in &thieves {
        let greeted = open(&donor, thief);
        assert_eq!(greeted.welcome.held, 0);
        assert!(greeted.welcome.resume != token);
    }
    let other_size = Hello { slab_size_bytes: 2 * SLAB_SIZE_BYTES, ..back(&owner, token) };
    assert_eq!(open(&donor, &other_size).welcome.held, 0);
    assert_eq!(open(&donor, &back(&owner, token)).welcome.held, 1, "its owner still gets it");
}

#[test]
fn a_borrower_that_is_faster_than_the_news_of_its_death_takes_over() {
    let donor = TestDonor::start(4, None);
    let hello = asking(LONG, false);
    let mut old = open(&donor, &hello);
    let (slab, _) = old.lease();
    let mut data = old.data(donor.dial_tcp());
    data.write(slab, 0, 7).unwrap();
    // The old session is still open, with a data connection.
    let mut new = open(&donor, &back(&hello, old.welcome.resume));
    assert_eq!(held(&mut new).iter().map(|(slab, _)| *slab).collect::<Vec<_>>(), [slab]);
    assert!(old.hear().is_err(), "the old session is over");
    assert!(data.read(slab, 0).is_err(), "so is its data connection");
    assert_eq!(new.data(donor.dial_tcp()).read(slab, 0).unwrap(), [7; 4096]);
}
