//! The channel with a client in the test's hands: life of a slot, refusals, full sockets, and clients that go away.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const SIZE_BYTES: u64 = 16 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const GOODBYE: u16 = 2;

fn channel(slots: usize) -> (NbdChannel, UnixStream) {
    let mut channel = NbdChannel::new(slots, SIZE_BYTES).unwrap();
    let client = connect(&mut channel);
    (channel, client)
}

fn connect(channel: &mut NbdChannel) -> UnixStream {
    let (ours, client) = UnixStream::pair().unwrap();
    // A test that waits without end fails.
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    channel.connect(ours.into());
    client
}

fn request(command: u16, cookie: u64, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((length as u32).to_be_bytes());
    bytes
}

fn write_request(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [request(WRITE, cookie, offset, data.len()), data.to_vec()].concat()
}

/// An answer's cookie and error.
fn answer(client: &mut UnixStream) -> (u64, u32) {
    let mut bytes = [0; REPLY_BYTES];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98]);
    (u64::from_be_bytes(bytes[8..].try_into().unwrap()), u32::from_be_bytes(bytes[4..8].try_into().unwrap()))
}

fn expect_request(channel: &mut NbdChannel) -> BlockRequest {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        match channel.receive().unwrap() {
            Received::Request(request) => return request,
            Received::Nothing => assert!(Instant::now() < give_up, "no request came"),
            Received::Closed => panic!("the connection ended"),
        }
    }
}

fn slot_bytes(channel: &NbdChannel, slot: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    channel.pool().memory().read(channel.pool().slot(slot).offset_bytes as usize, &mut bytes);
    bytes
}

#[test]
fn a_write_lands_in_its_slot_and_a_read_leaves_from_it() {
    let (mut channel, mut client) = channel(2);
    client.write_all(&write_request(1, 4096, &[7; 4096])).unwrap();
    let expected = BlockRequest {
        slot: 0,
        operation: BlockOperation::Write,
        offset_bytes: 4096,
        length_bytes: 4096,
        priority: Priority::Demand,
    };
    assert_eq!(expect_request(&mut channel), expected);
    assert_eq!(slot_bytes(&channel, 0, 4096), [7; 4096]);

    client.write_all(&request(READ, 2, 0, 4096)).unwrap();
    let read = expect_request(&mut channel);
    assert_eq!((read.slot, read.operation), (1, BlockOperation::Read));
    client.write_all(&request(READ, 3, 0, 4096)).unwrap();
    assert_eq!(channel.receive().unwrap(), Received::Nothing, "every slot is taken");
    assert_eq!(channel.interest(), Interest { read: false, write: false });

    let at = channel.pool().slot(1).offset_bytes as usize;
    channel.pool().memory().write(at, &[9; 4096]);
    channel.complete(1, Ok(())).unwrap();
    assert!(channel.interest().write);
    channel.flush().unwrap();
    assert_eq!(answer(&mut client), (2, 0));
    let mut page = [0; 4096];
    client.read_exact(&mut page).unwrap();
    assert_eq!(page, [9; 4096]);
    channel.complete(0, Err(BlockError::NoSpace)).unwrap();
    let last = expect_request(&mut channel);
    assert_eq!((last.operation, last.offset_bytes), (BlockOperation::Read, 0));
    assert_eq!(answer(&mut client), (1, 28));
}

#[test]
fn many_requests_in_one_burst_come_out_one_by_one() {
    let (mut channel, mut client) = channel(8);
    let burst: Vec<u8> = (0..8_u64)
        .flat_map(|cookie| match cookie % 2 {
            0 => write_request(cookie, cookie * 8192, &vec![cookie as u8; 8192]),
            _ => request(READ, cookie, cookie * 4096, 4096),
        })
        .collect();
    client.write_all(&burst).unwrap();
    for cookie in 0..8_u64 {
        let request = expect_request(&mut channel);
        if cookie % 2 == 0 {
            assert_eq!((request.operation, request.offset_bytes), (BlockOperation::Write, cookie * 8192));
            assert_eq!(slot_bytes(&channel, request.slot, 8192), vec![cookie as u8; 8192]);
        } else {
            assert_eq!((request.operation, request.offset_bytes), (BlockOperation::Read, cookie * 4096));
        }
    }
    (0..8).for_each(|slot| channel.complete(slot, Err(BlockError::InputOutput)).unwrap());
    channel.flush().unwrap();
    let mut seen: Vec<_> = (0..8).map(|_| answer(&mut client)).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..8).map(|cookie| (cookie, 5)).collect::<Vec<_>>());
}

