//! What a TCP queue pair and a donor do when things go wrong: a peer that dies, stalls, trickles or talks nonsense.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::limits::{REQUEST_DEADLINE, REQUEST_SIZE_BYTES_MAX, SOLE_COPY_PATIENCE};
use spillway_fabric::patience::Patience;
use spillway_fabric::queue_pair::{Completion, Operation, PostError, QueuePair, RequestError};
use spillway_fabric::tcp::{Greeting, TcpQueuePair, introduce};
use spillway_fabric::units::{SlabHandle, Tag};
use spillway_fabric::wire::data::{REQUEST_HEADER_BYTES, RequestHeader, ResponseHeader, Status};
use spillway_fabric::wire::foreign::PREFACE_BYTES;
use spillway_sys::epoll::{Epoll, Interest};

use crate::support::*;

/// A queue pair whose donor is a script: it accepts the connection and then does `script` with the stream.
fn scripted(
    pool: &Arc<BufferPool>,
    script: impl FnOnce(UnixStream) + Send + 'static,
) -> (TcpQueuePair, JoinHandle<()>) {
    scripted_with(pool, Arc::default(), script)
}

/// The same, with a donor that is waited for as `patience` says.
fn scripted_with(
    pool: &Arc<BufferPool>,
    patience: Arc<Patience>,
    script: impl FnOnce(UnixStream) + Send + 'static,
) -> (TcpQueuePair, JoinHandle<()>) {
    let (borrower, donor) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        admit(&donor).unwrap();
        script(donor);
    });
    (TcpQueuePair::connect(borrower, &TOKEN, Arc::clone(pool), patience).unwrap(), thread)
}

fn read_request(donor: &mut UnixStream) -> RequestHeader {
    let mut bytes = [0; REQUEST_HEADER_BYTES];
    donor.read_exact(&mut bytes).unwrap();
    RequestHeader::decode(&bytes).unwrap()
}

/// Posts three reads, expects all to end as down, and nothing to be taken afterwards.
fn expect_down(pair: &mut TcpQueuePair, pool: &BufferPool) {
    for slot in 0..3 {
        let read = request(Operation::Read, 0, 0, pool.slot(slot), slot as u32);
        assert_eq!(pair.post(read, Instant::now()), Ok(()));
    }
    let ended = complete(pair, 3);
    assert!(ended.iter().all(|ended| ended.result == Err(RequestError::Down)));
    assert!(pair.is_down() && pair.event().is_none() && !pair.wants_write());
    assert_eq!((pair.in_flight(), pair.poll(Instant::now(), &mut |_| panic!("nothing is left"))), (0, 0));
    let late = request(Operation::Read, 0, 0, pool.slot(0), 9);
    assert_eq!(pair.post(late, Instant::now()), Err(PostError::Down));
}

#[test]
fn a_donor_that_dies_ends_everything_in_flight() {
    let pool = pool(4, PAGE);
    let (mut pair, donor) = scripted(&pool, |mut donor| {
        read_request(&mut donor);
    });
    expect_down(&mut pair, &pool);
    donor.join().unwrap();
}

#[test]
fn an_idle_connection_notices_that_its_donor_went() {
    let pool = pool(1, PAGE);
    let (mut pair, serving) = over_tcp(&Slabs::with_count(1), &pool);
    assert_eq!(carry_out(&mut pair, request(Operation::Read, 0, 0, pool.slot(0), 1)), Ok(()));
    serving.stop();
    serving.join().unwrap();
    wait_until(|| {
        pair.poll(Instant::now(), &mut |_| panic!("nothing is in flight"));
        pair.is_down()
    });
}

/// Polls as a thread with requests in flight does, from `start` on until something ended or `length` has passed, by
/// its clock.
fn poll_for(pair: &mut TcpQueuePair, start: Instant, length: Duration) -> Option<Completion> {
    let step = Duration::from_millis(20);
    let mut ended = None;
    let mut passed = Duration::ZERO;
    while ended.is_none() && passed < length {
        passed = length.min(passed + step);
        pair.poll(start + passed, &mut |completion| ended = Some(completion));
    }
    ended
}

