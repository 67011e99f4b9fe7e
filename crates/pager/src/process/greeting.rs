//! Programs that say hello, and evictors.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::greeting::{GreetingError, Visitor};
use spillway_stub::late_start::ProgramPlaces;
use spillway_stub::protocol::{HEAD_BYTES, Hello, HelloKind, Ready, Verdict, Welcome};
use spillway_stub::seat::Seat;
use spillway_sys::userfaultfd::{Features, RegisterMode, Userfaultfd};

use crate::address_space::AddressSpace;
use crate::evict::evictor::SeatEvictor;
use crate::limits::{GREETING_DEADLINE, GREETING_SLOW, GREETINGS_MAX, GREETINGS_OF_USER_MAX, PROGRAMS_MAX};
use crate::page_table::PageTable;
use crate::process::children::find_process;
use crate::process::evictors::evictor_start;
use crate::process::proc_files::{Process, has_ended};
use crate::process::{Survey, TrackedProcess, is_memory_gone};
use crate::threads::lock::lock;

/// What a userfaultfd must tell for its program to be paged; forks too, if there are any.
pub(super) const FEATURES: Features = Features(
    Features::WRITE_PROTECT.0
        | Features::REMAP.0
        | Features::REMOVE.0
        | Features::UNMAP.0
        | Features::THREAD.0
        | Features::MOVE.0,
);

/// A program or an evictor whose greeting is under way.
pub(super) struct Caller {
    visitor: Visitor,
    /// When it is left alone.
    deadline: Instant,
    awaited: Awaited,
}

/// What a caller is to say next.
enum Awaited {
    /// Hello; `has_device`: once more, since it got the device that makes userfaultfds.
    Hello { has_device: bool },
    /// That it has mapped the head.
    Ready { hello: Hello, memory: Box<Userfaultfd>, attempt: u32 },
    /// Nothing.
    Nothing,
}

impl Caller {
    /// Whether it is under way for so long that it may have stopped.
    fn is_slow(&self, now: Instant) -> bool {
        let begun = self.deadline.checked_sub(GREETING_DEADLINE);
        begun.is_some_and(|begun| now.saturating_duration_since(begun) > GREETING_SLOW)
    }

    /// Readable when it says something.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.visitor.as_fd()
    }
}

impl Survey {
    /// Lets in the thread that waits outside, and goes on with those that came before. None is waited for.
    pub(super) fn greet(&mut self, now: Instant) {
        // Those turned away are counted too: they could come without an end.
        for _ in 0..4 * GREETINGS_MAX {
            if self.callers.len() >= GREETINGS_MAX && !self.slowest_gives_way(now) {
                break;
            }
            match self.listener.accept() {
                Ok(Some(visitor)) if self.has_enough_of(visitor.peer().user) => {
                    self.shared.complain("a process is turned away: its user has too many that said no hello");
                }
                Ok(Some(visitor)) => {
                    let awaited = Awaited::Hello { has_device: false };
                    self.callers.push(Caller { visitor, deadline: now + GREETING_DEADLINE, awaited });
                }
                Ok(None) => break,
                Err(error) => return self.shared.fail(format!("the socket for programs failed: {error}")),
            }
        }
        for mut caller in std::mem::take(&mut self.callers) {
            match self.hear(&mut caller) {
                Ok(()) if matches!(caller.awaited, Awaited::Nothing) => {}
                Ok(()) => self.callers.push(caller),
                Err(GreetingError::TimedOut) if now < caller.deadline => self.callers.push(caller),
                // One that ended while it started took nothing that a program misses.
                Err(GreetingError::Closed) => {}
                Err(error) => self.tell_of_caller(caller.visitor.process(), &error),
            }
        }
    }

    /// Turns the caller away that is the slowest, if it is slow: processes that stop halfway keep no other from coming.
    fn slowest_gives_way(&mut self, now: Instant) -> bool {
        let slowest = self.callers.iter().enumerate().min_by_key(|(_, caller)| caller.deadline);
        let Some((index, _)) = slowest.filter(|(_, caller)| caller.is_slow(now)) else { return false };
        self.callers.swap_remove(index);
        self.shared.complain("a process is turned away: it is slow to say hello, and others wait");
        true
    }

