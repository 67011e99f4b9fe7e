//! Brings all pages of programs back before a fork that the kernel does not tell of ("Forks without messages" in
//! docs/pager.md), and keeps them until it is over.
//!
//! While a fork page-in is under way, its programs are *held*: no batch of evictions begins for them, and their
//! faults wait for no budget. Pages are asked of the fault thread, some hundred at a time, until the page table knows
//! of none that is away. Nothing can be away then: what the program does meanwhile (moves, removes, unmaps) takes no
//! page out of its memory.
//!
//! They come back only if there is memory for all of them, beside those of other forks ([`crate::fork::reservations`]).
//!
//! No I/O here: time and the room for a process are told.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::address_space::{AddressSpace, Wanted};
use crate::fork::reservations::{Answer, ReservationId};
use crate::limits::{FORK_ASK_AGAIN, FORK_PAGES_ASKED_MAX, FORK_PATIENCE, FORK_ROOM_PATIENCE, FORK_ROOM_PAUSE};
use crate::page_table::virtual_page::VirtualPage;
use crate::pager_state::PagerState;

/// How far a fork page-in is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageInProgress {
    /// Pages are still away.
    NotYet,
    /// Every page is there, and stays.
    All,
    /// It cannot be, for this reason.
    Never(String),
}

/// See the module text. Dropping it lets pages leave again.
pub struct ForkPageIn {
    shared: Arc<PagerState>,
    reservation: ReservationId,
    /// There is memory for all pages.
    has_room: bool,
    /// When there was none last time, beside other forks.
    crowded_at: Option<Instant>,
    /// When it was asked for last time.
    room_asked_at: Option<Instant>,
    parts: Vec<Part>,
}

/// One program of a fork page-in.
struct Part {
    space: Arc<AddressSpace>,
    range: Range<u64>,
    /// Pages of it that no thread could read, before.
    unread_before: u64,
    /// Pages that were away at the last look at all, and were not asked for yet.
    missing: Vec<VirtualPage>,
    /// Pages that were asked for and are still away.
    asked: Vec<VirtualPage>,
    asked_at: Instant,
    progress_at: Instant,
}

impl ForkPageIn {
    /// Holds `spaces` from now on, and brings back what they have in `range`.
    pub fn begin(shared: &Arc<PagerState>, spaces: Vec<Arc<AddressSpace>>, range: &Range<u64>, now: Instant) -> Self {
        let parts = spaces.into_iter().map(|space| Part::begin(space, range, now)).collect();
        Self {
            shared: Arc::clone(shared),
            reservation: shared.fork_reservations.name(),
            has_room: false,
            crowded_at: None,
            room_asked_at: None,
            parts,
        }
    }

    /// Does what can be done now. `room_bytes` is the memory that a process could still have.
    pub fn look(&mut self, now: Instant, room_bytes: &dyn Fn(u32) -> u64) -> PageInProgress {
        let mut progress = PageInProgress::All;
        if !self.has_room {
            match self.find_room(now, room_bytes) {
                PageInProgress::All => self.has_room = true,
                end => return end,
            }
        }
        for part in &mut self.parts {
            match part.look(&self.shared, now) {
                PageInProgress::All => {}
                PageInProgress::NotYet => progress = PageInProgress::NotYet,
                never @ PageInProgress::Never(_) => return never,
            }
        }
        self.shared.fork_reservations.set(self.reservation, self.parts.iter().map(Part::pages_away).sum());
        progress
    }

