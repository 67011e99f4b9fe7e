//! A flood of strangers, from many addresses, beside a borrower that is served: its pages stay exact, and it may
//! connect. Prints how long its reads took with the flood and without.

mod support;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use spillway_fabric::control::message::Hello;
use spillway_fabric::key::ClusterKey;
use spillway_fabric::units::SlabHandle;
use spillway_fabric::wire::preface::{self, Role};

use support::{Borrower, DataConnection, PATIENCE, TestDonor, hello};

/// Pages of the borrower.
const PAGES: u32 = 200;

/// Fewest reads in each part of a measurement; beside a flood, as many more as there is time until it is there.
const READS_MIN: u32 = 5000;

/// Strangers that are turned away in each round before it ends.
const REFUSED_MIN: u64 = 300;

/// Parts, with the flood and without in turns.
const ROUNDS: usize = 3;

/// Most strangers in one round, over the two threads that make them.
const STRANGERS_MAX: u32 = 3000;

/// Strangers that stay connected at once, for each of the two threads: the older ones close.
const HELD_MAX: usize = 200;

/// A connection from `127.1.x.y`, as if from another machine each.
fn stranger(number: u32, donor: SocketAddr) -> rustix::io::Result<TcpStream> {
    let [.., high, low] = number.to_be_bytes();
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 1, high, low), 0);
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&stream, &from)?;
    connect(&stream, &donor)?;
    Ok(stream.into())
}

/// Some say nothing, some half a handshake, some prove a wrong key, and some speak another protocol.
fn disturb(number: u32, mut stream: &TcpStream) {
    let control = preface::encode(Role::Control);
    let _may_be_closed = match number % 4 {
        0 => Ok(()),
        1 => stream.write_all(&control),
        2 => stream.write_all(&[&control[..], &[number as u8; 48]].concat()),
        _ => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
    };
}

/// Strangers come until `over`, at most so many.
fn flood(donor: SocketAddr, next: &AtomicU32, over: &AtomicBool) -> u32 {
    // Strangers have machines of their own: what they do must not take the borrower's processors. A kernel has this for
    // each thread, and refuses nothing to one that steps back.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
    let (mut held, mut came) = (std::collections::VecDeque::new(), 0);
    while !over.load(Ordering::Relaxed) && came < STRANGERS_MAX / 2 {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if let Ok(stream) = stranger(number, donor) {
            disturb(number, &stream);
            held.push_back(stream);
            came += 1;
        }
        if held.len() > HELD_MAX {
            held.pop_front();
        }
        // Some 2000 a second: the flood is the network's and the donor's work, not the test's.
        std::thread::sleep(Duration::from_millis(1));
    }
    came
}

/// Times of reads, each compared with what was written: [`READS_MIN`] of them, and more until `is_over`.
fn read_all(
    borrower: &mut Borrower,
    data: &mut DataConnection,
    slab: SlabHandle,
    is_over: impl Fn() -> bool,
) -> Vec<Duration> {
    let deadline = Instant::now() + PATIENCE;
    let mut read = |number: u32| {
        assert!(Instant::now() < deadline, "strangers are turned away");
        borrower.keep_alive();
        let page = number * 7 % PAGES;
        let start = Instant::now();
        let content = data.read(slab, page << 12).expect("every request is served");
        let took = start.elapsed();
        assert_eq!(content, vec![page as u8; 4096], "page {page}");
        took
    };
    (0..).take_while(|number| *number < READS_MIN || !is_over()).map(&mut read).collect()
}

/// Of many measurements: the one that `permille` of them do not pass.
fn quantile(times: &mut [Duration], permille: usize) -> Duration {
    times.sort_unstable();
    times[times.len() * permille / 1000]
}

#[test]
fn a_flood_of_strangers_leaves_a_borrower_served() {
    let key = ClusterKey::from_bytes([7; 32]);
    let donor = TestDonor::start(4, Some(key.clone()));
    let address = donor.donor.tcp_address().unwrap();
    // A test that waits for its turn on a busy machine is no dead borrower.
    let patient = Hello { patience_seconds: PATIENCE.as_secs() as u16, ..hello(false) };
    let mut borrower = Borrower::greet(donor.dial_tcp(), Some(&key), &patient).unwrap().unwrap();
    let (slab, _) = borrower.lease();
    let mut data = borrower.data(donor.dial_tcp());
    for page in 0..PAGES {
        data.write(slab, page << 12, page as u8).unwrap();
    }
    let (next, mut came) = (AtomicU32::new(1), 0);
    let (mut quiet, mut flooded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        quiet.extend(read_all(&mut borrower, &mut data, slab, || true));
        let refused_before = donor.donor.status().counters.connections_refused;
        let is_full = || donor.donor.status().counters.connections_refused >= refused_before + REFUSED_MIN;
        let over = AtomicBool::new(false);
        let floods = std::thread::scope(|scope| {
            let floods = [(); 2].map(|()| scope.spawn(|| flood(address, &next, &over)));
            flooded.extend(read_all(&mut borrower, &mut data, slab, is_full));
            // The flood is on when the borrower opens what it needs next: a data connection, and a session.
            data = borrower.data(donor.dial_tcp());
            Borrower::open(donor.dial_tcp(), Some(&key), false).unwrap().lease();
            over.store(true, Ordering::Relaxed);
            floods.map(|flood| flood.join().unwrap())
        });
        came += floods.iter().sum::<u32>();
    }
    assert!(u64::from(came) > REFUSED_MIN, "there was a flood");
    let [quiet, flooded] = [&mut quiet, &mut flooded].map(|times| [500, 990].map(|part| quantile(times, part)));
    eprintln!("reads, p50 and p99: {quiet:?} without strangers, {flooded:?} beside {came} of them");
    // Those that hold a connection and say nothing go at their deadline, and nothing is left of them.
    donor.wait_until("the strangers' sessions never were", |status| status.sessions.len() <= 2);
    let deadline = Instant::now() + PATIENCE;
    while Borrower::open(donor.dial_tcp(), Some(&key), false).is_err() {
        assert!(Instant::now() < deadline, "the donor goes on");
    }
}

/// A program without the key has the borrower's address: it opens connections as fast as it can, and holds them half
/// open.
#[test]
fn half_open_connections_of_its_own_address_keep_no_borrower_out() {
    let key = ClusterKey::from_bytes([7; 32]);
    let donor = TestDonor::start(4, Some(key.clone()));
    let address = donor.donor.tcp_address().unwrap();
    let over = AtomicBool::new(false);
    let half_open = || {
        let mut held = std::collections::VecDeque::new();
        while !over.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            let _may_be_closed = stream.write_all(&preface::encode(Role::Control)[..held.len() % 9]);
            held.push_back(stream);
            if held.len() > HELD_MAX {
                held.pop_front();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(half_open);
        donor.wait_until("the address has used up what it may begin", |status| {
            status.counters.connections_refused > 20 * REFUSED_MIN
        });
        let mut tries = 0;
        for _ in 0..5 {
            let mut borrower = loop {
                tries += 1;
                match Borrower::open(donor.dial_tcp(), Some(&key), false) {
                    Ok(borrower) => break borrower,
                    Err(_) if tries < 25 => {}
                    Err(error) => {
                        over.store(true, Ordering::Relaxed);
                        panic!("a borrower is kept out: {error}");
                    }
                }
            };
            let (slab, _) = borrower.lease();
            borrower.release(slab);
        }
        over.store(true, Ordering::Relaxed);
    });
}