#[test]
fn refused_requests_are_answered_and_the_next_is_understood() {
    let (mut channel, mut client) = channel(1);
    let too_long = vec![1; NBD_REQUEST_BYTES_MAX + 4096];
    let sender = std::thread::spawn(move || {
        for bad in [
            write_request(1, 512, &[1; 4096]),
            write_request(2, 0, &[1; 100]),
            write_request(3, SIZE_BYTES, &[1; 4096]),
            write_request(4, 0, &too_long),
            request(READ, 5, 0, NBD_REQUEST_BYTES_MAX + 4096),
            request(77, 6, 0, 4096),
        ] {
            client.write_all(&bad).unwrap();
        }
        client.write_all(&write_request(7, 0, &[5; 4096])).unwrap();
        let answers: Vec<_> = (0..6).map(|_| answer(&mut client)).collect();
        (answers, client)
    });
    let good = expect_request(&mut channel);
    assert_eq!((good.slot, good.operation), (0, BlockOperation::Write));
    assert_eq!(slot_bytes(&channel, 0, 4096), [5; 4096]);
    let (answers, _client) = sender.join().unwrap();
    assert_eq!(answers, [(1, 22), (2, 22), (3, 28), (4, 22), (5, 22), (6, 22)]);
}

#[test]
fn a_client_that_breaks_the_protocol_is_cut_off() {
    let absurd = request(WRITE, 1, 0, u32::MAX as usize);
    for nonsense in [&[0; 28][..], b"GET / HTTP/1.1\r\nHost: example\r\n", &absurd] {
        let (mut channel, mut client) = channel(1);
        client.write_all(nonsense).unwrap();
        assert_eq!(channel.receive().unwrap(), Received::Closed);
        assert_eq!(client.read(&mut [0; 1]).unwrap_or(0), 0);
        assert!(!channel.is_connected());
    }
}

#[test]
fn a_write_whose_client_goes_away_is_never_seen_and_costs_no_slot() {
    let (mut channel, mut client) = channel(1);
    let whole = write_request(1, 0, &[1; 64 << 10]);
    for length in [10, 28, 5000, whole.len() - 1] {
        client.write_all(&whole[..length]).unwrap();
        assert_eq!(channel.receive().unwrap(), Received::Nothing, "{length}");
        drop(client);
        assert_eq!(channel.receive().unwrap(), Received::Closed, "{length}");
        client = connect(&mut channel);
    }
    client.write_all(&whole).unwrap();
    assert_eq!(expect_request(&mut channel).length_bytes, 64 << 10);
}

#[test]
fn answers_to_a_client_that_went_away_reach_no_other() {
    let (mut channel, mut client) = channel(2);
    client.write_all(&request(READ, 1, 0, 4096)).unwrap();
    let old = expect_request(&mut channel);
    drop(client);
    assert_eq!(channel.receive().unwrap(), Received::Closed);
    let mut client = connect(&mut channel);
    client.write_all(&request(READ, 2, 4096, 4096)).unwrap();
    let new = expect_request(&mut channel);
    assert_ne!(old.slot, new.slot);
    channel.complete(old.slot, Ok(())).unwrap();
    channel.complete(new.slot, Err(BlockError::TimedOut)).unwrap();
    channel.flush().unwrap();
    assert_eq!(answer(&mut client), (2, 5));
    client.write_all(&[request(READ, 3, 0, 4096), request(READ, 4, 0, 4096)].concat()).unwrap();
    assert_ne!(expect_request(&mut channel).slot, expect_request(&mut channel).slot, "both slots are free again");
}

#[test]
fn a_goodbye_is_said_after_the_last_answer() {
    let (mut channel, mut client) = channel(2);
    client
        .write_all(&[request(READ, 1, 0, 4096), request(GOODBYE, 2, 0, 0), request(READ, 3, 0, 4096)].concat())
        .unwrap();
    let read = expect_request(&mut channel);
    assert_eq!(channel.receive().unwrap(), Received::Nothing);
    assert!(!channel.interest().read);
    channel.complete(read.slot, Ok(())).unwrap();
    assert_eq!(channel.receive().unwrap(), Received::Closed);
    assert_eq!(answer(&mut client), (1, 0));
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 4096);
}

