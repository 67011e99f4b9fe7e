//! Promises that were once broken: each test is an order of events that broke one, found by reading.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_block::limits::{BLOCK_REQUEST_DEADLINE, BLOCK_REQUEST_DEADLINE_SOLE};
use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockError, BlockOperation, BlockRequest};
use spillway_block::service::BlockService;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::control::message::Message;
use spillway_fabric::control::{ControlChannel, ControlReceiver};
use spillway_fabric::rdma::port::KeptPorts;
use spillway_fabric::units::{BorrowerId, DonorId, PAGE_SIZE_BYTES, Priority, SlabHandle, SlabIndex};
use spillway_volume::engine::Engine;
use spillway_volume::engine::queue_pairs::{QueuePairChange, QueuePairMailbox, QueuePairSet};
use spillway_volume::manager::ManagerState as Managed;
use spillway_volume::manager::SessionResumption;
use spillway_volume::manager::decisions::Decisions;
use spillway_volume::manager::donor_table::DonorTable;
use spillway_volume::manager::donors::{DonorEntry, Session};
use spillway_volume::manager::mapping::place;
use spillway_volume::manager::reach::Reach;
use spillway_volume::manager::slab_scan;
use spillway_volume::manager::slab_scan::findings::Findings;
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::settings::transport::TransportChoice;
use spillway_volume::settings::wrapper::QueuePairWrapper;
use spillway_volume::slab_map::backlog::Backlog;
use spillway_volume::slab_map::page_bits::Bit;
use spillway_volume::slab_map::page_index::PageIndex;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};
use spillway_volume::slab_map::{DiskCopy, Geometry, Volume};
use spillway_volume::state::records::Records;
use spillway_volume::steward::Lease;
use spillway_volume::test_support::model::{self, AT_ONCE};
use spillway_volume::test_support::{SharedStore, StoreQueuePair, store};

const GEOMETRY: Geometry = Geometry { slab_pages: 256, slab_count: 2 };
const SLAB_BYTES: usize = 256 * PAGE_SIZE_BYTES;
const PAGE: u64 = PAGE_SIZE_BYTES as u64;

struct One {
    volume: Arc<Volume>,
    engine: Engine,
    mailbox: Arc<QueuePairMailbox>,
    pool: Arc<BufferPool>,
    answers: [Option<Result<(), BlockError>>; 2],
}

impl One {
    fn new(redundancy: Redundancy) -> Self {
        let disk = redundancy
            .disk
            .then(|| DiskCopy { backlog: Backlog::new(64), pool: BufferPool::new(64, PAGE_SIZE_BYTES).unwrap() });
        let volume = Arc::new(Volume::new(GEOMETRY, redundancy, disk).unwrap());
        let pool = BufferPool::new(2, 4 * PAGE_SIZE_BYTES).unwrap();
        let mailbox = QueuePairMailbox::new();
        let file = redundancy.disk.then(|| StoreQueuePair::boxed(&store(SLAB_BYTES), &pool, 4));
        let queue_pairs = QueuePairSet::new(Arc::clone(&mailbox), file);
        let engine = Engine::new(
            Arc::clone(&volume),
            Arc::new(Metrics::default()),
            Arc::clone(&pool),
            queue_pairs,
            Instant::now(),
        );
        Self { volume, engine, mailbox, pool, answers: [None; 2] }
    }

    /// With nothing but a disk.
    fn without_donors() -> Self {
        let one = Self::new(Redundancy::DISK);
        one.volume.set_mapping_possible(false);
        one
    }

    /// The disk fails the one page that waits for it: the first of the two things that the disk thread does then.
    fn fail_on_disk(&self) {
        let backlog = &self.volume.disk.as_ref().unwrap().backlog;
        let mut batch = Vec::with_capacity(4);
        backlog.take(AT_ONCE, &mut batch);
        assert_eq!(batch.len(), 1);
        assert!(backlog.complete(&self.volume.bits, &batch, false, Instant::now()), "nothing else has the page");
    }

