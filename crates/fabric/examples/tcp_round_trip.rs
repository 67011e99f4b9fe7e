//! What the TCP transport adds to the network: a 4 KiB read through [`TcpQueuePair`] and [`serve`] against a bare
//! blocking exchange of as many bytes over the same kind of socket.
//!
//! The two take turns in one run, so that both see the same machine; the printed ratio is the median over the rounds.
//! With both ends on one CPU each exchange switches between them; on two CPUs a sleeping end must be woken, unless it
//! spins.
//!
//! Run: `cargo run --release -p spillway-fabric --example tcp_round_trip`

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::completion::{HybridWait, Step};
use spillway_fabric::limits::HANDSHAKE_DEADLINE;
use spillway_fabric::queue_pair::{Operation, QueuePair, Request};
use spillway_fabric::tcp::{Greeting, Shares, SlabDirectory, TcpQueuePair, Traffic, Weights, serve};
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority, RemoteAddress, SlabHandle, Tag};
use spillway_fabric::wire::SessionToken;
use spillway_fabric::wire::data::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES};
use spillway_fabric::wire::foreign::PREFACE_BYTES;
use spillway_sys::epoll::{Epoll, Interest};
use spillway_sys::mapping::Mapping;

const TOKEN: SessionToken = SessionToken([0; 32]);
const ROUNDS: usize = 21;
const EXCHANGES_PER_ROUND: usize = 1000;
const SLAB_SIZE_BYTES: usize = 1 << 20;
const ANSWER_BYTES: usize = RESPONSE_HEADER_BYTES + PAGE_SIZE_BYTES;

/// One slab, always lent.
struct OneSlab(Mapping);

impl SlabDirectory for OneSlab {
    fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool {
        let lent = slab == SlabHandle(0);
        if lent {
            use_memory(&self.0);
        }
        lent
    }
}

/// Sets its flag when dropped, so that a failing measurement still ends the threads.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn main() -> io::Result<()> {
    println!("4 KiB read over loopback TCP, median of {ROUNDS} rounds of {EXCHANGES_PER_ROUND}, in us:");
    // Asked before pinning, which lowers it.
    let cpu_count = std::thread::available_parallelism()?.get();
    compare("same CPU", 0, 0)?;
    if cpu_count > 1 {
        compare("two CPUs", 0, 1)?;
    } else {
        println!("two CPUs: skipped, this machine has one");
    }
    Ok(())
}

fn compare(name: &str, borrower_cpu: usize, donor_cpu: usize) -> io::Result<()> {
    let (bare, bare_peer) = sockets()?;
    let (borrower, donor) = sockets()?;
    let slab = OneSlab(Mapping::anonymous(SLAB_SIZE_BYTES)?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| pin(donor_cpu).and_then(|()| answer(bare_peer)));
        scope.spawn(|| {
            pin(donor_cpu)?;
            (&donor).read_exact(&mut [0; PREFACE_BYTES])?;
            let deadline = Instant::now() + HANDSHAKE_DEADLINE;
            Greeting::receive(&donor, deadline)?.admit(&donor, &TOKEN, deadline)?;
            let shares = Shares::new(Weights::default());
            serve(donor, &slab, &Traffic::default(), shares.join(Ipv4Addr::LOCALHOST.into()), &stop)
        });
        let _stop = StopOnDrop(&stop);
        pin(borrower_cpu)?;
        let mut exchange = Exchange::new(bare);
        let mut reader = Reader::new(borrower)?;
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let bare_us =
                median((0..EXCHANGES_PER_ROUND).map(|_| timed(|| exchange.run())).collect::<io::Result<_>>()?);
            let ours_us = median((0..EXCHANGES_PER_ROUND).map(|_| timed(|| reader.read())).collect::<io::Result<_>>()?);
            rounds.push((bare_us, ours_us));
        }
        let bare_us = median(rounds.iter().map(|round| round.0).collect());
        let ours_us = median(rounds.iter().map(|round| round.1).collect());
        let ratio = median(rounds.iter().map(|round| round.1 / round.0).collect());
        println!("{name}: bare {bare_us:.1}, queue pair {ours_us:.1}, ratio {ratio:.2}");
        Ok(())
    })
}

fn sockets() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let two = listener.accept()?.0;
    one.set_nodelay(true)?;
    two.set_nodelay(true)?;
    Ok((one, two))
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn timed(run: impl FnOnce() -> io::Result<()>) -> io::Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_nanos() as f64 / 1000.0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The bare server: a request's bytes in, an answer's bytes out.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    let (mut request, answer) = ([0; REQUEST_HEADER_BYTES], [0; ANSWER_BYTES]);
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&answer)?;
    }
    Ok(())
}

/// The bare client.
struct Exchange {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Exchange {
    fn new(stream: TcpStream) -> Self {
        Self { stream, answer: vec![0; ANSWER_BYTES] }
    }

    fn run(&mut self) -> io::Result<()> {
        self.stream.write_all(&[0; REQUEST_HEADER_BYTES])?;
        self.stream.read_exact(&mut self.answer)
    }
}

/// An I/O thread with one donor: posts, spins while that pays, then sleeps in epoll.
struct Reader {
    pair: TcpQueuePair,
    epoll: Epoll,
    wait: HybridWait,
    pool: std::sync::Arc<BufferPool>,
}

impl Reader {
    fn new(stream: TcpStream) -> io::Result<Self> {
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES)?;
        let pair = TcpQueuePair::connect(stream, &TOKEN, pool.clone(), Arc::default())?;
        let epoll = Epoll::new()?;
        epoll.add(pair.event().ok_or(io::ErrorKind::NotConnected)?, 0, Interest::Readable)?;
        Ok(Self { pair, epoll, wait: HybridWait::new(), pool })
    }

    fn read(&mut self) -> io::Result<()> {
        let request = Request {
            operation: Operation::Read,
            remote: RemoteAddress { slab: SlabHandle(0), offset_bytes: 4096 },
            buffer: self.pool.slot(0),
            tag: Tag(0),
            priority: Priority::Demand,
        };
        self.pair.post(request, Instant::now()).map_err(io::Error::other)?;
        let mut step = self.wait.begin(Instant::now());
        loop {
            if step == Step::Sleep {
                self.epoll.wait(Some(Duration::from_secs(1)), |_| {})?;
            }
            let mut result = None;
            self.pair.poll(Instant::now(), &mut |completion| result = Some(completion.result));
            if let Some(result) = result {
                self.wait.arrived(Instant::now());
                return result.map_err(io::Error::other);
            }
            step = self.wait.next(Instant::now());
        }
    }
}
