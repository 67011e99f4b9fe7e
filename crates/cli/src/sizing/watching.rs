//! Scans processes as [`Pace`] says, until they end or the time is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use spillway_console::failure::Failure;
use spillway_policy::sizing::footprint::{FootprintEstimator, Look};
use spillway_policy::sizing::pace::{Pace, Step};
use spillway_sys::process_clock::work_of;

use super::members::Members;
use super::scan::{self, Held};

/// What was seen.
#[derive(Debug)]
pub(super) struct Watched {
    /// The estimate.
    pub(super) estimator: FootprintEstimator,
    /// How long it was looked.
    pub(super) time: Duration,
    /// How long the processes worked meanwhile.
    pub(super) work: Duration,
    /// The largest part of their memory in huge pages.
    pub(super) huge_part: f64,
}

/// Work of processes, those that ended included.
#[derive(Debug, Default)]
struct Work {
    first: BTreeMap<u32, Duration>,
    last: BTreeMap<u32, Duration>,
}

impl Work {
    fn look(&mut self, processes: &[u32]) -> Duration {
        for process in processes {
            if let Ok(work) = work_of(*process) {
                self.first.entry(*process).or_insert(work);
                self.last.insert(*process, work);
            }
        }
        let done = |(process, work): (&u32, &Duration)| work.saturating_sub(self.first[process]);
        self.last.iter().map(done).sum()
    }
}

/// Looks until `wait` says that it is over.
pub(super) fn watch(members: &Members, mut wait: impl FnMut(Duration) -> bool) -> Result<Watched, Failure> {
    let begun = Instant::now();
    let (mut pace, mut work) = (Pace::default(), Work::default());
    let mut watched = Watched {
        estimator: FootprintEstimator::default(),
        time: Duration::ZERO,
        work: Duration::ZERO,
        huge_part: 0.0,
    };
    let mut processes = members.now();
    loop {
        let (step, at) = pace.next();
        if wait(at.saturating_sub(begun.elapsed())) {
            break;
        }
        if step == Step::Clear {
            processes = members.now();
        }
        let begin = Instant::now();
        let before = work.look(&processes);
        if step == Step::Clear {
            clear(&processes)?;
        }
        // Bits are cleared, and counted, all along the scan: its middle is when they were.
        let middle = |after: Duration| before + after.saturating_sub(before) / 2;
        match step {
            Step::Clear => {
                let cleared = middle(work.look(&processes));
                let held = look(&processes);
                watched.estimator.cleared(cleared, held.held_pages);
                pace.cleared(begun.elapsed(), begin.elapsed());
            }
            Step::Look => {
                let Held { referenced_pages, held_pages, huge_pages } = look(&processes);
                watched.work = work.look(&processes);
                let now = Look { work: middle(watched.work), referenced_pages, held_pages };
                watched.estimator.looked(now);
                watched.huge_part = watched.huge_part.max(huge_pages as f64 / held_pages.max(1) as f64);
                pace.looked(begun.elapsed(), begin.elapsed());
            }
        }
    }
    watched.time = begun.elapsed();
    Ok(watched)
}

/// A process that has ended is none any more; one that may not be looked at is an error.
fn clear(processes: &[u32]) -> Result<(), Failure> {
    for process in processes {
        match scan::clear(*process) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(Failure::Failed(format!(
                    "process {process} may not be looked at by this user; write `sudo spillway size --pid {process}`"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

fn look(processes: &[u32]) -> Held {
    processes.iter().filter_map(|process| scan::look(*process).ok()).fold(Held::default(), Held::with)
}
