//! Knows the programs: which processes say hello, how much memory each has, which of it may be paged, and which have
//! ended.
//!
//! Nothing is asked of a program until the budget is nearly reached; then its mappings are registered as a whole and
//! probed (rules 1 and 3 of docs/pager.md), and what is resident in them is told to the policy. All of /proc is read
//! here, never on the fault thread (rule 13).
//!
//! - `greeting`: programs and evictors that say hello; `proof`: that they are of the run; `newcomers`: programs that
//!   did not wait for an answer; `children`: whose processes are found; `evictors` that start late.
//! - `common`: pages that a fork shared, which count once; `calls`: system calls that wait until the pager is ready
//!   for them.
//! - `openings`: files of `/proc` by which a program's memory is read; `whole`: programs that stay local meanwhile.
//! - `objects`: shared memory whose pages may leave; `object_looks`: when it is looked for; `descriptors`: by which
//!   others reach it.
//! - `huge_pages`: blocks that are whole and may be huge pages again.
//! - `control_blocks`: pages that the kernel itself touches, which stay (rule 4); `cleared_words`: which these are of
//!   threads that no thread library made.
//! - `register`: what of a program may be paged; `pace`: how often that and whole looks are done; `growth`: how often
//!   memory is counted; `sharing` and `staying`: memory that may not, which is counted and told; `unpaged`: programs
//!   that never said hello, too; `pausing`: programs that leave no moment for it, or fill memory past all waits;
//!   `excess`: a budget that is exceeded all the same; `traced`: programs that a debugger has stopped, and what may
//!   trace them.

mod calls;
mod children;
mod cleared_words;
mod control_blocks;
mod descriptors;
mod evictors;
mod excess;
mod fork_shared_pages;
mod greeting;
mod growth;
mod huge_pages;
pub mod memory;
mod newcomers;
mod object_looks;
mod objects;
mod openings;
mod pace;
mod pausing;
pub mod proc_files;
mod proof;
mod register;
mod sharing;
mod staying;
mod traced;
mod unpaged;
mod whole;

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_fabric::buffer_pool::BufferPool;
use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_stub::greeting::{Listener, Notes};
use spillway_stub::head::Head;
use spillway_stub::late_start::ProgramPlaces;
use spillway_stub::protocol::EvictorState;
use spillway_stub::seat::Seat;
use spillway_sys::guardian::{Guardian, Place};
use spillway_sys::pagemap::Region;
use spillway_sys::tracee::give_back_rest;
use spillway_sys::userfaultfd::PageError;

use self::calls::Calls;
use self::children::Search;
use self::excess::Excess;
use self::fork_shared_pages::ForkSharedPages;
use self::greeting::Caller;
use self::growth::{Growth, interval};
use self::huge_pages::{HugePageLooks, HugePagesOf};
use self::objects::Objects;
use self::openings::{OpeningSignals, Openings};
use self::pace::{Pace, UserPaces};
use self::pausing::{Hold, Respite, Restless};
use self::proof::Proof;
use self::staying::StayingLook;
use self::traced::{Traced, unprotect};
use self::unpaged::Unpaged;
use self::whole::Whole;
use crate::address_space::{AddressSpace, Wanted};
use crate::budget::Budget;
use crate::fork::page_in::ALL;
use crate::limits::{
    ALERT_BYTES_MAX, ALERT_SHARE, GREETINGS_MAX, GUARDIANS_LOST_MAX, LOOK_INTERVAL_MAX, LOOK_INTERVAL_MIN,
    PROGRAMS_MAX, REGIONS_MAX, WHOLE_LOOK_REST_TIMES,
};
use crate::mappings::staying_kinds::SharedMemoryKinds;
use crate::page_table::ranges::Ranges;
use crate::page_table::virtual_page::VirtualPage;
use crate::pager_state::PagerState;
use crate::process::proc_files::Process;
use crate::threads::lock::lock;

