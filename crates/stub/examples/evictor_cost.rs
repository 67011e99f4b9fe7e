//! What an eviction costs per page: batches of 512 through an evictor, without anything behind it.
//!
//! `cargo run --release -p spillway-stub --example evictor_cost`. Figures in docs/pager.md.

#![allow(clippy::unwrap_used, reason = "a measurement that fails may panic")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use spillway_stub::protocol::{BATCH_ENTRIES_MAX, Phase, outcome};
use spillway_stub::seat::Task;

use support::{PAGE, Paged, TinyPager, compile, far};

/// Batches measured of each kind; the best and the median are shown.
const BATCHES: u64 = 40;

/// Looks at a phase before sleeping.
const SPIN_ROUNDS: u32 = 1000;

fn main() {
    let mut pager = TinyPager::new();
    // Each batch takes its pages from two batches' worth of addresses, to leave gaps.
    let pages = 2 * 6 * (BATCHES + 1) * BATCH_ENTRIES_MAX as u64;
    let mut command = Command::new(compile(pager.directory.path()));
    command.arg(pages.to_string());
    let conversation = pager.start(command);
    let mut paged = pager.greet(true);
    let memory = paged.hear(&conversation, "memory");
    paged.register(memory, pages);
    paged.seat().set_spin_rounds(SPIN_ROUNDS);
    println!("{BATCHES} batches of {BATCH_ENTRIES_MAX} pages; us a page: best (moved, done), median (moved, done)");
    let mut next = memory;
    for (name, run, is_copied) in [
        ("one run, copied", 512, true),
        ("runs of 32, copied", 32, true),
        ("runs of 8, copied", 8, true),
        ("single, copied", 1, true),
        ("runs of 32, dropped", 32, false),
        ("single, dropped", 1, false),
    ] {
        let mut times: Vec<(Duration, Duration)> = Vec::new();
        // The first batch warms up.
        for _ in 0..=BATCHES {
            let tasks = tasks(&mut next, run, is_copied);
            times.push(measure(&mut paged, &tasks));
        }
        times.remove(0);
        times.sort_unstable_by_key(|(_, done)| *done);
        let per_page = |time: Duration| time.as_secs_f64() * 1e6 / BATCH_ENTRIES_MAX as f64;
        let [best, median] = [times[0], times[times.len() / 2]].map(|(moved, done)| (per_page(moved), per_page(done)));
        println!("{name:<22} {:>7.3} {:>7.3} {:>10.3} {:>7.3}", best.0, best.1, median.0, median.1);
    }
}

/// A batch of runs of `run` pages with gaps as long.
fn tasks(next: &mut u64, run: u64, is_copied: bool) -> Vec<Task> {
    let task = |index: u64| {
        let address = *next + (index + index / run * run) * PAGE;
        if is_copied { Task::evict_copy(address) } else { Task::evict_drop(address) }
    };
    let tasks = (0..BATCH_ENTRIES_MAX as u64).map(task).collect();
    *next += 2 * BATCH_ENTRIES_MAX as u64 * PAGE;
    tasks
}

/// How long it takes until the pages are moved, and until all is done.
fn measure(paged: &mut Paged, tasks: &[Task]) -> (Duration, Duration) {
    let batch = paged.next_batch();
    let start = Instant::now();
    paged.seat().post(batch, tasks);
    assert!(paged.seat().wait(batch, Phase::Moved, SPIN_ROUNDS, far()).unwrap());
    let moved = start.elapsed();
    assert!(paged.seat().wait(batch, Phase::Done, SPIN_ROUNDS, far()).unwrap());
    let done = start.elapsed();
    assert!((0..tasks.len()).all(|index| paged.seat().result(batch, index) == outcome::DONE));
    paged.seat().take(batch);
    (moved, done)
}
