//! Prefetching for a run over a swap device: started before the program, told of its memory group's headroom, and
//! ended after it.
//!
//! The kernel's read-ahead is set aside only once ours runs. Where ours cannot be had, the user is told and the
//! kernel's stays.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillway_console::say;
use spillway_device::prefetch::driver::{Prefetching, Sampled};
use spillway_device::prefetch::headroom::{CgroupMemory, Headroom};
use spillway_machine::cgroup::MemoryGroup;
use spillway_machine::cgroup::strays::{self, Stray};
use spillway_machine::cgroup::usage::GroupUsage;
use spillway_machine::swap_read_ahead::ReadAheadAside;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_report::prefetch::PrefetchReport;
use spillway_sys::memory_hierarchy::Hierarchy;

use super::watch::Governed;
use crate::budget;

/// Prefetching of one run.
#[derive(Debug)]
pub(crate) struct SwapPrefetching {
    /// None: the kernel's.
    policy: Option<PrefetchPolicy>,
    headroom: Headroom,
    // In this order: the kernel reads ahead again when ours has ended.
    prefetching: Option<Prefetching>,
    aside: Option<ReadAheadAside>,
    problem: Option<String>,
}

impl SwapPrefetching {
    /// Starts it for the programs that the calling thread starts from now on; the run has its entry at `entry`.
    pub(crate) fn start(policy: Option<PrefetchPolicy>, entry: &Path) -> Self {
        let headroom = Headroom::default();
        let mut this = Self { policy, headroom, prefetching: None, aside: None, problem: None };
        if let Err(problem) = this.try_start(entry) {
            say!("spillway: {problem}; the kernel's read-ahead stays");
            (this.prefetching, this.problem) = (None, Some(problem));
        }
        this
    }

    fn try_start(&mut self, entry: &Path) -> Result<(), String> {
        let Some(policy) = self.policy else { return Ok(()) };
        if policy != PrefetchPolicy::None {
            let started = Prefetching::start(policy, Sampled::ProgramsStarted, Box::new(self.headroom.clone()));
            self.prefetching = Some(started.map_err(|error| format!("no page is prefetched: {error}"))?);
        }
        let aside = ReadAheadAside::set(entry);
        self.aside = aside.map_err(|error| format!("vm.page-cluster cannot be changed ({error})"))?;
        Ok(())
    }

    /// For `status` and the statistics.
    pub(crate) fn report(&self) -> PrefetchReport {
        let counts = self.prefetching.as_ref().map(Prefetching::counts).unwrap_or_default();
        let is_active = self.prefetching.as_ref().is_some_and(Prefetching::is_running);
        let note = self.problem.clone().or_else(|| self.aside.as_ref().map(ReadAheadAside::note));
        PrefetchReport::new(self.policy, is_active, note, counts)
    }
}

/// In place of a limit where there is none.
const NO_LIMIT: u64 = u64::MAX;

/// The memory group of a run: each look at it tells prefetching how much may be on its way.
pub(crate) struct PrefetchedGroup<'a> {
    group: &'a MemoryGroup,
    hierarchy: &'a Hierarchy,
    prefetching: &'a SwapPrefetching,
    limit_bytes: AtomicU64,
}

impl<'a> PrefetchedGroup<'a> {
    /// The group, at this limit.
    pub(crate) fn new(
        (group, hierarchy): (&'a MemoryGroup, &'a Hierarchy),
        prefetching: &'a SwapPrefetching,
        limit_bytes: Option<u64>,
    ) -> Self {
        Self { group, hierarchy, prefetching, limit_bytes: limit_bytes.unwrap_or(NO_LIMIT).into() }
    }
}

impl Governed for PrefetchedGroup<'_> {
    fn usage(&self) -> io::Result<GroupUsage> {
        let usage = self.group.usage()?;
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        self.prefetching.headroom.observe(&CgroupMemory {
            limit_bytes: (limit_bytes != NO_LIMIT).then_some(limit_bytes),
            charged_bytes: usage.charged_bytes,
            unmovable_bytes: usage.locked_bytes + usage.kernel_bytes,
            is_stalled: usage.is_stalled,
        });
        Ok(usage)
    }

    fn interval_at_limit(&self, limit_bytes: u64) -> Duration {
        budget::interval_at_limit(limit_bytes)
    }

    fn let_kernel_kill(&self) {
        // One that is gone has no process to kill.
        let _ = self.group.wait_instead_of_kill(false);
    }

    fn set_limit(&self, limit_bytes: Option<u64>) -> io::Result<()> {
        self.limit_bytes.store(limit_bytes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
        self.group.set_limit(limit_bytes)
    }

    fn strays(&self, program: u32) -> Vec<Stray> {
        strays::find(self.hierarchy, self.group, program)
    }

    fn prefetch(&self) -> Option<PrefetchReport> {
        Some(self.prefetching.report())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_read_ahead_needs_nothing() {
        let entry = tempfile::tempdir().unwrap();
        let prefetching = SwapPrefetching::start(None, entry.path());
        let report = prefetching.report();
        assert_eq!((report.policy.as_str(), report.is_active), ("kernel", false));
        assert_eq!(std::fs::read_dir(entry.path()).unwrap().count(), 0, "nothing is written down");
    }
}