/// A tracked process: an address space and its process.
struct TrackedProcess {
    space: Arc<AddressSpace>,
    /// Not known yet of a child that was just forked; none any more of one that runs another program while a child of
    /// vfork(2) has this memory.
    process: Option<Process>,
    /// It has one of the places that the run has for programs.
    has_place: bool,
    /// Which attempt to start an evictor is under way, or brought one; 0 for none.
    attempt: u32,
    /// Why it can have no evictor.
    evictor_failure: Option<String>,
    /// What its evictor shares with the pager; none before the evictor has come.
    seat: Option<Seat>,
    /// Where the guardian has it.
    place: Option<Place>,
    /// The stub's own memory (rule 7).
    excluded: Vec<Range<u64>>,
    /// What is left to the program: nothing of it is registered.
    left_alone: Ranges,
    /// All of it is local, or comes back.
    whole: Option<Whole>,
    /// By which its memory can be read.
    openings: Openings,
    /// Where the stub is; its process is the parent's as long as its own is not known.
    places: ProgramPlaces,
    /// Where it may have huge pages.
    huge_pages: HugePagesOf,
    /// Of looks for its new mappings.
    register_pace: Pace,
    /// Mappings that were prepared for pages and had none yet when it was last looked at.
    prepared: HashSet<Range<u64>>,
    /// When an evictor may be started.
    evictor_at: Instant,
    /// Where among its threads the next one is that an evictor may be started on.
    threads_tried: usize,
    /// When its threads may be asked for what the kernel clears ...
    questions_at: Instant,
    /// ... and how often they could not be: the second time is told.
    questions_failed: u8,
    /// For its process, of a child that was just forked.
    search: Search,
    /// When it may be held for a moment.
    respite: Respite,
    /// The user was told that it has much memory that is not paged.
    is_sharing_told: bool,
    /// Memory that cannot leave, as its user was told last.
    staying_told_bytes: u64,
    /// Its pages in memory, as they were last counted.
    pages: i64,
}

impl TrackedProcess {
    fn new(space: Arc<AddressSpace>, excluded: Vec<Range<u64>>, places: ProgramPlaces) -> Self {
        let evictor_at = Instant::now();
        Self {
            space,
            process: None,
            has_place: false,
            attempt: 0,
            evictor_failure: None,
            seat: None,
            place: None,
            excluded,
            left_alone: Ranges::default(),
            whole: None,
            openings: Openings::default(),
            places,
            huge_pages: HugePagesOf::default(),
            register_pace: Pace::default(),
            prepared: HashSet::new(),
            evictor_at,
            questions_at: evictor_at,
            questions_failed: 0,
            search: Search::new(evictor_at),
            respite: Respite::new(evictor_at),
            threads_tried: 0,
            is_sharing_told: false,
            staying_told_bytes: 0,
            pages: 0,
        }
    }

    /// Whether pages of it can be taken out.
    fn has_evictor(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.state() == EvictorState::Running)
    }

    /// Whether that will be so: its evictor was started.
    fn is_evictor_coming(&self) -> bool {
        self.attempt != 0 && self.evictor_failure.is_none() && !self.has_evictor()
    }

    /// Whether one can be started, or was. A thread that is to be traced by another has no other tracer; and of what is
    /// whole nothing leaves.
    fn may_get_evictor(&self) -> bool {
        self.whole.is_none() && self.process.is_some() && self.seat.is_none() && self.evictor_failure.is_none()
    }

    /// Whether it has no evictor, and none was started, but one can be; now or in a moment.
    fn is_without_evictor(&self) -> bool {
        self.attempt == 0 && self.may_get_evictor()
    }

    /// Its fork, which has everything at the same addresses.
    fn child(&self, space: Arc<AddressSpace>) -> Self {
        Self { left_alone: self.left_alone.clone(), ..Self::new(space, self.excluded.clone(), self.places) }
    }
}

/// What makes a run, for its programs.
pub struct RunOfPrograms {
    /// What all of them map.
    pub head: Head,
    /// See [`PagerConfig::token`](crate::config::PagerConfig::token).
    pub token: u64,
    /// What names the pager in its programs' environment.
    pub variable: String,
    /// See [`PagerConfig::programs_fork`](crate::config::PagerConfig::programs_fork).
    pub programs_fork: bool,
    /// See [`PagerConfig::huge_pages`](crate::config::PagerConfig::huge_pages).
    pub huge_pages: bool,
    /// See [`PagerConfig::shared_memory`](crate::config::PagerConfig::shared_memory).
    pub shared_memory: SharedMemoryKinds,
    /// Where evicted pages go.
    pub pool: Arc<BufferPool>,
}