    /// Whether `user` has as many callers as one may have which said nothing yet. Root's and this process's own user
    /// have no such bound: they can do worse.
    fn has_enough_of(&self, user: u32) -> bool {
        let is_silent = |caller: &&Caller| {
            matches!(caller.awaited, Awaited::Hello { has_device: false }) && caller.visitor.peer().user == user
        };
        let is_bounded = user != 0 && user != rustix::process::geteuid().as_raw();
        is_bounded && self.callers.iter().filter(is_silent).count() >= GREETINGS_OF_USER_MAX
    }

    /// Strangers can make this happen as often as they like, so their processes are not named.
    fn tell_of_caller(&self, process: u32, error: &GreetingError) {
        let is_known = self.tracked.iter().any(|tracked| tracked.places.process == process);
        match is_known {
            true => self.shared.fail(format!("process {process}: {error}")),
            false => self.shared.complain(&error.to_string()),
        }
    }

    /// Goes on with a caller as far as it has spoken; [`GreetingError::TimedOut`] if it has not.
    fn hear(&mut self, caller: &mut Caller) -> Result<(), GreetingError> {
        let now = Instant::now();
        match std::mem::replace(&mut caller.awaited, Awaited::Nothing) {
            Awaited::Hello { has_device } => {
                let (hello, descriptor) =
                    caller.visitor.hello(now).inspect_err(|_| caller.awaited = Awaited::Hello { has_device })?;
                caller.awaited = match hello.kind {
                    HelloKind::Program => self.meet_program(&caller.visitor, hello, descriptor, has_device)?,
                    HelloKind::Evictor => self.meet_evictor(&caller.visitor, &hello)?,
                };
                Ok(())
            }
            Awaited::Ready { hello, memory, attempt } => match caller.visitor.ready_with_descriptor(now) {
                Ok((ready, listener)) => {
                    self.hear_ready(
                        &caller.visitor,
                        &Hello { head: ready.head, ..hello },
                        ready,
                        *memory,
                        listener,
                        attempt,
                    );
                    Ok(())
                }
                Err(error) => {
                    caller.awaited = Awaited::Ready { hello, memory, attempt };
                    Err(error)
                }
            },
            Awaited::Nothing => Ok(()),
        }
    }

    fn meet_program(
        &mut self,
        visitor: &Visitor,
        hello: Hello,
        descriptor: Option<OwnedFd>,
        has_device: bool,
    ) -> Result<Awaited, GreetingError> {
        let number = visitor.process();
        if !self.proof.admits(visitor.peer(), &hello) {
            self.shared.complain("a process that is not of this run said hello to its pager, and was refused");
            visitor.welcome(&answer(Verdict::Refuse), None)?;
            return Ok(Awaited::Nothing);
        }
        if descriptor.is_none()
            && !has_device
            && let Some(device) = open_device()
        {
            visitor.welcome(&answer(Verdict::TakeDevice), Some(device.as_fd()))?;
            return Ok(Awaited::Hello { has_device: true });
        }
        let memory = match descriptor.map(|descriptor| agree(descriptor, self.run.programs_fork)) {
            Some(Ok(memory)) => memory,
            other => {
                let reason = other.and_then(Result::err).unwrap_or_else(|| io::Error::from_raw_os_error(-hello.status));
                self.shared.fail(format!("process {number} cannot be paged, so it was not started: {reason}"));
                visitor.welcome(&answer(Verdict::Refuse), None)?;
                return Ok(Awaited::Nothing);
            }
        };
        self.leave_process(number);
        if self.places_free == 0 {
            self.tell_of_fullness();
            visitor.welcome(&answer(Verdict::RunUnpaged), None)?;
            return Ok(Awaited::Nothing);
        }
        let verdict = if self.run.programs_fork { Verdict::Page } else { Verdict::PageTellingForks };
        // Where it may not be traced, it starts its evictor now.
        let attempt = if may_trace() { 0 } else { self.next_attempt() };
        let evictor = (attempt != 0).then(|| evictor_start(&self.calls, visitor.process(), attempt));
        visitor.welcome(&Welcome { verdict, evictor }, Some(self.run.head.file().as_fd()))?;
        Ok(Awaited::Ready { hello, memory: Box::new(memory), attempt })
    }

