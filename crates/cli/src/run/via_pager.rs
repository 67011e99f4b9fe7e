//! A run by the pager: the program's page faults are handled by threads of this process, and its pages lie at donors.
//! Needs no root.
//!
//! The order is always the same: donors, pager, program; and back in the opposite order, on every way out. If this
//! process is killed, the pager's guardian kills the program, and donors of the run's own end by themselves.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, Instant};

use spillway_console::failure::Failure;
use spillway_console::output_file::OutputFile;
use spillway_console::say;
use spillway_control::device_record::DeviceRecord;
use spillway_control::own_donors::OwnDonors;
use spillway_control::registry::{Entry, Registry};
use spillway_control::sandbox::{self, Borrower};
use spillway_control::take_down::take_down_run;
use spillway_device_process::launch::tell_missing;
use spillway_machine::cgroup::usage::GroupUsage;
use spillway_machine::interruption::Interruption;
use spillway_machine::memory::Memory;
use spillway_pager::limits::BUDGET_BYTES_MIN;
use spillway_pager::pager::{Pager, PagerStatus};
use spillway_report::kind::Kind;
use spillway_report::run::{Choice, EndedRunReport, Ending, RunDevice, RunReport};
use spillway_sys::userfaultfd::access::Access;
use spillway_volume::running::RunningVolume;
use spillway_volume::status::DeviceStatus;

use super::calls::{self, Told};
use super::plan::Plan;
use super::preload;
use super::program::{Becoming, Found, Program};
use super::statistics::Statistics;
use super::watch::{self, Governed};
use crate::arguments::run::RunArguments;
use crate::budget::Budget;
use crate::limits;

/// The variable through which the dynamic loader is told of libraries; several are separated by colons (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";

/// Runs the program; gives how it ended.
pub(crate) fn run(
    arguments: &RunArguments,
    registry: Registry,
    program: &Found,
    choice: Choice,
    statistics: Option<&OutputFile>,
    interruption: &Interruption,
) -> Result<Ending, Failure> {
    let plan = Plan::make(arguments, &registry)?;
    let entry = registry.claim(Kind::Run, &plan.name)?;
    let mut budget = super::budget_of(arguments, BUDGET_BYTES_MIN)?;
    let donors = OwnDonors::default();
    let programs_fork = Access::probe().is_ok_and(|access| access.follows_forks);
    if plan.shared_memory.is_any() && !programs_fork {
        return Err(Failure::Usage(
            "--shared-memory needs the right to hear of forks (CAP_SYS_PTRACE); run as root, or leave it out"
                .to_owned(),
        ));
    }
    let mut run = Run { registry, plan, programs_fork, pager: None, donors, down: false, entry };
    run.set_up(&budget, interruption)?;
    let outcome = run.run_program(program, arguments, choice, &mut budget, statistics, interruption);
    let down = run.take_down();
    let ending = outcome?;
    down.map(|()| ending)
}

/// Everything that a run has started; taken down when dropped.
struct Run {
    registry: Registry,
    plan: Plan,
    /// The kernel tells the pager of forks.
    programs_fork: bool,
    /// The user's limit of open files, where the pager raised its own.
    pager: Option<Paged>,
    donors: OwnDonors,
    down: bool,
    // Dropped last: until then the run is alive for other processes.
    entry: Entry,
}

impl Run {
    fn set_up(&mut self, budget: &Budget, interruption: &Interruption) -> Result<(), Failure> {
        interruption.check()?;
        let record = DeviceRecord {
            path: None,
            temporary_backing: self.plan.storage.temporary_backing().map(Path::to_path_buf),
            run: None,
            released: false,
        };
        record.write(self.entry.path()).map_err(|error| Failure::during("the run's record", error))?;
        self.donors = self.plan.start_own_donors(interruption)?;
        let programs_fork = self.programs_fork;
        let directory = self.registry.make_programs_directory(&self.plan.name).map_err(Failure::failed)?;
        let place = self.registry.make_library_directory(&self.plan.name).map_err(Failure::failed)?;
        let library = preload::write(&place, programs_fork)?;
        let config = self.plan.paged(&self.donors, directory, library, programs_fork, initial_bytes(budget)?)?;
        let pager = Pager::start(config).map_err(Failure::failed)?;
        tell_missing(pager.donors_missing());
        self.pager = Some(Paged { pager, follows: self.plan.storage.follows.clone() });
        Ok(interruption.check()?)
    }