#[test]
fn a_request_that_misses_its_deadline_takes_the_connection_down() {
    let pool = pool(1, PAGE);
    let (mut pair, donor) = scripted(&pool, |mut donor| {
        read_request(&mut donor);
        // Until the borrower hangs up.
        assert_eq!(donor.read(&mut [0; 64]).unwrap_or(0), 0);
    });
    let now = Instant::now();
    pair.post(request(Operation::Read, 0, 0, pool.slot(0), 3), now).unwrap();
    assert_eq!(poll_for(&mut pair, now, REQUEST_DEADLINE), None, "still in time");
    let late = now + REQUEST_DEADLINE;
    let ended = poll_for(&mut pair, late, Duration::from_millis(1)).unwrap();
    assert_eq!((ended.tag.0, ended.result), (3, Err(RequestError::Down)));
    donor.join().unwrap();
}

#[test]
fn a_donor_that_holds_the_only_copy_is_waited_for_much_longer() {
    let pool = pool(1, PAGE);
    let patience = Arc::new(Patience::with_sole_copies());
    let (mut pair, donor) = scripted_with(&pool, Arc::clone(&patience), |mut donor| {
        read_request(&mut donor);
        assert_eq!(donor.read(&mut [0; 64]).unwrap_or(0), 0);
    });
    let now = Instant::now();
    pair.post(request(Operation::Read, 0, 0, pool.slot(0), 3), now).unwrap();
    assert_eq!(poll_for(&mut pair, now, SOLE_COPY_PATIENCE), None, "still in time");
    patience.wait_for_sole_copies(None);
    let ended = poll_for(&mut pair, now + SOLE_COPY_PATIENCE, Duration::from_millis(1)).unwrap();
    assert_eq!(ended.result, Err(RequestError::Down), "with another copy it is given up at once");
    donor.join().unwrap();
}

#[test]
fn a_thread_that_did_not_run_does_not_blame_the_donor() {
    let pool = pool(1, PAGE);
    let (go_on, told) = std::sync::mpsc::channel::<()>();
    let (mut pair, donor) = scripted(&pool, move |mut donor| {
        read_request(&mut donor);
        told.recv().unwrap();
        let header = ResponseHeader { sequence: 0, status: Status::Done, payload_bytes: PAGE as u32 };
        donor.write_all(&header.encode()).unwrap();
        donor.write_all(&[7; PAGE]).unwrap();
        let _ = donor.read(&mut [0; 64]);
    });
    let now = Instant::now();
    pair.post(request(Operation::Read, 0, 0, pool.slot(0), 3), now).unwrap();
    // The whole machine stood still for an hour, the donor with it.
    let awake = now + Duration::from_secs(3600);
    assert_eq!(pair.poll(awake, &mut |_| panic!("nothing was answered")), 0);
    go_on.send(()).unwrap();
    let mut result = None;
    wait_until(|| pair.poll(awake, &mut |ended| result = Some(ended.result)) > 0);
    assert_eq!(result, Some(Ok(())));
    drop(pair);
    donor.join().unwrap();
}

