//! Keeps the kernel from killing a program at its limit while swap is free.
//!
//! At the limit of a memory cgroup the kernel decides by the group's statistics whether there are pages to move from
//! the active to the inactive list, from which alone it reclaims. It brings those statistics up to date every two
//! seconds (`FLUSH_TIME` in the kernel's `mm/memcontrol.c`). A program whose pages all became active since then has
//! "enough" inactive ones by the old count and none in truth: reclaim finds nothing, sixteen times, and the program
//! is killed. Seen on Linux 6.18, cgroup v1: two of three quicksorts of 64 MiB in 17 MiB over disk swap died, with
//! `inactive_anon 0` in the kernel's report; with the statistics read meanwhile, none.
//!
//! Reading `memory.stat` brings them up to date. `spillway run` does so for its programs; the programs that it is
//! compared with get the same here, at the same pace, so that both sides pay for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::cpu_use::LIMIT_GUARD_THREAD;
use crate::limits::{
    GUARD_BYTES_PER_INTERVAL, GUARD_INTERVAL, GUARD_INTERVAL_AT_LIMIT, GUARD_INTERVAL_AT_LIMIT_MAX,
    GUARD_NEAR_LIMIT_DIVISOR,
};

/// Reads a group's statistics until it is dropped.
#[derive(Debug)]
pub struct ReclaimGuard {
    stop: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// How long until the next look, when a group with this limit holds so much.
fn interval(charged_bytes: u64, limit_bytes: u64) -> Duration {
    let near = limit_bytes - limit_bytes / GUARD_NEAR_LIMIT_DIVISOR;
    if charged_bytes < near {
        return GUARD_INTERVAL;
    }
    let intervals = u32::try_from(limit_bytes / GUARD_BYTES_PER_INTERVAL).unwrap_or(u32::MAX);
    GUARD_INTERVAL_AT_LIMIT.saturating_mul(intervals).clamp(GUARD_INTERVAL_AT_LIMIT, GUARD_INTERVAL_AT_LIMIT_MAX)
}

impl ReclaimGuard {
    /// Watches a group whose statistics are in `statistics` and whose charge is in `charge`.
    pub fn start(statistics: PathBuf, charge: PathBuf, limit_bytes: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let looks = Arc::new(AtomicU64::new(0));
        let (stopped, looked) = (Arc::clone(&stop), Arc::clone(&looks));
        let thread = std::thread::spawn(move || {
            // So that its CPU time is not taken for the clients'; without a name it is.
            let _ = rustix::thread::set_name(LIMIT_GUARD_THREAD);
            while !stopped.load(Ordering::Relaxed) {
                // A group that is gone needs nothing any more.
                let Ok(charged) = std::fs::read_to_string(&charge) else { break };
                let _ = std::fs::read_to_string(&statistics);
                looked.fetch_add(1, Ordering::Relaxed);
                std::thread::park_timeout(interval(charged.trim().parse().unwrap_or(u64::MAX), limit_bytes));
            }
        });
        Self { stop, looks, thread: Some(thread) }
    }

    /// How often it has looked.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }
}

impl Drop for ReclaimGuard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::harness::interrupt::Interrupt;

    #[test]
    fn only_near_the_limit_it_looks_often() {
        let limit = 64 << 20;
        assert_eq!(interval(limit, limit), 4 * GUARD_INTERVAL_AT_LIMIT);
        assert_eq!(interval(limit - limit / GUARD_NEAR_LIMIT_DIVISOR, limit), 4 * GUARD_INTERVAL_AT_LIMIT);
        assert_eq!(
            [8 << 20, 1 << 40].map(|limit| interval(limit, limit)),
            [GUARD_INTERVAL_AT_LIMIT, GUARD_INTERVAL_AT_LIMIT_MAX]
        );
        assert_eq!(interval(limit / 2, limit), GUARD_INTERVAL);
        assert_eq!(interval(0, 0), GUARD_INTERVAL_AT_LIMIT);
    }

    fn files(charged: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (statistics, charge) = (directory.path().join("stat"), directory.path().join("charge"));
        std::fs::write(&statistics, "inactive_anon 0\n").unwrap();
        std::fs::write(&charge, charged).unwrap();
        (directory, statistics, charge)
    }

    #[test]
    fn it_goes_on_until_it_is_dropped() {
        let (_directory, statistics, charge) = files("1000\n");
        let guard = ReclaimGuard::start(statistics, charge, 1000);
        let again = || (guard.looks() >= 3).then_some(());
        Interrupt::never().poll("another look", Duration::from_secs(60), again).unwrap();
        let looks = Arc::clone(&guard.looks);
        drop(guard);
        let after = looks.load(Ordering::Relaxed);
        std::thread::sleep(GUARD_INTERVAL_AT_LIMIT * 5);
        assert_eq!(looks.load(Ordering::Relaxed), after, "nobody looks any more");
    }

    #[test]
    fn it_ends_with_its_group() {
        let (directory, statistics, charge) = files("1000\n");
        let guard = ReclaimGuard::start(statistics, charge, 1000);
        drop(directory);
        let ended = || guard.thread.as_ref().is_some_and(JoinHandle::is_finished).then_some(());
        Interrupt::never().poll("the guard's end", Duration::from_secs(60), ended).unwrap();
    }

    #[test]
    fn stopping_does_not_wait_for_the_next_look() {
        let (_directory, statistics, charge) = files("0\n");
        let guards: Vec<_> =
            (0..50).map(|_| ReclaimGuard::start(statistics.clone(), charge.clone(), u64::MAX)).collect();
        std::thread::sleep(GUARD_INTERVAL * 2);
        let start = Instant::now();
        guards.into_iter().for_each(drop);
        assert!(start.elapsed() < Duration::from_secs(10), "fifty threads were woken, not waited for");
    }
}
