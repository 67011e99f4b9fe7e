//! A fake borrower, and donors on private addresses.

// Each test file uses its part; helpers of tests fail by panicking.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_donor::{Donor, DonorConfig, ListenAddress};
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::control::host::random_bytes;
use spillway_fabric::control::message::{Hello, Message, Welcome};
use spillway_fabric::control::{ControlChannel, ControlError, ControlReceiver, ControlSender};
use spillway_fabric::key::ClusterKey;
use spillway_fabric::queue_pair::{Operation, QueuePair, Request, RequestError};
use spillway_fabric::tcp::TcpQueuePair;
use spillway_fabric::units::{BorrowerId, Priority, RemoteAddress, SlabHandle, Tag};
use spillway_fabric::wire::{SessionToken, WIRE_VERSION};
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;

/// Slabs of the tests.
pub const SLAB_SIZE_BYTES: u64 = 1 << 20;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A donor that can be reached over a UNIX socket and loopback TCP.
pub struct TestDonor {
    /// The donor.
    pub donor: Donor,
    /// Its socket lives here.
    pub directory: tempfile::TempDir,
}

impl TestDonor {
    /// A donor that lends at most `slabs` slabs.
    pub fn start(slabs: u64, key: Option<ClusterKey>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = DonorConfig {
            memory_bytes: slabs * SLAB_SIZE_BYTES,
            headroom_bytes: 0,
            listen: vec![ListenAddress::Tcp("127.0.0.1:0".to_owned())],
            unix_path: Some(directory.path().join("donor.sock")),
            key: key.map(Into::into),
            machine_limit_bytes: None,
            weights: spillway_fabric::tcp::Weights::default(),
            site: spillway_fabric::site::Site::default(),
            slab_prepared_count: 2,
            slab_size_hint_bytes: SLAB_SIZE_BYTES,
        };
        Self { donor: Donor::start(config).unwrap(), directory }
    }

    /// A stream to its UNIX socket.
    pub fn dial_unix(&self) -> UnixStream {
        UnixStream::connect(self.donor.unix_path().unwrap()).unwrap()
    }

    /// A stream to its TCP port.
    pub fn dial_tcp(&self) -> TcpStream {
        TcpStream::connect(self.donor.tcp_address().unwrap()).unwrap()
    }

    /// A borrower with shared memory.
    pub fn borrower_unix(&self) -> Borrower {
        Borrower::open(self.dial_unix(), None, true).unwrap()
    }

    /// A borrower over TCP.
    pub fn borrower_tcp(&self) -> Borrower {
        Borrower::open(self.dial_tcp(), None, false).unwrap()
    }

