//! System calls that wait for the pager: of what they do the kernel does not tell, or it refuses them because memory
//! is registered ([`Called`]; "Calls that wait" in docs/pager.md).
//!
//! - A fork, where the kernel does not tell this user of forks, is allowed when every page of its program is there
//!   ([`ForkPageIn`]), and pages may leave again when it is over. The child has all of them; its memory is registered
//!   nowhere, so it is not paged until it executes another program.
//! - Guard pages: what the program has in the range (in all from the first to the last of several) comes back and
//!   stays there, and nothing is brought there; when the call is over, the kernel says where guards are
//!   ([`PageTable::guard`](crate::page_table::PageTable::guard)).
//! - Memory that the program registers with a userfaultfd of its own comes back and is left alone from then on.
//! - What says which pages are there (`mincore`, `PAGEMAP_SCAN`): those of the range come back, are unprotected, and
//!   stay until the call is over.
//! - The word of a lock that the kernel takes or hands over (`futex`): its page comes back, is unprotected, and stays
//!   until the call is over.
//! - A program that another begins to trace is whole before that (`whole`), as long as it is traced.
//! - A move of several mappings: they come back, and are left alone until it is over.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::call_notices::{AllowedCall, CallNotice, CallNotices, Called, NoticeError, Probe};
use spillway_sys::pagemap::{Categories, Query, Region};
use spillway_sys::proc_text::{fields, words};
use spillway_sys::process::{every_process, share_memory};
use spillway_sys::process_memory::read_exact;
use spillway_sys::tracee::give_back_rest;
use spillway_sys::userfaultfd::PageError;

use crate::address_space::AddressSpace;
use crate::fork::page_in::{ALL, ForkPageIn, PageInProgress};
use crate::limits::{ARGUMENTS_PATIENCE, CALL_PATIENCE, MOVE_PATIENCE};
use crate::mappings::maps;
use crate::page_table::Answer;
use crate::page_table::page_indexes::{Coming, SpaceId};
use crate::page_table::ranges::Ranges;
use crate::page_table::virtual_page::VirtualPage;
use crate::process::Survey;
use crate::process::proc_files::{self, Process, room_bytes};
use crate::process::traced::{may_trace, unprotect};
use crate::threads::lock::lock;

const PAGE: u64 = PAGE_SIZE_BYTES as u64;

/// `UIO_MAXIOV`: the kernel refuses more.
const VECTOR_MAX: u64 = 1024;

/// Calls of all programs.
pub(super) struct Calls {
    /// The call by which programs find out which pager is asked.
    probe: Probe,
    /// Filters of system calls that this process has, and so every program of the run.
    inherited_filters: u32,
    /// One for the run, and one for each program that began outside of it, below a program without a stub.
    listeners: Vec<Arc<Listening>>,
    early: Vec<Early>,
    waiting: Vec<Waiting>,
    under_way: Vec<UnderWay>,
}

/// Where calls are told.
struct Listening {
    notices: CallNotices,
    /// Forks are.
    has_forks: bool,
}

/// A call that is prepared.
struct Waiting {
    listener: Arc<Listening>,
    notice: CallNotice,
    /// What it is about.
    range: Range<u64>,
    /// Shared objects that must be whole before.
    objects: Vec<SpaceId>,
    page_in: ForkPageIn,
}

/// A call that cannot be judged yet.
struct Early {
    listener: Arc<Listening>,
    notice: CallNotice,
    since: Instant,
    why: TooEarly,
}

/// Why a call cannot be judged yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TooEarly {
    /// The memory of a process that it is about is not known.
    Memory,
    /// Its arguments lie in memory that could not be read.
    Arguments,
}

/// A call that was allowed.
struct UnderWay {
    thread: u32,
    since: Instant,
    call: AllowedCall,
    effect: Effect,
}

/// What is to be done when a call is over.
enum Effect {
    /// The program's pages may leave again.
    Fork {
        /// Holds them.
        _gathering: ForkPageIn,
    },
    /// The kernel says where in this range guards are.
    Guards(Vec<Arc<AddressSpace>>, Range<u64>),
    /// Pages may leave again.
    Residency {
        /// Holds them.
        _gathering: ForkPageIn,
    },
    /// This page of these may leave again.
    Word(Vec<SpaceId>, VirtualPage),
    /// It is seen then whether these are traced.
    Trace(Vec<SpaceId>),
    /// What is there then may be paged.
    Move(Vec<SpaceId>, Range<u64>),
    /// Shared objects may be taken in.
    Shared,
}