#[test]
fn a_slow_donor_keeps_its_connection_and_one_that_stops_loses_it() {
    let (count, pool) = (4, pool(4, 4 * PAGE));
    let (answer_next, told) = std::sync::mpsc::channel::<()>();
    let (mut pair, donor) = scripted(&pool, move |mut donor| {
        for (sequence, ()) in told.iter().enumerate() {
            let header =
                ResponseHeader { sequence: sequence as u32, status: Status::Done, payload_bytes: 4 * PAGE as u32 };
            donor.write_all(&header.encode()).unwrap();
            donor.write_all(&[sequence as u8; 4 * PAGE]).unwrap();
        }
        let _ = donor.read(&mut [0; 1024]);
    });
    let mut now = Instant::now();
    for slot in 0..count {
        pair.post(request(Operation::Read, 0, 0, pool.slot(slot), slot as u32), now).unwrap();
    }
    // All but the last are answered, each after nearly the whole deadline: several of them, counted from the posting.
    for slot in 0..count - 1 {
        assert_eq!(poll_for(&mut pair, now, REQUEST_DEADLINE), None, "still in time");
        now += REQUEST_DEADLINE;
        answer_next.send(()).unwrap();
        wait_until(|| {
            pair.poll(now, &mut |ended| {
                assert_eq!((ended.tag.0, ended.result), (slot as u32, Ok(())));
            }) > 0
        });
    }
    assert_eq!(poll_for(&mut pair, now, REQUEST_DEADLINE), None, "still in time");
    let late = now + REQUEST_DEADLINE;
    let ended = poll_for(&mut pair, late, Duration::from_millis(1)).unwrap();
    assert_eq!((ended.tag.0, ended.result), (3, Err(RequestError::Down)));
    drop(answer_next);
    drop(pair);
    donor.join().unwrap();
}

#[test]
fn answers_that_do_not_fit_take_the_connection_down() {
    let good = |sequence| ResponseHeader { sequence, status: Status::Done, payload_bytes: PAGE as u32 };
    let wrong_kind = *b"nonsense, not a header";
    for answer in [
        wrong_kind[..16].to_vec(),
        good(7).encode().to_vec(),
        ResponseHeader { payload_bytes: 2 * PAGE as u32, ..good(0) }.encode().to_vec(),
        ResponseHeader { payload_bytes: 0, ..good(0) }.encode().to_vec(),
    ] {
        let pool = pool(4, PAGE);
        let (mut pair, donor) = scripted(&pool, move |mut donor| {
            read_request(&mut donor);
            donor.write_all(&answer).unwrap();
            let _ = donor.read(&mut [0; 4096]);
        });
        expect_down(&mut pair, &pool);
        donor.join().unwrap();
    }
}

#[test]
fn bytes_that_answer_no_request_take_the_connection_down() {
    let pool = pool(1, PAGE);
    let (mut pair, donor) = scripted(&pool, |mut donor| {
        donor.write_all(b"!").unwrap();
        let _ = donor.read(&mut [0; 1]);
    });
    wait_until(|| {
        pair.poll(Instant::now(), &mut |_| panic!("nothing is in flight"));
        pair.is_down()
    });
    donor.join().unwrap();
}

#[test]
fn a_lost_buffer_is_never_written_again() {
    let pool = pool(4, PAGE);
    let (mut pair, donor) = scripted(&pool, |mut donor| {
        read_request(&mut donor);
        // The first answer is broken, then come perfectly good ones.
        donor.write_all(&[0xee; 16]).unwrap();
        for sequence in 0..3 {
            let header = ResponseHeader { sequence, status: Status::Done, payload_bytes: PAGE as u32 };
            let _ = donor.write_all(&header.encode()).and_then(|()| donor.write_all(&[0xaa; PAGE]));
        }
    });
    expect_down(&mut pair, &pool);
    for slot in 0..4 {
        fill(&pool, pool.slot(slot), 0x11);
    }
    donor.join().unwrap();
    pair.poll(Instant::now(), &mut |_| panic!("nothing is left"));
    for slot in 0..4 {
        assert_eq!(content(&pool, pool.slot(slot)), vec![0x11; PAGE]);
    }
}

