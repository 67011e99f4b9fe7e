//! Which processes are alive.
//!
//! A process id alone may have been given to another process since it was written down; together with the time the
//! process started (in clock ticks since boot) it names one process for good. Everything that kills or cleans
//! compares both. Numbers are those of a PID namespace (pid_namespaces(7)): what a process of another one left is not
//! removed as long as it may live.

use std::io;
use std::path::Path;
use std::process::Child;
use std::time::Instant;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use spillway_sys::own_files;

use super::waiting::wait_until;

/// One process, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The inode of its PID namespace; 0 where an older version wrote it down.
    #[serde(default)]
    pub pid_namespace: u64,
}

impl ProcessIdentity {
    /// This process.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// The process that has this id now.
    pub fn of(pid: u32) -> io::Result<Self> {
        let identity = spillway_sys::process::ProcessIdentity::of(pid)?;
        let identity = identity.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let pid_namespace = spillway_sys::process::pid_namespace().unwrap_or(0);
        Ok(Self { pid, start_ticks: identity.start_ticks, pid_namespace })
    }

    /// Whether it still runs; a process that ended and was not waited for does not.
    pub fn is_alive(&self) -> bool {
        self.plain().is_alive().unwrap_or(false)
    }

    fn plain(&self) -> spillway_sys::process::ProcessIdentity {
        spillway_sys::process::ProcessIdentity { pid: self.pid, start_ticks: self.start_ticks }
    }

    /// Whether it may still run, also in another PID namespace: only what others left may be removed.
    pub fn may_be_alive(&self) -> bool {
        let is_of_another =
            self.pid_namespace != 0 && spillway_sys::process::pid_namespace() != Some(self.pid_namespace);
        if is_of_another { self.plain().may_be_alive().unwrap_or(true) } else { self.is_alive() }
    }

    /// Sends a signal if it is still the same process.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let held = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Held before the look, so that the signal goes to the process that was looked at.
        if let Some(held) = held.filter(|_| self.is_alive()) {
            // It may have ended meanwhile, which is as good.
            let _ = pidfd_send_signal(held, signal);
        }
    }

    /// Waits until it has ended; false if it has not by the deadline.
    pub fn wait_gone(&self, deadline: Instant) -> bool {
        wait_until(deadline, || !self.is_alive())
    }
}

/// Waits for a child to end; false if it has not by the deadline.
pub fn wait_for(child: &mut Child, deadline: Instant) -> bool {
    wait_until(deadline, || !matches!(child.try_wait(), Ok(None)))
}

/// The log of a process of ours, which tells of donors and programs, so that it is for its user only.
pub fn open_log(path: &Path) -> std::io::Result<std::fs::File> {
    Ok(own_files::append_private(path)?)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn this_process_is_alive_and_another_start_time_is_another_process() {
        let own = ProcessIdentity::own().unwrap();
        assert!(own.is_alive());
        assert!(!ProcessIdentity { start_ticks: own.start_ticks + 1, ..own }.is_alive());
    }

    #[test]
    fn a_process_of_another_namespace_is_dead_only_if_every_process_is_seen() {
        let own = ProcessIdentity::own().unwrap();
        let gone = ProcessIdentity { start_ticks: own.start_ticks + 1, ..own };
        assert!(own.may_be_alive() && !gone.may_be_alive());
        let elsewhere = ProcessIdentity { pid_namespace: 1, ..gone };
        assert_eq!(elsewhere.may_be_alive(), !spillway_sys::process::sees_every_process());
        let before: ProcessIdentity = serde_json::from_str("{\"pid\":1,\"start_ticks\":2}").unwrap();
        assert_eq!(before.pid_namespace, 0, "as an older version wrote it");
    }

    #[test]
    fn an_ended_child_is_gone_before_it_is_waited_for() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap();
        assert!(!identity.wait_gone(Instant::now()));
        identity.signal(Signal::KILL);
        let gone = identity.wait_gone(Instant::now() + Duration::from_secs(30));
        child.wait().unwrap();
        assert!(gone);
    }
}
