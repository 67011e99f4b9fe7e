//! The way out of a run, for one that ended, one that failed halfway, and one that was killed.
//!
//! Works from names alone, so that it needs nothing of the process that set things up. Invariant: nothing that holds
//! pages is stopped before they are back in memory; if they cannot be brought back, device and donors stay.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spillway_console::failure::Failure;
use spillway_console::progress_line;
use spillway_machine::cgroup::MemoryGroup;
use spillway_machine::swap_area;
use spillway_report::kind::Kind;
use spillway_sys::memory_hierarchy::Hierarchy;

use crate::device_record::{DeviceRecord, is_anothers, remove_backing};
use crate::limits;
use crate::registry::{Found, Registry};
use crate::status_socket::{self, AskError, Question};

/// What may be left of a run, and how each thing goes.
pub(crate) trait Leftovers {
    /// Lifts the limit, and lets processes that the program left in the background live on outside.
    fn release_processes(&mut self) -> Result<(), String>;
    /// Brings every page back.
    fn swap_off(&mut self) -> Result<(), String>;
    /// Stops the device.
    fn stop_device(&mut self) -> Result<(), String>;
    /// Stops the run's own donors.
    fn stop_donors(&mut self) -> Result<(), String>;
    /// Removes a backing file that was not named.
    fn remove_backing(&mut self);
    /// Removes what programs loaded.
    fn remove_programs_directory(&mut self);
    /// Removes the memory group.
    fn remove_group(&mut self) -> Result<(), String>;
}

/// Takes the run `name` down, by whichever way it went.
pub fn take_down_run(registry: &Registry, name: &str) -> Result<(), Failure> {
    let errors = take_down(&mut RunLeftovers::of_run(registry, name));
    if errors.is_empty() { Ok(()) } else { Err(Failure::Failed(errors.join("; "))) }
}

/// Takes everything down in order; gives what could not be.
pub(crate) fn take_down(leftovers: &mut dyn Leftovers) -> Vec<String> {
    let mut errors = Vec::new();
    let mut note = |result: Result<(), String>| {
        let done = result.is_ok();
        errors.extend(result.err());
        done
    };
    note(leftovers.release_processes());
    let nothing_paged_out = note(leftovers.swap_off());
    if nothing_paged_out && note(leftovers.stop_device()) {
        note(leftovers.stop_donors());
        leftovers.remove_backing();
    }
    leftovers.remove_programs_directory();
    note(leftovers.remove_group());
    errors
}

/// The remains of one run, found by its name.
#[derive(Debug)]
pub(crate) struct RunLeftovers<'a> {
    registry: &'a Registry,
    run: String,
    hierarchy: Option<Hierarchy>,
}

impl<'a> RunLeftovers<'a> {
    /// Of the run `name`.
    pub(crate) fn of_run(registry: &'a Registry, name: &str) -> Self {
        Self { registry, run: name.to_owned(), hierarchy: Hierarchy::detect() }
    }

    fn group(&self) -> Option<MemoryGroup> {
        let group = MemoryGroup::existing(self.hierarchy.as_ref()?, &format!("run-{}", self.run));
        group.exists().then_some(group)
    }

    fn device(&self) -> Option<Found> {
        self.registry.find(Kind::Device, &device_name(&self.run))
    }

    fn donors(&self) -> Result<Vec<Found>, String> {
        let prefix = donor_prefix(&self.run);
        let entries = self.registry.entries().map_err(|error| error.to_string())?;
        Ok(entries.into_iter().filter(|found| found.kind == Kind::Donor && found.name.starts_with(&prefix)).collect())
    }
}

/// The device of a run.
pub fn device_name(run: &str) -> String {
    format!("run-{run}")
}

/// How the names of a run's own donors begin.
pub fn donor_prefix(run: &str) -> String {
    format!("run-{run}-")
}

/// Ends a process of ours: asked first, killed at the deadline.
pub(crate) fn end_process(found: &Found) -> Result<(), String> {
    let Some(owner) = found.owner else { return Ok(()) };
    owner.signal(Signal::TERM);
    if owner.wait_gone(Instant::now() + limits::STOP_DEADLINE) {
        return Ok(());
    }
    owner.signal(Signal::KILL);
    if owner.wait_gone(Instant::now() + limits::STOP_DEADLINE) {
        return Ok(());
    }
    Err(format!("{} (process {}) does not end", found.title(), owner.pid))
}

/// Stops a device's process, which fails while the device is in use. One whose keeper died serves all the same.
pub fn stop_device_process(found: &Found) -> Result<(), String> {
    let answer = status_socket::ask(&found.status_socket(), &Question::Stop, limits::STOP_DEADLINE * 2);
    if let Err(error @ AskError::Refused(_)) = &answer {
        return Err(format!("{}: {error}", found.title()));
    }
    if !found.is_alive() {
        return Ok(());
    }
    // One that does not answer may be ending by itself just now.
    let patience = if answer.is_ok() { limits::STOP_DEADLINE } else { limits::GIVE_UP_DEADLINE };
    let Some(owner) = found.owner else { return Ok(()) };
    match (owner.wait_gone(Instant::now() + patience), answer) {
        (true, _) => Ok(()),
        (false, Err(error)) => Err(format!("{}: {error}", found.title())),
        (false, Ok(_)) => Err(format!("{} (process {}) does not end", found.title(), owner.pid)),
    }
}

