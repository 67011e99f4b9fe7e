//! The process that prefetches from a swap device of the machine.
//!
//! It ends with its keeper. What it did stands in a file of the device's entry, which the process that serves the
//! device reads for its status: that process must not ask this one, which may be waiting for the device.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use spillway_console::failure::Failure;
use spillway_device::prefetch::driver::{PrefetchError, Prefetching, Sampled, probe_sampled};
use spillway_machine::swap_read_ahead;
use spillway_policy::prefetch::selection::PrefetchPolicy;
use spillway_report::prefetch::PrefetchReport;
use spillway_sys::memory_hierarchy::{Hierarchy, Version};
use spillway_sys::{own_files, paging_safety};

use super::plan::PrefetchPlan;
use super::subjects::MachineSubjects;
use crate::limits::PREFETCH_REPORT_INTERVAL;

/// The file in a device's entry.
const REPORT: &str = "prefetch.json";

/// Prefetches until it is killed, or its parent has ended.
pub fn prefetch(plan_text: &str, entry: &Path) -> Result<(), Failure> {
    // Inherited from the keeper; pages that come in here need room, which is made by I/O.
    let _ = paging_safety::give_up_input_output_flusher();
    let plan: PrefetchPlan = serde_json::from_str(plan_text).map_err(Failure::usage)?;
    let policy = plan.policy();
    let prefetching = with_sampled(&plan, |sampled| {
        Prefetching::start(policy, sampled, Box::new(MachineSubjects::new(plan.clone())))
    })
    .map_err(Failure::failed)?;
    let keeper = rustix::process::getppid();
    while prefetching.is_running() && rustix::process::getppid() == keeper {
        let report = PrefetchReport::new(Some(policy), true, None, prefetching.counts());
        write(entry, &report).map_err(|error| Failure::during(REPORT, error))?;
        std::thread::sleep(PREFETCH_REPORT_INTERVAL);
    }
    Err(Failure::failed("the prefetching thread ended"))
}

/// Whether a plan can be carried out here, or what is missing for it.
pub(super) fn probe(plan: &PrefetchPlan) -> Result<(), PrefetchError> {
    if plan.policy() == PrefetchPolicy::None { Ok(()) } else { with_sampled(plan, probe_sampled) }
}

/// Calls `start` with whose faults are to be sampled: of one cgroup alone where the kernel can tell them apart.
fn with_sampled<T>(plan: &PrefetchPlan, start: impl FnOnce(Sampled<'_>) -> T) -> T {
    let is_unified = Hierarchy::detect().is_some_and(|hierarchy| hierarchy.version == Version::V2);
    let group = match plan.cgroups.as_slice() {
        [group] if is_unified && plan.names.is_empty() => File::open(group).ok(),
        _ => None,
    };
    match &group {
        Some(group) => start(Sampled::Group(group.as_fd())),
        None => start(Sampled::All),
    }
}

/// Writes down what is to be told; whole or not at all, as another process reads it.
pub(super) fn write(entry: &Path, report: &PrefetchReport) -> std::io::Result<()> {
    Ok(own_files::replace(&entry.join(REPORT), 0o600, &serde_json::to_vec(report)?)?)
}

/// What was written down last.
pub(super) fn read(entry: &Path) -> Option<PrefetchReport> {
    serde_json::from_slice(&fs::read(entry.join(REPORT)).ok()?).ok()
}

/// What a device tells of its prefetching; the kernel's read-ahead without a plan.
pub(crate) fn report(plan: Option<&PrefetchPlan>, entry: &Path) -> PrefetchReport {
    let policy = plan.map(PrefetchPlan::policy);
    let written = plan.and_then(|_| read(entry));
    let mut report = written.unwrap_or_else(|| PrefetchReport::new(policy, false, None, Default::default()));
    report.note = report.note.or_else(|| swap_read_ahead::note_of_device(entry));
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::choice::PrefetchChoice;

    #[test]
    fn a_device_tells_what_was_written_down_last() {
        let entry = tempfile::tempdir().unwrap();
        assert_eq!(report(None, entry.path()).policy, "kernel");
        let plan = PrefetchPlan::of_all(PrefetchChoice::Streams);
        let told = report(Some(&plan), entry.path());
        assert_eq!((told.policy.as_str(), told.is_active), ("streams", false));
        let new = PrefetchReport::new(Some(PrefetchPolicy::Streams), true, Some("why".to_owned()), Default::default());
        write(entry.path(), &new).unwrap();
        assert_eq!(report(Some(&plan), entry.path()), new);
        assert_eq!(report(None, entry.path()).policy, "kernel");
    }
}
