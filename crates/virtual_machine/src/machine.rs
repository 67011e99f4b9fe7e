//! A running machine. It ends with its owner: when it is dropped, and when the thread that started it dies.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spillway_sys::child::{self, ChildProcess, ChildSteps};

use crate::command_line::{END_STATUS, Plan};
use crate::control::{Control, Said, Waited};
use crate::directory::MachineDirectory;
use crate::failure::Failure;
use crate::turn::Turn;
use crate::{console, limits, tools};

/// A machine that takes commands.
pub struct VirtualMachine {
    process: Mutex<ChildProcess>,
    control: Control,
    commands: AtomicU64,
    directory: MachineDirectory,
    _network: Option<Arc<tempfile::TempDir>>,
    // Given back last.
    _turn: Option<Turn>,
}

/// A command that runs in a guest.
#[derive(Debug)]
#[must_use = "a command is waited for"]
pub struct Job {
    number: u64,
}

fn qemu(plan: &Plan) -> Result<Command, Failure> {
    let mut command = tools::QEMU.command()?;
    command.args(plan.arguments());
    Ok(command)
}

impl VirtualMachine {
    /// Starts QEMU.
    pub(crate) fn launch(
        plan: &Plan,
        directory: MachineDirectory,
        turn: Option<Turn>,
        network: Option<Arc<tempfile::TempDir>>,
    ) -> Result<Self, Failure> {
        let path = directory.errors();
        let errors = File::create(&path).map_err(Failure::file(&path))?;
        let mut command = qemu(plan)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let steps = ChildSteps {
            parent_death_signal: Some(Signal::KILL),
            // The terminal's signals are for the test, which ends it.
            new_process_group: true,
            ..ChildSteps::default()
        };
        let mut process = child::spawn(command, steps).map_err(Failure::file(&tools::QEMU.find()?))?;
        let input = process.pipes().stdin.take().expect("standard input is a pipe");
        let output = process.pipes().stdout.take().expect("standard output is a pipe");
        Ok(Self {
            process: Mutex::new(process),
            control: Control::new(input, output),
            commands: AtomicU64::new(0),
            directory,
            _network: network,
            _turn: turn,
        })
    }

    /// Runs QEMU on this terminal until it ends.
    pub(crate) fn interactive(plan: &Plan) -> Result<(), Failure> {
        let path = tools::QEMU.find()?;
        let status = qemu(plan)?.status().map_err(Failure::file(&path))?;
        if status.success() || status.code() == Some(END_STATUS) {
            return Ok(());
        }
        Err(Failure::Died { status: status.to_string(), complaints: Vec::new(), console: String::new() })
    }

    /// Waits until it takes commands.
    pub(crate) fn wait_until_ready(&self, within: Duration) -> Result<(), Failure> {
        self.wait("boot", within, |told| told.ready.then_some(()))
    }

    /// Runs a script of `/bin/sh` in the guest, as root.
    pub fn run(&self, script: &str, within: Duration) -> Result<Said, Failure> {
        let job = self.spawn(script)?;
        self.end_of(&job, within)
    }

    /// Starts a script of `/bin/sh` in the guest; several run at once.
    pub fn spawn(&self, script: &str) -> Result<Job, Failure> {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        self.directory.write_shared(&format!("{number}.sh"), &format!("{script}\n"))?;
        self.control.say(&format!("run {number}"));
        Ok(Job { number })
    }

    /// Waits for a command's end. The whole machine is ended when it comes too late.
    pub fn end_of(&self, job: &Job, within: Duration) -> Result<Said, Failure> {
        let what = format!("end command {} ({})", job.number, self.script(job));
        let status = self.wait(&what, within, |told| told.statuses.get(&job.number).copied());
        let (output, errors) = self.so_far(job);
        match status {
            Ok(status) => Ok(Said { status, output, errors }),
            Err(failure) => Err(with_words(failure, &output, &errors)),
        }
    }