impl Calls {
    pub(super) fn new(probe: Probe) -> Self {
        let inherited_filters = proc_files::filters_of(std::process::id()).unwrap_or(0);
        Self {
            probe,
            inherited_filters,
            listeners: Vec::new(),
            early: Vec::new(),
            waiting: Vec::new(),
            under_way: Vec::new(),
        }
    }

    /// Takes in what a program brought, if it did. False: its forks ask no pager that is known here, so it must not go
    /// on. One that brings nothing asks, before it goes on, whether it is this pager that is asked about its forks,
    /// and ends if not.
    pub(super) fn take_in(&mut self, brought: Option<OwnedFd>) -> std::io::Result<bool> {
        if let Some(descriptor) = brought {
            self.listen(descriptor, true)?;
        }
        Ok(self.hears_forks())
    }

    fn listen(&mut self, descriptor: OwnedFd, has_forks: bool) -> std::io::Result<()> {
        let notices = CallNotices::from_descriptor(descriptor, self.probe)?;
        self.listeners.push(Arc::new(Listening { notices, has_forks }));
        Ok(())
    }

    /// Whether a call that could change how an object is mapped would be heard of, and none is under way.
    pub(super) fn may_take_objects_in(&self) -> bool {
        let is_fork = |one: &UnderWay| matches!(one.effect, Effect::Fork { .. });
        !self.listeners.is_empty()
            && self.early.is_empty()
            && self.waiting.is_empty()
            && self.under_way.iter().all(is_fork)
    }

    /// Whether a call by which this program begins to be traced may be under way.
    pub(super) fn is_tracing(&self, space: SpaceId) -> bool {
        self.under_way.iter().any(|one| matches!(&one.effect, Effect::Trace(spaces) if spaces.contains(&space)))
    }

    /// Whether a thread of a program has a filter of system calls that is not the run's: a stricter one may kill what
    /// makes a call that the program does not make by itself. `None` for one that has ended, which makes none.
    pub(super) fn is_filtered(&self, thread: u32) -> Option<bool> {
        let filters = self.inherited_filters + u32::from(!self.listeners.is_empty());
        proc_files::filters_of(thread).map(|its| its > filters)
    }

    /// Pages of `space` that the kernel may write to in a call that is under way.
    pub(super) fn words(&self, space: SpaceId) -> impl Iterator<Item = VirtualPage> {
        self.under_way.iter().filter_map(move |one| match &one.effect {
            Effect::Word(spaces, page) => spaces.contains(&space).then_some(*page),
            _ => None,
        })
    }

    fn hears_forks(&self) -> bool {
        self.listeners.iter().any(|listener| listener.has_forks)
    }

    /// Where calls are told.
    pub(super) fn listeners(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|listener| listener.notices.as_fd())
    }

    /// Whether a call is prepared, or under way and soon to be over.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        let is_soon_over = |one: &UnderWay| {
            let is_short = !matches!(one.effect, Effect::Shared | Effect::Word(..));
            matches!(one.effect, Effect::Fork { .. })
                || is_short && now.saturating_duration_since(one.since) < CALL_PATIENCE
        };
        // What a program keeps from being read is not asked for all the time.
        let is_awaited = |early: &Early| early.why == TooEarly::Memory;
        self.early.iter().any(is_awaited) || !self.waiting.is_empty() || self.under_way.iter().any(is_soon_over)
    }
}

impl Survey {
    /// Listens to the calls that the run's first program and all below it make.
    pub(super) fn take_call_notices(&mut self) {
        let brought = std::mem::take(&mut *crate::process::lock(&self.shared.call_notices));
        for (descriptor, has_forks) in brought {
            if let Err(error) = self.calls.listen(descriptor, has_forks) {
                self.shared.fail(format!("system calls of programs are not heard of: {error}"));
            }
        }
    }

