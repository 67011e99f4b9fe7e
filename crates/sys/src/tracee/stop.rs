//! Whether a thread runs, is stopped and why, or has ended.

use std::io;

use super::request;
use crate::process_stat::ProcessStat;

/// Why a traced thread is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Because it was asked to.
    Asked,
    /// With its whole process, by a signal for that.
    Group,
    /// Before it takes a signal.
    Signal(i32),
}

/// A thread of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) process: u32,
    pub(super) thread: u32,
}

impl Thread {
    /// Why it is stopped; `None` while it runs. Fails with `ESRCH` when it has ended.
    pub(super) fn look(self) -> io::Result<Option<Stop>> {
        match request::signal_information(self.thread) {
            Ok((signal, code)) => Ok(Some(classify(signal, code))),
            // Running and gone give the same answer.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) && !self.is_dead() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it runs or sleeps such that a request to stop wakes it. One that the kernel keeps (for a disk, a stop of its process, a dump
    /// of its memory) would be waited for in vain.
    pub(super) fn can_be_stopped(self) -> io::Result<bool> {
        Ok(matches!(ProcessStat::of_thread(self.process, self.thread)?.state(), Some('R' | 'S')))
    }

    /// Whether it runs, wants to, or waits as no signal ends it.
    pub(super) fn is_busy(self) -> bool {
        let stat = ProcessStat::of_thread(self.process, self.thread);
        stat.is_ok_and(|stat| matches!(stat.state(), Some('R' | 'D')))
    }

    /// Whether it has ended, waited for or not.
    pub(super) fn is_dead(self) -> bool {
        match ProcessStat::of_thread(self.process, self.thread) {
            Ok(stat) => stat.is_dead(),
            // Any other error is ours: no descriptor is left, say.
            Err(error) => error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
        }
    }

    /// A traced thread that ended stays until its tracer has taken notice; a child's end, though, belongs to whoever waits
    /// for children here.
    pub(super) fn reap(self) {
        if !(self.thread == self.process && self.is_child()) {
            let mut status = 0;
            // SAFETY: it writes one number of ours; the thread is one that this thread traced.
            unsafe { libc::waitpid(self.thread.cast_signed(), &raw mut status, libc::__WALL | libc::WNOHANG) };
        }
    }

    fn is_child(self) -> bool {
        let parent = ProcessStat::of_process(self.process).ok().and_then(|stat| stat.parent());
        parent == Some(std::process::id())
    }
}

/// An event's stop has the event above the signal in its code (ptrace(2), PTRACE_EVENT_STOP).
fn classify(signal: i32, code: i32) -> Stop {
    match (code >> 8 == libc::PTRACE_EVENT_STOP, signal) {
        (true, libc::SIGTRAP) => Stop::Asked,
        (true, _) => Stop::Group,
        (false, signal) => Stop::Signal(signal),
    }
}