/// See the module text.
pub struct Survey {
    shared: Arc<PagerState>,
    listener: Listener,
    /// See [`Survey::let_in`].
    notes: Option<Notes>,
    /// Programs and evictors whose greeting is under way.
    callers: Vec<Caller>,
    run: RunOfPrograms,
    proof: Proof,
    /// How many programs more can be paged.
    places_free: u32,
    /// Attempts to start evictors so far; their numbers begin with 1.
    attempts: u32,
    tracked: Vec<TrackedProcess>,
    /// Programs that did not wait for an answer, until the next look.
    newcomers: Vec<TrackedProcess>,
    regions: Vec<Region>,
    /// Kills programs if this process dies.
    guardian: Guardian,
    /// How often it was killed.
    guardians_lost: u32,
    /// The user was told that there are more programs than seats.
    is_fullness_told: bool,
    /// The budget was nearly reached once: mappings are registered from now on.
    is_paging: bool,
    calls: Calls,
    opening_signals: OpeningSignals,
    /// Programs of which the user was told that they have a userfaultfd of their own.
    own_userfaultfds_told: HashSet<u32>,
    /// When memory that is not paged was looked for.
    sharing_looked_at: Option<Instant>,
    staying: StayingLook,
    objects: Objects,
    huge_pages: HugePageLooks,
    unpaged: Unpaged,
    traced: Traced,
    /// Pages that the kernel counts more than once.
    fork_shared_pages: ForkSharedPages,
    restless: Restless,
    /// Programs that are held.
    holds: Vec<Hold>,
    excess: Excess,
    /// Of whole looks.
    pace: Pace,
    user_paces: UserPaces,
    growth: Growth,
    /// A thread that was borrowed could not be given back yet.
    is_someone_held: bool,
}

impl Survey {
    /// Programs of `run` say hello at `listener`.
    pub fn new(
        shared: Arc<PagerState>,
        listener: Listener,
        run: RunOfPrograms,
        guardian: Guardian,
    ) -> io::Result<Self> {
        let regions = vec![Region::default(); REGIONS_MAX];
        let calls = Calls::new(run.head.address().fork_probe());
        let proof = Proof::new(&run)?;
        let objects = Objects::new(run.shared_memory);
        let huge_pages = HugePageLooks::new(run.huge_pages);
        Ok(Self {
            shared,
            listener,
            notes: None,
            callers: Vec::new(),
            run,
            proof,
            places_free: PROGRAMS_MAX,
            attempts: 0,
            tracked: Vec::new(),
            newcomers: Vec::new(),
            regions,
            guardian,
            guardians_lost: 0,
            is_fullness_told: false,
            is_paging: false,
            calls,
            opening_signals: OpeningSignals::default(),
            own_userfaultfds_told: HashSet::new(),
            sharing_looked_at: None,
            staying: StayingLook::new()?,
            objects,
            huge_pages,
            unpaged: Unpaged::default(),
            traced: Traced::default(),
            fork_shared_pages: ForkSharedPages::default(),
            restless: Restless::default(),
            holds: Vec::new(),
            excess: Excess::default(),
            pace: Pace::default(),
            user_paces: UserPaces::default(),
            growth: Growth::default(),
            is_someone_held: false,
        })
    }

