//! How long to wait for a thread that is late to tell of its change ([`crate::mappings::events`]).
//!
//! That thread has given up the lock of its address space and lost its CPU before it could tell. It needs a
//! microsecond of CPU time, and on a busy machine it may wait for that much longer than any fixed pause. So the wait
//! lasts until every thread of the program that could be the late one, because it wanted to run when the wait began,
//! has run or sleeps; but not less than [`DOUBT_PAUSE`], and not more than [`DOUBT_PAUSE_MAX`].
//!
//! What a thread does is told by its state ([`ProcessStat`]) and its time on a CPU ([`ThreadTimes`]).

use std::time::{Duration, Instant};

use spillway_sys::moves_under_way::{Move, moves_under_way};
use spillway_sys::process_stat::ProcessStat;
use spillway_sys::thread_times::ThreadTimes;
use spillway_sys::threads::Threads;

use crate::limits::{DOUBT_PAUSE, DOUBT_PAUSE_MAX};

/// A thread that wants to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runnable {
    /// Its number.
    pub thread: u32,
    /// How long it has run so far.
    pub run: Duration,
}

/// A wait, see the module text.
#[derive(Debug)]
pub struct LateEvent {
    process: u32,
    since: Instant,
    /// Those that have not run since.
    waiting: Vec<Runnable>,
}

impl LateEvent {
    /// A change of `process` (0: it is unknown which) is not understood yet.
    pub fn begin(process: u32, now: Instant) -> Self {
        Self {
            process,
            since: now,
            waiting: threads(process).into_iter().filter_map(|thread| runnable(process, thread)).collect(),
        }
    }

    /// Whether the thread that was late has told by now.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let process = self.process;
        self.is_over_with(now, |thread| runnable(process, thread))
    }

    /// What the program is in the middle of moving.
    pub fn moves_under_way(&self) -> Vec<Move> {
        moves_under_way(self.process)
    }

    /// `runnable` gives a thread that still wants to run.
    fn is_over_with(&mut self, now: Instant, runnable: impl Fn(u32) -> Option<Runnable>) -> bool {
        let taken = now.saturating_duration_since(self.since);
        if taken < DOUBT_PAUSE {
            return false;
        }
        self.waiting.retain(|then| runnable(then.thread) == Some(*then));
        self.waiting.is_empty() || taken >= DOUBT_PAUSE_MAX
    }
}

fn threads(process: u32) -> Vec<u32> {
    Threads::of(process).and_then(|mut threads| threads.list()).unwrap_or_default()
}

fn runnable(process: u32, thread: u32) -> Option<Runnable> {
    // The time first: a thread that sleeps by the second look has run.
    let run = ThreadTimes::of_thread(process, thread).and_then(|times| times.read()).ok()?.run;
    (ProcessStat::of_thread(process, thread).ok()?.state()? == 'R').then_some(Runnable { thread, run })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_run((thread, run_ns): (u32, u64)) -> Runnable {
        Runnable { thread, run: Duration::from_nanos(run_ns) }
    }

    fn late_event(waiting: &[(u32, u64)], since: Instant) -> LateEvent {
        LateEvent { process: 1, since, waiting: waiting.iter().copied().map(has_run).collect() }
    }

    #[test]
    fn it_lasts_until_each_thread_has_run_or_sleeps() {
        let start = Instant::now();
        let mut late_event = late_event(&[(7, 100), (8, 100), (9, 100)], start);
        let still =
            |runs: &'static [(u32, u64)]| move |thread| runs.iter().copied().find(|run| run.0 == thread).map(has_run);
        assert!(!late_event.is_over_with(start, still(&[])), "others may be late to sleep");
        let later = start + DOUBT_PAUSE;
        assert!(!late_event.is_over_with(later, still(&[(7, 100), (8, 100), (9, 100)])));
        assert!(
            !late_event.is_over_with(later, still(&[(7, 101), (8, 100)])),
            "one has run, one sleeps, one waits for a CPU"
        );
        assert!(!late_event.is_over_with(later, still(&[(7, 101), (8, 100), (9, 100)])), "who slept has told");
        assert!(late_event.is_over_with(later, still(&[(7, 101), (8, 102), (9, 100)])));
    }

    #[test]
    fn a_thread_that_never_runs_is_not_waited_for_for_ever() {
        let start = Instant::now();
        let mut late_event = late_event(&[(7, 100)], start);
        let runnable = |thread| Some(has_run((thread, 100)));
        assert!(!late_event.is_over_with(start + DOUBT_PAUSE_MAX - Duration::from_millis(1), runnable));
        assert!(late_event.is_over_with(start + DOUBT_PAUSE_MAX, runnable));
    }

    #[test]
    fn threads_are_seen_to_run_and_to_sleep() {
        let process = std::process::id();
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(threads(process).contains(&own));
        let before = runnable(process, own).expect("it runs, as it asks");
        let begun = Instant::now();
        while runnable(process, own) == Some(before) {
            assert!(begun.elapsed() < Duration::from_secs(60), "its time does not grow");
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            // An error is the end too.
            let _ = ended.recv();
        });
        let thread = receiver.recv().unwrap();
        while runnable(process, thread).is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not sleep");
        }
        drop(end);
        sleeper.join().unwrap();
        assert!(threads(0).is_empty());
    }
}