    fn submit(&mut self, slot: usize, operation: BlockOperation, page: u64) {
        let request = model::request(slot, operation, page, 1);
        self.answers[slot] = None;
        self.engine.submit(request, Instant::now());
    }

    fn poll(&mut self) {
        let answers = &mut self.answers;
        self.engine.poll(Instant::now(), &mut |slot, result| answers[slot] = Some(result));
    }
}

/// The disk thread clears `Pending` in `Backlog::complete` and marks the page lost only afterwards, in
/// `Volume::disk_write_failed`, which first waits for the page's owner (a writer, the mover: milliseconds to seconds).
/// In between, the page is in no bit at all.
#[test]
fn a_write_whose_only_copy_failed_on_disk_is_not_acknowledged() {
    let mut one = One::without_donors();
    one.pool.memory().write(0, &[7; PAGE_SIZE_BYTES]);
    one.submit(0, BlockOperation::Write, 5);
    (0..3).for_each(|_| one.poll());
    assert_eq!(one.answers[0], None, "no donor: it waits for the disk");
    one.fail_on_disk();
    // The disk thread is about to call `disk_write_failed`; the I/O thread looks first.
    one.submit(1, BlockOperation::Read, 5);
    one.poll();
    let (write, read) = (one.answers[0], one.answers[1]);
    one.volume.disk_write_failed(PageIndex(5), || {});
    assert_ne!(read, Some(Ok(())), "the page is nowhere, and reads as zeroes");
    assert_ne!(write, Some(Ok(())), "nothing holds the page, and its write was acknowledged");
}

/// The write part alone: the read above hides it.
#[test]
fn a_lost_write_is_an_error() {
    let mut one = One::without_donors();
    one.submit(0, BlockOperation::Write, 5);
    (0..3).for_each(|_| one.poll());
    one.fail_on_disk();
    one.poll();
    assert_ne!(one.answers[0], Some(Ok(())), "nothing holds the page, and its write was acknowledged");
}

/// A discard that comes between the two halves of a failed disk write leaves the page reading as zeroes, not as lost.
#[test]
fn a_discarded_page_is_not_lost_by_a_disk_write_that_failed_before() {
    let mut one = One::without_donors();
    one.submit(0, BlockOperation::Write, 5);
    (0..3).for_each(|_| one.poll());
    one.fail_on_disk();
    one.submit(1, BlockOperation::Discard, 5);
    one.poll();
    assert_eq!(one.answers[1], Some(Ok(())));
    one.volume.disk_write_failed(PageIndex(5), || {});
    one.submit(1, BlockOperation::Read, 5);
    one.poll();
    assert_eq!(one.answers[1], Some(Ok(())), "a discarded page reads as zeroes");
}

/// What a request may wait for without a disk: a donor that says nothing for a while, but not for room that no thread
/// has.
#[test]
fn without_a_disk_a_request_waits_for_a_donor_and_not_for_room() {
    let mut one = One::new(Redundancy::NONE);
    one.volume.set_mapping_possible(false);
    one.volume.slab(SlabIndex(0)).fill(0, Location { donor: DonorSlot(0), handle: SlabHandle(0) });
    one.volume.bits.set(Bit::Copy(0), PageIndex(5), 1);
    one.submit(0, BlockOperation::Read, 5);
    one.submit(1, BlockOperation::Write, 6);
    let mut after = |waited| {
        let mut ended = Vec::new();
        one.engine.poll(Instant::now() + waited, &mut |slot, result| ended.push((slot, result)));
        ended
    };
    assert_eq!(after(BLOCK_REQUEST_DEADLINE), [(1, Err(BlockError::NoSpace))]);
    assert_eq!(after(BLOCK_REQUEST_DEADLINE_SOLE), [(0, Err(BlockError::TimedOut))]);
}