    fn run_program(
        &self,
        program: &Found,
        arguments: &RunArguments,
        choice: Choice,
        budget: &mut Budget,
        statistics: Option<&OutputFile>,
        interruption: &Interruption,
    ) -> Result<Ending, Failure> {
        let paged = self.pager.as_ref().ok_or_else(|| Failure::failed("the run was not set up"))?;
        let start = Instant::now();
        let calls = calls::Socket::bind(self.entry.path())?;
        let becoming = Becoming {
            procs_files: Vec::new(),
            environment: environment(paged.pager.environment()),
            tells_calls: Some((calls.path().to_path_buf(), !self.programs_fork)),
            tells_shared_memory: self.plan.shared_memory.is_any(),
            has_small_pages: false,
        };
        let started = Program::start(program, &becoming, interruption)?;
        match calls.hear(&started)? {
            Told::Listener(listener, program) => {
                paged.pager.take_call_notices(listener, !self.programs_fork);
                program.goes_on()?;
            }
            Told::Refused(error) => say!("spillway: {}", calls::without(&error)),
            Told::Ended => {}
        }
        // Only now: the program and donors of the run's own must not have it.
        if let Err(error) = sandbox::deny_calls_of_others(Borrower::Pager) {
            tracing::warn!("system calls that the pager does not need are not denied: {error}");
        }
        let watched = watch::watch(&started, paged, budget, &self.entry, choice, arguments, interruption);
        let ending = started.ending()?;
        let told = Statistics::new(start.elapsed(), paged.told(watched, ending), arguments);
        told.deliver(arguments.summary, statistics);
        if let Some(recording) = &arguments.recording {
            paged.pager.with_fault_log(|log| recording.deliver(log));
        }
        Ok(ending)
    }

    fn take_down(&mut self) -> Result<(), Failure> {
        if self.down {
            return Ok(());
        }
        self.down = true;
        if let Some(mut paged) = self.pager.take() {
            paged.pager.stop();
        }
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

/// What the program may have at first; all memory of the machine if all may be local.
fn initial_bytes(budget: &Budget) -> Result<u64, Failure> {
    let all = Memory::read().map_err(|error| Failure::during("/proc/meminfo", error))?.total_bytes;
    Ok(budget.limit_bytes().unwrap_or(all).max(BUDGET_BYTES_MIN))
}

/// A pager that keeps a run in its budget.
struct Paged {
    pager: Pager,
    follows: Option<String>,
}

impl Paged {
    /// What it tells at the end.
    fn told(&self, watched: RunReport, ending: Ending) -> EndedRunReport {
        let PagerStatus { device, pager } = self.pager.status();
        // Nothing limits the program but the pager, which makes it wait: no kills and no hits.
        EndedRunReport {
            major_faults: pager.fill.count,
            device: Some(RunDevice::Volume { device: Box::new(device) }),
            pager: Some(pager),
            memory: watched,
            ending,
            ..EndedRunReport::default()
        }
    }
}

impl Governed for Paged {
    fn usage(&self) -> std::io::Result<GroupUsage> {
        let now = self.pager.statistics();
        Ok(GroupUsage {
            charged_bytes: now.local_bytes,
            swapped_bytes: now.lent_bytes,
            stalled_us: Some((now.lost_seconds * 1e6) as u64),
            ..GroupUsage::default()
        })
    }

    fn set_limit(&self, limit_bytes: Option<u64>) -> std::io::Result<()> {
        if let Some(bytes) = limit_bytes {
            self.pager.set_budget_bytes(bytes);
        }
        Ok(())
    }

    fn dependents(&self) -> u64 {
        let now = self.pager.statistics();
        // A child of a fork that was asked for is not paged, and asks before its own forks.
        now.programs_now.max(now.is_asked_before_forks.into())
    }

    fn interval_at_limit(&self, _: u64) -> Duration {
        limits::PAGER_BUDGET_INTERVAL
    }

    fn report(&self) -> Option<PagerStatus> {
        Some(self.pager.status())
    }

    fn volume_status(&self) -> Option<DeviceStatus> {
        Some(self.pager.status().device)
    }

    fn volume(&self) -> Option<&RunningVolume> {
        self.pager.volume()
    }

    fn follows(&self) -> Option<String> {
        self.follows.clone()
    }
}

/// The variable through which AddressSanitizer is told what to do (its `Flags` document), and what it is told: that
/// it need not be the first library. It wants to be because libraries before it could take the place of functions
/// that it replaces; ours has none.
const SANITIZER: (&str, &str) = ("ASAN_OPTIONS", "verify_asan_link_order=0");

/// The program's variables, with what the user preloads after our library, and what the user tells sanitizers after
/// what we do.
fn environment(wanted: Vec<(OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let all = wanted.into_iter().chain([(SANITIZER.0.into(), SANITIZER.1.into())]);
    all.map(|(name, value)| {
        let users = std::env::var_os(&name).filter(|users| !users.is_empty());
        let is_list = name == PRELOAD || name == SANITIZER.0;
        let joined = users.filter(|_| is_list).map_or_else(|| value.clone(), |users| join(&value, &users));
        (name, joined)
    })
    .collect()
}

fn join(first: &OsStr, second: &OsStr) -> OsString {
    let mut both = first.to_owned();
    both.push(":");
    both.push(second);
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_libraries_come_after_ours() {
        assert_eq!(join(OsStr::new("/a.so"), OsStr::new("b.so c.so")), "/a.so:b.so c.so");
        let kept = environment(vec![("OTHER".into(), "x".into())]);
        assert_eq!(kept, [("OTHER".into(), "x".into()), (SANITIZER.0.into(), SANITIZER.1.into())]);
    }

    #[test]
    fn a_small_budget_is_what_the_pager_needs_at_least() {
        let budget = Budget::new("1%".parse().unwrap());
        assert_eq!(initial_bytes(&budget).unwrap(), BUDGET_BYTES_MIN);
        assert!(initial_bytes(&Budget::new("100%".parse().unwrap())).unwrap() > BUDGET_BYTES_MIN);
    }
}
