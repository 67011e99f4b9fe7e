//! Forks that the kernel tells this user nothing of: programs wait before each ("Forks without messages" in docs/pager.md).
//!
//! A fork is allowed when every page of its program is there ([`Gathering`]), and pages may leave again when it is over. The child
//! has all of them; its memory is registered nowhere, so it is not paged until it executes another program.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_sys::fork_notices::{AllowedFork, ForkNotice, ForkNotices, NoticeError, Probe};
use spillway_sys::machine_memory::MachineMemory;
use spillway_sys::memory_group;
use spillway_sys::process::share_memory;

use super::Survey;
use crate::pager::gathering::{Gathered, Gathering};
use crate::pager::shared::Tenant;

/// Forks of all programs.
pub(super) struct Forking {
    /// By what programs find out who is asked.
    probe: Probe,
    /// One for the first program of the run, and one for each that began outside of it, below a program without a stub.
    listeners: Vec<Arc<ForkNotices>>,
    waiting: Vec<Waiting>,
    under_way: Vec<UnderWay>,
}

/// A fork that is prepared.
struct Waiting {
    listener: Arc<ForkNotices>,
    notice: ForkNotice,
    gathering: Gathering,
}

/// A fork that was allowed.
struct UnderWay {
    thread: u32,
    fork: AllowedFork,
    /// Holds the program's pages.
    _gathering: Gathering,
}

impl Forking {
    pub(super) fn new(probe: Probe) -> Self {
        Self { probe, listeners: Vec::new(), waiting: Vec::new(), under_way: Vec::new() }
    }

    /// Takes in what a program brought, if it did. False: its forks ask nobody that is known here, so it must not go on. One that brings
    /// nothing asks, before it goes on, whether it is this pager that is asked about its forks, and ends if not.
    pub(super) fn take_in(&mut self, brought: Option<OwnedFd>) -> std::io::Result<bool> {
        if let Some(descriptor) = brought {
            self.listeners.push(Arc::new(ForkNotices::from_descriptor(descriptor, self.probe)?));
        }
        Ok(!self.listeners.is_empty())
    }

    /// Where forks are told.
    pub(super) fn listeners(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|listener| listener.as_fd())
    }

    /// Whether a fork is prepared or under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.under_way.is_empty()
    }
}

impl Survey {
    pub(super) fn follow_forks(&mut self, now: Instant) {
        for listener in self.forking.listeners.clone() {
            while self.hear_fork(&listener, now) {}
        }
        for waiting in std::mem::take(&mut self.forking.waiting) {
            self.answer_fork(waiting, now);
        }
        self.forking.under_way.retain(|one| !one.fork.is_over());
        self.shared.counters.fork_listeners.set(self.forking.listeners.len() as u64);
    }

    /// Hears of one fork; false if there is none.
    fn hear_fork(&mut self, listener: &Arc<ForkNotices>, now: Instant) -> bool {
        let ready = ready(listener);
        let heard = match ready {
            _ if ready.contains(PollFlags::IN) => listener.next(),
            // Whoever could ask has ended.
            _ if ready.is_empty() => return false,
            _ => {
                self.forking.listeners.retain(|other| !Arc::ptr_eq(other, listener));
                return false;
            }
        };
        match heard {
            Ok(Some(notice)) => self.begin_fork(listener, notice, now),
            Ok(None) => {}
            Err(error @ NoticeError::Refused(_)) => {
                self.shared.counters.forks_refused.add(1);
                self.shared.fail(error.to_string());
            }
            Err(error @ NoticeError::Lost(_)) => {
                // Forks fail from now on, since nobody listens.
                self.shared.fail(error.to_string());
                self.forking.listeners.retain(|other| !Arc::ptr_eq(other, listener));
                return false;
            }
        }
        true
    }

    fn begin_fork(&mut self, listener: &Arc<ForkNotices>, notice: ForkNotice, now: Instant) {
        let gathering = Gathering::begin(&self.shared, self.who_forks(notice.process), now);
        // A thread forks once at a time.
        self.forking.under_way.retain(|one| one.thread != notice.thread);
        self.forking.waiting.push(Waiting { listener: Arc::clone(listener), notice, gathering });
        self.shared.counters.forks.add(1);
    }

    /// Whose memory is copied when `process` forks: its own, or that of a process which it shares memory with, and of all that
    /// cannot be told apart from these. Nobody's for a process that is not paged.
    fn who_forks(&self, process: u32) -> Vec<Arc<Tenant>> {
        let concerned = self.residents.iter().filter(|resident| {
            let other = resident.tenant.process.load(Ordering::Relaxed);
            other == process || !matches!(share_memory(other, process), Ok(false))
        });
        concerned.map(|resident| Arc::clone(&resident.tenant)).collect()
    }

    fn answer_fork(&mut self, mut waiting: Waiting, now: Instant) {
        match waiting.gathering.look(now, &room_bytes) {
            Gathered::NotYet => self.forking.waiting.push(waiting),
            Gathered::All => self.allow_fork(waiting),
            Gathered::Never(reason) => self.refuse_fork(&waiting.listener, waiting.notice, &reason),
        }
    }

    fn allow_fork(&mut self, waiting: Waiting) {
        let Waiting { listener, notice, gathering } = waiting;
        let (process, thread) = (notice.process, notice.thread);
        gathering.share();
        match listener.allow(notice) {
            Ok(fork) => self.forking.under_way.push(UnderWay { thread, fork, _gathering: gathering }),
            Err(error) => {
                // Nobody knows whether it forks: rather no program than one with wrong bytes.
                self.shared
                    .fail(format!("process {process} cannot be told that it may fork, so it is killed: {error}"));
                self.who_forks(process).iter().for_each(|tenant| tenant.kill());
            }
        }
    }

    fn refuse_fork(&self, listener: &ForkNotices, notice: ForkNotice, reason: &str) {
        let process = notice.process;
        self.shared.counters.forks_refused.add(1);
        self.shared.fail(format!("process {process}: a fork is refused (ENOMEM), because {reason}"));
        if let Err(error) = listener.refuse(notice) {
            self.shared.fail(format!("process {process} cannot be told that it may not fork: {error}"));
        }
    }
}

/// What the machine and its memory cgroups leave `process`: what is brought back is charged to these.
fn room_bytes(process: u32) -> u64 {
    let machine_bytes = MachineMemory::read().map_or(0, |memory| memory.available_bytes);
    machine_bytes.min(memory_group::available_bytes_for(process).unwrap_or(u64::MAX))
}

/// What is to be heard now.
fn ready(listener: &ForkNotices) -> PollFlags {
    let mut wanted = [PollFd::new(listener, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut wanted, Some(&now)) {
        Ok(_) => wanted[0].revents(),
        // The next look finds it.
        Err(_) => PollFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_asks_nobody_does_not_go_on() {
        let mut forking = Forking::new(Probe { flags: 0, stack: 0, answer: 0 });
        assert!(!forking.take_in(None).unwrap());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(forking.take_in(Some(null.into())).is_err());
        assert!(!forking.is_busy() && forking.listeners().count() == 0);
    }
}