    pub(super) fn follow_calls(&mut self, now: Instant) {
        for listener in self.calls.listeners.clone() {
            while self.hear_call(&listener, now) {}
        }
        for Early { listener, notice, since, .. } in std::mem::take(&mut self.calls.early) {
            self.begin_call(&listener, notice, since, now);
        }
        for waiting in std::mem::take(&mut self.calls.waiting) {
            self.answer_call(waiting, now);
        }
        let is_over = |one: &mut UnderWay| {
            let is_late = matches!(one.effect, Effect::Move(..)) && now.duration_since(one.since) > MOVE_PATIENCE;
            is_late || one.call.is_over()
        };
        let over: Vec<UnderWay> = self.calls.under_way.extract_if(.., is_over).collect();
        over.into_iter().for_each(|one| self.end_call(one.effect));
        self.shared.counters.fork_listeners.set(u64::from(self.calls.hears_forks()));
    }

    /// Hears of one call; false if there is none.
    fn hear_call(&mut self, listener: &Arc<Listening>, now: Instant) -> bool {
        let ready = ready(&listener.notices);
        let heard = match ready {
            _ if ready.contains(PollFlags::IN) => listener.notices.next(),
            // A thread that could ask has ended.
            _ if ready.is_empty() => return false,
            _ => {
                self.calls.listeners.retain(|other| !Arc::ptr_eq(other, listener));
                return false;
            }
        };
        match heard {
            Ok(Some(notice)) => self.begin_call(listener, notice, now, now),
            Ok(None) => {}
            Err(error @ NoticeError::Refused(..)) => {
                self.shared.counters.forks_refused.add(1);
                self.shared.fail(error.to_string());
            }
            Err(error @ NoticeError::Lost(_)) => {
                // Calls fail from now on, since no thread listens.
                self.shared.fail(error.to_string());
                self.calls.listeners.retain(|other| !Arc::ptr_eq(other, listener));
                return false;
            }
        }
        true
    }

    /// Of a call that was heard of at `since`.
    fn begin_call(&mut self, listener: &Arc<Listening>, notice: CallNotice, since: Instant, now: Instant) {
        let early = |notice, why| Early { listener: Arc::clone(listener), notice, since, why };
        let processes = processes_of(&notice);
        if !processes.iter().all(|process| self.knows_memory_of(*process)) {
            return self.calls.early.push(early(notice, TooEarly::Memory));
        }
        // A thread makes one call at a time.
        let earlier: Vec<UnderWay> = self.calls.under_way.extract_if(.., |one| one.thread == notice.thread).collect();
        earlier.into_iter().for_each(|one| self.end_call(one.effect));
        let range = match range_of(&notice) {
            // It waits for its own memory, as it would in the kernel.
            Err(_) if now.saturating_duration_since(since) < ARGUMENTS_PATIENCE => {
                return self.calls.early.push(early(notice, TooEarly::Arguments));
            }
            Err(_) => return self.refuse_notice(listener, notice, "its arguments cannot be read"),
            Ok(range) => range,
        };
        self.shared.counters.forks.add(u64::from(notice.called == Called::Fork));
        // What the kernel refuses anyhow, or does as ever, changes nothing here.
        let (range, mut concerned) = match range {
            Some(range) => (range, self.memory_of(&processes)),
            None => (0..0, Vec::new()),
        };
        let objects = self.objects_before(&notice, &range, &concerned, now);
        if matches!(notice.called, Called::Shared { .. }) {
            concerned.clear();
        }
        let page_in = ForkPageIn::begin(&self.shared, concerned, &range, now);
        let waiting = Waiting { listener: Arc::clone(listener), notice, range, objects, page_in };
        // Most have nothing away, and their program waits.
        self.answer_call(waiting, now);
    }

    /// Shared objects that must be whole before a call, and stay so; they are told to.
    fn objects_before(
        &mut self,
        notice: &CallNotice,
        range: &Range<u64>,
        callers: &[Arc<AddressSpace>],
        now: Instant,
    ) -> Vec<SpaceId> {
        let reason = format!("process {} calls {}", notice.process, notice.called.name());
        let objects = match &notice.called {
            Called::Fork => return Vec::new(),
            Called::Shared { range: None, .. } => {
                self.end_objects(&reason, now);
                self.all_objects()
            }
            _ => {
                let callers: Vec<SpaceId> = callers.iter().map(|space| space.id).collect();
                self.shared.objects.within(&callers, range)
            }
        };
        self.make_local(&objects, &reason, now);
        objects.iter().map(|object| object.id).collect()
    }