/// A donor that is waited for, since it has the only copy of one page, does not hold up what others have too.
#[test]
fn what_a_silent_donor_has_is_read_from_others_that_have_it() {
    let mut one = One::new(Redundancy::NONE);
    let stores = [store(SLAB_BYTES), store(SLAB_BYTES)];
    for (donor, store) in (0..).zip(&stores) {
        let handle = store.lock().unwrap().lend();
        let queue_pair = Some(StoreQueuePair::boxed(store, &one.pool, 4));
        one.mailbox.leave(QueuePairChange { donor: DonorSlot(donor), queue_pair });
        one.volume.slab(SlabIndex(0)).fill(donor.into(), Location { donor: DonorSlot(donor), handle });
    }
    one.volume.bits.set(Bit::Copy(0), PageIndex(5), 2);
    one.volume.bits.set(Bit::Copy(1), PageIndex(5), 1);
    stores[0].lock().unwrap().delay_polls = u32::MAX;
    one.volume.set_silent(DonorSlot(0), true);
    one.submit(0, BlockOperation::Read, 5);
    one.submit(1, BlockOperation::Read, 6);
    (0..10).for_each(|_| one.poll());
    assert_eq!(one.answers, [Some(Ok(())), None], "one has another copy, the other is waited for");
    one.volume.set_silent(DonorSlot(0), false);
    one.submit(0, BlockOperation::Read, 5);
    (0..10).for_each(|_| one.poll());
    assert_eq!(one.answers[0], None, "the first that has it, as it is not known to be silent");
}

/// A donor that comes back lends its lowest handle again, so the fresh copy has the name of the one that failed.
#[test]
fn a_write_that_failed_goes_to_the_fresh_copy_of_the_same_name() {
    let mut one = One::new(Redundancy::NONE);
    let location = Location { donor: DonorSlot(0), handle: SlabHandle(0) };
    let connect = |one: &One, store: &SharedStore| {
        let queue_pair = Some(StoreQueuePair::boxed(store, &one.pool, 4));
        one.mailbox.leave(QueuePairChange { donor: DonorSlot(0), queue_pair });
    };
    let first = store(SLAB_BYTES);
    assert_eq!(first.lock().unwrap().lend(), SlabHandle(0));
    connect(&one, &first);
    one.volume.slab(SlabIndex(0)).fill(0, location);
    first.lock().unwrap().delay_polls = 1000;
    one.submit(0, BlockOperation::Write, 5);
    one.poll();
    // As the link thread does when the session ends.
    one.mailbox.leave(QueuePairChange { donor: DonorSlot(0), queue_pair: None });
    let volume = Arc::clone(&one.volume);
    volume.remove_copy(SlabIndex(0), 0, || one.poll()).unwrap();
    (0..10).for_each(|_| one.poll());
    assert_eq!(one.answers[0], None, "parked until there is a donor");
    // The donor is back, and the manager maps the slab anew.
    let second = store(SLAB_BYTES);
    assert_eq!(second.lock().unwrap().lend(), SlabHandle(0));
    volume.begin_session(DonorSlot(0));
    connect(&one, &second);
    one.volume.slab(SlabIndex(0)).fill(0, location);
    (0..100).for_each(|_| one.poll());
    assert_eq!(one.answers[0], Some(Ok(())), "a healthy copy is there");
}

fn managed(donors: usize) -> Managed {
    let volume = Arc::new(Volume::new(GEOMETRY, Redundancy::NONE, None).unwrap());
    let decisions = Decisions::new(&volume, 1);
    let table = DonorTable::default();
    for slot in 0..donors {
        table.enter(DonorSlot(slot as u16), format!("unix:/test{slot}").parse().unwrap(), false);
    }
    Managed {
        stays_on_machine: false,
        volume,
        donors: table,
        queue_pairs: Vec::new(),
        borrower: BorrowerId(1),
        resumption: SessionResumption { records: Records::of_this_process(), linger: Duration::ZERO },
        reunion_until: Instant::now(),
        name: "test".to_owned(),
        key: None,
        transport: TransportChoice::Auto,
        rdma_ports: KeptPorts::default(),
        wrapper: QueuePairWrapper::default(),
        decisions,
        slab_findings: Findings::default(),
        stopping: AtomicBool::new(false),
    }
}

