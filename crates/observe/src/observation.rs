//! What `status` tells, as figures with types: what the agent's metrics and `top` are made of.
//!
//! [`Observation::gather`] asks everything of ours on this machine at the same time, so one hung process costs one
//! deadline and not one for each. The rest is without I/O: reports become figures.
//!
//! Invariants: the figures are those of `spillway status`, which warns of a report that cannot be read, so there is one
//! truth.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use spillway_console::failure::Failure;
use spillway_control::registry::{Found, Registry};
use spillway_donor::DonorStatus;
use spillway_fabric::plain_text::plain;
use spillway_machine::memory::Memory;
use spillway_machine::swap_list;
use spillway_report::donor::AgentReport;
use spillway_report::kind::{Kind, Report};
use spillway_report::status::Item;
use spillway_sys::lease::read_unless_leased;
use spillway_sys::proc_text::strings;
use spillway_volume::status::DeviceStatus;

use crate::{limits, status};

/// Everything of ours on this machine at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The machine's memory, if the kernel tells.
    pub(crate) memory: Option<Memory>,
    /// Devices, donors, runs and agents, in the order of `status`.
    pub things: Vec<Thing>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Thing {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its name.
    pub(crate) name: String,
    /// Its process.
    pub(crate) pid: Option<u32>,
    /// The program that it runs, of a run.
    pub(crate) program: Option<String>,
    /// As `status` has it: `running`, `silent`, `orphaned` or `dead`.
    pub(crate) state: String,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
    /// What is in use of the swap area on it.
    pub(crate) swap_used_bytes: Option<u64>,
    /// What it tells of itself.
    pub(crate) report: Report,
}

impl Observation {
    /// Asks everything but entries of the kind `except`: the process that asks may be one of them.
    pub fn gather(registry: &Registry, except: Option<Kind>) -> Result<Self, Failure> {
        let areas = swap_list::read().map_err(|error| Failure::during("/proc/swaps", error))?;
        let mut entries = registry.entries().map_err(Failure::failed)?;
        entries.retain(|found| except != Some(found.kind));
        let ask = |found: &Found| {
            let thing = Thing::from(status::ask(found, &areas));
            let program = thing.pid.filter(|_| thing.kind == Kind::Run).and_then(program_of_run);
            Thing { program, ..thing }
        };
        let mut things = Vec::with_capacity(entries.len());
        for together in entries.chunks(limits::ASKED_AT_ONCE_MAX) {
            std::thread::scope(|scope| {
                let ask = &ask;
                let asked: Vec<_> = together.iter().map(|found| scope.spawn(move || ask(found))).collect();
                things.extend(asked.into_iter().filter_map(|thread| thread.join().ok()));
            });
        }
        Ok(Self { memory: Memory::read().ok(), things })
    }
}

impl Observation {
    /// A line for each thing that does not run, or whose volume is not well; none for the dead, which `doctor` finds.
    pub fn complaints(&self) -> Vec<String> {
        let complaint = |thing: &Thing| {
            let what = format!("{} '{}'", thing.kind.word(), thing.name);
            match thing.volume() {
                _ if thing.state == "dead" => None,
                _ if thing.state != "running" => Some(format!("{what}: {}", thing.state)),
                Some(volume) if !is_well(volume) => Some(format!("{what}: {}", volume.health)),
                _ => None,
            }
        };
        self.things.iter().filter_map(complaint).collect()
    }
}

impl From<Item> for Thing {
    fn from(item: Item) -> Self {
        // A warning tells of what cannot be read.
        let report = item.read().unwrap_or(Report::None);
        let Item { kind, name, pid, state, swap, warnings, .. } = item;
        Self {
            kind,
            name,
            pid,
            program: None,
            state,
            warnings,
            swap_used_bytes: swap.map(|area| area.used_bytes),
            report,
        }
    }
}

impl Thing {
    /// The agent that this process is, with what it tells of itself.
    pub fn of_agent(report: AgentReport) -> Self {
        Self {
            kind: Kind::Agent,
            name: "agent".to_owned(),
            pid: Some(std::process::id()),
            program: None,
            state: "running".to_owned(),
            warnings: Vec::new(),
            swap_used_bytes: None,
            report: Report::Agent(Box::new(report)),
        }
    }

    /// The volume behind it: a device's, or that of a run by the pager.
    pub(crate) fn volume(&self) -> Option<&DeviceStatus> {
        self.report.volume()
    }

