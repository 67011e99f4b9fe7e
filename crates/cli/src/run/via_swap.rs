//! A run over a swap device: the program in a memory group whose limit is its budget, and the kernel pages to a
//! device of donors' memory.
//!
//! The order is always the same: donors, device, swap, memory group, program; and back in the opposite order, on
//! every way out.

use std::time::Instant;

use spillway_console::failure::Failure;
use spillway_console::output_file::OutputFile;
use spillway_console::say;
use spillway_control::own_donors::OwnDonors;
use spillway_control::registry::{Entry, Registry};
use spillway_control::status_socket::{self, Question};
use spillway_control::take_down::take_down_run;
use spillway_device::fault_recording::FaultRecording;
use spillway_device_process::launch::{RunningDevice, launch};
use spillway_device_process::prefetch::choice::PrefetchChoice;
use spillway_machine::cgroup::MemoryGroup;
use spillway_machine::interruption::Interruption;
use spillway_machine::size::LocalBudget;
use spillway_machine::{swap_area, swap_list};
use spillway_report::kind::Kind;
use spillway_report::run::{Choice, EndedRunReport, Ending, RunDevice};
use spillway_sys::memory_hierarchy::Hierarchy;

use super::plan::Plan;
use super::program::{Becoming, Found, Program};
use super::statistics::Statistics;
use super::swap_prefetch::{PrefetchedGroup, SwapPrefetching};
use super::watch;
use crate::arguments::run::RunArguments;
use crate::limits;

/// Everything that a run has started; taken down when dropped.
struct Run {
    registry: Registry,
    plan: Plan,
    hierarchy: Hierarchy,
    group: Option<MemoryGroup>,
    device: Option<RunningDevice>,
    donors: OwnDonors,
    down: bool,
    // Dropped last: until then the run is alive for other processes.
    entry: Entry,
}

/// Runs the program; gives how it ended.
pub(crate) fn run(
    arguments: &RunArguments,
    registry: Registry,
    program: &Found,
    choice: Choice,
    statistics: Option<&OutputFile>,
    interruption: &Interruption,
) -> Result<Ending, Failure> {
    let hierarchy = check_machine()?;
    let plan = Plan::make(arguments, &registry)?;
    let entry = registry.claim(Kind::Run, &plan.name)?;
    let donors = OwnDonors::default();
    let mut run = Run { registry, plan, hierarchy, group: None, device: None, donors, down: false, entry };
    run.set_up(arguments.local, interruption)?;
    let outcome = run.run_program(program, arguments, choice, statistics, interruption);
    let down = run.take_down();
    let ending = outcome?;
    down.map(|()| ending)
}

fn check_machine() -> Result<Hierarchy, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::failed(
            "`run --via swap` needs root for swap and memory groups; write `sudo spillway run ...`",
        ));
    }
    Hierarchy::detect().ok_or_else(|| {
        Failure::failed(
            "no memory cgroup is mounted; `mount -t cgroup2 cgroup2 /sys/fs/cgroup` mounts one, see `spillway doctor`",
        )
    })
}

impl Run {
    /// Of all that is set up only this can be missing on a machine where everything else works.
    fn make_group(&mut self, local: LocalBudget) -> Result<(), Failure> {
        let group = MemoryGroup::create(&self.hierarchy, &self.plan.group_name())
            .map_err(|error| Failure::during("making a memory group", error))?;
        let group = self.group.insert(group);
        if local != LocalBudget::Auto {
            return Ok(());
        }
        let counted = group.count_pressure(&self.hierarchy).map_err(|error| error.to_string());
        match counted.and_then(|()| group.usage().map_err(|error| error.to_string())) {
            Ok(usage) if usage.stalled_us.is_some() => Ok(()),
            counted => {
                let reason = counted.err().unwrap_or_else(|| "its file memory.pressure is missing".to_owned());
                Err(Failure::Failed(format!(
                    "--local auto needs the kernel's pressure of memory groups (PSI, cgroup v2): {reason}; give a size or \
                     a share, or use --via pager"
                )))
            }
        }
    }

    fn set_up(&mut self, local: LocalBudget, interruption: &Interruption) -> Result<(), Failure> {
        interruption.check()?;
        self.make_group(local)?;
        self.donors = self.plan.start_own_donors(interruption)?;
        let launched = self.plan.launched(&self.donors);
        let device = launch(&self.registry, &launched, interruption)?;
        let device = self.device.insert(device);
        let areas = swap_list::read().map_err(|error| Failure::during("/proc/swaps", error))?;
        let priority = swap_list::priority_above(&areas);
        swap_area::on(device.path(), priority).map_err(Failure::failed)?;
        for rival in swap_list::rivals(&areas, device.path(), priority) {
            let path = rival.path.display();
            say!(
                "spillway: pages also go to the swap area {path}, whose priority is as high; `swapoff {path}` stops that"
            );
        }
        let group = self.group.as_ref().expect("it was made before all else");
        group.wait_instead_of_kill(true).map_err(|error| Failure::during("setting the memory group up", error))?;
        Ok(interruption.check()?)
    }

    fn run_program(
        &self,
        program: &Found,
        arguments: &RunArguments,
        choice: Choice,
        statistics: Option<&OutputFile>,
        interruption: &Interruption,
    ) -> Result<Ending, Failure> {
        let (Some(group), Some(device)) = (&self.group, &self.device) else {
            return Err(Failure::failed("the run was not set up"));
        };
        let mut budget = super::budget_of(arguments, limits::BUDGET_FLOOR_BYTES)?;
        group.set_limit(budget.limit_bytes()).map_err(|error| Failure::during("limiting the memory group", error))?;
        let start = Instant::now();
        let prefetching =
            SwapPrefetching::start(arguments.prefetch.and_then(PrefetchChoice::policy), self.entry.path());
        let governed = PrefetchedGroup::new((group, &self.hierarchy), &prefetching, budget.limit_bytes());
        let recording = arguments.recording.as_ref();
        let log = recording.map(|wanted| FaultRecording::start(wanted.kind, wanted.room()));
        let log = log.transpose().map_err(Failure::failed)?;
        let becoming = Becoming { procs_files: group.procs_files(), ..Becoming::default() };
        let started = Program::start(program, &becoming, interruption)?;
        let watched = watch::watch(&started, &governed, &mut budget, &self.entry, choice, arguments, interruption);
        let ending = started.ending()?;
        let told = status_socket::ask_report(device.status_socket(), &Question::Status);
        if let Err(error) = &told {
            say!("spillway: what the device {} did is not known: {error}", device.path().display());
        }
        let paging = EndedRunReport {
            major_faults: group.major_faults(),
            out_of_memory_kills: group.out_of_memory_kills(),
            limit_hits: group.limit_hits(),
            device: told.ok().map(RunDevice::Swap),
            prefetch: Some(prefetching.report()),
            memory: watched,
            ending,
            ..EndedRunReport::default()
        };
        let told = Statistics::new(start.elapsed(), paging, arguments);
        told.deliver(arguments.summary, statistics);
        if let (Some(recording), Some(log)) = (recording, log)
            && let Err(error) = log.finish(|log| recording.deliver(log))
        {
            say!("spillway: recording page faults: {error}");
        }
        Ok(ending)
    }

    fn take_down(&mut self) -> Result<(), Failure> {
        if self.down {
            return Ok(());
        }
        self.down = true;
        take_down_run(&self.registry, &self.plan.name)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(failure) = self.take_down() {
            say!("spillway: {failure}");
        }
    }
}
