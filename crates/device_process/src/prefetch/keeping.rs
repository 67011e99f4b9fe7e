//! The keeper's part of prefetching: it starts the process that prefetches, sets the kernel's read-ahead aside once
//! that is at work, and puts it back when it is not.
//!
//! A process that dies is started again after a pause; one that dies too often is given up, the kernel reads ahead
//! again, and the status says so.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spillway_machine::swap_read_ahead::ReadAheadAside;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_report::prefetch::PrefetchReport;
use spillway_sys::child::{self, ChildProcess, ChildSteps};

use super::plan::PrefetchPlan;
use super::process;
use crate::limits::{RESTART_PAUSE_MAX, RESTART_WINDOW, RESTARTS_MAX};

/// See the module text.
pub(crate) struct KeptPrefetching {
    plan: PrefetchPlan,
    entry: PathBuf,
    state: State,
    /// Deaths in a row, each soon after its start.
    deaths: u32,
}

enum State {
    /// It is to be started then.
    Waits(Instant),
    Runs(Running),
    /// It cannot be had, and the status says why.
    GivenUp,
}

struct Running {
    /// None where no page is to come ahead.
    child: Option<ChildProcess>,
    started: Instant,
    /// The kernel's read-ahead is dealt with: set aside, or off already.
    is_settled: bool,
    aside: Option<ReadAheadAside>,
}

impl Drop for Running {
    /// In this order: the kernel reads ahead again when ours has ended, or is about to.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // One that waits for a dead device ends when the device does, which is not waited for.
            let _ = child.signal(Signal::KILL);
            let _ = child.try_wait();
        }
        self.aside = None;
    }
}

impl KeptPrefetching {
    /// For the device of `entry`; what is lacking for it is told.
    pub(crate) fn new(plan: &PrefetchPlan, entry: &Path, notes: &mut Vec<String>) -> Self {
        let state = State::Waits(Instant::now());
        let mut this = Self { plan: plan.clone(), entry: entry.to_owned(), state, deaths: 0 };
        if let Err(error) = process::probe(plan) {
            notes.push(this.give_up(&format!("no page is prefetched: {error}")));
        }
        this
    }

    /// Starts what is to be started, and sees what became of it.
    pub(crate) fn look(&mut self) {
        match &mut self.state {
            State::Waits(then) if Instant::now() >= *then => match start(&self.plan, &self.entry) {
                Ok(child) => {
                    let started = Instant::now();
                    self.state = State::Runs(Running { child, started, is_settled: false, aside: None });
                }
                Err(error) => self.died(Duration::ZERO, &error.to_string()),
            },
            State::Runs(running) => match running.child.as_mut().map(ChildProcess::try_wait) {
                Some(Ok(Some(status))) => {
                    let lived = running.started.elapsed();
                    self.died(lived, &status.to_string());
                }
                _ => self.settle(),
            },
            State::Waits(_) | State::GivenUp => {}
        }
    }

    /// Ends it until it is looked at again: the device is not served.
    pub(crate) fn pause(&mut self) {
        if matches!(self.state, State::Runs(_)) {
            self.state = State::Waits(Instant::now());
            self.tell("the device is not served".to_owned());
        }
    }

    /// Sets the kernel's read-ahead aside once ours works.
    fn settle(&mut self) {
        let State::Runs(running) = &mut self.state else { return };
        let is_at_work = || running.child.is_none() || process::read(&self.entry).is_some_and(|told| told.is_active);
        if running.is_settled || !is_at_work() {
            return;
        }
        match ReadAheadAside::set(&self.entry) {
            Ok(aside) => (running.aside, running.is_settled) = (aside, true),
            Err(error) => drop(self.give_up(&format!("vm.page-cluster cannot be changed ({error})"))),
        }
    }

    fn died(&mut self, lived: Duration, how: &str) {
        self.deaths = if lived >= RESTART_WINDOW { 1 } else { self.deaths + 1 };
        let reason = format!("the process that prefetches ended ({how})");
        if self.deaths > RESTARTS_MAX {
            self.give_up(&format!("{reason} too often"));
            return;
        }
        tracing::warn!("{reason}; another one is started");
        self.tell(reason);
        self.state = State::Waits(Instant::now() + RESTART_PAUSE_MAX);
    }

    /// The words for it.
    fn give_up(&mut self, reason: &str) -> String {
        let note = format!("{reason}; the kernel's read-ahead stays");
        tracing::warn!("{note}");
        self.state = State::GivenUp;
        self.tell(note.clone());
        note
    }

    fn tell(&self, note: String) {
        let report = PrefetchReport::new(Some(self.plan.policy()), false, Some(note), Default::default());
        if let Err(error) = process::write(&self.entry, &report) {
            tracing::warn!("the status does not tell of prefetching: {error}");
        }
    }
}

/// The process that prefetches by `plan`; none where no page is to come ahead.
fn start(plan: &PrefetchPlan, entry: &Path) -> std::io::Result<Option<ChildProcess>> {
    if plan.policy() == PrefetchPolicy::None {
        return Ok(None);
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg("prefetch-swap").arg(serde_json::to_string(plan)?).arg(entry);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let steps = ChildSteps {
        parent_death_signal: Some(Signal::KILL),
        reset_out_of_memory_adjustment: true,
        ..ChildSteps::default()
    };
    child::spawn(command, steps).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::choice::PrefetchChoice;

    fn kept(entry: &Path) -> KeptPrefetching {
        let plan = PrefetchPlan::of_all(PrefetchChoice::Streams);
        KeptPrefetching { plan, entry: entry.to_owned(), state: State::Waits(Instant::now()), deaths: 0 }
    }

    fn note(entry: &Path) -> String {
        process::read(entry).and_then(|told| told.note).unwrap_or_default()
    }

    #[test]
    fn quick_deaths_end_it_and_are_told() {
        let entry = tempfile::tempdir().unwrap();
        let mut kept = kept(entry.path());
        for _ in 0..RESTARTS_MAX {
            kept.died(Duration::ZERO, "signal 9");
            assert!(matches!(kept.state, State::Waits(then) if then > Instant::now()));
            assert!(note(entry.path()).contains("signal 9"));
        }
        kept.died(RESTART_WINDOW, "signal 9");
        assert!(matches!(kept.state, State::Waits(_)), "it had lived for long");
        (0..RESTARTS_MAX).for_each(|_| kept.died(Duration::ZERO, "signal 9"));
        assert!(matches!(kept.state, State::GivenUp));
        assert!(note(entry.path()).contains("the kernel's read-ahead stays"));
        kept.look();
        kept.pause();
        assert!(matches!(kept.state, State::GivenUp));
    }

    #[test]
    fn read_ahead_stays_until_ours_is_at_work() {
        let entry = tempfile::tempdir().unwrap();
        let mut kept = kept(entry.path());
        let mut command = Command::new("sleep");
        command.arg("60");
        let child = child::spawn(command, ChildSteps::default()).unwrap();
        let running = Running { child: Some(child), started: Instant::now(), is_settled: false, aside: None };
        kept.state = State::Runs(running);
        kept.look();
        assert!(matches!(&kept.state, State::Runs(running) if !running.is_settled));
        kept.pause();
        assert!(matches!(kept.state, State::Waits(_)));
    }
}