    /// Whose memory is meant when `process` makes a call: its own, or that of a process which it shares memory with,
    /// and of all that cannot be told apart from these. None for a process that is not paged.
    fn memory_of_caller(&self, process: u32) -> Vec<Arc<AddressSpace>> {
        let concerned = self.tracked.iter().filter(|tracked| {
            let other = tracked.space.process.load(Ordering::Relaxed);
            other == process || !matches!(share_memory(other, process), Ok(false))
        });
        concerned.map(|tracked| Arc::clone(&tracked.space)).collect()
    }

    /// The memory of all of `processes`.
    fn memory_of(&self, processes: &[u32]) -> Vec<Arc<AddressSpace>> {
        let mut found: Vec<Arc<AddressSpace>> = Vec::new();
        for space in processes.iter().flat_map(|process| self.memory_of_caller(*process)) {
            if found.iter().all(|known| known.id != space.id) {
                found.push(space);
            }
        }
        found
    }

    /// Whether all memory is known that a process may have: of one that was forked just now, its parent has told.
    fn knows_memory_of(&mut self, process: u32) -> bool {
        if self.tracked.iter().any(|tracked| tracked.space.process.load(Ordering::Relaxed) == process) {
            return true;
        }
        let spaces = self.shared.spaces();
        let programs = spaces.iter().filter(|space| !space.is_object);
        let is_told = programs.fold(true, |is_told, space| {
            let mut state = space.lock();
            self.shared.apply_events(space, &mut state) && is_told
        });
        self.take_strangers_in();
        is_told
    }

    fn answer_call(&mut self, mut waiting: Waiting, now: Instant) {
        match self.objects_progress(&waiting.objects, now) {
            PageInProgress::All => {}
            PageInProgress::NotYet => return self.calls.waiting.push(waiting),
            PageInProgress::Never(reason) => return self.refuse_call(waiting, &reason),
        }
        match waiting.page_in.look(now, &room_bytes) {
            PageInProgress::NotYet => self.calls.waiting.push(waiting),
            PageInProgress::All if !self.prepare_call(&waiting, now) => self.calls.waiting.push(waiting),
            PageInProgress::All => self.allow_call(waiting, now),
            PageInProgress::Never(reason) => self.refuse_call(waiting, &reason),
        }
    }

    /// Does what must be done before the call; false if it cannot be done now.
    fn prepare_call(&mut self, waiting: &Waiting, now: Instant) -> bool {
        let range = &waiting.range;
        match waiting.notice.called {
            Called::Fork => {
                waiting.page_in.share();
                true
            }
            Called::Guard(_) | Called::Guards { .. } => waiting
                .page_in
                .spaces()
                .all(|space| space.lock().page_table.guard(range, &mut self.shared.page_indexes())),
            Called::Residency(_) | Called::PageScan { .. } => {
                waiting.page_in.spaces().all(|space| unprotect(&self.shared, space, range, None))
            }
            Called::Futex(_) => waiting.page_in.spaces().all(|space| self.prepare_word(space, range)),
            // A thread has one tracer.
            Called::Trace(_) => {
                !give_back_rest() && waiting.page_in.spaces().all(|space| self.become_whole(space, now))
            }
            Called::Shared { .. } => true,
            Called::RegisterUserfaultfd { .. } | Called::Move(_) => {
                waiting.page_in.spaces().all(|space| self.leave_alone(space, range))
            }
        }
    }

    /// Makes a page writable, which may be one that was never touched; false if that cannot be done now.
    fn prepare_word(&self, space: &AddressSpace, range: &Range<u64>) -> bool {
        let page = VirtualPage::at(range.start);
        let mut state = space.lock();
        if !self.shared.apply_events(space, &mut state) {
            return false;
        }
        let answer = state.page_table.answer(page, false, &self.shared.page_indexes().volume_pages);
        if answer == Answer::Zero {
            match space.memory.zero(page.range()) {
                Ok(_) => {
                    state.page_table.filled(page, false, Coming::New, &mut self.shared.page_indexes());
                    self.shared.budget.count(1);
                }
                Err(PageError::TryAgain) => return false,
                // It is there, or is not registered.
                Err(_) => {}
            }
        }
        drop(state);
        unprotect(&self.shared, space, range, None)
    }

