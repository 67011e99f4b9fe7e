//! The eviction thread itself, beside a thread that is taken for an evictor: they leave each other, and may run
//! everywhere again once nothing leaves.

use std::sync::mpsc::channel;

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity};
use spillway_pager::threads::evict;
use spillway_sys::skipping::skip;
use spillway_sys::thread_times::ThreadTimes;

use super::*;

/// Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends the eviction thread, however the test ends.
struct Ending<'a>(&'a PagerState);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_stopping.store(true, Ordering::SeqCst);
        self.0.eviction.signal();
    }
}

/// A world beyond its budget, whose evictor always had the eviction thread's CPU, and is taken for `evictor` of this
/// process.
fn world_of(evictor: Pid) -> World {
    let mut world = World::new(10_000);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    world.shared.budget.set_bytes(200 * PAGE);
    let space = &world.programs[0].space;
    space.process.store(std::process::id(), Ordering::Relaxed);
    space.evictor_thread.store(evictor.as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
    world.programs[0].memory.lock().shares_cpu = true;
    world
}

/// Whether the two were kept apart while pages left. Afterwards they may run where they could before.
fn are_kept_apart_and_come_back(evictor: Pid, all: CpuSet) -> bool {
    let World { shared, eviction, programs, .. } = world_of(evictor);
    let memory = &programs[0].memory;
    std::thread::scope(|threads| {
        let (tell, told) = channel();
        let _ending = Ending(&shared);
        let shared = &shared;
        threads.spawn(move || {
            tell.send(gettid()).unwrap();
            evict(shared, eviction).unwrap();
        });
        let eviction = told.recv().unwrap();
        let masks = || [eviction, evictor].map(|thread| sched_getaffinity(Some(thread)).unwrap());
        let mut were_apart = false;
        while !were_apart && !memory.lock().resident.is_empty() {
            shared.budget.set_resident(shared.budget.limit_pages());
            memory.step();
            shared.eviction.signal();
            were_apart = masks().iter().all(|mask| mask.count() + 1 == all.count());
        }
        shared.budget.set_resident(0);
        let deadline = Instant::now() + PATIENCE;
        while masks() != [all, all] {
            memory.step();
            assert!(Instant::now() < deadline, "they are bound though nothing leaves: {:?}", masks());
            std::thread::sleep(Duration::from_millis(1));
        }
        were_apart
    })
}

#[test]
fn the_eviction_thread_and_an_evictor_may_run_everywhere_once_nothing_leaves() {
    let all = sched_getaffinity(None).unwrap();
    if all.count() < 2 || ThreadTimes::own().is_err() {
        return skip("a second CPU, or schedstat of threads");
    }
    let (tell, told) = channel();
    let (end, ended) = channel::<()>();
    let evictor = move || {
        tell.send(gettid()).unwrap();
        // Until the test is over, however it ends.
        let _ = ended.recv();
    };
    let evictor_thread = std::thread::Builder::new().name("spillway-evict".to_owned()).spawn(evictor).unwrap();
    let evictor = told.recv().unwrap();
    // The eviction thread may change its CPU between two looks at it, and comes back where others want theirs.
    assert!((0..100).any(|_| are_kept_apart_and_come_back(evictor, all)), "they are never kept apart");
    drop(end);
    evictor_thread.join().unwrap();
}
