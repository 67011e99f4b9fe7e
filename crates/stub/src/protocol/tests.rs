//! Messages survive their journey, and what is no message of this version is refused.

use super::*;

fn hello() -> Hello {
    Hello {
        kind: HelloKind::Evictor,
        process: u32::MAX,
        attempt: 7,
        status: -13,
        token: u64::MAX - 7,
        start_evictor: u64::MAX - 1,
        library_start: 0x7000_0000_1000,
        library_end: 0x7000_0000_2000,
        cell: 0x7000_0000_1800,
        head: 0x7000_0001_0000,
    }
}

#[test]
fn the_filter_lets_these_calls_pass() {
    assert_eq!(UNASKED, spillway_sys::call_filter::UNASKED);
}

#[test]
fn messages_survive_their_journey() {
    assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    let start = |has_own_directory| Some(EvictorStart { attempt: 3, has_own_directory });
    for (verdict, evictor) in
        [(Verdict::Page, start(true)), (Verdict::RunUnpaged, None), (Verdict::PageTellingForks, start(false))]
    {
        let welcome = Welcome { verdict, evictor };
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
    }
    let ready = Ready { head: 0x7fff_0000_0000, status: -12 };
    assert_eq!(Ready::decode(&ready.encode()), Ok(ready));
}

#[test]
fn strangers_and_other_versions_are_told_apart() {
    let mut words = hello().encode();
    words[1] = 99;
    assert_eq!(Hello::decode(&words), Err(Mismatch::Version(99)));
    words[0] ^= 1;
    assert_eq!(Hello::decode(&words), Err(Mismatch::NotOurs));
    let mut words = hello().encode();
    words[2] = 99;
    assert_eq!(Hello::decode(&words), Err(Mismatch::NotOurs), "a kind that is not known");
    assert_eq!(Welcome::decode(&[0; MESSAGE_WORDS]), Err(Mismatch::NotOurs));
}

#[test]
fn parts_of_a_seat_do_not_overlap() {
    assert!(batch_offset(0) >= size_of::<SeatHead>());
    assert!(batch_offset(1) >= batch_offset(0) + size_of::<Batch>());
    assert!(transfer_offset(0, 0) >= batch_offset(1) + size_of::<Batch>());
    assert_eq!(transfer_offset(0, BATCH_ENTRIES_MAX), transfer_offset(1, 0));
    assert_eq!(transfer_offset(1, BATCH_ENTRIES_MAX), SEAT_BYTES);
    assert_eq!(batch_word::entry(1) - batch_word::entry(0), 32);
}

#[test]
fn numbers_stand_for_what_they_were_made_from() {
    for phase in [Phase::Idle, Phase::Posted, Phase::Claimed, Phase::Moved, Phase::Done] {
        assert_eq!(Phase::from_number(phase as u32), Some(phase));
    }
    assert_eq!(Phase::from_number(5), None);
    assert_eq!(Operation::from_number(Operation::Exit as u32), Some(Operation::Exit));
    assert_eq!(EvictorState::from_number(5), None);
}