    /// Registers nothing in `range` from now on, and nothing is registered there any more; false while a page is away.
    pub(super) fn leave_alone(&mut self, space: &AddressSpace, range: &Range<u64>) -> bool {
        let mut state = space.lock();
        // As for guards: nothing of it is away, and nothing leaves.
        if !state.page_table.guard(range, &mut self.shared.page_indexes()) {
            return false;
        }
        let tracked = self.tracked.iter_mut().find(|tracked| tracked.space.id == space.id);
        // Also what was registered with its neighbours, and is not known to be: only ours, or left to the
        // program already.
        let mut mapped = Ranges::default();
        let text = tracked.as_ref().and_then(|tracked| tracked.process.as_ref()?.maps().ok()).unwrap_or_default();
        for one in maps::parse(&text).iter().filter(|one| one.is_anonymous) {
            mapped.insert(one.range.clone());
        }
        // And what is ours.
        let excluded =
            tracked.iter().flat_map(|tracked| tracked.left_alone.iter().chain(tracked.excluded.iter().cloned()));
        for part in excluded.chain(space.evictors_ranges()) {
            mapped.remove(&part);
        }
        for part in mapped.within(range) {
            if let Err(error) = space.memory.unregister(part.clone()) {
                let process = space.process.load(Ordering::Relaxed);
                // The kernel has "no memory" of a program that has ended, and that makes no call.
                if proc_files::has_ended(process) {
                    return true;
                }
                self.shared.fail(format!(
                    "process {process}: memory at {:#x} cannot be left to the program: {error}; a call of it will fail",
                    part.start
                ));
            }
        }
        state.page_table.unmap(range, &mut self.shared.page_indexes());
        drop(state);
        tracked.into_iter().for_each(|tracked| tracked.left_alone.insert(range.clone()));
        true
    }

    fn allow_call(&mut self, waiting: Waiting, now: Instant) {
        let Waiting { listener, notice, range, page_in, .. } = waiting;
        let CallNotice { process, thread, .. } = notice;
        let called = notice.called.clone();
        let spaces: Vec<Arc<AddressSpace>> = page_in.spaces().map(Arc::clone).collect();
        if matches!(called, Called::RegisterUserfaultfd { .. }) && !spaces.is_empty() {
            self.tell_of_own_userfaultfd(process, &range);
        }
        let call = match listener.notices.allow(notice) {
            Ok(call) => call,
            Err(error) if called == Called::Fork => {
                // It is unknown whether it forks: rather no program than one with wrong bytes.
                self.shared
                    .fail(format!("process {process} cannot be told that it may fork, so it is killed: {error}"));
                spaces.iter().for_each(|space| space.kill());
                return;
            }
            Err(error) => {
                let name = called.name();
                self.shared.fail(format!("process {process} cannot be told that it may go on with {name}: {error}"));
                return;
            }
        };
        let effect = match called {
            Called::Fork => Effect::Fork { _gathering: page_in },
            Called::Guard(_) | Called::Guards { .. } if !spaces.is_empty() => Effect::Guards(spaces, range),
            Called::Residency(_) | Called::PageScan { .. } if !spaces.is_empty() => {
                Effect::Residency { _gathering: page_in }
            }
            Called::Futex(_) if !spaces.is_empty() => {
                let page = VirtualPage::at(range.start);
                for space in &spaces {
                    let mut kept = lock(&space.kept_pages);
                    if let Err(place) = kept.binary_search(&page) {
                        kept.insert(place, page);
                    }
                }
                Effect::Word(spaces.iter().map(|space| space.id).collect(), page)
            }
            Called::Trace(_) if !spaces.is_empty() => Effect::Trace(spaces.iter().map(|space| space.id).collect()),
            Called::Move(_) if !spaces.is_empty() => Effect::Move(spaces.iter().map(|space| space.id).collect(), range),
            Called::Shared { range: Some(_), .. } => Effect::Shared,
            _ => return,
        };
        self.calls.under_way.push(UnderWay { thread, since: now, call, effect });
    }

