//! Who is alive.
//!
//! A process id alone may have been given to somebody else since it was written down; together with the time the process
//! started (in clock ticks since boot) it names one process for good. Everything that kills or cleans compares both.

use std::fs;
use std::io;
use std::time::Instant;

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::limits;

/// One process, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    /// Its process id.
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

impl ProcessIdentity {
    /// This process.
    pub(crate) fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// The process that has this id now.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (start_ticks, _) =
            parse_stat(&stat).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat cannot be understood")))?;
        Ok(Self { pid, start_ticks })
    }

    /// Whether it still runs; a process that ended and was not waited for does not.
    pub(crate) fn is_alive(&self) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return false };
        parse_stat(&stat).is_some_and(|(start_ticks, state)| {
            start_ticks == self.start_ticks && !matches!(state, 'Z' | 'X' | 'x')
        })
    }

    /// Sends a signal if it is still the same process.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let (true, Some(pid)) = (self.is_alive(), pid) {
            // It may have ended meanwhile, which is as good.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Waits until it has ended; false if it has not by the deadline.
    pub(crate) fn wait_gone(&self, deadline: Instant) -> bool {
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(limits::POLL_INTERVAL);
        }
        true
    }
}

/// Start time and state from a `stat` line; the name in it may hold anything, even parentheses and line ends.
fn parse_stat(stat: &str) -> Option<(u64, char)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3 of proc(5) and the start time is field 22.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((start_ticks, state))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let stat = "12 (a) Z (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20 21";
        assert_eq!(parse_stat(stat), Some((777, 'S')));
        assert_eq!(parse_stat("12 (a S 1 2"), None);
        assert_eq!(parse_stat("12 (a) S 1 2"), None);
    }

    #[test]
    fn this_process_is_alive_and_another_start_time_is_another_process() {
        let own = ProcessIdentity::own().unwrap();
        assert!(own.is_alive());
        assert!(!ProcessIdentity { start_ticks: own.start_ticks + 1, ..own }.is_alive());
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
