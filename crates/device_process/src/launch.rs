//! Starts a device's process and waits until the device is there.
//!
//! The process holds a pipe to its launcher as standard input. A launcher that dies before it said `keep` takes the
//! device with it; so nothing stays half attached. The answer comes as one JSON line on the process's standard
//! output.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use spillway_console::failure::Failure;
use spillway_console::progress_line::ProgressLine;
use spillway_console::{log_writer, say};
use spillway_control::registry::Registry;
use spillway_control::status_socket::{self, Question};
use spillway_machine::interruption::Interruption;
use spillway_machine::process::{open_log, wait_for};
use spillway_report::kind::Kind;

use crate::handover::{LaunchedDevice, Readiness};

/// A device whose process was started here. Dropped before [`RunningDevice::keep`], it is stopped.
#[derive(Debug)]
pub struct RunningDevice {
    name: String,
    path: PathBuf,
    notes: Vec<String>,
    status_socket: PathBuf,
    child: Child,
    owner_pipe: Option<ChildStdin>,
}

impl RunningDevice {
    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is less safe than it should be, in words.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Where to ask it.
    pub fn status_socket(&self) -> &Path {
        &self.status_socket
    }

    /// Lets it live on without this process.
    pub fn keep(&mut self) -> Result<(), Failure> {
        let Some(mut pipe) = self.owner_pipe.take() else { return Ok(()) };
        pipe.write_all(b"keep\n").map_err(|error| Failure::during("the device's process ended", error))
    }

    /// Whether its process is still there.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn stop_now(&mut self) -> Result<(), Failure> {
        if self.is_alive() {
            let answer =
                status_socket::ask(&self.status_socket, &Question::Stop, spillway_control::limits::STOP_DEADLINE);
            answer.map_err(|error| Failure::during(format!("device '{}'", self.name), error))?;
        }
        self.owner_pipe = None;
        if wait_for(&mut self.child, Instant::now() + spillway_control::limits::STOP_DEADLINE) {
            return Ok(());
        }
        Err(Failure::Failed(format!("device '{}' does not end; `spillway doctor --mend` tries again", self.name)))
    }
}

impl Drop for RunningDevice {
    fn drop(&mut self) {
        if self.owner_pipe.is_some() {
            // Without its launcher it stops by itself as soon as it can.
            let _ = self.stop_now();
        }
    }
}

/// Starts the process and waits for its answer.
pub fn launch(
    registry: &Registry,
    launched: &LaunchedDevice,
    interruption: &Interruption,
) -> Result<RunningDevice, Failure> {
    let log_path = registry.log_path(Kind::Device, &launched.name);
    let mut child =
        spawn(launched, &log_path).map_err(|error| Failure::during("starting the device's process", error))?;
    let owner_pipe = child.stdin.take();
    let answer = child.stdout.take().map(|stdout| wait_ready(&launched.name, stdout, interruption));
    match answer.unwrap_or_else(|| Err(Failure::failed("the device's process has no standard output"))) {
        Ok(Readiness::Ready { path, notes, donors_missing }) => {
            tell_missing(&donors_missing);
            Ok(RunningDevice {
                name: launched.name.clone(),
                path,
                notes,
                status_socket: registry.status_socket(Kind::Device, &launched.name),
                child,
                owner_pipe,
            })
        }
        Ok(Readiness::Failed(text)) => {
            drop(owner_pipe);
            wait_for(&mut child, Instant::now() + spillway_control::limits::STOP_DEADLINE);
            Err(Failure::Failed(text))
        }
        Err(failure) => {
            drop(owner_pipe);
            end(&mut child, registry);
            Err(or_log(failure, &log_path))
        }
    }
}

/// Tells the user of donors that were named and could not be reached, each given as its address and the reason.
pub fn tell_missing(donors: &[String]) {
    for donor in donors {
        say!("spillway: starts without a donor, which is tried again: {donor}");
    }
}

/// Without its launcher's pipe the process undoes what it did; one that hangs is killed, and its remains are mended.
fn end(child: &mut Child, registry: &Registry) {
    if !wait_for(child, Instant::now() + spillway_control::limits::GIVE_UP_DEADLINE) {
        // It may have ended between the two.
        let _ = child.kill();
        let _ = child.wait();
        // What cannot be mended now is named by `doctor`.
        let _ = spillway_control::mend::mend_all(registry);
    }
}

/// Points at the log, if this is a failure that the process could not explain itself.
fn or_log(failure: Failure, log_path: &Path) -> Failure {
    match failure {
        Failure::Failed(text) => Failure::Failed(format!("{text}; see {}", log_writer::place(log_path))),
        other => other,
    }
}

fn spawn(launched: &LaunchedDevice, log_path: &Path) -> std::io::Result<Child> {
    // The journal has the lines of a service's devices, too.
    let log = if log_writer::is_journal() { Stdio::inherit() } else { open_log(log_path)?.into() };
    Command::new(std::env::current_exe()?)
        .arg("serve-device")
        .arg(serde_json::to_string(launched)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
}

/// The process's answer, unless it ends, a signal comes, or it takes too long.
fn wait_ready(name: &str, stdout: ChildStdout, interruption: &Interruption) -> Result<Readiness, Failure> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let result = BufReader::new(stdout).read_line(&mut line).map(|_| line);
        // The launcher may have given up by now.
        let _ = sender.send(result);
    });
    let (began, mut line) = (Instant::now(), ProgressLine::new(format!("starting device '{name}'"), true));
    let deadline = began + spillway_control::limits::START_DEADLINE;
    loop {
        interruption.check()?;
        line.show_wait(began, spillway_control::limits::START_DEADLINE);
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(Ok(line)) => {
                return serde_json::from_str(&line)
                    .map_err(|_| Failure::failed("the device's process ended at its start"));
            }
            Ok(Err(error)) => return Err(Failure::during("the device's process", error)),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => return Err(Failure::failed("the device's process did not get ready in time")),
        }
    }
}
