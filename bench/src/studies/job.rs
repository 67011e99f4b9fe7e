//! A program of the studies with its input: one of our workloads, one of the demo's real programs, or a job in a JVM.
//!
//! Some print a report with their own time and checksum; the others print their result, which is compared byte by byte.
//!
//! Invariant: what a job computes depends on its command only, so that all its runs can be compared.

use std::ffi::OsString;
use std::process::Command;

use super::program_run::workload_command;
use crate::demo::programs::DemoProgram;
use crate::harness::HarnessError;
use spillway_workloads::size::{MIB, Size};

/// What a real program takes at most beside twice its data: interpreter and libraries, a client, a fork's copies. Too
/// much costs nothing but room in files and at donors.
const ROOM_BESIDE_DATA: Size = Size(128 * MIB);

/// What a program prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prints {
    /// The report of a workload: its own time, and a checksum.
    Report,
    /// Its result.
    Result,
}

/// See the module text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its name in results.
    pub name: &'static str,
    /// Memory of its data.
    pub size: Size,
    /// What it prints.
    pub prints: Prints,
    /// Memory that suffices for what may have to be lent.
    pub room: Size,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Job {
    fn new(name: &'static str, size: Size, prints: Prints, command: &Command) -> Self {
        let set = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| Some((name.into(), value?.into()));
        Self {
            name,
            size,
            prints,
            room: Size(size.0 * 2),
            program: command.get_program().into(),
            arguments: command.get_args().map(Into::into).collect(),
            environment: command.get_envs().filter_map(set).collect(),
        }
    }

    /// Our workload `name`.
    pub fn workload(name: &'static str, size: Size) -> Result<Self, HarnessError> {
        Ok(Self::new(name, size, Prints::Report, &workload_command(name, size)?))
    }

    /// A program that prints a workload's report.
    pub fn reporting(name: &'static str, size: Size, command: &Command) -> Self {
        Self::new(name, size, Prints::Report, command)
    }

    /// A program of the demo, called `name` here.
    pub fn real(name: &'static str, size: Size, program: &DemoProgram) -> Self {
        let plain = Self::new(name, size, Prints::Result, &program.command());
        Self { room: Size(plain.room.0 + ROOM_BESIDE_DATA.0), ..plain }
    }

    /// It as a command.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_comes_back_as_it_was() {
        let mut command = Command::new("sort");
        command.args(["--parallel=1", "a file"]).env("LC_ALL", "C").env_remove("HOME");
        let job = Job::reporting("java", Size(MIB), &command);
        let again = job.command();
        assert_eq!(again.get_program(), "sort");
        assert_eq!(again.get_args().collect::<Vec<_>>(), ["--parallel=1", "a file"]);
        let set: Vec<_> = again.get_envs().collect();
        assert_eq!(set, [("LC_ALL".as_ref(), Some("C".as_ref()))]);
        assert_eq!(job.room, Size(2 * MIB));
    }

    #[test]
    fn workloads_report_their_time() {
        let job = Job::workload("quicksort", Size(MIB)).unwrap();
        assert_eq!((job.name, job.prints), ("quicksort", Prints::Report));
        assert!(job.command().get_args().any(|argument| argument == "--json"));
    }
}
