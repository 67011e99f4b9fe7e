//! How long a fault waits while prefetches use all of a connection: 31 reads of 128 KiB are always under way over
//! loopback TCP, and one read of a page at a time that a thread waits for.
//!
//! Prefetches come once as [`Priority::Demand`], which is how they came before block requests had a class, and once as
//! [`Priority::Prefetch`]. The two take turns in one run, so that both see the same machine; the figures are medians
//! over the rounds.
//!
//! Run: `cargo run --release -p spillway-volume --example fault_behind_prefetches`

use std::error::Error;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_block::metrics::Metrics;
use spillway_block::request::{BlockOperation, BlockRequest};
use spillway_block::service::BlockService;
use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::limits::HANDSHAKE_DEADLINE;
use spillway_fabric::tcp::{Greeting, SlabDirectory, TcpQueuePair, Traffic, serve};
use spillway_fabric::units::{PAGE_SIZE_BYTES, Priority, SlabHandle, SlabIndex};
use spillway_fabric::wire::SessionToken;
use spillway_fabric::wire::foreign::PREFACE_BYTES;
use spillway_sys::mapping::Mapping;
use spillway_volume::engine::Engine;
use spillway_volume::engine::queue_pairs::{QueuePairChange, QueuePairMailbox, QueuePairSet};
use spillway_volume::settings::redundancy::Redundancy;
use spillway_volume::slab_map::page_bits::Bit;
use spillway_volume::slab_map::page_index::PageIndex;
use spillway_volume::slab_map::slab_entry::{DonorSlot, Location};
use spillway_volume::slab_map::{Geometry, Volume};

const TOKEN: SessionToken = SessionToken([0; 32]);
const GEOMETRY: Geometry = Geometry { slab_pages: 16 * 1024, slab_count: 1 };
/// The buffers of a fault thread, of which the first is the fault's.
const SLOTS: usize = 32;
/// Pages of the pager's longest read.
const RUN_PAGES: u64 = 32;
const ROUNDS: usize = 15;
const FAULTS_PER_ROUND: usize = 200;
const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// One slab, always lent.
struct OneSlab(Mapping);

impl SlabDirectory for OneSlab {
    fn with_slab(&self, slab: SlabHandle, use_memory: &mut dyn FnMut(&Mapping)) -> bool {
        let is_lent = slab == SlabHandle(0);
        if is_lent {
            use_memory(&self.0);
        }
        is_lent
    }
}

/// Sets its flag when dropped, so that a failing measurement still ends the donor.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let borrower = TcpStream::connect(listener.local_addr()?)?;
    let donor = listener.accept()?.0;
    let slab = OneSlab(Mapping::anonymous(GEOMETRY.slab_size_bytes() as usize)?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&donor).read_exact(&mut [0; PREFACE_BYTES])?;
            let deadline = Instant::now() + HANDSHAKE_DEADLINE;
            Greeting::receive(&donor, deadline)?.admit(&donor, &TOKEN, deadline)?;
            let shares = spillway_fabric::tcp::Shares::new(spillway_fabric::tcp::Weights::default());
            let share = shares.join([127, 0, 0, 1].into());
            serve(donor, &slab, &Traffic::default(), share, &stop)
        });
        let _stop = StopOnDrop(&stop);
        measure(&mut Reader::new(borrower)?);
        Ok(())
    })
}

fn measure(reader: &mut Reader) {
    let classes = [("none", None), ("as demand", Some(Priority::Demand)), ("as prefetches", Some(Priority::Prefetch))];
    let mut results = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for ((_, class), rounds) in classes.iter().zip(&mut results) {
            rounds.push(reader.round(*class));
        }
    }
    println!("a fault's read of a page over loopback TCP beside prefetches, medians of {ROUNDS} rounds:");
    for ((name, _), rounds) in classes.iter().zip(&results) {
        let figure = |of: fn(&Round) -> f64| middle(rounds.iter().map(of).collect(), 0.5);
        println!(
            "{name}: {:.0} us, 99th percentile {:.0} us, prefetched {:.0} MB/s",
            figure(|round| round.median_us),
            figure(|round| round.percentile_us),
            figure(|round| round.prefetched_mb_per_s)
        );
    }
}

