//! What a discard on shared memory costs the thread that does it, and what others notice of it: `cargo run --release -p
//! spillway-fabric --example shm_discard`.
//!
//! A discard punches its pages out of the slab's file on the I/O thread itself, step by step. This measures how long
//! all of it and the longest step take. It measures how long reads take on another thread while one discards and
//! writes all the time, and how long a slab takes to be mapped meanwhile. What follows from it is in
//! `docs/decisions/slabs.md`.

#![allow(clippy::unwrap_used, reason = "a measurement may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::queue_pair::{Operation, QueuePair, Request};
use spillway_fabric::shm::{ShmQueuePair, ShmWindow};
use spillway_fabric::units::{BufferRange, PAGE_SIZE_BYTES, Priority, RemoteAddress, SlabHandle, Tag};
use spillway_sys::memfd::Memfd;

const SLAB_SIZE_BYTES: u64 = 32 << 20;
const ROUNDS: usize = 200;
const READS: usize = 100_000;

fn main() {
    let window = ShmWindow::new(SLAB_SIZE_BYTES, 8).unwrap();
    for slab in 0..2 {
        window.attach(SlabHandle(slab), &slab_file()).unwrap();
    }
    for pages in [1, 16, 256, 8192] {
        let mut lane = Lane::new(&window);
        let mut steps = Vec::new();
        let mut measure = || {
            lane.fill(SlabHandle(0), pages);
            let whole = lane.timed(Operation::Discard, SlabHandle(0), 0, pages);
            steps.push(lane.longest_step);
            whole
        };
        let durations = (0..ROUNDS.min(200_000 / pages)).map(|_| measure()).collect();
        report(&format!("discard of {pages} pages"), durations);
        report("  its longest step", steps);
    }
    report("read of a page, nobody discards", read_all(&window));
    for pages in [1, 256, 8192] {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut lane = Lane::new(&window);
                while !stop.load(Ordering::Relaxed) {
                    lane.fill(SlabHandle(0), pages);
                    lane.timed(Operation::Discard, SlabHandle(0), 0, pages);
                }
            });
            report(&format!("read of a page of the same slab, another thread discards {pages}"), read_all(&window));
            report(&format!("mapping a slab, another thread discards {pages}"), map_all(&window));
            stop.store(true, Ordering::Relaxed);
        });
    }
    report("mapping a slab, nobody discards", map_all(&window));
}

fn slab_file() -> Memfd {
    let file = Memfd::create("discard-slab", SLAB_SIZE_BYTES).unwrap();
    file.preallocate(0, SLAB_SIZE_BYTES).unwrap();
    file
}

/// One I/O thread's end.
struct Lane {
    pair: ShmQueuePair,
    pool: Arc<BufferPool>,
    /// Of the last request.
    longest_step: Duration,
}

impl Lane {
    fn new(window: &Arc<ShmWindow>) -> Self {
        let pool = BufferPool::new(1, 1 << 20).unwrap();
        Self { pair: ShmQueuePair::new(Arc::clone(window), Arc::clone(&pool)), pool, longest_step: Duration::ZERO }
    }

    fn timed(&mut self, operation: Operation, slab: SlabHandle, page: usize, pages: usize) -> Duration {
        let buffer = BufferRange {
            offset_bytes: self.pool.slot(0).offset_bytes,
            length_bytes: (pages * PAGE_SIZE_BYTES) as u32,
        };
        let remote = RemoteAddress { slab, offset_bytes: (page * PAGE_SIZE_BYTES) as u32 };
        let started = Instant::now();
        let request = Request { operation, remote, buffer, tag: Tag(0), priority: Priority::Demand };
        self.pair.post(request, started).unwrap();
        self.longest_step = started.elapsed();
        while self.pair.in_flight() > 0 {
            let step = Instant::now();
            self.pair.poll(step, &mut |ended| assert_eq!(ended.result, Ok(())));
            self.longest_step = self.longest_step.max(step.elapsed());
        }
        started.elapsed()
    }

    /// Makes the first `pages` of a slab present.
    fn fill(&mut self, slab: SlabHandle, pages: usize) {
        for page in (0..pages).step_by(256) {
            self.timed(Operation::Write, slab, page, 256.min(pages - page));
        }
    }
}

/// Reads pages of the slab's second half, which no process discards unless all of it is.
fn read_all(window: &Arc<ShmWindow>) -> Vec<Duration> {
    let mut lane = Lane::new(window);
    lane.fill(SlabHandle(1), 1);
    (0..READS).map(|read| lane.timed(Operation::Read, SlabHandle((read % 2) as u32), 4096 + read % 4000, 1)).collect()
}

/// Maps and unmaps slabs as the manager does.
fn map_all(window: &ShmWindow) -> Vec<Duration> {
    let file = slab_file();
    (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            window.attach(SlabHandle(5), &file).unwrap();
            let took = started.elapsed();
            window.detach(SlabHandle(5)).unwrap();
            took
        })
        .collect()
}

fn report(name: &str, mut durations: Vec<Duration>) {
    durations.sort_unstable();
    let at = |share: f64| durations[((durations.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("{name}: median {:.1} us, p99 {:.1} us, p99.9 {:.1} us", at(0.5), at(0.99), at(0.999));
}