    /// A number that no attempt to start an evictor had before.
    pub(super) fn next_attempt(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    fn hear_ready(
        &mut self,
        visitor: &Visitor,
        hello: &Hello,
        ready: Ready,
        memory: Userfaultfd,
        listener: Option<OwnedFd>,
        attempt: u32,
    ) {
        let number = visitor.process();
        if ready.status != 0 {
            return self.was_not_started(number, ready.status);
        }
        // Forks come as messages only while something is registered, so a page is that is never missing. It fails for
        // a program that has ended.
        let _ = memory.register(hello.head..hello.head.saturating_add(PAGE_SIZE_BYTES as u64), RegisterMode::MISSING);
        let mut tracked = self.tracked_process(number, hello, memory);
        tracked.attempt = attempt;
        if !self.is_proved(&mut tracked) || (!self.run.programs_fork && !self.asks_before_forks(number, listener)) {
            return;
        }
        self.shared.admit(Arc::clone(&tracked.space));
        self.tracked.push(tracked);
        self.found_process(self.tracked.len() - 1, number);
    }

    /// Whether what a program said of its memory is true: it maps the head there, and the userfaultfd is of this
    /// memory. The user is told if not.
    pub(super) fn is_proved(&self, tracked: &mut TrackedProcess) -> bool {
        let number = tracked.places.process;
        let is_proved =
            self.proof.is_memory_of(&tracked.places, number) && find_process(tracked, &[number]) == Some(number);
        if !is_proved && !has_ended(number) && !is_memory_gone(tracked) {
            self.shared.fail(format!("process {number} is not paged: what it says of its memory is not true"));
        }
        is_proved
    }

    /// A program that has mapped the head.
    pub(super) fn tracked_process(&self, number: u32, hello: &Hello, memory: Userfaultfd) -> TrackedProcess {
        let space = AddressSpace::new(PageTable::new(self.shared.next_space()), Box::new(memory), None);
        let excluded = own_ranges(hello);
        let places =
            ProgramPlaces { process: number, start_evictor: hello.start_evictor, cell: hello.cell, head: hello.head };
        TrackedProcess::new(Arc::new(space), excluded, places)
    }

    /// Says once that there are more programs than places.
    pub(super) fn tell_of_fullness(&mut self) {
        if !std::mem::replace(&mut self.is_fullness_told, true) {
            self.shared.fail(format!(
                "{PROGRAMS_MAX} processes are paged, and no more can be: the memory of others stays where it is, beyond the budget; --via swap has no such \
                 bound"
            ));
        }
    }

    fn was_not_started(&self, number: u32, status: i32) {
        let reason = io::Error::from_raw_os_error(-status);
        self.shared.fail(format!("process {number} cannot be paged, so it was not started: {reason}"));
    }

    /// Takes in what tells of forks. A program whose forks no thread would hear of is killed, since its children would
    /// read zeroes.
    fn asks_before_forks(&mut self, number: u32, listener: Option<OwnedFd>) -> bool {
        let reason = match self.calls.take_in(listener) {
            Ok(true) => return true,
            Ok(false) => "another program is asked about its system calls already (a sandbox?)".to_owned(),
            Err(error) => error.to_string(),
        };
        self.shared.fail(format!("process {number} is killed, because no pager would hear of its forks: {reason}"));
        if let Some(process) = Pid::from_raw(number.cast_signed()) {
            // It may have ended by itself.
            let _ = kill_process(process, Signal::KILL);
        }
        false
    }

    /// The process of a tracked process becomes known, and gets a place: from now on it may have an evictor. There is
    /// a place.
    pub(super) fn found_process(&mut self, index: usize, number: u32) {
        self.places_free = self.places_free.checked_sub(1).expect("the caller saw a place");
        let tracked = &mut self.tracked[index];
        tracked.space.process.store(number, Ordering::Relaxed);
        tracked.has_place = true;
        tracked.places.process = number;
        tracked.place = Pid::from_raw(number.cast_signed())
            .and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok())
            .and_then(|process| self.guardian.watch(process));
        match Process::open(number) {
            Ok(mut process) => {
                // It may have become another program before it was opened; its former memory does not come back.
                if find_process(tracked, &[number]) != Some(number) {
                    process.content = None;
                }
                tracked.process = Some(process);
            }
            // It ended just now, as programs do.
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_no_process(&error) || has_ended(number) => {}
            Err(error) => self.shared.fail(format!("process {number} cannot be looked at: {error}")),
        }
    }

