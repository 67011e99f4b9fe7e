//! What the tests of queue pairs share: slabs in memory, donors on threads, and a way to carry out one request.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "test support")]

pub mod conformance;
pub mod rdma;

use std::collections::HashMap;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::file::{BackingFile, FileQueuePair};
use spillway_fabric::limits::HANDSHAKE_DEADLINE;
use spillway_fabric::queue_pair::{Completion, Operation, PostError, QueuePair, Request, RequestError};
use spillway_fabric::rdma::LentRegions;
use spillway_fabric::shm::{ShmQueuePair, ShmWindow};
use spillway_fabric::tcp::{self, Greeting, Shares, SlabDirectory, TcpQueuePair, Traffic, Weights};
use spillway_fabric::units::{BufferRange, Priority, RemoteAddress, SlabHandle, Tag};
use spillway_fabric::wire::SessionToken;
use spillway_fabric::wire::foreign::PREFACE_BYTES;
use spillway_fabric::wire::preface::{self, Role};
use spillway_fabric::wire::proof::session_name;
use spillway_sys::mapping::Mapping;
use spillway_sys::memfd::Memfd;

pub const SLAB_SIZE_BYTES: usize = 1 << 20;
pub const PAGE: usize = 4096;
pub const TOKEN: SessionToken = SessionToken([9; 32]);

/// Nothing here takes so long; a test that waits longer has hung.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Slabs of a donor, as other threads may change them.
#[derive(Debug, Default)]
pub struct Slabs {
    lent: RwLock<HashMap<SlabHandle, Arc<Mapping>>>,
    /// Where they are registered, if they are reached by RDMA.
    pub regions: Option<LentRegions>,
}

impl Slabs {
    pub fn with_count(count: u32) -> Arc<Self> {
        let slabs = Self::default();
        (0..count).for_each(|slab| slabs.lend(SlabHandle(slab)));
        Arc::new(slabs)
    }

    pub fn lend(&self, slab: SlabHandle) {
        let file = Memfd::create("test-slab", SLAB_SIZE_BYTES as u64).unwrap();
        self.lent.write().unwrap().insert(slab, Arc::new(Mapping::shared(&file, SLAB_SIZE_BYTES).unwrap()));
    }

    pub fn memory(&self, slab: SlabHandle) -> Arc<Mapping> {
        Arc::clone(&self.lent.read().unwrap()[&slab])
    }

    pub fn take_back(&self, slab: SlabHandle) {
        self.lent.write().unwrap().remove(&slab);
    }
}

impl SlabDirectory for Slabs {
    fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool {
        let lent = self.lent.read().unwrap();
        lent.get(&slab).map(|memory| use_memory(memory)).is_some()
    }

    fn is_registered(&self, slab: SlabHandle) -> bool {
        self.regions.as_ref().is_some_and(|regions| regions.is_lent(slab))
    }
}

/// A donor's side of a data connection's handshake, from the preface on.
pub fn admit(stream: &UnixStream) -> std::io::Result<()> {
    let mut preface = [0; PREFACE_BYTES];
    (&mut &*stream).read_exact(&mut preface)?;
    assert_eq!(preface::decode(&preface), Ok(Role::Data));
    let deadline = Instant::now() + HANDSHAKE_DEADLINE;
    let greeting = Greeting::receive(stream, deadline)?;
    assert_eq!(greeting.session, session_name(&TOKEN));
    greeting.admit(stream, &TOKEN, deadline)
}