    fn refuse_call(&self, waiting: Waiting, reason: &str) {
        self.refuse_notice(&waiting.listener, waiting.notice, reason);
    }

    fn refuse_notice(&self, listener: &Listening, notice: CallNotice, reason: &str) {
        let (process, name) = (notice.process, notice.called.name());
        self.shared.counters.forks_refused.add(u64::from(notice.called == Called::Fork));
        self.shared.fail(format!("process {process}: {name} is refused (ENOMEM), because {reason}"));
        if let Err(error) = listener.notices.refuse(notice) {
            self.shared.fail(format!("process {process} cannot be told that {name} is refused: {error}"));
        }
    }

    fn end_call(&mut self, effect: Effect) {
        match effect {
            Effect::Fork { .. } | Effect::Shared | Effect::Residency { .. } | Effect::Word(..) | Effect::Trace(_) => {}
            Effect::Guards(spaces, range) => {
                for space in spaces {
                    let tracked = self.tracked.iter().find(|tracked| tracked.space.id == space.id);
                    let process = tracked.and_then(|tracked| tracked.process.as_ref());
                    // Kernels before 6.15 have guards and do not say where: all of it stays as it is then.
                    if let Some(guards) = process.and_then(|process| guards(process, &range, &mut self.regions)) {
                        space.lock().page_table.guards_are(&range, &guards);
                    }
                }
            }
            Effect::Move(spaces, range) => {
                let tracked = self.tracked.iter_mut().filter(|tracked| spaces.contains(&tracked.space.id));
                tracked.for_each(|tracked| tracked.left_alone.remove(&range));
            }
        }
    }

    fn tell_of_own_userfaultfd(&mut self, process: u32, range: &Range<u64>) {
        if self.own_userfaultfds_told.insert(process) {
            self.shared.fail(format!(
                "process {process} has a userfaultfd of its own for {} KiB at {:#x}: what it registers is left alone, so it stays in local memory",
                (range.end - range.start) >> 10,
                range.start
            ));
        }
    }
}

/// The processes whose memory a call is about.
fn processes_of(notice: &CallNotice) -> Vec<u32> {
    match notice.called {
        // In another mount of `/proc` the number may be the caller's own.
        Called::PageScan { descriptor, .. } => {
            std::iter::once(notice.process).chain(scanned_process(notice.thread, descriptor)).collect()
        }
        // One that the kernel refuses changes nothing, and any program can make it.
        Called::Trace(Some(thread)) => {
            let traced = process_of(notice.process, thread);
            if may_trace(notice.thread, traced) { vec![traced] } else { Vec::new() }
        }
        _ => vec![notice.process],
    }
}

/// What a call changes; `None` if that is nothing that the pager has to do with. An error: its arguments cannot be
/// read yet.
fn range_of(notice: &CallNotice) -> io::Result<Option<Range<u64>>> {
    let range = match &notice.called {
        Called::Fork | Called::Shared { range: None, .. } => return Ok(Some(ALL)),
        Called::Guard(range) => Some(range.clone()),
        Called::Guards { vector, count } => addresses(notice.process, *vector, (*count).min(VECTOR_MAX))?
            .into_iter()
            .reduce(|all, one| all.start.min(one.start)..all.end.max(one.end)),
        Called::Residency(range) => Some(range.clone()),
        Called::Futex(address) => Some(address & !(PAGE - 1)..address | (PAGE - 1)),
        // Behind `size` and `flags` of `struct pm_scan_arg` are the two ends.
        Called::PageScan { argument, .. } => {
            argument.checked_add(16).map(|place| word_pairs(notice.process, place, 1)).transpose()?.and_then(
                |mut pairs| {
                    let (start, end) = pairs.pop()?;
                    Some(start..end)
                },
            )
        }
        Called::Trace(_) => return Ok(Some(ALL)),
        // `struct uffdio_range` is its begin.
        Called::RegisterUserfaultfd { argument } => addresses(notice.process, *argument, 1)?.pop(),
        Called::Move(range) => is_of_several(notice.process, range).then(|| range.clone()),
        Called::Shared { range: Some(range), .. } => Some(range.start & !(PAGE - 1)..range.end),
    };
    let whole = |range: Range<u64>| Some(range.start..range.end.checked_next_multiple_of(PAGE)?);
    Ok(range.and_then(whole).filter(|range| range.start.is_multiple_of(PAGE) && !range.is_empty()))
}

