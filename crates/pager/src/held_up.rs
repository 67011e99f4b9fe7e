//! A program that lets the survey wait.
//!
//! A process can hold the lock of its own memory, or of its becoming another program, for as long as a file system of
//! its own (FUSE) answers no write. Linux lets whatever looks at the process wait for that: `maps`, `pagemap`, `mem`,
//! and the calls of userfaultfd(2). Only one thread looks at all programs of a run, so meanwhile no budget holds. This
//! cannot be mended here, and is told, with the programs that do not run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spillway_fabric::plain_text::plain;
use spillway_sys::proc_text::fields;
use spillway_sys::process::status_of;

/// A look takes milliseconds; a second on a busy machine with a thousand programs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Since when a look is under way.
#[derive(Debug)]
pub struct LookClock {
    start: Instant,
    /// In milliseconds since the start and one; 0 between looks.
    since: AtomicU64,
}

impl Default for LookClock {
    fn default() -> Self {
        Self { start: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl LookClock {
    /// A look begins.
    pub fn begin(&self, now: Instant) {
        let milliseconds = now.saturating_duration_since(self.start).as_millis() as u64;
        self.since.store(milliseconds + 1, Ordering::Relaxed);
    }

    /// It is over.
    pub fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// How long the one that is under way takes so far.
    fn taken(&self, now: Instant) -> Duration {
        match self.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_duration_since(self.start + Duration::from_millis(since - 1)),
        }
    }
}

/// What to tell the user of a look that does not end, and of the processes among `numbers` that may be why; asked by
/// another thread now and then.
pub(crate) fn told(clock: &LookClock, numbers: impl Iterator<Item = u32>, now: Instant) -> Option<String> {
    if clock.taken(now) < PATIENCE {
        return None;
    }
    let waits = |number: u32| {
        let status = status_of(number).ok()?;
        fields::value_of(&status, "State")?.starts_with(b"D").then_some(())?;
        let name = String::from_utf8_lossy(fields::value_of(&status, "Name")?);
        Some(format!("{number} ({})", plain(&name)))
    };
    let mut waiting: Vec<String> = numbers.filter_map(waits).collect();
    waiting.dedup();
    let why = match waiting.as_slice() {
        [] => "a program holds its own memory".to_owned(),
        some => format!("process {} waits for a file system and holds its own memory", some.join(", ")),
    };
    Some(format!(
        "{why}, so the pager cannot look at the programs of this run: the budget does not hold meanwhile; \
         end what serves that file system, and give programs of different users a run each"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_look_under_way_takes_time() {
        let clock = LookClock::default();
        let later = clock.start + Duration::from_secs(100);
        assert_eq!(clock.taken(later), Duration::ZERO);
        clock.begin(clock.start + Duration::from_secs(40));
        assert_eq!(clock.taken(later), Duration::from_secs(60));
        clock.end();
        assert_eq!(clock.taken(later), Duration::ZERO);
    }
}