#[test]
fn a_client_that_never_reads_is_waited_for_and_stops_only_itself() {
    let (mut channel, mut client) = channel(2);
    let length = NBD_REQUEST_BYTES_MAX;
    client.write_all(&[request(READ, 1, 0, length), request(READ, 2, 0, length)].concat()).unwrap();
    for _ in 0..2 {
        let slot = expect_request(&mut channel).slot;
        channel.pool().memory().write(channel.pool().slot(slot).offset_bytes as usize, &vec![slot as u8 + 1; length]);
        channel.complete(slot, Ok(())).unwrap();
    }
    client.write_all(&request(READ, 3, 0, 4096)).unwrap();
    assert_eq!(channel.receive().unwrap(), Received::Nothing, "no socket holds so much");
    assert_eq!(channel.interest(), Interest { read: false, write: true });
    let reader = std::thread::spawn(move || {
        for expected in [1, 2] {
            assert_eq!(answer(&mut client), (expected, 0));
            let mut data = vec![0; length];
            client.read_exact(&mut data).unwrap();
            assert!(data.iter().all(|byte| u64::from(*byte) == expected));
        }
        client
    });
    assert_eq!(expect_request(&mut channel).length_bytes, 4096);
    while channel.interest().write {
        channel.flush().unwrap();
    }
    reader.join().unwrap();
}

#[test]
#[should_panic(expected = "completed once")]
fn a_slot_cannot_be_completed_twice() {
    let (mut channel, mut client) = channel(1);
    client.write_all(&request(READ, 1, 0, 4096)).unwrap();
    let slot = expect_request(&mut channel).slot;
    channel.complete(slot, Ok(())).unwrap();
    let _ = channel.complete(slot, Ok(()));
}

/// Sends `stream` in pieces and serves what comes out; what it was, and the errors of the answers.
fn served(stream: &[u8], cuts: &[usize]) -> Vec<(BlockOperation, u64, Vec<u8>)> {
    let (mut channel, mut client) = channel(2);
    client.set_nonblocking(true).unwrap();
    let (mut seen, mut sent, mut cuts) = (Vec::new(), 0, cuts.iter().cycle());
    loop {
        if sent < stream.len() {
            let end = stream.len().min(sent + 1 + cuts.next().unwrap());
            match client.write(&stream[sent..end]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // It was hung up on.
                Err(_) => sent = stream.len(),
            }
        }
        // Answers are thrown away.
        while client.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
        match channel.receive().unwrap() {
            Received::Request(request) => {
                let length = if request.operation == BlockOperation::Write { request.length_bytes } else { 0 };
                let data = slot_bytes(&channel, request.slot, length as usize);
                seen.push((request.operation, request.offset_bytes, data));
                channel.complete(request.slot, Ok(())).unwrap();
            }
            Received::Nothing if sent == stream.len() && !channel.interest().write => return seen,
            Received::Nothing => {}
            Received::Closed => return seen,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn requests_are_the_same_however_the_stream_is_cut(
        commands in prop::collection::vec((0_u16..5, 0_u64..8, 1_usize..12), 1..12),
        cuts in prop::collection::vec(0_usize..30_000, 1..10),
    ) {
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for (number, (command, page, pages)) in commands.into_iter().enumerate() {
            let (offset, data) = (page * 4096, vec![number as u8; pages * 4096]);
            match command {
                GOODBYE => continue,
                WRITE => {
                    stream.extend(write_request(number as u64, offset, &data));
                    expected.push((BlockOperation::Write, offset, data));
                }
                other => {
                    stream.extend(request(other, number as u64, offset, data.len()));
                    let (operation, offset) = match other {
                        READ => (BlockOperation::Read, offset),
                        3 => (BlockOperation::Flush, 0),
                        _ => (BlockOperation::Discard, offset),
                    };
                    expected.push((operation, offset, Vec::new()));
                }
            }
        }
        prop_assert!(served(&stream, &cuts) == expected);
    }

    #[test]
    fn arbitrary_bytes_after_any_request_crash_nothing(
        tail in prop::collection::vec(any::<u8>(), 0..200), command in 0_u16..9, length in 0_usize..10_000,
        cuts in prop::collection::vec(0_usize..60, 1..5),
    ) {
        let stream = [request(command, 1, 0, length), tail].concat();
        let seen = served(&stream, &cuts);
        prop_assert!(seen.iter().all(|(_, offset, data)| offset % 4096 == 0 && data.len() % 4096 == 0));
    }
}
