//! Evictors that are started when memory gets short.

use std::io;
use std::time::Instant;

use spillway_stub::greeting::{Peer, Visitor};
use spillway_stub::late_start::{read_cell, start_evictor};
use spillway_stub::protocol::{EvictorStart, EvictorState};
use spillway_stub::seat::Seat;
use spillway_sys::taken_descriptor::take_descriptor;
use spillway_sys::tracee::TraceError;

use crate::evict::take_over::thread_of_evictor;
use crate::limits::{
    EVICTOR_FAILED_PAUSE, EVICTOR_MISSING_SHARE, EVICTOR_START_DEADLINE, EVICTOR_START_PAUSE, EVICTOR_THREADS_TRIED_MAX,
};
use crate::process::calls::Calls;
use crate::process::children::has_memory_of;
use crate::process::pausing::Hold;
use crate::process::proc_files::has_ended;
use crate::process::{Survey, TrackedProcess};
use crate::threads::lock::lock;

/// How an evictor comes to be.
enum Coming {
    /// It was not started, and may be now.
    Due,
    /// It was started, and has not come yet.
    UnderWay,
    /// It waits at a socket whose number is this.
    Waits(i32),
    /// It cannot start.
    Failed(io::Error),
    /// It is there, there will be none, or not now.
    Settled,
}

impl Survey {
    /// Tells evictors to end that are all that is left of their programs, which ended their threads by bare system
    /// calls.
    pub(super) fn end_evictors_left_alone(&self) {
        for tracked in &self.tracked {
            let (Some(process), Some(seat)) = (&tracked.process, &tracked.seat) else { continue };
            if seat.state() != EvictorState::Running {
                continue;
            }
            if let Some(status) = process.left_alone()
                && let Some(evictor) = lock(&tracked.space.evictor).as_mut()
            {
                evictor.end(status);
            }
        }
    }

    /// Starts evictors of programs that have none, now that pages are to leave (rule 12).
    pub(super) fn start_evictors(&mut self, now: Instant) {
        for index in 0..self.tracked.len() {
            let tracked = &mut self.tracked[index];
            tell_of_failure(tracked);
            let outcome = match coming(tracked, now) {
                Coming::Due => {
                    self.start_evictor_of(index, now);
                    Ok(())
                }
                Coming::Waits(number) => self.take_evictors_socket(index, number),
                Coming::Failed(error) => Err(error),
                Coming::UnderWay | Coming::Settled => Ok(()),
            };
            let tracked = &mut self.tracked[index];
            if let Err(error) = outcome {
                tracked.evictor_failure = Some(why_no_evictor(&error));
            }
            let is_much = tracked.pages > self.shared.budget.limit_pages() / EVICTOR_MISSING_SHARE;
            if let Some(why) = tracked.evictor_failure.as_ref().filter(|_| is_much) {
                let number = tracked.places.process;
                self.shared
                    .fail(format!("process {number} has no evictor, so its pages stay: {why}; --via swap needs none"));
            }
        }
    }

    fn start_evictor_of(&mut self, index: usize, now: Instant) {
        let attempt = self.next_attempt();
        let tracked = &mut self.tracked[index];
        let Some(process) = &tracked.process else { return };
        if let Some(until) = self.user_paces.rests_until(process.number(), now) {
            tracked.evictor_at = until;
            return;
        }
        tracked.evictor_at = now + EVICTOR_START_PAUSE;
        let space = tracked.space.id;
        let hold = self.holds.iter_mut().find(|hold| hold.space() == space);
        // A program that is held stays so until its pages leave.
        let mut pause = hold.map(Hold::pause);
        let held = pause.as_ref().map(|pause| pause.threads()).filter(|held| !held.is_empty());
        let threads = held.unwrap_or_else(|| process.threads().unwrap_or_default());
        // The others are tried at the next look.
        let first = tracked.threads_tried.checked_rem(threads.len()).unwrap_or(0);
        tracked.threads_tried = first + EVICTOR_THREADS_TRIED_MAX;
        let tried = threads.iter().cycle().skip(first).take(threads.len().min(EVICTOR_THREADS_TRIED_MAX));
        let places = tracked.places;
        for thread in tried.copied() {
            let mut is_ours = || has_memory_of(thread, tracked);
            let start = evictor_start(&self.calls, thread, attempt);
            let held = pause.as_deref_mut().filter(|pause| pause.threads().contains(&thread));
            let borrow =
                |begin| start_evictor(&places, (thread, held), start, &mut is_ours, begin + EVICTOR_START_DEADLINE);
            match self.user_paces.while_borrowing(process.number(), borrow) {
                // One that did not say that it is done may be done a moment later.
                Ok(()) | Err(TraceError::TimedOut) => {
                    tracked.attempt = attempt;
                    break;
                }
                Err(TraceError::Unsuitable(_) | TraceError::Gone) => {}
                Err(TraceError::Forbidden) if has_ended(thread) => {}
                Err(TraceError::NotStopped | TraceError::Another) => break,
                Err(error) => {
                    if matches!(error, TraceError::Failed) {
                        tracked.evictor_at = now + EVICTOR_FAILED_PAUSE;
                    }
                    self.shared.fail(format!("process {} gets no evictor yet: {error}", process.number()));
                    break;
                }
            }
        }
    }