    /// Where programs say hello, and go on with that.
    pub fn visitors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // Those beyond the bound wait to be accepted.
        let listener = (self.callers.len() < GREETINGS_MAX).then(|| self.listener.as_fd());
        listener.into_iter().chain(self.callers.iter().map(Caller::descriptor))
    }

    /// Where programs say hello that do not wait.
    pub fn notes(&self) -> Option<&Notes> {
        self.notes.as_ref()
    }

    /// Where programs ask before they make a call (`calls`).
    pub fn call_listeners(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.calls.listeners()
    }

    /// Kills the programs if this process dies.
    pub fn guardian(&self) -> &Guardian {
        &self.guardian
    }

    /// Starts another guardian if the one that there was is dead. An error: there is none, and no program may
    /// go on without.
    pub fn keep_guarded(&mut self) -> io::Result<()> {
        if !self.guardian.has_ended() {
            return Ok(());
        }
        self.guardians_lost += 1;
        if self.guardians_lost > GUARDIANS_LOST_MAX {
            return Err(io::Error::other(format!("its guardian was killed {} times", self.guardians_lost)));
        }
        self.shared.fail("the pager's guardian was killed, so another one was started".to_owned());
        self.guardian.start_again()
    }

    /// Looks at the programs once; how long to wait until the next look. `is_called`: something is known to have
    /// happened. Programs may wait outside only if it `has_visitors`.
    ///
    /// Each look counts their memory, which is what must be known soon. A whole look takes ten times as long, so it
    /// is made when it is called for, while something is under way or the budget is exceeded, and else at its `Pace`.
    pub fn look(&mut self, now: Instant, is_called: bool, has_visitors: bool) -> Duration {
        self.shared.look_clock.begin(now);
        let wait = self.look_by(now, is_called, has_visitors);
        self.shared.look_clock.end();
        wait
    }

    fn look_by(&mut self, now: Instant, is_called: bool, has_visitors: bool) -> Duration {
        let is_exceeded = self.shared.budget.resident_pages() > self.shared.budget.limit_pages();
        let is_wanted = is_called
            || has_visitors
            || self.is_busy(now)
            || is_exceeded
            || !self.is_paging
            || self.objects.are_due(now);
        let is_due = is_wanted || self.pace.is_due(Some(WHOLE_LOOK_REST_TIMES), LOOK_INTERVAL_MAX, now);
        if is_due || self.count_memory(now) > self.shared.budget.limit_pages() {
            self.look_at_all(now, has_visitors);
            self.pace.ended(now, Instant::now());
        }
        self.shared.call_eviction();
        let budget = &self.shared.budget;
        if self.is_busy(now) || budget.holds_back() {
            return LOOK_INTERVAL_MIN;
        }
        let room = interval(budget.high_pages() - budget.resident_pages());
        room.max(self.growth.interval_min(budget.limit_pages(), now))
    }

    /// Whether something is under way that whole looks take on.
    fn is_busy(&self, now: Instant) -> bool {
        self.calls.is_busy(now)
            || self.is_making_whole()
            || self.traced.is_busy()
            || self.is_someone_held
            || !self.holds.is_empty()
    }

    fn look_at_all(&mut self, now: Instant, has_visitors: bool) {
        self.is_someone_held = give_back_rest();
        self.take_call_notices();
        if has_visitors || !self.callers.is_empty() {
            self.greet(now);
        }
        self.read_notes();
        self.settle_newcomers();
        self.follow_calls(now);
        self.hear_openings(now);
        self.follow_wholes(now);
        self.adopt_children(now);
        self.look_at_objects(now);
        // A page that comes or goes while pages are counted, which takes a busy machine long, does not count twice.
        let lent_before = self.shared.page_indexes().volume_pages.lent();
        let resident = self.count_memory(now);
        let lent = self.shared.page_indexes().volume_pages.lent();
        self.shared.counters.lent_pages.set(lent.min(lent_before));
        if resident > self.shared.budget.high_pages() - alert_pages(&self.shared.budget) {
            self.is_paging = true;
        }
        if self.is_paging {
            // First, as programs that are not held fill memory while all else is done.
            self.hold_programs(Instant::now());
        }
        if self.is_paging || !self.shared.objects.is_empty() {
            self.keep_pages();
        }
        if self.is_paging {
            self.watch_openings(now);
            self.register_all(now);
            self.start_evictors(now);
            self.ask_for_cleared_words(now);
            self.bring_back_for_debuggers(now);
            self.look_for_whole_blocks(now);
        }
        self.end_evictors_left_alone();
        self.count_staying(now);
        self.tell_of_sharing(now);
        self.tell_of_unpaged(now);
    }

    /// Counts the pages of all programs, and tells the budget.
    fn count_memory(&mut self, now: Instant) -> i64 {
        let counted = self.count();
        let resident = counted - self.common_pages(counted, now) + self.seats_pages() + self.objects_pages();
        self.growth.counted(resident, self.shared.budget.resident_pages(), now);
        self.shared.budget.set_resident(resident);
        let counters = &self.shared.counters;
        let local_bytes = resident.unsigned_abs() * PAGE_SIZE_BYTES as u64 + self.shared.budget.pool_bytes();
        counters.local_bytes.set(local_bytes);
        counters.local_bytes_peak.set_max(local_bytes);
        self.tell_of_excess(local_bytes, now);
        resident
    }

    /// Hears of the calls that wait, openings too, and nothing else; how long to wait until the next look.
    pub fn hear_calls(&mut self, now: Instant) -> Duration {
        self.read_notes();
        self.settle_newcomers();
        self.follow_calls(now);
        self.hear_openings(now);
        self.follow_wholes(now);
        if self.calls.is_busy(now) || self.is_making_whole() { LOOK_INTERVAL_MIN } else { LOOK_INTERVAL_MAX }
    }

    /// Pages of all programs, by the kernel's count of each; programs that have ended are forgotten.
    fn count(&mut self) -> i64 {
        self.forget(is_memory_gone);
        for tracked in &mut self.tracked {
            tracked.pages = tracked.process.as_ref().and_then(Process::resident_pages).unwrap_or(0);
        }
        self.tracked.iter().map(|tracked| tracked.pages).sum()
    }

    /// Pages of seats: what evictors hand over lies there, beside the programs' own memory.
    fn seats_pages(&self) -> i64 {
        let seats = self.tracked.iter().filter_map(|tracked| tracked.seat.as_ref());
        let bytes: u64 = seats.map(|seat| seat.file().resident_bytes().unwrap_or(0)).sum();
        (bytes / PAGE_SIZE_BYTES as u64).cast_signed()
    }

    fn forget(&mut self, mut is_over: impl FnMut(&TrackedProcess) -> bool) {
        let over: Vec<TrackedProcess> =
            self.tracked.extract_if(.., |tracked| is_over(tracked) || tracked.space.is_gone()).collect();
        for tracked in over {
            self.shared.dismiss(&tracked.space);
            self.adopt_children_of(&tracked);
            self.places_free += u32::from(tracked.has_place);
            if let Some(place) = tracked.place {
                self.guardian.forget(place);
            }
        }
    }

    /// Rule 4.
    fn keep_pages(&self) {
        for tracked in &self.tracked {
            // One that ends meanwhile is found by the next look.
            let Some(Ok(mut kept)) = tracked.process.as_ref().map(Process::kept_pages) else { continue };
            kept.extend(self.calls.words(tracked.space.id));
            kept.sort_unstable();
            kept.dedup();
            lock(&tracked.space.kept_pages).clone_from(&kept);
            let state = tracked.space.lock();
            let space = tracked.space.id;
            let away = kept.iter().filter(|page| state.page_table.is_away(**page));
            self.shared.want(away.map(|page| Wanted { space, page: *page, is_writable: true }));
            // The kernel writes there, too, and cannot wait.
            let clean: Vec<VirtualPage> =
                kept.iter().copied().filter(|page| state.page_table.is_clean(*page)).collect();
            drop(state);
            if !clean.is_empty() {
                // While the program changes its mappings: at the next look.
                let _ = unprotect(&self.shared, &tracked.space, &ALL, Some(clean));
            }
            self.keep_pages_of_objects(&tracked.space, &kept);
        }
    }
}

/// Whether the address space has ended; what `/proc` says is about its process, which goes on after an exec, and
/// about that process's first thread, which may end before the others. Of the head only the first page is registered,
/// so one that exists refuses the page behind it.
fn is_memory_gone(tracked: &TrackedProcess) -> bool {
    let page = PAGE_SIZE_BYTES as u64;
    let second = tracked.places.head + page;
    matches!(tracked.space.memory.zero(second..second + page), Err(PageError::Gone))
}

/// How far below the watermark mappings begin to be registered.
fn alert_pages(budget: &Budget) -> i64 {
    budget.limit_pages().min((ALERT_BYTES_MAX / PAGE_SIZE_BYTES as u64).cast_signed() * ALERT_SHARE) / ALERT_SHARE
}
