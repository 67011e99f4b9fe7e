//! Machines that want more of a donor over TCP than it moves get it by their weights.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::queue_pair::{Operation, QueuePair, Request};
use spillway_fabric::tcp::{TcpQueuePair, Weights};
use spillway_fabric::units::{Priority, RemoteAddress, SlabHandle, Tag};

use crate::support::{Borrower, PATIENCE, TestDonor};

/// One of the largest reads of the pager.
const REQUEST_BYTES: u32 = 128 << 10;

/// Requests of each machine under way at once: more than all buffers of a connection hold, so that the donor has work
/// for the machine also while the thread here rests.
const DEPTH: usize = 128;

/// A connection from the machine at `address`: all of the loopback's network is this host.
fn dial_from(address: Ipv4Addr, donor: SocketAddr) -> OwnedFd {
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &SocketAddr::from((address, 0))).unwrap();
    connect(&stream, &donor).unwrap();
    stream
}

/// One machine that always wants more.
struct Flood {
    borrower: Borrower,
    queue_pair: TcpQueuePair,
    pool: Arc<BufferPool>,
    slab: SlabHandle,
    operation: Operation,
    free: Vec<usize>,
}

impl Flood {
    fn start(donor: &TestDonor, address: Ipv4Addr, operation: Operation) -> Self {
        let at = donor.donor.tcp_address().unwrap();
        let mut borrower = Borrower::open(dial_from(address, at), None, false).unwrap();
        let (slab, _) = borrower.lease();
        let pool = BufferPool::new(DEPTH, REQUEST_BYTES as usize).unwrap();
        let stream = dial_from(address, at);
        let queue_pair = TcpQueuePair::connect(stream, &borrower.welcome.token, Arc::clone(&pool), Arc::default());
        let queue_pair = queue_pair.unwrap();
        Self { borrower, queue_pair, pool, slab, operation, free: (0..DEPTH).collect() }
    }

    /// Posts what fits, and counts what was answered.
    fn turn(&mut self) -> u64 {
        self.borrower.keep_alive();
        while let Some(slot) = self.free.pop() {
            let remote = RemoteAddress { slab: self.slab, offset_bytes: (slot as u32 % 8) * REQUEST_BYTES };
            let request = Request {
                operation: self.operation,
                remote,
                buffer: self.pool.slot(slot),
                tag: Tag(slot as u32),
                priority: Priority::Demand,
            };
            self.queue_pair.post(request, Instant::now()).unwrap();
        }
        let mut answered = 0;
        let free = &mut self.free;
        self.queue_pair.poll(Instant::now(), &mut |completion| {
            completion.result.unwrap();
            free.push(usize::try_from(completion.tag.0).unwrap());
            answered += 1;
        });
        answered
    }
}

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// A donor for machines of these weights.
fn donor(weights: [u32; 2]) -> TestDonor {
    let donor = TestDonor::start(4, None);
    let named = ADDRESSES.iter().zip(weights).map(|(address, weight)| (IpAddr::V4(*address), weight));
    donor.donor.set_weights(Weights::new(named.collect()).unwrap());
    donor
}

/// Reads of two machines that were answered after both had work and until the first had `count`.
fn answered(weights: [u32; 2], count: u64) -> [u64; 2] {
    let donor = donor(weights);
    // This host may be busy: a thread that rests is no sign of a slow machine.
    donor.donor.set_share_patience(PATIENCE);
    let mut floods = ADDRESSES.map(|address| Flood::start(&donor, address, Operation::Read));
    for flood in &mut floods {
        while flood.turn() == 0 {}
    }
    let over = AtomicBool::new(false);
    let [first, second] = &mut floods;
    let deadline = Instant::now() + PATIENCE;
    let run = |flood: &mut Flood, most: u64| {
        let mut answered = 0;
        while answered < most && !over.load(Ordering::Relaxed) {
            answered += flood.turn();
            assert!(Instant::now() < deadline, "{answered} requests so far");
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
        answered
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(second, u64::MAX));
        let first = run(first, count);
        [first, other.join().unwrap()]
    })
}

#[test]
fn two_machines_that_read_without_pause_are_served_by_their_weights() {
    for (weights, expected) in [([1, 1], 1.0), ([4, 1], 4.0)] {
        let [first, second] = answered(weights, 4000);
        let ratio = first as f64 / second as f64;
        assert!((0.8 * expected..1.25 * expected).contains(&ratio), "{first} and {second} by {weights:?}");
    }
}

/// One machine asks for more than its connection holds, and reads nothing. Writes of the other one that are answered
/// until there are `most` of them, or `is_over` says so.
fn written_beside_a_machine_that_reads_nothing(
    donor: &TestDonor,
    most: u64,
    is_over: impl Fn(u64) -> bool,
) -> (u64, [Flood; 2]) {
    let mut stuck = Flood::start(donor, ADDRESSES[0], Operation::Read);
    let mut writer = Flood::start(donor, ADDRESSES[1], Operation::Write);
    stuck.turn();
    // The donor serves it; before that, it has nothing to be behind with.
    let answers = stuck.queue_pair.event().unwrap();
    let patience = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&answers, PollFlags::IN)], Some(&patience)).unwrap(), 1);
    let (deadline, mut written) = (Instant::now() + PATIENCE, 0);
    while written < most && !is_over(written) {
        assert!(Instant::now() < deadline, "{written} of {most} writes are answered");
        stuck.borrower.keep_alive();
        written += writer.turn();
        std::thread::yield_now();
    }
    (written, [stuck, writer])
}

/// More than a machine that is stuck may have got before, in writes.
const WRITES: u64 = 400;

#[test]
fn a_machine_that_writes_waits_for_one_that_is_behind_and_no_longer() {
    let donor = donor([1, 1]);
    donor.donor.set_share_patience(PATIENCE);
    let (seen, since) = (Cell::new(0), Cell::new(Instant::now()));
    // Waiting shows as nothing more that comes.
    let rests = |written| {
        if seen.replace(written) != written {
            since.set(Instant::now());
        }
        written > 0 && since.get().elapsed() > Duration::from_secs(1)
    };
    let (written, [mut stuck, mut writer]) = written_beside_a_machine_that_reads_nothing(&donor, WRITES, rests);
    assert!(written < WRITES, "it did not wait");
    let deadline = Instant::now() + PATIENCE;
    let (mut written, mut read) = (written, 0);
    while written < WRITES {
        assert!(Instant::now() < deadline, "{written} writes and {read} reads");
        read += stuck.turn();
        written += writer.turn();
    }
    assert!(read > 0);
}

#[test]
fn a_machine_that_does_not_read_what_it_asked_for_holds_no_other_one_up() {
    let donor = donor([64, 1]);
    let (written, _floods) = written_beside_a_machine_that_reads_nothing(&donor, WRITES, |_| false);
    assert!(written >= WRITES);
}

#[test]
fn status_tells_weights_over_tcp_and_that_shared_memory_has_none() {
    let donor = TestDonor::start(4, None);
    let _flood = Flood::start(&donor, Ipv4Addr::new(127, 0, 0, 2), Operation::Read);
    let _local = donor.borrower_unix();
    let weights = || {
        let sessions = donor.donor.status().sessions;
        sessions.iter().map(|session| (session.transport.clone(), session.weight)).collect::<Vec<_>>()
    };
    assert_eq!(weights(), [("tcp".to_owned(), Some(1)), ("shm".to_owned(), None)]);
    donor.donor.set_weights(Weights::new(vec![([127, 0, 0, 2].into(), 7)]).unwrap());
    assert_eq!(weights()[0].1, Some(7));
}
