//! The pager's local memory, as docs/pager.md describes it, in front of a recorded program.
//!
//! It keeps what the pager keeps (states of pages, staging, what is under way) and tells policies what the pager
//! would learn: faults, first writes, markers. A hit on a mapped page tells nothing.
//!
//! The budget holds resident pages and staging. When more than its part is resident, a batch of victims leaves: they
//! are staged, and the oldest staged pages become remote. Pages that are brought along are counted from the moment
//! when they are asked for; one that is touched before its time has come waits for the rest of it.
//!
//! A policy that keeps its pages unmapped ([`Streams::keeps_unmapped`]) has a cheap fault on each of them, which maps
//! it, and is told of each.
//!
//! Of a trace of faults on pages that had left, a page is away from the start, and so each first fault on it is one
//! that a policy could have saved. Of other traces a first access is one to fresh memory.
//!
//! Simplifications: staging has room for pages, not for slots; a batch leaves at once; the network takes any number
//! of requests at a time; all threads share one clock, so one that waits holds up the others; a window's marker comes
//! along with the others and is told as used like them, where the pager leaves it away until it comes by a fault, and
//! tells of it later.

use std::collections::VecDeque;

use crate::prefetch::streams::{Faulter, Streams};
use crate::prefetch::{Candidates, PageNumber, Prefetcher, WINDOW_FAR_MAX, WINDOW_MAX};
use crate::replacement::sampled::Sampled;
use crate::replacement::{Arrival, CachePage, Evidence, Replacement, Shadows};
use crate::trace::Kind;

use super::accesses::{Access, Accesses};
use super::counts::{Counts, EXCHANGE_NS, LOCAL_FAULT_NS, MAPPING_NS, TRANSFER_NS};

/// Pages that leave at once, as part of what is resident: between the watermarks.
const BATCH_SHARE: u32 = 64;

/// Largest batch: that of the evictor (docs/pager.md).
const BATCH_MAX: u32 = 512;

/// A block that comes along is at most such a part of what is resident: half of the room between the watermarks.
const WINDOW_SHARE: u32 = 32;

/// Of the budget, the part that is staging unless told otherwise: DCM's lineage (EMP: 12.5 %).
pub const STAGING_THOUSANDTHS: u32 = 125;

/// Makes a policy of replacement for page numbers below the first number and a budget of the second.
pub type BuildReplacement = fn(u32, u32) -> Box<dyn Replacement>;

/// The pager's policy of replacement. Its seed is always the same: equal events, equal victims.
pub fn sampled(pages: u32, capacity: u32) -> Box<dyn Replacement> {
    Box::new(Sampled::new(pages, capacity, 1))
}

/// What is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Settings<Policy> {
    /// Pages of local memory, staging among them.
    pub budget: u32,
    /// Of the budget, the part that is staging, in thousandths.
    pub staging_thousandths: u32,
    /// Whether pages that need no write are staged too.
    pub stages_clean: bool,
    /// Which page leaves.
    pub policy: BuildReplacement,
    /// Which page comes along.
    pub prefetcher: Policy,
}

impl Settings<()> {
    /// The pager's policy of replacement, pages staged whether they need a write or not, and no prefetcher yet.
    pub fn usual(budget: u32) -> Self {
        let staging_thousandths = STAGING_THOUSANDTHS;
        Self { budget, staging_thousandths, stages_clean: true, policy: sampled, prefetcher: () }
    }
}

impl<Other> Settings<Other> {
    /// The same with another prefetcher.
    pub fn with<Policy>(&self, prefetcher: Policy) -> Settings<Policy> {
        let Self { budget, staging_thousandths, stages_clean, policy, .. } = *self;
        Settings { budget, staging_thousandths, stages_clean, policy, prefetcher }
    }
}

/// A fault on a page that was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refault {
    /// The page.
    pub page: PageNumber,
    /// The thread that waited.
    pub thread: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Resident,
    Staged,
    Remote,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug)]
struct Page {
    state: State,
    /// It differs from what is afar.
    dirty: bool,
    /// It was brought along, and has not been used since.
    ahead: bool,
    /// It was brought along by a stream, and nothing has told the pager that it was used.
    unproven: bool,
    /// It is kept unmapped.
    marker: bool,
    /// When it has arrived.
    arrives_ns: u64,
    /// How often it was staged: which entry of the queue is its last.
    staged_count: u32,
}

const UNKNOWN: Page = Page {
    state: State::Unknown,
    dirty: false,
    ahead: false,
    unproven: false,
    marker: false,
    arrives_ns: 0,
    staged_count: 0,
};