    /// Waits until `done` says so of the donor's state.
    pub fn wait_until(&self, what: &str, done: impl Fn(&spillway_donor::DonorStatus) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(&self.donor.status()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.donor.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The borrower's side of a session.
pub struct Borrower {
    /// What it says.
    pub sender: ControlSender,
    /// What it hears.
    pub receiver: ControlReceiver,
    /// How it was greeted.
    pub welcome: Welcome,
    request: u32,
}

impl Borrower {
    /// Opens a session over `stream`; the donor's answer if there is none.
    pub fn open(stream: impl Into<OwnedFd>, key: Option<&ClusterKey>, shares: bool) -> Result<Self, ControlError> {
        match Self::greet(stream, key, &hello(shares))? {
            Ok(borrower) => Ok(borrower),
            Err(answer) => panic!("{answer:?}"),
        }
    }

    /// Says `hello`; another answer than a welcome is given back.
    pub fn greet(
        stream: impl Into<OwnedFd>,
        key: Option<&ClusterKey>,
        hello: &Hello,
    ) -> Result<Result<Self, Message>, ControlError> {
        let (sender, mut receiver) = ControlChannel::connect(stream, key)?.split();
        sender.send(&Message::Hello(hello.clone()), None)?;
        Ok(match receiver.receive(PATIENCE)?.0 {
            Message::Welcome(welcome) => Ok(Self { sender, receiver, welcome, request: 0 }),
            answer => Err(answer),
        })
    }

    /// The next message that is no heartbeat; heartbeats are answered.
    pub fn hear(&mut self) -> Result<(Message, Option<OwnedFd>), ControlError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.receiver.receive(deadline.saturating_duration_since(Instant::now()))? {
                (Message::Ping, None) => self.sender.send(&Message::Pong, None)?,
                (Message::Pong, None) => {}
                heard => return Ok(heard),
            }
        }
    }

    /// Answers the heartbeats that came, and nothing else may have.
    pub fn keep_alive(&mut self) {
        loop {
            match self.receiver.receive(Duration::ZERO) {
                Ok((Message::Ping, None)) => self.sender.send(&Message::Pong, None).unwrap(),
                Ok((Message::Pong, None)) => {}
                Err(ControlError::TimedOut) => return,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Asks for a slab; the refusal if there is none.
    pub fn try_lease(&mut self) -> Result<(SlabHandle, Option<Memfd>), Box<Message>> {
        self.request += 1;
        self.sender.send(&Message::Lease { request: self.request }, None).unwrap();
        match self.hear().unwrap() {
            (Message::Leased { request, slab, .. }, passed) if request == self.request => {
                Ok((slab, passed.map(|descriptor| Memfd::open(descriptor).unwrap())))
            }
            (answer, _) => Err(Box::new(answer)),
        }
    }

    /// Asks for a slab that there must be.
    pub fn lease(&mut self) -> (SlabHandle, Option<Memfd>) {
        self.try_lease().unwrap()
    }

    /// Asks for a slab that there must be, and maps it.
    pub fn lease_mapped(&mut self) -> (SlabHandle, Mapping) {
        let (slab, file) = self.lease();
        (slab, Mapping::shared(&file.unwrap(), SLAB_SIZE_BYTES as usize).unwrap())
    }

    /// Gives a slab back and waits for the confirmation.
    pub fn release(&mut self, slab: SlabHandle) {
        self.sender.send(&Message::Release { slab }, None).unwrap();
        assert_eq!(self.hear().unwrap().0, Message::Released { slab });
    }

    /// A data connection over `stream`.
    pub fn data(&self, stream: impl Into<OwnedFd>) -> DataConnection {
        DataConnection::open(stream, &self.welcome.token)
    }
}

/// A hello that is welcome.
pub fn hello(wants_shared_memory: bool) -> Hello {
    Hello {
        version: WIRE_VERSION,
        borrower: BorrowerId(u128::from_le_bytes(random_bytes().unwrap())),
        volume: "test".to_owned(),
        slab_size_bytes: SLAB_SIZE_BYTES,
        wants_shared_memory,
        wants_rdma: false,
        linger_seconds: 0,
        patience_seconds: 0,
        resume: None,
    }
}

/// One page at a time over a data connection.
pub struct DataConnection {
    queue_pair: TcpQueuePair,
    pool: Arc<BufferPool>,
}

impl DataConnection {
    /// A data connection of the session with `token`.
    pub fn open(stream: impl Into<OwnedFd>, token: &SessionToken) -> Self {
        let pool = BufferPool::new(2, 4096).unwrap();
        let queue_pair = TcpQueuePair::connect(stream, token, Arc::clone(&pool), Arc::default()).unwrap();
        Self { queue_pair, pool }
    }

    /// Writes a page full of `byte`.
    pub fn write(&mut self, slab: SlabHandle, offset_bytes: u32, byte: u8) -> Result<(), RequestError> {
        self.pool.memory().write(0, &[byte; 4096]);
        self.request(Operation::Write, slab, offset_bytes, 0)
    }

    /// Reads a page.
    pub fn read(&mut self, slab: SlabHandle, offset_bytes: u32) -> Result<Vec<u8>, RequestError> {
        self.request(Operation::Read, slab, offset_bytes, 1)?;
        let mut page = vec![0; 4096];
        self.pool.memory().read(4096, &mut page);
        Ok(page)
    }

    fn request(
        &mut self,
        operation: Operation,
        slab: SlabHandle,
        offset_bytes: u32,
        slot: usize,
    ) -> Result<(), RequestError> {
        let remote = RemoteAddress { slab, offset_bytes };
        let buffer = self.pool.slot(slot);
        let request = Request { operation, remote, buffer, tag: Tag(1), priority: Priority::Demand };
        self.queue_pair.post(request, Instant::now()).map_err(|_| RequestError::Down)?;
        let deadline = Instant::now() + PATIENCE;
        let mut result = None;
        while result.is_none() {
            assert!(Instant::now() < deadline, "a request takes too long");
            self.queue_pair.poll(Instant::now(), &mut |completion| result = Some(completion.result));
        }
        result.unwrap()
    }
}
