//! A borrower of its own address: a session, a slab and one data connection, and requests as the product's I/O threads
//! make them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::control::host::random_bytes;
use spillway_fabric::control::message::{Hello, Message};
use spillway_fabric::control::{ControlChannel, ControlError, ControlReceiver, ControlSender};
use spillway_fabric::key::ClusterKey;
use spillway_fabric::queue_pair::{Operation, QueuePair, Request};
use spillway_fabric::tcp::TcpQueuePair;
use spillway_fabric::units::{BorrowerId, Priority, RemoteAddress, SlabHandle, Tag};
use spillway_fabric::wire::WIRE_VERSION;

use spillway_bench::harness::HarnessError;
use spillway_workloads::random::Random;

/// Bytes of the slab.
pub(super) const SLAB_BYTES: u32 = 32 << 20;

/// How long a donor may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it shows that it lives: the donor asks twice a second.
const SIGN_INTERVAL: Duration = Duration::from_millis(250);

/// What a borrower asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Reads or writes.
    pub(super) operation: Operation,
    /// Bytes of each request.
    pub(super) bytes: u32,
    /// Requests under way.
    pub(super) depth: usize,
}

/// See the module text.
pub(super) struct Borrower {
    sender: ControlSender,
    receiver: ControlReceiver,
    queue_pair: TcpQueuePair,
    pool: Arc<BufferPool>,
    slab: SlabHandle,
    wish: Wish,
    random: Random,
    next_sign: Instant,
}

fn dial(from: Ipv4Addr, to: SocketAddr) -> Result<OwnedFd, HarnessError> {
    let during = || HarnessError::system("connecting to the donor");
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).map_err(during())?;
    bind(&stream, &SocketAddr::from((from, 0))).map_err(during())?;
    connect(&stream, &to).map_err(during())?;
    Ok(stream)
}

fn failed(error: impl std::fmt::Display) -> HarnessError {
    HarnessError::failed("a borrower", error.to_string())
}

fn hello() -> Result<Hello, HarnessError> {
    Ok(Hello {
        version: WIRE_VERSION,
        borrower: BorrowerId(u128::from_le_bytes(random_bytes().map_err(failed)?)),
        volume: "isolation".to_owned(),
        slab_size_bytes: SLAB_BYTES.into(),
        wants_shared_memory: false,
        wants_rdma: false,
        linger_seconds: 0,
        patience_seconds: 60,
        resume: None,
    })
}

impl Borrower {
    /// Borrows a slab at `donor`, as the machine at `from`.
    pub(super) fn start(from: Ipv4Addr, donor: SocketAddr, key: &ClusterKey, wish: Wish) -> Result<Self, HarnessError> {
        let (sender, mut receiver) = ControlChannel::connect(dial(from, donor)?, Some(key)).map_err(failed)?.split();
        sender.send(&Message::Hello(hello()?), None).map_err(failed)?;
        let Message::Welcome(welcome) = receiver.receive(PATIENCE).map_err(failed)?.0 else {
            return Err(failed("the donor does not welcome it"));
        };
        sender.send(&Message::Lease { request: 1 }, None).map_err(failed)?;
        let slab = loop {
            match receiver.receive(PATIENCE).map_err(failed)?.0 {
                Message::Ping => sender.send(&Message::Pong, None).map_err(failed)?,
                Message::Leased { slab, .. } => break slab,
                answer => return Err(failed(format!("instead of a slab it got {answer:?}"))),
            }
        };
        let pool = BufferPool::new(wish.depth, wish.bytes as usize).map_err(failed)?;
        let queue_pair = TcpQueuePair::connect(dial(from, donor)?, &welcome.token, Arc::clone(&pool), Arc::default());
        let (queue_pair, random) = (queue_pair.map_err(failed)?, Random::new(u64::from(from.to_bits())));
        Ok(Self { sender, receiver, queue_pair, pool, slab, wish, random, next_sign: Instant::now() })
    }

    /// Keeps so many requests under way until `is_over`; how long each took, in microseconds.
    pub(super) fn run(&mut self, is_over: impl Fn() -> bool) -> Result<Vec<f64>, HarnessError> {
        let mut times = Vec::new();
        let mut posted: Vec<Instant> = vec![Instant::now(); self.wish.depth];
        let mut free: Vec<usize> = (0..self.wish.depth).collect();
        while !is_over() || free.len() < self.wish.depth {
            while let Some(slot) = free.pop_if(|_| !is_over()) {
                posted[slot] = Instant::now();
                self.post(slot)?;
            }
            let mut broken = None;
            let (now, queue_pair) = (Instant::now(), &mut self.queue_pair);
            let count = queue_pair.poll(now, &mut |completion| {
                let slot = completion.tag.0 as usize;
                free.push(slot);
                broken = broken.or(completion.result.err());
                times.push(Instant::now().saturating_duration_since(posted[slot]).as_secs_f64() * 1e6);
            });
            if let Some(error) = broken {
                return Err(failed(error));
            }
            self.show_life(now)?;
            if count == 0 && !self.queue_pair.arm() {
                self.wait()?;
            }
        }
        Ok(times)
    }

    fn post(&mut self, slot: usize) -> Result<(), HarnessError> {
        let places = u64::from(SLAB_BYTES / self.wish.bytes);
        let offset_bytes = (self.random.below(places) as u32) * self.wish.bytes;
        let request = Request {
            operation: self.wish.operation,
            remote: RemoteAddress { slab: self.slab, offset_bytes },
            buffer: self.pool.slot(slot),
            tag: Tag(slot as u32),
            priority: Priority::Demand,
        };
        self.queue_pair.post(request, Instant::now()).map_err(|error| failed(format!("{error:?}")))
    }

    fn wait(&self) -> Result<(), HarnessError> {
        let Some(event) = self.queue_pair.event() else { return Ok(()) };
        let write = if self.queue_pair.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        let turn = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN | write)], Some(&turn)).map_err(failed)?;
        Ok(())
    }

    /// Answers the donor's question before it comes, and reads what it said.
    fn show_life(&mut self, now: Instant) -> Result<(), HarnessError> {
        if now < self.next_sign {
            return Ok(());
        }
        self.next_sign = now + SIGN_INTERVAL;
        self.sender.send(&Message::Pong, None).map_err(failed)?;
        loop {
            match self.receiver.receive(Duration::ZERO) {
                Ok(_) => {}
                Err(ControlError::TimedOut) => return Ok(()),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}
