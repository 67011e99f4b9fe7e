//! Whether a thread runs, is stopped and why, or has ended.

use std::io;

use super::{request, waiting};
use crate::process_stat::ProcessStat;
use crate::whereabouts::Whereabouts;

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

/// Whether the end of a traced thread was taken notice of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaped {
    Yes,
    /// It has not ended, or it is its process's first and others of it have not: its end is told after theirs, and to
    /// its parent only when its tracer took notice.
    NotYet,
    /// No thread of that number is traced here: it is gone already, or has another number.
    NoProcess,
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

    /// Whether it runs or sleeps such that a request to stop wakes it. One that the kernel keeps (for a disk, a stop
    /// of its process, a dump of its memory) would be waited for without end.
    pub(super) fn can_be_stopped(self) -> io::Result<bool> {
        Ok(matches!(ProcessStat::of_thread(self.process, self.thread)?.state(), Some('R' | 'S')))
    }

    /// Whether it may be held: it runs or wants to, waits for a page that user code touched, or waits in a change of
    /// its mappings. The wait of any other call could end by that, and one that no signal ends would keep it from
    /// stopping (for a disk, or for a child that has its memory: vfork(2)).
    pub(super) fn may_be_held(self) -> bool {
        let whereabouts = || Whereabouts::of_thread(self.process, self.thread);
        match ProcessStat::of_thread(self.process, self.thread).ok().and_then(|stat| stat.state()) {
            Some('R') => true,
            Some('D' | 'S') => whereabouts().is_ok_and(waiting::is_outside_or_changes_mappings),
            _ => false,
        }
    }

    /// Whether it has ended, waited for or not.
    pub(super) fn is_dead(self) -> bool {
        match ProcessStat::of_thread(self.process, self.thread) {
            Ok(stat) => stat.is_dead(),
            // Any other error is ours: no descriptor is left, say.
            Err(error) => error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
        }
    }

    /// A traced thread that ended stays until its tracer has taken notice; a child's end, though, belongs to the
    /// thread that waits for children here.
    pub(super) fn reap(self) -> Reaped {
        if self.thread == self.process && self.is_child() {
            return Reaped::Yes;
        }
        // SAFETY: all zeroes are a valid `siginfo_t`.
        let mut end: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
        // SAFETY: it writes one structure of ours; the thread is one that this process traced.
        let result = unsafe { libc::waitid(libc::P_PID, self.thread, &raw mut end, options) };
        // SAFETY: of an end, or all zeroes.
        match (result, unsafe { end.si_pid() }) {
            (0, 0) => Reaped::NotYet,
            (0, _) => Reaped::Yes,
            _ => Reaped::NoProcess,
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
