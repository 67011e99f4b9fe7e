//! A virtual machine with a stock kernel for studies: front ends that this host's kernel lacks, beside their peers.
//!
//! This very program runs in it (the guest sees the host's files), does one trial and prints its numbers as JSON. A
//! trial that hangs takes its machine with it, and the next one gets another machine.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use spillway_virtual_machine::builder::quoted;
use spillway_virtual_machine::{Disk, Failure, VirtualMachine, attempts};

use super::HarnessError;
use super::interrupt::Interrupt;
use crate::limits::GUEST_TRIALS_MAX;

/// The guest's memory: room for a device several times a working set, and for the programs themselves.
const MEMORY_MIB: u32 = 1024;

/// The guest has one processor. Emulated ones that wait for each other wait for the host's scheduler, which costs
/// several times what is measured, and on a busy host a hundred times; with one, a request costs its own instructions
/// and switches.
pub const PROCESSORS: u32 = 1;

/// The guest's disks: one for files, one to compare with.
const DISK_MIB: u64 = 512;

/// Modules of the front ends; peers load theirs when their turn comes.
const MODULES: [&str; 2] = ["ublk_drv", "nbd"];

/// Modules of soft-RoCE.
const RDMA_MODULES: [&str; 2] = ["rdma_rxe", "ib_uverbs"];

/// A guest that moves pages by RDMA has two: one polls while the other does what an adapter would.
const RDMA_PROCESSORS: u32 = 2;

/// Where the disk for files is, in the guest.
pub const DIRECTORY: &str = "/disk";

/// A machine that is booted when it is needed, and again after one was lost.
pub struct Guest {
    machine: Option<VirtualMachine>,
    has_rdma: bool,
    /// This program, as the guest sees it too.
    program: PathBuf,
    /// Nothing is begun after it.
    end: Instant,
}

impl Guest {
    /// For trials of `program` until `end`.
    pub fn new(program: PathBuf, end: Instant) -> Self {
        Self { machine: None, has_rdma: false, program, end }
    }

    /// The same, with what soft-RoCE takes.
    pub fn with_rdma(program: PathBuf, end: Instant) -> Self {
        Self { has_rdma: true, ..Self::new(program, end) }
    }

    fn machine(&mut self) -> Result<&VirtualMachine, HarnessError> {
        if self.machine.is_none() {
            let (processors, more): (_, &[&str]) =
                if self.has_rdma { (RDMA_PROCESSORS, &RDMA_MODULES) } else { (PROCESSORS, &[]) };
            let builder = VirtualMachine::builder().memory_mib(MEMORY_MIB).processors(processors);
            let builder = builder.modules(&MODULES).modules(more).disk(Disk::files(DISK_MIB)).disk(Disk::raw(DISK_MIB));
            self.machine = Some(builder.start().map_err(|failure| error_of(&failure))?);
        }
        Ok(self.machine.as_ref().expect("it was just made"))
    }

    /// Runs this program with `arguments` in the guest, for `limit` at most; gives what it printed.
    pub fn run(
        &mut self,
        environment: &[(&str, String)],
        arguments: &[String],
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<String, HarnessError> {
        let script = script(&self.program, environment, arguments);
        for attempt in 1.. {
            if Instant::now() >= self.end {
                return Err(HarnessError::Missing("the time of this study was over".to_owned()));
            }
            match self.attempt(&script, limit, interrupt) {
                Err(Lost::ByEmulator(failure)) if attempt < GUEST_TRIALS_MAX => {
                    eprintln!("the emulator broke the guest's kernel, the trial is repeated: {failure}");
                }
                Err(Lost::ByEmulator(error) | Lost::Otherwise(error)) => return Err(error),
                Ok(output) => return Ok(output),
            }
        }
        unreachable!("the last attempt's result is returned")
    }

    fn attempt(&mut self, script: &str, limit: Duration, interrupt: &Interrupt) -> Result<String, Lost> {
        let machine = self.machine().map_err(Lost::Otherwise)?;
        let job = machine.spawn(script).map_err(|failure| Lost::Otherwise(error_of(&failure)))?;
        // The look of the machine itself ends at once then.
        let ended = interrupt.poll("a trial in the guest", limit, || machine.has_ended(&job).then_some(()));
        if matches!(&ended, Err(error) if error.is_interrupt()) {
            self.machine = None;
            return Err(Lost::Otherwise(HarnessError::Interrupted));
        }
        match machine.end_of(&job, Duration::ZERO) {
            Ok(said) if said.status == 0 => Ok(said.output),
            Ok(said) => {
                let last = said.errors.lines().last().unwrap_or("(no message)").to_owned();
                Err(Lost::Otherwise(HarnessError::failed("a trial in the guest", format!("{last} ({})", said.status))))
            }
            Err(failure) => {
                self.machine = None;
                let by_emulator = attempts::is_emulators_fault(&failure);
                // It would only take the next machine, too.
                let error = HarnessError::Missing(format!("it took the guest with it: {failure}"));
                Err(if by_emulator { Lost::ByEmulator(error) } else { Lost::Otherwise(error) })
            }
        }
    }
}

/// A trial without a result.
enum Lost {
    /// Worth another attempt.
    ByEmulator(HarnessError),
    Otherwise(HarnessError),
}

/// A machine that cannot be had is something that is missing: the study is left out with its reason.
fn error_of(failure: &Failure) -> HarnessError {
    HarnessError::Missing(failure.to_string())
}

fn script(program: &std::path::Path, environment: &[(&str, String)], arguments: &[String]) -> String {
    let environment: String =
        environment.iter().map(|(name, value)| format!("export {name}={}; ", quoted(value))).collect();
    let arguments: String = arguments.iter().map(|argument| format!(" {}", quoted(argument))).collect();
    format!("cd {DIRECTORY} && {environment}exec {}{arguments}", quoted(&program.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_quotes_every_word() {
        let arguments = ["guest-trial".to_owned(), "it's one".to_owned()];
        let text = script("/a b/bench".as_ref(), &[("WORD", "two words".to_owned())], &arguments);
        assert_eq!(text, r"cd /disk && export WORD='two words'; exec '/a b/bench' 'guest-trial' 'it'\''s one'");
    }

    #[test]
    fn nothing_begins_after_the_end() {
        let mut guest = Guest::new("/nonexistent".into(), Instant::now());
        let error = guest.run(&[], &[], Duration::from_secs(1), &Interrupt::never()).unwrap_err();
        assert!(matches!(error, HarnessError::Missing(_)), "{error}");
    }
}