    /// The run that it is, or that its device belongs to.
    pub(crate) fn run(&self) -> Option<&str> {
        match &self.report {
            Report::Device(report) => report.run.as_deref(),
            _ if self.kind == Kind::Run => Some(&self.name),
            _ => None,
        }
    }

    /// Its name for people: a run has its program's before it.
    pub(crate) fn title(&self) -> String {
        self.program.iter().chain([&self.name]).map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// The donor in it.
    pub(crate) fn donor(&self) -> Option<&DonorStatus> {
        self.report.donor()
    }
}

/// The program of the run whose process this is: a run's report does not have it.
fn program_of_run(pid: u32) -> Option<String> {
    let line = read_unless_leased(format!("/proc/{pid}/cmdline")).ok()?;
    program_in(&line)
}

/// The file name of the first word after `--` on a command line whose words end with zeroes.
fn program_in(line: &[u8]) -> Option<String> {
    let mut words = strings::all(line).skip_while(|word| *word != b"--");
    let file = Path::new(OsStr::from_bytes(words.nth(1)?)).file_name()?.to_string_lossy().into_owned();
    // What a terminal would obey, it shall not see.
    Some(plain(&file).into_owned())
}

/// Whether a device's line of health says that all is well.
pub(crate) fn is_well(volume: &DeviceStatus) -> bool {
    volume.health == "ok" || volume.health.starts_with("ok ")
}

#[cfg(test)]
pub mod examples;

#[cfg(test)]
mod tests {
    use spillway_control::test_support::temporary_registry;
    use spillway_report::test_support;

    use super::*;

    #[test]
    fn reports_become_figures() {
        let device = examples::device("swap", 7);
        assert_eq!(device.volume().unwrap().traffic.pages_in, 7);
        assert_eq!((device.run(), device.donor()), (None, None));
        let run = examples::run("x", 9);
        assert_eq!((run.volume().unwrap().traffic.pages_in, run.run()), (9, Some("x")));
        let donor = Some(test_support::donor_status(5 << 20));
        let agent = Thing::of_agent(AgentReport { donor, ..AgentReport::default() });
        assert_eq!(agent.donor().unwrap().lent_bytes, 5 << 20);
        assert!(Thing::of_agent(AgentReport::default()).donor().is_none());
    }

    #[test]
    fn what_is_silent_or_not_well_is_complained_of() {
        let well = examples::device("swap", 7);
        let mut things = vec![well.clone(), well.clone(), well];
        things[1].state = "silent".to_owned();
        things[2].state = "dead".to_owned();
        let mut observation = Observation { memory: None, things };
        assert_eq!(observation.complaints(), ["device 'swap': silent"]);
        let Report::Device(report) = &mut observation.things[0].report else { panic!("no device") };
        report.device.health = "3 pages are lost".to_owned();
        assert_eq!(observation.complaints()[0], "device 'swap': 3 pages are lost");
    }

    #[test]
    fn a_run_is_named_by_its_program() {
        assert_eq!(program_in(b"spillway\0run\0--local\x001G\0--\0/usr/bin/sort\0-n\0"), Some("sort".to_owned()));
        assert_eq!(program_in(b"spillway\0run\0--\0a\x1b[2Jb\0"), Some("a\u{fffd}[2Jb".to_owned()));
        assert_eq!((program_in(b"spillway\0status\0"), program_in(b"spillway\0run\0--\0")), (None, None));
        let run = Thing { program: Some("sort".to_owned()), ..examples::run("7", 0) };
        assert_eq!((run.title(), examples::run("7", 0).title()), ("sort 7".to_owned(), "7".to_owned()));
    }

    #[test]
    fn everything_is_asked_at_once_but_what_is_left_out() {
        let (_directory, registry) = temporary_registry();
        let _entries: Vec<_> = (0..limits::ASKED_AT_ONCE_MAX + 2)
            .map(|number| registry.claim(Kind::Donor, &format!("d{number}")).unwrap())
            .collect();
        let _agent = registry.claim(Kind::Agent, "agent").unwrap();
        let seen = Observation::gather(&registry, Some(Kind::Agent)).unwrap();
        assert_eq!(seen.things.len(), limits::ASKED_AT_ONCE_MAX + 2);
        assert!(seen.things.iter().all(|thing| thing.state == "silent" && thing.kind == Kind::Donor));
        assert_eq!(Observation::gather(&registry, None).unwrap().things.len(), limits::ASKED_AT_ONCE_MAX + 3);
    }
}