    /// An evictor wants the userfaultfd of its program, and a seat.
    fn meet_evictor(&mut self, visitor: &Visitor, hello: &Hello) -> Result<Awaited, GreetingError> {
        let is_its_own = |tracked: &TrackedProcess| {
            let process = tracked.process.as_ref().map(Process::number);
            process == Some(visitor.process()) && tracked.attempt != 0 && tracked.attempt == hello.attempt
        };
        let found = self.tracked.iter().position(|tracked| tracked.seat.is_none() && is_its_own(tracked));
        match found {
            Some(index) => self.give_seat(index, visitor)?,
            None => visitor.welcome(&answer(Verdict::Refuse), None)?,
        }
        Ok(Awaited::Nothing)
    }

    /// Gives the evictor of a tracked process what it needs: from now on its pages can be taken out.
    pub(super) fn give_seat(&mut self, index: usize, evictor: &Visitor) -> Result<(), GreetingError> {
        let seat = Seat::create()?;
        let tracked = &mut self.tracked[index];
        let space = &tracked.space;
        evictor.welcome(&answer(Verdict::Page), Some(space.memory.event()))?;
        evictor.welcome(&answer(Verdict::Page), Some(seat.file().as_fd()))?;
        let pool = Arc::clone(&self.run.pool);
        let held = tracked.process.as_ref().and_then(Process::held);
        let (is_gone, thread) = (Arc::clone(&space.is_gone), Arc::clone(&space.evictor_thread));
        let by_seat = SeatEvictor::new(seat.clone(), pool, held, is_gone, thread);
        *lock(&space.evictor) = Some(Box::new(by_seat));
        *lock(&space.seat) = Some(seat.clone());
        tracked.seat = Some(seat);
        Ok(())
    }
}

/// What is ours in a program from its start (rule 7): the library, which has the evictor's stack in it, and the head.
pub(super) fn own_ranges(hello: &Hello) -> Vec<Range<u64>> {
    vec![hello.library_start..hello.library_end, hello.head..hello.head.saturating_add(HEAD_BYTES as u64)]
}

/// `ESRCH`, which files below `/proc/PID` give once their process has ended.
fn is_no_process(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// To one that starts no evictor now.
fn answer(verdict: Verdict) -> Welcome {
    Welcome { verdict, evictor: None }
}

/// The device that makes userfaultfds, for a program that may not open it: one of another user, or in a user
/// namespace. A thread that has it open may use it.
fn open_device() -> Option<File> {
    File::options().read(true).write(true).open("/dev/userfaultfd").ok()
}

fn agree(descriptor: OwnedFd, programs_fork: bool) -> io::Result<Userfaultfd> {
    let memory = Userfaultfd::from_descriptor(descriptor)?;
    memory.agree(if programs_fork { FEATURES | Features::FORK } else { FEATURES })?;
    Ok(memory)
}

/// Whether programs may be traced, so that their evictors can start late (`kernel.yama.ptrace_scope`; 2 and more are
/// for administrators, and 1 lets the parent do it).
pub(super) fn may_trace() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    scope.trim().parse::<u32>().unwrap_or(0) < 2
}
