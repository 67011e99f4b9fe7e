//! Whether a signal that came to `run` went to its whole process group, so that the program has it already.
//!
//! The kernel does not say. A process of ours in the group, the witness, blocks all signals: what the group gets waits
//! there, and what `run` alone gets does not. The kernel signals the members of a group in one go, the youngest first
//! (`__kill_pgrp_info` in its kernel/signal.c), so the witness has it before `run` can ask.

use std::env;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_console::failure::Failure;
use spillway_sys::signals;

/// The hidden command of the witness.
pub(super) const COMMAND: &str = "witness-signals";

/// A witness that says nothing for so long was stopped or killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process that is asked.
pub(super) struct Witness {
    child: Child,
}

impl Witness {
    /// Starts it in this process's group.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Signals wait from its first moment on.
        signals::block_all(&mut command);
        Ok(Self { child: command.spawn()? })
    }

    /// Whether `signal` came to the group since it was asked last.
    pub(super) fn saw(&mut self, signal: i32) -> bool {
        self.ask(signal).is_ok_and(|answer| answer == 1)
    }

    fn ask(&mut self, signal: i32) -> io::Result<u8> {
        let (Some(asked), Some(answers)) = (&mut self.child.stdin, &mut self.child.stdout) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        asked.write_all(&[u8::try_from(signal).unwrap_or(0)])?;
        let timeout = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        if poll(&mut [PollFd::new(answers, PollFlags::IN)], Some(&timeout))? == 0 {
            // Its answer would be taken for that to the next question.
            self.child.stdin = None;
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut answer = [0];
        answers.read_exact(&mut answer)?;
        Ok(answer[0])
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // It may have ended, with its group.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The hidden command.
pub(crate) fn witness() -> Result<(), Failure> {
    signals::witness(io::stdin().lock(), io::stdout().lock())
        .map_err(|error| Failure::during("telling of signals", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_gone_saw_nothing() {
        let child = Command::new("true").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        assert!(!Witness { child }.saw(15));
    }
}