/// A donor's thread for one data connection; stopped and joined when dropped.
#[derive(Debug)]
pub struct Serving {
    stop: Arc<AtomicBool>,
    pub traffic: Arc<Traffic>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Serving {
    /// Serves `stream`, whose preface has not been read.
    pub fn start(stream: impl Into<OwnedFd>, slabs: Arc<Slabs>) -> Self {
        let stream = UnixStream::from(stream.into());
        let stop = Arc::new(AtomicBool::new(false));
        let traffic = Arc::new(Traffic::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&traffic));
        let thread = std::thread::spawn(move || {
            admit(&stream)?;
            let shares = Shares::new(Weights::default());
            tcp::serve(stream, &*slabs, &counted, shares.join(Ipv4Addr::LOCALHOST.into()), &stopped)
        });
        Self { stop, traffic, thread: Some(thread) }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// How it ended, once it has.
    pub fn join(mut self) -> std::io::Result<()> {
        let thread = self.thread.take().unwrap();
        wait_until(|| thread.is_finished());
        thread.join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn tcp_sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

pub fn pool(slot_count: usize, slot_size_bytes: usize) -> Arc<BufferPool> {
    BufferPool::new(slot_count, slot_size_bytes).unwrap()
}

pub fn over_tcp(slabs: &Arc<Slabs>, pool: &Arc<BufferPool>) -> (TcpQueuePair, Serving) {
    let (borrower, donor) = tcp_sockets();
    let serving = Serving::start(donor, Arc::clone(slabs));
    (TcpQueuePair::connect(borrower, &TOKEN, Arc::clone(pool), Arc::default()).unwrap(), serving)
}

pub fn over_unix(slabs: &Arc<Slabs>, pool: &Arc<BufferPool>) -> (TcpQueuePair, Serving) {
    let (borrower, donor) = UnixStream::pair().unwrap();
    let serving = Serving::start(donor, Arc::clone(slabs));
    (TcpQueuePair::connect(borrower, &TOKEN, Arc::clone(pool), Arc::default()).unwrap(), serving)
}

pub fn over_shm(slab_count: u32, pool: &Arc<BufferPool>) -> (ShmQueuePair, Arc<ShmWindow>) {
    let window = ShmWindow::new(SLAB_SIZE_BYTES as u64, 64).unwrap();
    for slab in 0..slab_count {
        let file = Memfd::create("test-slab", SLAB_SIZE_BYTES as u64).unwrap();
        window.attach(SlabHandle(slab), &file).unwrap();
    }
    (ShmQueuePair::new(Arc::clone(&window), Arc::clone(pool)), window)
}

/// A directory on the disk that holds the build, since the system's own for such things may be in memory.
pub fn disk_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub fn over_file(slab_count: u32, pool: &Arc<BufferPool>) -> (FileQueuePair, BackingFile, tempfile::TempDir) {
    let directory = disk_directory();
    let size_bytes = u64::from(slab_count) * SLAB_SIZE_BYTES as u64;
    let file = BackingFile::prepare(&directory.path().join("backing"), size_bytes).unwrap();
    let pair = FileQueuePair::open(&file, SLAB_SIZE_BYTES as u64, Arc::clone(pool)).unwrap();
    (pair, file, directory)
}

pub fn request(operation: Operation, slab: u32, offset_bytes: usize, buffer: BufferRange, tag: u32) -> Request {
    Request {
        operation,
        remote: RemoteAddress { slab: SlabHandle(slab), offset_bytes: offset_bytes as u32 },
        buffer,
        tag: Tag(tag),
        priority: Priority::Demand,
    }
}

/// Polls until at least `count` requests ended.
pub fn complete(pair: &mut dyn QueuePair, count: usize) -> Vec<Completion> {
    let mut ended = Vec::new();
    let end = Instant::now() + PATIENCE;
    while ended.len() < count {
        let before = ended.len();
        assert!(Instant::now() < end, "{} of {count} requests ended", ended.len());
        let said = pair.poll(Instant::now(), &mut |completion| ended.push(completion));
        assert_eq!(said, ended.len() - before);
        std::thread::yield_now();
    }
    ended
}

/// Posts one request and waits for its end.
pub fn carry_out(pair: &mut dyn QueuePair, request: Request) -> Result<(), RequestError> {
    match pair.post(request, Instant::now()) {
        Ok(()) => {}
        Err(PostError::Down) => return Err(RequestError::Down),
        Err(PostError::Busy) => panic!("nothing else is in flight"),
    }
    let ended = complete(pair, 1);
    assert_eq!(ended[0].tag, request.tag);
    ended[0].result
}

pub fn fill(pool: &BufferPool, range: BufferRange, byte: u8) {
    pool.memory().write(range.offset_bytes as usize, &vec![byte; range.length_bytes as usize]);
}

pub fn content(pool: &BufferPool, range: BufferRange) -> Vec<u8> {
    let mut bytes = vec![0; range.length_bytes as usize];
    pool.memory().read(range.offset_bytes as usize, &mut bytes);
    bytes
}
