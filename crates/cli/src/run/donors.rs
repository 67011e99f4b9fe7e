//! Donors of a run's own: processes of this machine that lend to this run only.
//!
//! Each holds a pipe to the run as standard input. If the run dies, a donor lends on as long as anything is lent, so that the
//! pages of a killed run can still be brought back, and then ends by itself.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use spillway_fabric::address::DonorAddress;

use super::plan::Plan;
use super::take_down::donor_prefix;
use crate::device::launch::open_log;
use crate::failure::Failure;
use crate::interruption::Interruption;
use crate::limits;

/// Donors of one run; ended when dropped, if they have not been by then.
#[derive(Debug, Default)]
pub(crate) struct OwnDonors {
    children: Vec<Child>,
    addresses: Vec<String>,
}

impl OwnDonors {
    /// Starts those that the plan asks for, and waits until each listens.
    pub(crate) fn start(plan: &Plan, interruption: &Interruption) -> Result<Self, Failure> {
        let mut donors =
            Self { children: Vec::new(), addresses: plan.donors.iter().map(DonorAddress::to_string).collect() };
        let mut answers = Vec::new();
        for index in 0..plan.own_donors {
            let socket = plan.sockets.join(format!("donor-{index}.sock"));
            let log = plan.sockets.join(format!("donor-{index}.log"));
            let mut child =
                spawn(plan, index, &socket, &log).map_err(|error| Failure::during("starting a donor", error))?;
            answers.push((child.stdout.take(), log));
            donors.children.push(child);
            donors.addresses.push(DonorAddress::Unix(socket).to_string());
        }
        for (stdout, log) in answers {
            let stdout = stdout.ok_or_else(|| Failure::failed("a donor has no standard output"))?;
            wait_listening(stdout, interruption).map_err(|failure| explain(failure, &log))?;
        }
        Ok(donors)
    }

    /// Where the device reaches the donors.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }
}

impl Drop for OwnDonors {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Without the pipe, it ends as soon as nothing is lent.
            child.stdin = None;
            let _ = child.try_wait();
        }
    }
}

fn spawn(plan: &Plan, index: usize, socket: &Path, log: &Path) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["donate", "--json", "--owned", "--key", "none", "--headroom", "16M"])
        .args(["--name", &format!("{}{index}", donor_prefix(&plan.name))])
        .args(["--memory", &plan.own_donor_bytes.to_string()])
        .args(["--slab-size", &plan.slab_size_bytes().to_string()])
        .args(["--listen", &DonorAddress::Unix(socket.to_path_buf()).to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(open_log(log)?)
        .spawn()
}

/// What a donor wrote to its log says more than that it ended.
fn explain(failure: Failure, log: &Path) -> Failure {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => Failure::Failed(format!("{failure}: {line}")),
        None => failure,
    }
}

/// A donor prints one line when it listens.
fn wait_listening(stdout: std::process::ChildStdout, interruption: &Interruption) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let result = BufReader::new(stdout).read_line(&mut line);
        // The run may have given up by now.
        let _ = sender.send(result.is_ok_and(|length| length > 0));
    });
    let deadline = Instant::now() + limits::START_DEADLINE;
    loop {
        interruption.check()?;
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(true) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(RecvTimeoutError::Timeout) => return Err(Failure::failed("a donor did not get ready in time")),
            Ok(false) | Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::failed("a donor ended at its start"));
            }
        }
    }
}