/// Passes bytes on in small uneven pieces, so that headers and pages arrive cut at every place.
fn trickle(mut from: TcpStream, mut to: TcpStream, mut size: usize) {
    let mut bytes = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut bytes[..size % 8191 + 1]) {
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
        size = size.wrapping_mul(31).wrapping_add(7);
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_stream_cut_at_every_place_carries_everything() {
    let pool = pool(8, 65536);
    let (borrower, proxy_in) = tcp_sockets();
    let (proxy_out, donor) = tcp_sockets();
    let serving = Serving::start(donor, Slabs::with_count(3));
    let (back_in, back_out) = (proxy_out.try_clone().unwrap(), proxy_in.try_clone().unwrap());
    let proxies = [
        std::thread::spawn(move || trickle(proxy_in, proxy_out, 3)),
        std::thread::spawn(move || trickle(back_in, back_out, 11)),
    ];
    let mut pair = TcpQueuePair::connect(borrower, &TOKEN, Arc::clone(&pool), Arc::default()).unwrap();
    for round in 0..20_u8 {
        for slot in 0..4 {
            fill(&pool, pool.slot(slot), round + slot as u8 * 50);
            let write = request(Operation::Write, slot as u32, 65536 * 3, pool.slot(slot), slot as u32);
            pair.post(write, Instant::now()).unwrap();
        }
        complete(&mut pair, 4);
        for slot in 0..4 {
            let read = request(Operation::Read, slot as u32, 65536 * 3, pool.slot(slot + 4), slot as u32);
            pair.post(read, Instant::now()).unwrap();
        }
        for ended in complete(&mut pair, 4) {
            let slot = ended.tag.0 as usize;
            if slot == 3 {
                assert_eq!(ended.result, Err(RequestError::NotLent));
                continue;
            }
            assert_eq!(ended.result, Ok(()));
            assert_eq!(content(&pool, pool.slot(slot + 4)), vec![round + slot as u8 * 50; 65536]);
        }
    }
    drop(pair);
    drop(serving);
    proxies.into_iter().for_each(|proxy| proxy.join().unwrap());
}

#[test]
fn many_large_requests_both_ways_do_not_lock_each_other_out() {
    let count = 24;
    let pool = pool(2, REQUEST_SIZE_BYTES_MAX);
    fill(&pool, pool.slot(0), 3);
    let (mut pair, _serving) = over_tcp(&Slabs::with_count(2), &pool);
    // Far more than the sockets hold in either direction, before the borrower receives anything.
    for tag in 0..count {
        let (operation, slot) = if tag % 2 == 0 { (Operation::Write, 0) } else { (Operation::Read, 1) };
        let slab = tag % 2;
        pair.post(request(operation, slab, 0, pool.slot(slot), tag), Instant::now()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    let ended = complete(&mut pair, count as usize);
    assert!(ended.iter().all(|ended| ended.result == Ok(())));
}

#[test]
fn a_wait_for_the_descriptor_misses_nothing() {
    let count = 12;
    let pool = pool(2, REQUEST_SIZE_BYTES_MAX);
    let (mut pair, _serving) = over_tcp(&Slabs::with_count(2), &pool);
    let epoll = Epoll::new().unwrap();
    epoll.add(pair.event().unwrap(), 0, Interest::Readable).unwrap();
    for tag in 0..count {
        let (operation, slot) = if tag % 2 == 0 { (Operation::Write, 0) } else { (Operation::Read, 1) };
        pair.post(request(operation, tag % 2, 0, pool.slot(slot), tag), Instant::now()).unwrap();
    }
    // Never polled without a reason to.
    let mut ended = 0;
    while ended < count {
        let interest = if pair.wants_write() { Interest::ReadableOrWritable } else { Interest::Readable };
        epoll.modify(pair.event().unwrap(), 0, interest).unwrap();
        assert_eq!(epoll.wait(Some(PATIENCE), |_| {}).unwrap(), 1, "{ended} ended");
        pair.poll(Instant::now(), &mut |completion| {
            assert_eq!(completion.result, Ok(()));
            ended += 1;
        });
    }
    assert!(!pair.wants_write());
}

#[test]
fn a_donor_stops_when_told_also_while_idle_or_stuck() {
    let pool = pool(2, REQUEST_SIZE_BYTES_MAX);
    let (_idle, serving) = over_tcp(&Slabs::with_count(1), &pool);
    serving.stop();
    serving.join().unwrap();

    let (mut stuck, serving) = over_tcp(&Slabs::with_count(1), &pool);
    for tag in 0..16 {
        stuck.post(request(Operation::Read, 0, 0, pool.slot(0), tag), Instant::now()).unwrap();
    }
    assert_eq!(stuck.in_flight(), 16);
    serving.stop();
    serving.join().unwrap();
}

#[test]
fn a_borrower_that_leaves_ends_the_serving() {
    let pool = pool(1, PAGE);
    let (mut pair, serving) = over_unix(&Slabs::with_count(1), &pool);
    assert_eq!(carry_out(&mut pair, request(Operation::Read, 0, 0, pool.slot(0), 1)), Ok(()));
    drop(pair);
    serving.join().unwrap();
}

/// What serving says to a borrower that sends `bytes` after its hello, and then closes.
fn serve_raw(bytes: &[u8]) -> std::io::Result<()> {
    let (mut borrower, donor) = UnixStream::pair().unwrap();
    let serving = Serving::start(donor, Slabs::with_count(1));
    introduce(&borrower, &TOKEN).unwrap();
    borrower.write_all(bytes).unwrap();
    borrower.shutdown(std::net::Shutdown::Write).unwrap();
    let result = serving.join();
    drop(borrower);
    result
}

#[test]
fn a_borrower_that_talks_nonsense_is_cut_off() {
    let read = RequestHeader {
        operation: Operation::Read,
        sequence: 0,
        remote: request(Operation::Read, 0, 0, pool(1, PAGE).slot(0), 0).remote,
        length_bytes: PAGE as u32,
    };
    assert!(serve_raw(&read.encode()).is_ok());
    let kind = |bytes: &[u8]| serve_raw(bytes).unwrap_err().kind();
    assert_eq!(kind(&[0xff; 64]), std::io::ErrorKind::InvalidData);
    assert_eq!(kind(&RequestHeader { sequence: 5, ..read }.encode()), std::io::ErrorKind::InvalidData);
    assert_eq!(kind(&read.encode()[..7]), std::io::ErrorKind::UnexpectedEof, "inside a header");
    let write = RequestHeader { operation: Operation::Write, ..read }.encode();
    assert_eq!(kind(&[&write[..], &[1; 100]].concat()), std::io::ErrorKind::UnexpectedEof, "inside a payload");
}

#[test]
fn a_donor_counts_what_it_moved_and_nothing_else() {
    let pool = pool(2, 4 * PAGE);
    let slabs = Slabs::with_count(1);
    let (mut pair, serving) = over_unix(&slabs, &pool);
    let mut carry_out = |operation, slab| carry_out(&mut pair, request(operation, slab, 0, pool.slot(0), 1));
    assert_eq!(carry_out(Operation::Write, 0), Ok(()));
    assert_eq!(carry_out(Operation::Read, 0), Ok(()));
    assert_eq!(carry_out(Operation::Read, 0), Ok(()));
    assert_eq!(carry_out(Operation::Discard, 0), Ok(()));
    // A slab that is not lent: its bytes travel, and move nothing.
    assert_eq!(carry_out(Operation::Write, 1), Err(RequestError::NotLent));
    assert_eq!(carry_out(Operation::Read, 1), Err(RequestError::NotLent));
    let traffic = Arc::clone(&serving.traffic);
    drop(pair);
    serving.join().unwrap();
    assert_eq!((traffic.read_bytes(), traffic.written_bytes()), (8 * PAGE as u64, 4 * PAGE as u64));
}

#[test]
fn a_slab_taken_back_is_refused_from_then_on() {
    let pool = pool(2, PAGE);
    let slabs = Slabs::with_count(2);
    let (mut pair, _serving) = over_tcp(&slabs, &pool);
    let read = |slab| request(Operation::Read, slab, 0, pool.slot(0), slab);
    assert_eq!(carry_out(&mut pair, read(1)), Ok(()));
    slabs.take_back(SlabHandle(1));
    assert_eq!(carry_out(&mut pair, read(1)), Err(RequestError::NotLent));
    assert_eq!(carry_out(&mut pair, read(0)), Ok(()));
    slabs.lend(SlabHandle(1));
    assert_eq!(carry_out(&mut pair, read(1)), Ok(()));
}

#[test]
fn a_slab_taken_back_while_it_is_read_gives_its_bytes_or_an_error() {
    let (count, slab) = (16, SlabHandle(0));
    let pool = pool(count, REQUEST_SIZE_BYTES_MAX);
    for round in 0..12 {
        let slabs = Slabs::with_count(1);
        let (mut pair, _serving) = over_tcp(&slabs, &pool);
        fill(&pool, pool.slot(0), 7);
        assert_eq!(carry_out(&mut pair, request(Operation::Write, 0, 0, pool.slot(0), 0)), Ok(()));
        // More than the sockets hold, so that the donor stops somewhere inside an answer.
        for slot in 0..count {
            fill(&pool, pool.slot(slot), 1);
            pair.post(request(Operation::Read, 0, 0, pool.slot(slot), slot as u32), Instant::now()).unwrap();
        }
        let mut ended = complete(&mut pair, round);
        slabs.take_back(slab);
        ended.extend(complete(&mut pair, count - ended.len()));
        for ended in ended {
            match ended.result {
                Ok(()) => assert!(content(&pool, pool.slot(ended.tag.0 as usize)).iter().all(|&byte| byte == 7)),
                Err(error) => assert!(matches!(error, RequestError::NotLent | RequestError::Down), "{error}"),
            }
        }
    }
}

#[test]
fn an_unknown_session_makes_no_queue_pair() {
    let (borrower, donor) = UnixStream::pair().unwrap();
    let donor = std::thread::spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        (&donor).read_exact(&mut [0; PREFACE_BYTES]).unwrap();
        Greeting::receive(&donor, deadline).unwrap().refuse(&donor, deadline).unwrap();
    });
    let error = TcpQueuePair::connect(borrower, &TOKEN, pool(1, PAGE), Arc::default()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    donor.join().unwrap();
}

/// A process that gave up waiting for a read uses its buffer for something else; the answer still comes, and must not
/// land there.
#[test]
fn an_abandoned_read_touches_its_buffer_no_more() {
    const PAGES: usize = 9;
    let pool = pool(3, PAGES * PAGE);
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (mut pair, donor) = scripted(&pool, move |mut donor| {
        let requests: Vec<RequestHeader> = (0..3).map(|_| read_request(&mut donor)).collect();
        gone.recv().unwrap();
        for (content, request) in (1..).zip(requests) {
            let payload_bytes = request.length_bytes;
            let header = ResponseHeader { sequence: request.sequence, status: Status::Done, payload_bytes };
            donor.write_all(&header.encode()).unwrap();
            // In pieces, so that a receive ends in the middle.
            vec![content; payload_bytes as usize].chunks(3000).for_each(|part| donor.write_all(part).unwrap());
        }
    });
    for slot in 0..3 {
        let read = request(Operation::Read, 0, 0, pool.slot(slot), slot as u32);
        assert_eq!(pair.post(read, Instant::now()), Ok(()));
    }
    pair.poll(Instant::now(), &mut |_| panic!("nothing was answered"));
    assert!(!pair.abandon(Tag(7)), "no such read");
    assert!(pair.abandon(Tag(0)) && pair.abandon(Tag(2)));
    let bytes_of_others = vec![0x55; PAGES * PAGE];
    [0, 2].into_iter().for_each(|slot| pool.memory().write(slot * PAGES * PAGE, &bytes_of_others));
    go.send(()).unwrap();
    let ended = complete(&mut pair, 3);
    assert!(ended.iter().all(|ended| ended.result == Ok(())));
    donor.join().unwrap();
    for (slot, content) in [(0, 0x55), (1, 2), (2, 0x55)] {
        let mut bytes = vec![0; PAGES * PAGE];
        pool.memory().read(slot * PAGES * PAGE, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == content), "slot {slot}");
    }
    assert!(!pair.abandon(Tag(0)), "it has ended");
    assert_eq!(pair.in_flight(), 0);
}
