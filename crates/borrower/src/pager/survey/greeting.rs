//! Programs that say hello, and agents.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::arena::Arena;
use spillway_stub::greeting::{GreetingError, Visitor};
use spillway_stub::late_start::ProgramPlaces;
use spillway_stub::protocol::{Hello, HelloKind, Verdict, Welcome};
use spillway_sys::userfaultfd::{Features, RegisterMode, Userfaultfd};

use super::{Resident, Survey};
use crate::pager::agent::SeatAgent;
use crate::pager::limits::GREETING_DEADLINE;
use crate::pager::process::{Process, has_ended};
use crate::pager::shared::{Tenant, lock};
use crate::pager::space::Space;

/// What a userfaultfd must tell for its program to be paged; forks too, if there are any.
pub(super) const FEATURES: Features = Features(
    Features::WRITE_PROTECT.0
        | Features::REMAP.0
        | Features::REMOVE.0
        | Features::UNMAP.0
        | Features::THREAD.0
        | Features::MOVE.0,
);

impl Survey {
    /// Lets in whoever waits outside.
    pub(super) fn greet(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(Some(visitor)) => {
                    match self.meet(&visitor) {
                        // One that ended while it started took nothing that anybody misses.
                        Ok(()) | Err(GreetingError::Closed) => {}
                        Err(error) => self.shared.fail(format!("process {}: {error}", visitor.process())),
                    }
                }
                Ok(None) => return,
                Err(error) => return self.shared.fail(format!("the socket for programs failed: {error}")),
            }
        }
    }

    fn meet(&mut self, visitor: &Visitor) -> Result<(), GreetingError> {
        let deadline = Instant::now() + GREETING_DEADLINE;
        let (hello, descriptor) = visitor.hello(deadline)?;
        match hello.kind {
            HelloKind::Program => self.meet_program(visitor, &hello, descriptor, deadline),
            HelloKind::Agent => self.meet_agent(visitor, &hello),
        }
    }

    fn meet_program(
        &mut self,
        visitor: &Visitor,
        hello: &Hello,
        descriptor: Option<OwnedFd>,
        deadline: Instant,
    ) -> Result<(), GreetingError> {
        let number = visitor.process();
        self.leave_process(number);
        let memory = match descriptor.map(|descriptor| agree(descriptor, self.programs_fork)) {
            Some(Ok(memory)) => memory,
            other => {
                let reason = other.and_then(Result::err).unwrap_or_else(|| io::Error::from_raw_os_error(-hello.status));
                self.shared.fail(format!("process {number} cannot be paged, so it was not started: {reason}"));
                return visitor.welcome(&answer(Verdict::Refuse, 0, &self.arena), None);
            }
        };
        let Some(seat) = self.seats_free.pop() else {
            self.tell_of_fullness();
            return visitor.welcome(&answer(Verdict::RunUnpaged, 0, &self.arena), None);
        };
        self.arena.seat(seat).clear();
        let verdict = if self.programs_fork { Verdict::Page } else { Verdict::PageTellingForks };
        let welcome = answer(verdict, seat, &self.arena);
        let met = visitor.welcome(&welcome, Some(self.arena.file().as_fd()));
        let (ready, listener) = match met.and_then(|()| visitor.ready_with_descriptor(deadline)) {
            Ok((ready, listener)) if ready.status == 0 => (ready, listener),
            other => {
                self.seats_free.push(seat);
                return other.map(|(ready, _)| self.was_not_started(number, ready.status));
            }
        };
        if !self.programs_fork && !self.asks_before_forks(number, listener) {
            // Its seat is lost: it may be in it until it has ended.
            return Ok(());
        }
        // Forks come as messages only while something is registered, so a page is that is never missing. It fails for a program that has ended.
        let _ = memory.register(ready.arena..ready.arena + PAGE_SIZE_BYTES as u64, RegisterMode::MISSING);
        let resident = self.resident(number, &Hello { arena: ready.arena, ..*hello }, memory);
        self.shared.admit(Arc::clone(&resident.tenant));
        self.residents.push(resident);
        self.seat(self.residents.len() - 1, number, seat);
        Ok(())
    }

    /// A program that has mapped the arena.
    pub(super) fn resident(&self, number: u32, hello: &Hello, memory: Userfaultfd) -> Resident {
        let tenant = Tenant::new(Space::new(self.shared.next_space()), Box::new(memory), None);
        let excluded = own_ranges(hello, self.arena.length_bytes());
        let places = ProgramPlaces { process: number, start_agent: hello.start_agent, arena: hello.arena };
        Resident::new(Arc::new(tenant), excluded, places)
    }

    /// Says once that there are more programs than seats.
    pub(super) fn tell_of_fullness(&mut self) {
        if !std::mem::replace(&mut self.is_fullness_told, true) {
            let seats = self.arena.plan().seats;
            self.shared.fail(format!(
                "{seats} processes are paged, and no more can be: the memory of others stays where it is, beyond the budget; --via swap has no such \
                 bound"
            ));
        }
    }

    fn was_not_started(&self, number: u32, status: i32) {
        let reason = io::Error::from_raw_os_error(-status);
        self.shared.fail(format!("process {number} cannot be paged, so it was not started: {reason}"));
    }

    /// Takes in what tells of forks. A program whose forks nobody would hear of is killed, since its children would read zeroes.
    fn asks_before_forks(&mut self, number: u32, listener: Option<OwnedFd>) -> bool {
        let reason = match self.forking.take_in(listener) {
            Ok(true) => return true,
            Ok(false) => "another program is asked about its system calls already (a sandbox?)".to_owned(),
            Err(error) => error.to_string(),
        };
        self.shared.fail(format!("process {number} is killed, because nobody would hear of its forks: {reason}"));
        if let Some(process) = Pid::from_raw(number.cast_signed()) {
            // It may have ended by itself.
            let _ = kill_process(process, Signal::KILL);
        }
        false
    }

    /// The process and the seat of a resident become known: from now on its pages can be taken out.
    pub(super) fn seat(&mut self, index: usize, number: u32, seat: u32) {
        let resident = &mut self.residents[index];
        let tenant = &resident.tenant;
        tenant.process.store(number, Ordering::Relaxed);
        *lock(&tenant.seat) = Some(self.arena.seat(seat));
        let agent = SeatAgent::new(
            self.arena.seat(seat),
            self.arena.pool_offset(),
            Arc::clone(&tenant.is_gone),
            Arc::clone(&tenant.agent_thread),
        );
        *lock(&tenant.agent) = Some(Box::new(agent));
        resident.seat = Some(seat);
        resident.places.process = number;
        resident.place = Pid::from_raw(number.cast_signed())
            .and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok())
            .and_then(|process| self.guardian.watch(process));
        match Process::open(number) {
            Ok(process) => resident.process = Some(process),
            // It ended just now, as programs do.
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_no_process(&error) || has_ended(number) => {}
            Err(error) => self.shared.fail(format!("process {number} cannot be looked at: {error}")),
        }
    }

    /// An agent wants the userfaultfd of its program.
    fn meet_agent(&self, visitor: &Visitor, hello: &Hello) -> Result<(), GreetingError> {
        let resident = self.residents.iter().find(|resident| resident.seat == Some(hello.seat));
        let is_its_own = |resident: &&Resident| {
            resident.process.as_ref().is_some_and(|process| process.number() == visitor.process())
        };
        match resident.filter(is_its_own) {
            Some(resident) => {
                let welcome = answer(Verdict::Page, hello.seat, &self.arena);
                visitor.welcome(&welcome, Some(resident.tenant.memory.event()))
            }
            None => visitor.welcome(&answer(Verdict::Refuse, 0, &self.arena), None),
        }
    }
}

/// What is ours in a program from its start (rule 7): the library, and the arena, which has the agent's stack in it.
pub(super) fn own_ranges(hello: &Hello, arena_bytes: u64) -> Vec<Range<u64>> {
    vec![hello.library_start..hello.library_end, hello.arena..hello.arena + arena_bytes]
}

/// `ESRCH`, which files below `/proc/PID` give once their process has ended.
fn is_no_process(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn answer(verdict: Verdict, seat: u32, arena: &Arena) -> Welcome {
    Welcome { verdict, seat, arena_bytes: arena.length_bytes(), start_agent: !may_trace() }
}

fn agree(descriptor: OwnedFd, programs_fork: bool) -> io::Result<Userfaultfd> {
    let memory = Userfaultfd::from_descriptor(descriptor)?;
    memory.agree(if programs_fork { FEATURES | Features::FORK } else { FEATURES })?;
    Ok(memory)
}

/// Whether programs may be traced, so that their agents can start late (`kernel.yama.ptrace_scope`; 2 and more are for
/// administrators, and 1 lets the parent do it).
pub(super) fn may_trace() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    scope.trim().parse::<u32>().unwrap_or(0) < 2
}