/// What one round came to.
struct Round {
    median_us: f64,
    percentile_us: f64,
    prefetched_mb_per_s: f64,
}

/// An engine with one donor, and its requests.
struct Reader {
    engine: Engine,
    is_busy: [bool; SLOTS],
    next_page: u64,
    prefetched_bytes: u64,
}

impl Reader {
    fn new(stream: TcpStream) -> Result<Self, Box<dyn Error>> {
        let volume = Arc::new(Volume::new(GEOMETRY, Redundancy::NONE, None)?);
        let pool = BufferPool::new(SLOTS, (RUN_PAGES * PAGE) as usize)?;
        let mailbox = QueuePairMailbox::new();
        let queue_pair = TcpQueuePair::connect(stream, &TOKEN, Arc::clone(&pool), Arc::default())?;
        volume.begin_session(DonorSlot(0));
        mailbox.leave(QueuePairChange { donor: DonorSlot(0), queue_pair: Some(Box::new(queue_pair)) });
        volume.slab(SlabIndex(0)).fill(0, Location { donor: DonorSlot(0), handle: SlabHandle(0) });
        volume.bits.set(Bit::Copy(0), PageIndex(0), GEOMETRY.page_count());
        let queue_pairs = QueuePairSet::new(mailbox, None);
        let engine = Engine::new(volume, Arc::new(Metrics::default()), pool, queue_pairs, Instant::now());
        Ok(Self { engine, is_busy: [false; SLOTS], next_page: 0, prefetched_bytes: 0 })
    }

    fn read(&mut self, slot: usize, pages: u64, priority: Priority) {
        self.next_page = (self.next_page + pages) % (GEOMETRY.page_count() - RUN_PAGES);
        let (operation, offset_bytes) = (BlockOperation::Read, self.next_page * PAGE);
        let request = BlockRequest { slot, operation, offset_bytes, length_bytes: pages * PAGE, priority };
        self.is_busy[slot] = true;
        self.engine.submit(request, Instant::now());
    }

    fn poll(&mut self, prefetches: Option<Priority>) {
        let (is_busy, prefetched_bytes) = (&mut self.is_busy, &mut self.prefetched_bytes);
        self.engine.poll(Instant::now(), &mut |slot, result| {
            result.expect("the donor lives as long as the measurement");
            is_busy[slot] = false;
            *prefetched_bytes += if slot == 0 { 0 } else { RUN_PAGES * PAGE };
        });
        if let Some(priority) = prefetches {
            (1..SLOTS).for_each(|slot| {
                if !self.is_busy[slot] {
                    self.read(slot, RUN_PAGES, priority);
                }
            });
        }
    }

    fn round(&mut self, prefetches: Option<Priority>) -> Round {
        let begun = Instant::now();
        self.prefetched_bytes = 0;
        let waits: Vec<f64> = (0..FAULTS_PER_ROUND).map(|_| self.fault(prefetches)).collect();
        let prefetched_mb_per_s = self.prefetched_bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
        while self.is_busy.contains(&true) {
            self.poll(None);
        }
        Round { median_us: middle(waits.clone(), 0.5), percentile_us: middle(waits, 0.99), prefetched_mb_per_s }
    }

    /// The program works for a while, and then waits for a page: for so many microseconds.
    fn fault(&mut self, prefetches: Option<Priority>) -> f64 {
        let worked = Instant::now();
        while worked.elapsed() < Duration::from_micros(300) {
            self.poll(prefetches);
        }
        let begun = Instant::now();
        self.read(0, 1, Priority::Demand);
        while self.is_busy[0] {
            self.poll(prefetches);
        }
        begun.elapsed().as_nanos() as f64 / 1000.0
    }
}

fn middle(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() as f64 * part) as usize]
}