/// See the module text.
struct Memory<'trace, Policy> {
    accesses: &'trace Accesses,
    resident_max: u32,
    staging_max: usize,
    stages_clean: bool,
    policy: Box<dyn Replacement>,
    shadows: Shadows,
    streams: Streams<Policy>,
    candidates: Candidates,
    /// Pages that come along at once at most.
    window_max: usize,
    pages: Vec<Page>,
    /// Pages in the order in which they were staged; those that were touched since are left in it.
    staging: VecDeque<(CachePage, u32)>,
    staged: usize,
    batch: Vec<CachePage>,
    now_ns: u64,
    counts: Counts,
    /// All refaults.
    refaulted: Vec<Refault>,
    /// Nanoseconds of a tick.
    tick_ns: u64,
}

/// Replays all of `accesses`.
pub fn replay<Policy: Prefetcher + Clone>(accesses: &Accesses, settings: &Settings<Policy>) -> Counts {
    replayed(accesses, settings).counts
}

/// Replays all of `accesses`, and says on which pages the program waited for a donor, in their order.
pub fn refaulted<Policy: Prefetcher + Clone>(accesses: &Accesses, settings: &Settings<Policy>) -> Vec<Refault> {
    replayed(accesses, settings).refaulted
}

fn replayed<'trace, Policy: Prefetcher + Clone>(
    accesses: &'trace Accesses,
    settings: &Settings<Policy>,
) -> Memory<'trace, Policy> {
    let mut memory = Memory::new(accesses, settings);
    for access in accesses.as_slice() {
        memory.access(access);
    }
    memory
}

impl<'trace, Policy: Prefetcher + Clone> Memory<'trace, Policy> {
    fn new(accesses: &'trace Accesses, settings: &Settings<Policy>) -> Self {
        let staging_max = u64::from(settings.budget) * u64::from(settings.staging_thousandths) / 1000;
        let resident_max = (settings.budget - staging_max as u32).max(1);
        let batch = (resident_max / BATCH_SHARE).clamp(1, BATCH_MAX);
        let page_end = accesses.page_end();
        let blocks_max = ((resident_max / WINDOW_SHARE) as usize).clamp(WINDOW_MAX, WINDOW_FAR_MAX);
        let window_max = if settings.prefetcher.brings_blocks() { blocks_max } else { WINDOW_MAX };
        Self {
            accesses,
            resident_max,
            staging_max: staging_max as usize,
            stages_clean: settings.stages_clean,
            policy: (settings.policy)(page_end, resident_max),
            shadows: Shadows::new(page_end),
            streams: Streams::new(settings.prefetcher.clone()),
            candidates: Candidates::default(),
            window_max,
            pages: (0..page_end).map(|page| first_state(accesses, CachePage(page))).collect(),
            staging: VecDeque::new(),
            staged: 0,
            batch: vec![CachePage(0); batch as usize],
            now_ns: 0,
            counts: Counts::default(),
            refaulted: Vec::new(),
            tick_ns: accesses.kind().tick_ns(),
        }
    }

    fn page(&mut self, page: CachePage) -> &mut Page {
        &mut self.pages[page.0 as usize]
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.now_ns += nanoseconds;
        self.counts.lost_ns += nanoseconds;
    }

    fn access(&mut self, access: &Access) {
        self.counts.accesses += 1;
        self.now_ns += u64::from(access.ticks) * self.tick_ns;
        match self.page(access.page).state {
            State::Unknown => self.arrive(access.page, Arrival::New),
            State::Resident => self.touch(access),
            State::Staged => {
                self.counts.staged_hits += 1;
                self.staged -= 1;
                self.wait(LOCAL_FAULT_NS);
                self.arrive(access.page, Arrival::Staged);
            }
            State::Remote => self.refault(access),
        }
        if access.write {
            self.page(access.page).dirty = true;
        }
        self.evict();
    }

    fn arrive(&mut self, page: CachePage, arrival: Arrival) {
        self.page(page).state = State::Resident;
        self.policy.inserted(page, arrival);
    }

    fn refault(&mut self, access: &Access) {
        self.counts.refaults += 1;
        self.page(access.page).dirty = false;
        // Of a trace of major faults a page may have left before it began.
        let distance = self.shadows.distance(access.page).unwrap_or(u32::MAX);
        self.arrive(access.page, Arrival::Refault { distance });
        let page = self.accesses.virtual_page(access.page);
        self.refaulted.push(Refault { page, thread: access.thread });
        let Self { accesses, pages, streams, candidates, window_max, .. } = self;
        candidates.set_window_max(*window_max);
        streams.on_fault(faulter(accesses, access), page, &|page| is_remote(accesses, pages, page), candidates);
        // The demanded page is on its way first; the others come while the program waits for it and after.
        let asked_ns = self.now_ns;
        self.wait(LOCAL_FAULT_NS + EXCHANGE_NS);
        self.bring_along(asked_ns + EXCHANGE_NS);
    }