impl Leftovers for RunLeftovers<'_> {
    fn release_processes(&mut self) -> Result<(), String> {
        let (Some(group), Some(hierarchy)) = (self.group(), &self.hierarchy) else { return Ok(()) };
        group.release_to(&hierarchy.root);
        group.set_limit(None).map_err(|error| error.to_string())
    }

    fn swap_off(&mut self) -> Result<(), String> {
        let record = self.device().and_then(|found| DeviceRecord::read(&found.path));
        let own = |path: &PathBuf| !is_anothers(self.registry, &device_name(&self.run), path);
        let Some(path) = record.and_then(|record| record.path).filter(own) else { return Ok(()) };
        loop {
            match swap_area::off(&path, progress_line::of_swap_off(true)) {
                // A signal to the program's end is no reason to leave its pages out.
                Err(error) if error.is_interrupted() => std::thread::sleep(Duration::from_millis(1)),
                result => return result.map_err(|error| error.to_string()),
            }
        }
    }

    fn stop_device(&mut self) -> Result<(), String> {
        let Some(device) = self.device() else { return Ok(()) };
        stop_device_process(&device)
    }

    fn stop_donors(&mut self) -> Result<(), String> {
        let donors = self.donors()?;
        // All at once first, so that they end together.
        donors.iter().filter_map(|found| found.owner).for_each(|owner| owner.signal(Signal::TERM));
        donors.iter().try_for_each(end_process)
    }

    fn remove_backing(&mut self) {
        // A device has one of its own, and removes it; the pager's belongs to the run.
        if let Some(record) = DeviceRecord::read(&self.registry.entry_path(Kind::Run, &self.run)) {
            remove_backing(&record);
        }
    }

    fn remove_programs_directory(&mut self) {
        self.registry.remove_programs_directory(&self.run);
    }

    fn remove_group(&mut self) -> Result<(), String> {
        let Some(group) = self.group() else { return Ok(()) };
        let path = group.path().display().to_string();
        group.remove(Instant::now() + limits::STOP_DEADLINE).map_err(|error| format!("{path}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::temporary_registry;

    /// Writes down what is asked, and fails at one step.
    #[derive(Default)]
    struct Recorder {
        steps: Vec<&'static str>,
        fails: Option<&'static str>,
    }

    impl Recorder {
        fn step(&mut self, name: &'static str) -> Result<(), String> {
            self.steps.push(name);
            if self.fails == Some(name) { Err(format!("{name} failed")) } else { Ok(()) }
        }
    }

    impl Leftovers for Recorder {
        fn release_processes(&mut self) -> Result<(), String> {
            self.step("release")
        }
        fn swap_off(&mut self) -> Result<(), String> {
            self.step("swapoff")
        }
        fn stop_device(&mut self) -> Result<(), String> {
            self.step("device")
        }
        fn stop_donors(&mut self) -> Result<(), String> {
            self.step("donors")
        }
        fn remove_backing(&mut self) {
            self.steps.push("backing");
        }
        fn remove_programs_directory(&mut self) {
            self.steps.push("programs");
        }
        fn remove_group(&mut self) -> Result<(), String> {
            self.step("group")
        }
    }

    fn steps_when(fails: Option<&'static str>) -> (Vec<&'static str>, Vec<String>) {
        let mut recorder = Recorder { fails, ..Recorder::default() };
        let errors = take_down(&mut recorder);
        (recorder.steps, errors)
    }

    #[test]
    fn everything_goes_in_the_order_of_the_pages() {
        let (steps, errors) = steps_when(None);
        assert_eq!(steps, ["release", "swapoff", "device", "donors", "backing", "programs", "group"]);
        assert!(errors.is_empty());
    }

    #[test]
    fn what_holds_pages_stays_when_they_cannot_come_back() {
        let (steps, errors) = steps_when(Some("swapoff"));
        assert_eq!(steps, ["release", "swapoff", "programs", "group"]);
        assert_eq!(errors, ["swapoff failed"]);
        assert_eq!(steps_when(Some("device")).0, ["release", "swapoff", "device", "programs", "group"]);
    }

    #[test]
    fn other_failures_do_not_keep_the_rest() {
        for step in ["release", "donors", "group"] {
            let (steps, errors) = steps_when(Some(step));
            assert_eq!(steps.len(), 7, "{step}");
            assert_eq!(errors, [format!("{step} failed")]);
        }
    }

    #[test]
    fn a_run_that_left_nothing_is_down() {
        let (_directory, registry) = temporary_registry();
        let mut leftovers = RunLeftovers::of_run(&registry, "no-such-run");
        assert_eq!(take_down(&mut leftovers), Vec::<String>::new());
    }

    #[test]
    fn names_of_two_runs_never_mix() {
        assert!(!"run-12-0".starts_with(&donor_prefix("1")));
        assert_eq!(device_name("12"), "run-12");
    }
}