/// Opens a session of `donor`, and the donor's end of it.
fn open_session(donor: &DonorEntry) -> (Arc<Session>, ControlReceiver) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = std::thread::spawn(move || ControlChannel::accept(theirs, None).unwrap().split().1);
    let sender = ControlChannel::connect(ours, None).unwrap().split().0;
    let session = Arc::new(Session { number: donor.number_session(), donor: DonorId(1), sender, reach: Reach::Socket });
    donor.connected(Arc::clone(&session), "tcp", String::new());
    (session, theirs.join().unwrap())
}

/// Before a leased slab is put in place, the session may end and the next one begin. Its handles begin at 0 again: two
/// slabs of the volume would then share one slab of the donor.
#[test]
fn a_slab_leased_in_a_lost_session_is_not_used_in_the_next() {
    let shared = managed(1);
    let donor = &shared.donors.get(DonorSlot(0)).unwrap();
    let (first, _theirs) = open_session(donor);
    let location = Location { donor: DonorSlot(0), handle: SlabHandle(0) };
    let stale = Lease { location, session: first.number };
    std::thread::scope(|scope| {
        // A thread (the mover, another donor's link thread) holds the lock and drains a gate.
        let lock = shared.volume.assignment();
        let placing = scope.spawn(|| place(&shared, SlabIndex(0), &[stale], 1));
        std::thread::sleep(Duration::from_millis(50));
        // The link thread: the session ends, nothing is there to forget, and the donor is reached again.
        donor.disconnected("lost".to_owned(), false);
        let (second, _theirs) = open_session(donor);
        drop(lock);
        assert_eq!(placing.join().unwrap(), [None]);
        let fresh = Lease { location, session: second.number };
        assert_eq!(place(&shared, SlabIndex(1), &[fresh], 1), [Some(0)]);
        assert!(shared.volume.slab(SlabIndex(0)).is_unmapped());
    });
}

/// Requests that ended with the last session are no reason to end this one.
#[test]
fn trouble_with_the_last_session_does_not_end_the_next() {
    let shared = managed(1);
    let shared = &shared;
    let donor = &shared.donors.get(DonorSlot(0)).unwrap();
    std::thread::scope(|scope| {
        let (first, _theirs) = open_session(donor);
        first.sender.close();
        donor.disconnected("lost".to_owned(), false);
        // An I/O thread's sub-requests end as orphans while the manager's thread is busy (it waits half a second for
        // each silent donor, and for a lease of each wanted slab).
        shared.volume.report_trouble(DonorSlot(0));
        // As the link thread does.
        shared.volume.begin_session(DonorSlot(0));
        let (second, _theirs) = open_session(donor);
        scope.spawn(|| slab_scan::run(shared));
        std::thread::sleep(Duration::from_millis(300));
        shared.stopping.store(true, Ordering::SeqCst);
        let alive = second.sender.send(&Message::Ping, None);
        second.sender.close();
        assert!(alive.is_ok(), "the new session was ended for what happened in the old one: {alive:?}");
    });
}

/// A write whose bytes have not arrived: slab, offset, content.
type LateWrite = (SlabHandle, usize, Vec<u8>);

/// A queue pair as TCP is when the donor's thread for it is held up (reclaim, a long discard) beyond the deadline:
/// the borrower gives the request up, and the donor's thread carries it out later, from its socket's buffer.
struct HeldUp {
    store: SharedStore,
    pool: Arc<BufferPool>,
    buffered: Arc<std::sync::Mutex<Vec<LateWrite>>>,
    waiting: Vec<spillway_fabric::units::Tag>,
    down: bool,
}

