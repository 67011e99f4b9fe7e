//! Donors of a run's or a device's own, for a user who names no donor: processes of this machine that lend to it only.
//!
//! Each holds a pipe to its owner as standard input. If the owner dies, a donor lends on as long as anything is lent,
//! so that the pages of a killed run can still be brought back, and then ends by itself.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use spillway_console::failure::Failure;
use spillway_fabric::address::DonorAddress;
use spillway_machine::memory::Memory;
use spillway_machine::process::{open_log, wait_for};
use spillway_machine::size::human;
use spillway_volume::settings::redundancy::Redundancy;

use crate::limits;

/// How many donors to start, and what each lends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnDonorsPlan {
    /// Donors.
    pub(crate) count: usize,
    /// Memory that each of them lends.
    pub(crate) memory_bytes: u64,
    /// Unit of lending.
    pub(crate) slab_size_bytes: u64,
}

impl OwnDonorsPlan {
    /// `count` donors that hold every copy of `size_bytes`, wherever its slabs are placed: slabs are placed whole, so
    /// each donor gets its share rounded up and one more.
    pub fn new(count: usize, size_bytes: u64, slab_size_bytes: u64, redundancy: Redundancy) -> Self {
        let slabs = size_bytes.div_ceil(slab_size_bytes) * u64::from(redundancy.replicas);
        let memory_bytes = (slabs.div_ceil(count.max(1) as u64) + 1) * slab_size_bytes;
        Self { count, memory_bytes, slab_size_bytes }
    }

    /// What a user is told who named no donor; `owner` is what they lend to.
    pub fn note(&self, owner: &str) -> String {
        format!(
            "no --donor was named: {} donors on this machine lend its own memory to the {owner}, up to {} each",
            self.count,
            human(self.memory_bytes)
        )
    }
}

/// What this machine can lend to itself, or what the user asked for if it can.
pub fn own_size_bytes(asked: Option<u64>, memory: Memory, redundancy: Redundancy) -> Result<u64, Failure> {
    let copies = u64::from(redundancy.replicas);
    let lendable = memory.lendable_bytes(limits::LEND_RESERVE_BYTES);
    let size_bytes = asked.unwrap_or(lendable / copies);
    if size_bytes * copies > lendable || size_bytes < limits::DEVICE_SIZE_BYTES_MIN {
        return Err(Failure::Failed(format!(
            "this machine has {} to lend and {} are wanted ({} available, a tenth of all and {} stay free); \
             take a smaller --lend or --size, end some programs, or name another machine with --donor",
            human(lendable),
            human(size_bytes.max(limits::DEVICE_SIZE_BYTES_MIN) * copies),
            human(memory.available_bytes),
            human(limits::LEND_RESERVE_BYTES),
        )));
    }
    Ok(size_bytes)
}

/// Donors of one owner; ended when dropped, if they have not been by then.
#[derive(Debug, Default)]
pub struct OwnDonors {
    children: Vec<Child>,
    addresses: Vec<DonorAddress>,
}

impl OwnDonors {
    /// Starts donors whose names begin with `prefix` and whose sockets and logs lie in `directory`, and waits until
    /// each listens; `check` fails when the owner wants to wait no more.
    pub fn start(
        plan: &OwnDonorsPlan,
        prefix: &str,
        directory: &Path,
        check: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut donors = Self::default();
        let mut answers = Vec::new();
        for index in 0..plan.count {
            let socket = directory.join(format!("donor-{index}.sock"));
            let log = directory.join(format!("donor-{index}.log"));
            let name = format!("{prefix}{index}");
            let mut child =
                spawn(plan, &name, &socket, &log).map_err(|error| Failure::during("starting a donor", error))?;
            answers.push((child.stdout.take(), log));
            donors.children.push(child);
            donors.addresses.push(DonorAddress::Unix(socket));
        }
        for (stdout, log) in answers {
            let stdout = stdout.ok_or_else(|| Failure::failed("a donor has no standard output"))?;
            wait_listening(stdout, check).map_err(|failure| explain(failure, &log))?;
        }
        Ok(donors)
    }

    /// Where the device reaches the donors.
    pub fn addresses(&self) -> &[DonorAddress] {
        &self.addresses
    }

    /// Ends those that lend nothing any more, and waits for them. One that still lends stays, and ends by itself.
    pub fn end(mut self) {
        self.children.iter_mut().for_each(|child| child.stdin = None);
        let deadline = Instant::now() + limits::STOP_DEADLINE;
        for child in &mut self.children {
            wait_for(child, deadline);
        }
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

fn spawn(plan: &OwnDonorsPlan, name: &str, socket: &Path, log: &Path) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["donate", "--json", "--owned", "--key", "none", "--headroom", "16M"])
        .args(["--name", name])
        .args(["--memory", &plan.memory_bytes.to_string()])
        .args(["--slab-size", &plan.slab_size_bytes.to_string()])
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
fn wait_listening(stdout: std::process::ChildStdout, check: &dyn Fn() -> Result<(), Failure>) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let result = BufReader::new(stdout).read_line(&mut line);
        // The owner may have given up by now.
        let _ = sender.send(result.is_ok_and(|length| length > 0));
    });
    let deadline = Instant::now() + limits::START_DEADLINE;
    loop {
        check()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_machine_lends_what_it_has() {
        let memory = Memory { total_bytes: 10 * GIB, available_bytes: 8 * GIB };
        let lendable = 7 * GIB - limits::LEND_RESERVE_BYTES;
        assert_eq!(own_size_bytes(None, memory, Redundancy::NONE).unwrap(), lendable);
        let two = Redundancy { replicas: 2, disk: false };
        assert_eq!(own_size_bytes(None, memory, two).unwrap(), lendable / 2);
        assert_eq!(own_size_bytes(Some(GIB), memory, two).unwrap(), GIB);
    }

    #[test]
    fn too_little_memory_is_told_in_numbers() {
        let memory = Memory { total_bytes: 10 * GIB, available_bytes: 2 * GIB };
        let text = own_size_bytes(Some(4 * GIB), memory, Redundancy::NONE).unwrap_err().to_string();
        assert!(text.contains("768 MiB to lend") && text.contains("4 GiB are wanted"), "{text}");
        let none = Memory { total_bytes: 10 * GIB, available_bytes: GIB };
        assert!(own_size_bytes(None, none, Redundancy::NONE).is_err());
    }

    #[test]
    fn own_donors_hold_every_copy_even_when_placed_unevenly() {
        let two = Redundancy { replicas: 2, disk: false };
        let each = OwnDonorsPlan::new(3, 10 << 20, 1 << 20, two).memory_bytes;
        assert_eq!(each, 8 << 20);
        assert!(each * 3 >= 2 * (10 << 20));
        assert_eq!(OwnDonorsPlan::new(0, 1 << 20, 1 << 20, Redundancy::NONE).memory_bytes, 2 << 20);
    }
}
