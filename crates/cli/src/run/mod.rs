//! `spillway run`: an unmodified program with part of its memory lent by donors.
//!
//! - [`plan`]: what is needed, checked before anything starts.
//! - [`donors`]: donors of the run's own.
//! - [`program`]: finding, starting and waiting for the program; signals.
//! - [`watch`]: the budget while the program runs.
//! - [`statistics`]: what is told at the end.
//! - [`mod@take_down`]: the way out, also for runs that died.
//!
//! The order is always the same: donors, device, swap, memory group, program; and back in the opposite order, on every way
//! out. A run that is killed is taken down by the first that notices: its device's process, the next run, or `doctor --mend`.

pub(crate) mod donors;
pub(crate) mod plan;
pub(crate) mod program;
pub(crate) mod statistics;
pub(crate) mod take_down;
pub(crate) mod watch;

use std::time::Instant;

use self::donors::OwnDonors;
use self::plan::Plan;
use self::program::{Ending, Program};
use self::statistics::Statistics;
use self::take_down::{Remains, take_down};
use crate::arguments::RunArguments;
use crate::budget::Budget;
use crate::cgroup::MemoryGroup;
use crate::device::launch::{RunningDevice, launch};
use crate::failure::Failure;
use crate::interruption::Interruption;
use crate::machine::swap_list;
use crate::registry::{Entry, Kind, Registry};
use crate::{mend, swap_area};

/// Everything that a run has started; taken down when dropped.
struct Run {
    registry: Registry,
    plan: Plan,
    group: Option<MemoryGroup>,
    device: Option<RunningDevice>,
    donors: OwnDonors,
    down: bool,
    // Dropped last: until then the run is alive for everybody else.
    entry: Entry,
}

/// Runs the program; gives how it ended.
pub(crate) fn run(arguments: &RunArguments) -> Result<Ending, Failure> {
    let interruption = Interruption::watch().map_err(|error| Failure::during("watching for signals", error))?;
    let program = program::find(&arguments.program)?;
    let registry = Registry::open().map_err(Failure::failed)?;
    for line in mend::mend_all(&registry)? {
        eprintln!("spillway: {line}");
    }
    let plan = Plan::make(arguments, &registry)?;
    let entry = registry.claim(Kind::Run, &plan.name).map_err(Failure::failed)?;
    let mut run = Run { registry, plan, group: None, device: None, donors: OwnDonors::default(), down: false, entry };
    run.set_up(&interruption)?;
    let outcome = run.run_program(&program, arguments, &interruption);
    let down = run.take_down();
    let ending = outcome?;
    down.map(|()| ending)
}

impl Run {
    fn set_up(&mut self, interruption: &Interruption) -> Result<(), Failure> {
        interruption.check()?;
        self.donors = OwnDonors::start(&self.plan, interruption)?;
        let launched = self.plan.launched(self.donors.addresses());
        let device = launch(&self.registry, &launched, interruption)?;
        let device = self.device.insert(device);
        let areas = swap_list::read().map_err(|error| Failure::during("/proc/swaps", error))?;
        let priority = swap_list::priority_above(&areas);
        swap_area::on(device.path(), priority).map_err(Failure::failed)?;
        for rival in swap_list::rivals(&areas, device.path(), priority) {
            let path = rival.path.display();
            eprintln!(
                "spillway: pages also go to the swap area {path}, whose priority is as high; `swapoff {path}` stops that"
            );
        }
        let group = MemoryGroup::create(&self.plan.hierarchy, &self.plan.group_name())
            .map_err(|error| Failure::during("making a memory group", error))?;
        self.group = Some(group);
        interruption.check()
    }

    fn run_program(
        &self,
        program: &program::Found,
        arguments: &RunArguments,
        interruption: &Interruption,
    ) -> Result<Ending, Failure> {
        let (Some(group), Some(device)) = (&self.group, &self.device) else {
            return Err(Failure::failed("the run was not set up"));
        };
        let mut budget = Budget::new(arguments.local);
        group.set_limit(budget.limit_bytes()).map_err(|error| Failure::during("limiting the memory group", error))?;
        let start = Instant::now();
        let started = Program::start(program, group, interruption)?;
        let watched = watch::watch(&started, group, &mut budget, &self.entry, &arguments.local.to_string());
        let ending = started.ending()?;
        let statistics =
            Statistics::collect(&watched, group, start.elapsed(), ending, device.status_socket(), arguments);
        statistics.deliver(arguments)?;
        Ok(ending)
    }

    fn take_down(&mut self) -> Result<(), Failure> {
        if self.down {
            return Ok(());
        }
        self.down = true;
        let mut remains = Remains::of_run(&self.registry, &self.plan.name);
        let errors = take_down(&mut remains);
        if errors.is_empty() { Ok(()) } else { Err(Failure::Failed(errors.join("; "))) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(failure) = self.take_down() {
            eprintln!("spillway: {failure}");
        }
    }
}