    /// Asks for the candidates that are remote, the first of which arrives after `first_ns`.
    fn bring_along(&mut self, first_ns: u64) {
        let (mut candidates, mut arrives_ns) = (std::mem::take(&mut self.candidates), first_ns);
        candidates.retain(|page| is_remote(self.accesses, &self.pages, page));
        let unproven = !candidates.comes_around();
        let keeps_unmapped = self.streams.keeps_unmapped();
        for wanted in candidates.pages() {
            let page = self.accesses.find(*wanted).expect("it was found just now");
            arrives_ns += TRANSFER_NS;
            let (known, marker) = (*self.page(page), keeps_unmapped || candidates.marker() == Some(*wanted));
            *self.page(page) = Page { ahead: true, unproven, dirty: false, marker, arrives_ns, ..known };
            let distance = self.shadows.distance(page).unwrap_or(u32::MAX);
            self.arrive(page, if unproven { Arrival::Prefetched } else { Arrival::Around { distance } });
            self.counts.prefetched += 1;
            if !keeps_unmapped {
                self.wait(MAPPING_NS);
            }
        }
    }

    fn touch(&mut self, access: &Access) {
        let Page { ahead, marker, arrives_ns, dirty, .. } = *self.page(access.page);
        let late_ns = arrives_ns.saturating_sub(self.now_ns);
        if ahead {
            self.counts.prefetch_used += 1;
            self.counts.prefetch_late += u64::from(late_ns > 0);
            (self.page(access.page).ahead, self.page(access.page).marker) = (false, false);
        }
        if ahead && (late_ns > 0 || marker) {
            self.wait(LOCAL_FAULT_NS + late_ns);
            self.proven(access.page, Evidence::PrefetchUsed);
        } else if access.write && !dirty {
            // What comes by a read or ahead is write-protected.
            self.counts.write_faults += 1;
            self.wait(LOCAL_FAULT_NS);
            self.proven(access.page, Evidence::Written);
        }
        if ahead && marker {
            self.reach_marker(access);
        }
    }

    fn proven(&mut self, page: CachePage, evidence: Evidence) {
        self.page(page).unproven = false;
        self.policy.touched(page, evidence);
    }

    fn reach_marker(&mut self, access: &Access) {
        self.counts.marker_faults += 1;
        let page = self.accesses.virtual_page(access.page);
        self.streams.on_hit(faulter(self.accesses, access), page, &mut self.candidates);
        let passed: Vec<_> = self.streams.passed().iter().filter_map(|page| self.accesses.find(*page)).collect();
        passed.into_iter().for_each(|page| self.proven(page, Evidence::PrefetchUsed));
        self.bring_along(self.now_ns + EXCHANGE_NS);
    }

    fn evict(&mut self) {
        while self.policy.listed() > self.resident_max {
            let count = self.policy.victims(&mut self.batch);
            self.batch[..count].sort_unstable();
            let mut previous_written = None;
            for index in 0..count {
                let victim = self.batch[index];
                if self.leave(victim) {
                    let adjoins = previous_written.is_some_and(|previous: CachePage| previous.0 + 1 == victim.0);
                    self.counts.write_requests += u64::from(!adjoins);
                    previous_written = Some(victim);
                }
            }
        }
        while self.staged > self.staging_max {
            self.unstage();
        }
    }

    /// `victim` leaves the program; says whether it must be written.
    fn leave(&mut self, victim: CachePage) -> bool {
        let Page { state, dirty, unproven, staged_count, .. } = *self.page(victim);
        assert_eq!(state, State::Resident, "a victim is resident");
        self.shadows.left(victim);
        self.counts.evicted += 1;
        self.counts.written += u64::from(dirty);
        if unproven {
            self.streams.on_unused(self.accesses.space(victim), self.accesses.virtual_page(victim));
        }
        let stages = dirty || self.stages_clean;
        let state = if stages { State::Staged } else { State::Remote };
        *self.page(victim) = Page { state, dirty: false, staged_count: staged_count + 1, ..UNKNOWN };
        if stages {
            self.staging.push_back((victim, staged_count + 1));
            self.staged += 1;
        }
        dirty
    }

    /// The page that was staged first becomes remote.
    fn unstage(&mut self) {
        let (page, staged_count) = self.staging.pop_front().expect("what is staged is in the queue");
        let page = self.page(page);
        if page.state == State::Staged && page.staged_count == staged_count {
            page.state = State::Remote;
            self.staged -= 1;
        }
    }
}

fn is_remote(accesses: &Accesses, pages: &[Page], page: PageNumber) -> bool {
    accesses.find(page).is_some_and(|page| pages[page.0 as usize].state == State::Remote)
}

fn faulter(accesses: &Accesses, access: &Access) -> Faulter {
    Faulter { space: accesses.space(access.page), thread: access.thread }
}

/// What a page is before the first access.
fn first_state(accesses: &Accesses, page: CachePage) -> Page {
    let is_away = accesses.kind() == Kind::MajorFaults && accesses.is_used(page);
    Page { state: if is_away { State::Remote } else { State::Unknown }, ..UNKNOWN }
}

#[cfg(test)]
mod tests;