/// Whether several mappings lie in `range`. One is moved with its registration, and the kernel tells of that.
fn is_of_several(process: u32, range: &Range<u64>) -> bool {
    let Ok(text) = proc_files::maps_of(process) else { return false };
    let mappings = maps::parse(&text);
    mappings.iter().filter(|one| one.range.start < range.end && range.start < one.range.end).count() > 1
}

/// `count` pieces of memory, as a program has them at `place`: an address and a number of bytes each. None where the
/// kernel cannot read that either.
fn addresses(process: u32, place: u64, count: u64) -> io::Result<Vec<Range<u64>>> {
    let piece = |(start, length): (u64, u64)| Some(start..start.checked_add(length)?);
    Ok(word_pairs(process, place, count)?.into_iter().filter_map(piece).collect())
}

/// `count` pairs of words that a program has at `place`; none where the kernel cannot read that either.
fn word_pairs(process: u32, place: u64, count: u64) -> io::Result<Vec<(u64, u64)>> {
    const PAIR_BYTES: usize = 16;
    let mut bytes = vec![0; count as usize * PAIR_BYTES];
    match read_exact(process, place, &mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
        Err(_) => return Ok(Vec::new()),
        Ok(()) => {}
    }
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let pair = |pair: &[u8]| (word(&pair[..8]), word(&pair[8..]));
    Ok(bytes.chunks_exact(PAIR_BYTES).map(pair).collect())
}

/// The process whose `/proc/PID/pagemap` a descriptor of a thread is.
fn scanned_process(thread: u32, descriptor: u32) -> Option<u32> {
    let link = std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}")).ok()?;
    let process = link.to_str()?.strip_prefix("/proc/")?.split('/').next()?.parse().ok()?;
    // In a mount namespace of its own a program can give any file such a name.
    may_trace(thread, process).then_some(process)
}

/// The process of a thread that `caller` names, which may be in a PID namespace below this one; the caller's own for a
/// thread that is not found.
fn process_of(caller: u32, thread: u32) -> u32 {
    let status = |number: u32| spillway_sys::process::status_of(number).unwrap_or_default();
    let field = |text: &[u8], name: &str| -> Vec<u32> {
        words::processes(fields::value_of(text, name).unwrap_or_default()).collect()
    };
    let depth = field(&status(caller), "NSpid").len();
    let process = |number: u32| field(&status(number), "Tgid").first().copied();
    if depth <= 1 {
        return process(thread).unwrap_or(caller);
    }
    let is_named = |number: &u32| field(&status(*number), "NSpid").get(depth - 1) == Some(&thread);
    every_process().unwrap_or_default().into_iter().find(is_named).unwrap_or(caller)
}

/// Where in `range` a program has guards; `None` if the kernel does not say.
fn guards(process: &Process, range: &Range<u64>, regions: &mut [Region]) -> Option<Ranges> {
    let query = Query { all_of: Categories::GUARD, report: Categories::GUARD, ..Query::default() };
    let (mut found, mut start) = (Ranges::default(), range.start);
    while start < range.end {
        let scan = process.pagemap.scan(start..range.end, &query, regions).ok()?;
        regions[..scan.regions].iter().for_each(|region| found.insert(region.start..region.end));
        start = scan.end.max(start + PAGE);
    }
    Some(found)
}

/// What is to be heard now.
fn ready(listener: &CallNotices) -> PollFlags {
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
    fn a_program_that_asks_no_pager_does_not_go_on() {
        let mut calls = Calls::new(Probe { flags: 0, stack: 0, answer: 0 });
        assert!(!calls.take_in(None).unwrap());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(calls.take_in(Some(null.into())).is_err());
        assert!(!calls.is_busy(Instant::now()) && calls.listeners().count() == 0);
    }
}