    /// Whether a command has ended.
    pub fn has_ended(&self, job: &Job) -> bool {
        let look = |told: &crate::control::Told| told.statuses.contains_key(&job.number).then_some(());
        self.control.wait(Instant::now(), look) != Waited::TooLate
    }

    /// What a command said until now: standard output and standard error.
    pub fn so_far(&self, job: &Job) -> (String, String) {
        let read = |kind: &str| console::read(&self.share().join(format!("{}.{kind}", job.number)));
        (read("output"), read("errors"))
    }

    fn script(&self, job: &Job) -> String {
        console::read(&self.share().join(format!("{}.sh", job.number))).trim().to_owned()
    }

    /// The folder that the guest sees as `/share`; both sides read and write it.
    pub fn share(&self) -> PathBuf {
        self.directory.share()
    }

    /// What its kernel said.
    pub fn console(&self) -> String {
        console::read(&self.directory.console())
    }

    /// Signs of trouble in what its kernel said: oopses, hung tasks, programs killed for memory, failed I/O.
    pub fn complaints(&self) -> Vec<String> {
        console::complaints(&self.console())
    }

    /// Unmounts its disks and ends it.
    pub fn end(self) -> Result<(), Failure> {
        self.control.say("end");
        match self.control.wait(deadline(limits::END_DEADLINE), |told| told.closed.then_some(())) {
            Waited::TooLate => Err(self.too_late("end", limits::END_DEADLINE)),
            Waited::Found(()) | Waited::Closed => {
                let status = self.stopped();
                if status.code() == Some(END_STATUS) { Ok(()) } else { Err(self.died(status)) }
            }
        }
    }

    /// Takes its power away.
    pub fn kill(self) {}

    fn wait<T>(
        &self,
        what: &str,
        within: Duration,
        look: impl FnMut(&crate::control::Told) -> Option<T>,
    ) -> Result<T, Failure> {
        match self.control.wait(deadline(within), look) {
            Waited::Found(found) => Ok(found),
            Waited::Closed => Err(self.died(self.stopped())),
            Waited::TooLate => Err(self.too_late(what, within)),
        }
    }

    /// Ends QEMU, if it has not ended, and says how it ended.
    fn stopped(&self) -> ExitStatus {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // It closes its channel just before it ends.
        let give_up = deadline(Duration::from_secs(10));
        while let Ok(None) = process.try_wait() {
            if Instant::now() >= give_up {
                // It may end meanwhile.
                let _ = process.signal(Signal::KILL);
            }
            std::thread::sleep(limits::POLL_INTERVAL);
        }
        process.wait().expect("a child of ours can be waited for")
    }

    fn died(&self, status: ExitStatus) -> Failure {
        let said = fs::read_to_string(self.directory.errors()).unwrap_or_default();
        let console = format!("{}\n{}", console::tail(&self.console()), console::tail(&said));
        Failure::Died { status: status.to_string(), complaints: self.complaints(), console }
    }

    fn too_late(&self, what: &str, after: Duration) -> Failure {
        self.kill_now();
        let console = self.console();
        let complaints = console::complaints(&console);
        Failure::Deadline { what: what.to_owned(), after, complaints, console: console::tail(&console).to_owned() }
    }

    fn kill_now(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended by itself.
        let _ = process.signal(Signal::KILL);
        let _ = process.wait();
    }
}

/// Adds what a command said to the failure that ended it.
fn with_words(mut failure: Failure, output: &str, errors: &str) -> Failure {
    if let Failure::Deadline { console, .. } | Failure::Died { console, .. } = &mut failure {
        let (output, errors) = (console::tail(output), console::tail(errors));
        console.push_str(&format!("\nthe command's output:\n{output}\nits errors:\n{errors}"));
    }
    failure
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        self.kill_now();
    }
}

/// When something that may take `duration` must be done.
pub(crate) fn deadline(duration: Duration) -> Instant {
    Instant::now() + duration
}