    /// Asks for memory for all that is away, once that is known.
    fn find_room(&mut self, now: Instant, room_bytes: &dyn Fn(u32) -> u64) -> PageInProgress {
        let is_soon = |at: Instant| now.saturating_duration_since(at) < FORK_ROOM_PAUSE;
        if self.room_asked_at.is_some_and(is_soon) {
            return PageInProgress::NotYet;
        }
        for part in &mut self.parts {
            if !part.knows_missing() {
                return part.wait(&self.shared, now);
            }
        }
        let pages = self.parts.iter().map(Part::pages_away).sum();
        if pages == 0 {
            return PageInProgress::All;
        }
        let spaces = self.parts.iter().map(|part| &part.space);
        self.room_asked_at = Some(now);
        let room = spaces.map(|space| room_bytes(space.process.load(Ordering::Relaxed))).min().unwrap_or(0);
        match self.shared.fork_reservations.ask(self.reservation, pages, room) {
            Answer::Granted => {
                self.parts.iter_mut().for_each(|part| part.progress_at = now);
                return PageInProgress::All;
            }
            Answer::Crowded => self.crowded_at = Some(now),
            Answer::Full => {}
        }
        let is_early = |at: Instant| now.saturating_duration_since(at) < FORK_ROOM_PATIENCE;
        let is_patient = self.parts.iter().all(|part| part.is_patient(now));
        if is_patient && self.crowded_at.is_some_and(is_early) {
            // Others' pages leave again.
            return PageInProgress::NotYet;
        }
        PageInProgress::Never(
            "neither the machine nor its memory cgroups have memory left for all of its pages".to_owned(),
        )
    }

    /// Whose pages they are.
    pub fn spaces(&self) -> impl Iterator<Item = &Arc<AddressSpace>> {
        self.parts.iter().map(|part| &part.space)
    }

    /// The programs fork from now on: their pages may be shared (rule 2).
    pub fn share(&self) {
        for part in &self.parts {
            part.space.has_forked.store(true, Ordering::Relaxed);
            part.space.has_forked_untold.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for ForkPageIn {
    fn drop(&mut self) {
        self.shared.fork_reservations.release(self.reservation);
        self.parts.iter().for_each(|part| part.space.release());
        self.shared.eviction.signal();
    }
}

impl Part {
    fn begin(space: Arc<AddressSpace>, range: &Range<u64>, now: Instant) -> Self {
        space.hold();
        let unread_before = space.unread.load(Ordering::SeqCst);
        let range = range.clone();
        Self { space, range, unread_before, missing: Vec::new(), asked: Vec::new(), asked_at: now, progress_at: now }
    }

    /// Pages that are not known to be there.
    fn pages_away(&self) -> usize {
        self.missing.len() + self.asked.len()
    }

    /// Finds out what is away; false while a batch is under way, which may take more.
    fn knows_missing(&mut self) -> bool {
        if self.space.is_gone() {
            self.missing.clear();
            return true;
        }
        let state = self.space.lock();
        self.missing = state.page_table.away(&self.range);
        !state.batch
    }

    fn look(&mut self, shared: &PagerState, now: Instant) -> PageInProgress {
        if self.space.is_gone() {
            self.missing.clear();
            self.asked.clear();
            return PageInProgress::All;
        }
        if self.space.unread.load(Ordering::SeqCst) > self.unread_before {
            return PageInProgress::Never("a page of it cannot be read".to_owned());
        }
        let space = Arc::clone(&self.space);
        let state = space.lock();
        let asked_before = self.asked.len();
        self.asked.retain(|page| state.page_table.is_away(*page));
        if self.asked.len() < asked_before {
            self.progress_at = now;
        }
        if state.batch || !self.asked.is_empty() {
            drop(state);
            return self.wait(shared, now);
        }
        if self.missing.is_empty() {
            self.missing = state.page_table.away(&self.range);
        }
        drop(state);
        if self.missing.is_empty() {
            return PageInProgress::All;
        }
        let first = self.missing.len().saturating_sub(FORK_PAGES_ASKED_MAX);
        self.asked = self.missing.split_off(first);
        self.ask(shared, now);
        PageInProgress::NotYet
    }

    fn is_patient(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.progress_at) < FORK_PATIENCE
    }

    fn wait(&mut self, shared: &PagerState, now: Instant) -> PageInProgress {
        if !self.is_patient(now) {
            return PageInProgress::Never(format!("its pages do not come back within {} s", FORK_PATIENCE.as_secs()));
        }
        if now.saturating_duration_since(self.asked_at) >= FORK_ASK_AGAIN {
            self.ask(shared, now);
        }
        PageInProgress::NotYet
    }

    fn ask(&mut self, shared: &PagerState, now: Instant) {
        let space = self.space.id;
        shared.want(self.asked.iter().map(|page| Wanted { space, page: *page, is_writable: true }));
        self.asked_at = now;
    }
}

/// All that a program can have.
pub const ALL: Range<u64> = 0..u64::MAX;