    /// Goes on with an evictor that cannot connect, by its own socket.
    fn take_evictors_socket(&mut self, index: usize, number: i32) -> io::Result<()> {
        let process = self.tracked[index].places.process;
        let Some(thread) = thread_of_evictor(process) else { return Ok(()) };
        let socket = take_descriptor(thread, number)?;
        // It had this memory then, too: none comes back once the process has executed another program.
        if !has_memory_of(thread, &self.tracked[index]) {
            return Ok(());
        }
        let visitor = Visitor::from_socket(socket, Peer { process, user: 0 });
        self.give_seat(index, &visitor).map_err(io::Error::other)
    }
}

/// How `thread` starts its evictor: with a directory of its own, unless the program has a filter of system calls that
/// is not this run's.
pub(super) fn evictor_start(calls: &Calls, thread: u32, attempt: u32) -> EvictorStart {
    EvictorStart { attempt, has_own_directory: calls.is_filtered(thread) == Some(false) }
}

fn tell_of_failure(tracked: &mut TrackedProcess) {
    let failed = tracked.seat.as_ref().filter(|seat| seat.state() == EvictorState::Failed).map(Seat::failure);
    if let Some(error) = failed {
        tracked.evictor_failure = Some(why_no_evictor(&error));
    }
}

fn coming(tracked: &TrackedProcess, now: Instant) -> Coming {
    if !tracked.may_get_evictor() {
        return Coming::Settled;
    }
    if tracked.attempt == 0 {
        return if tracked.evictor_at <= now { Coming::Due } else { Coming::Settled };
    }
    match read_cell(&tracked.places) {
        Ok(cell) if cell.attempt != tracked.attempt => Coming::UnderWay,
        Ok(cell) if cell.failure != 0 => Coming::Failed(io::Error::from_raw_os_error(cell.failure.wrapping_abs())),
        Ok(cell) => cell.offered.map_or(Coming::UnderWay, Coming::Waits),
        // It ended, became another program, or may not be looked into.
        Err(_) => Coming::UnderWay,
    }
}

/// What an evictor's error means, and what to do.
fn why_no_evictor(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc_numbers::INVALID) => "it has called unshare(CLONE_NEWPID), after which Linux starts no thread in a process, or Linux is older than 6.9 and the \
             program has changed its root directory or its user; start `spillway run` after that call, or inside of that directory"
            .to_owned(),
        Some(libc_numbers::PERMITTED | libc_numbers::ACCESS) => {
            format!("a filter of system calls (seccomp) or a missing right forbids it ({error})")
        }
        Some(libc_numbers::AGAIN) => format!("a limit on threads (ulimit -u, or the group's pids.max) forbids it ({error})"),
        Some(libc_numbers::FILES) => format!("the program has no descriptor left (ulimit -n), of which it needs two ({error})"),
        _ => error.to_string(),
    }
}

/// Error numbers, as `std::io::Error` has them.
mod libc_numbers {
    use rustix::io::Errno;

    pub(super) const INVALID: i32 = Errno::INVAL.raw_os_error();
    pub(super) const PERMITTED: i32 = Errno::PERM.raw_os_error();
    pub(super) const ACCESS: i32 = Errno::ACCESS.raw_os_error();
    pub(super) const AGAIN: i32 = Errno::AGAIN.raw_os_error();
    pub(super) const FILES: i32 = Errno::MFILE.raw_os_error();
}