impl spillway_fabric::queue_pair::QueuePair for HeldUp {
    fn post(
        &mut self,
        request: spillway_fabric::queue_pair::Request,
        _now: Instant,
    ) -> Result<(), spillway_fabric::queue_pair::PostError> {
        if self.down {
            return Err(spillway_fabric::queue_pair::PostError::Down);
        }
        let mut bytes = vec![0; request.buffer.length_bytes as usize];
        self.pool.memory().read(request.buffer.offset_bytes as usize, &mut bytes);
        self.buffered.lock().unwrap().push((request.remote.slab, request.remote.offset_bytes as usize, bytes));
        self.waiting.push(request.tag);
        let _ = &self.store;
        Ok(())
    }

    fn poll(&mut self, _now: Instant, complete: &mut dyn FnMut(spillway_fabric::queue_pair::Completion)) -> usize {
        let result = Err(spillway_fabric::queue_pair::RequestError::Down);
        let ended = self.waiting.len();
        self.down |= ended > 0;
        for tag in self.waiting.drain(..) {
            complete(spillway_fabric::queue_pair::Completion { tag, result });
        }
        ended
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn event(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn is_down(&self) -> bool {
        self.down
    }

    fn halt(&mut self) -> bool {
        true
    }
}

/// After one queue pair to a donor failed, another must not make a copy valid that the first may still write to.
#[test]
fn a_write_that_was_given_up_does_not_overwrite_a_later_one() {
    let volume = Arc::new(Volume::new(GEOMETRY, Redundancy { replicas: 2, disk: false }, None).unwrap());
    let donors = [store(SLAB_BYTES), store(SLAB_BYTES)];
    for (copy_index, donor) in donors.iter().enumerate() {
        let handle = donor.lock().unwrap().lend();
        volume.slab(SlabIndex(0)).fill(copy_index, Location { donor: DonorSlot(copy_index as u16), handle });
    }
    let buffered = Arc::default();
    let mut queue_pairs = Vec::new();
    for holder in 0..2 {
        let pool = BufferPool::new(1, PAGE_SIZE_BYTES).unwrap();
        let mailbox = QueuePairMailbox::new();
        for (slot, donor) in donors.iter().enumerate() {
            let queue_pair: Box<dyn spillway_fabric::queue_pair::QueuePair> = if holder == 0 && slot == 0 {
                let (store, pool, buffered) = (Arc::clone(donor), Arc::clone(&pool), Arc::clone(&buffered));
                Box::new(HeldUp { store, pool, buffered, waiting: Vec::new(), down: false })
            } else {
                StoreQueuePair::boxed(donor, &pool, 4)
            };
            mailbox.leave(QueuePairChange { donor: DonorSlot(slot as u16), queue_pair: Some(queue_pair) });
        }
        let engine = Engine::new(
            Arc::clone(&volume),
            Arc::new(Metrics::default()),
            Arc::clone(&pool),
            QueuePairSet::new(mailbox, None),
            Instant::now(),
        );
        queue_pairs.push((engine, pool));
    }
    let mut run = |holder: usize, operation: BlockOperation, byte: u8| {
        let (engine, pool) = &mut queue_pairs[holder];
        pool.memory().write(0, &[byte; PAGE_SIZE_BYTES]);
        engine.submit(
            BlockRequest { slot: 0, operation, offset_bytes: 0, length_bytes: PAGE, priority: Priority::Demand },
            Instant::now(),
        );
        let mut answer = None;
        while answer.is_none() {
            engine.poll(Instant::now(), &mut |_, result| answer = Some(result));
        }
        let mut seen = [0];
        pool.memory().read(0, &mut seen);
        assert_eq!(answer, Some(Ok(())));
        seen[0]
    };
    run(0, BlockOperation::Write, 1);
    // The manager was told, and has not ended the session yet.
    run(1, BlockOperation::Write, 2);
    for (slab, offset, bytes) in buffered.lock().unwrap().drain(..) {
        let bytes: Vec<u8> = bytes;
        donors[0].lock().unwrap().slab(slab)[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    assert_eq!(run(1, BlockOperation::Read, 0), 2, "the page reads as before the last write");
}
