//! The pager's local memory, as docs/pager.md describes it, in front of a recorded program.
//!
//! It keeps what the pager keeps (states of pages, staging, what is under way) and tells policies what the pager
//! would learn: faults, first writes, markers. A hit on a mapped page tells nothing.
//!
//! The budget holds resident pages and staging. When more than its part is resident, a batch of victims leaves: they
//! are staged, and the oldest staged pages become remote. Pages that are brought along are counted from the moment
//! when they are asked for; one that is touched before its time has come waits for the rest of it.
//!
//! Simplifications: staging has room for pages, not for slots; a batch leaves at once; the network takes any number
//! of requests at a time; a window's marker comes along with the others and is told as used like them, where the
//! pager leaves it away until it comes by a fault, and tells of it later.

use std::collections::VecDeque;

use spillway_policy::prefetch::streams::{Faulter, Streams};
use spillway_policy::prefetch::{Candidates, PageNumber};
use spillway_policy::replacement::{Arrival, CachePage, Evidence, Replacement, Shadows};
use spillway_testing::prefetch::AnyPrefetcher;
use spillway_testing::replacement::Policy;

use super::accesses::{Access, Accesses};
use super::counts::{Counts, EXCHANGE_NS, LOCAL_FAULT_NS, MAPPING_NS, TICK_NS, TRANSFER_NS};

/// Pages that leave at once, as part of what is resident: between the watermarks.
const BATCH_SHARE: u32 = 64;

/// Largest batch: that of the evictor (docs/pager.md).
const BATCH_MAX: u32 = 512;

/// What is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Pages of local memory, staging among them.
    pub budget: u32,
    /// Of the budget, the part that is staging, in thousandths.
    pub staging_thousandths: u32,
    /// Whether pages that need no write are staged too.
    pub stages_clean: bool,
    /// Which page leaves.
    pub policy: Policy,
    /// Which page comes along.
    pub prefetcher: AnyPrefetcher,
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
struct Memory<'trace> {
    accesses: &'trace Accesses,
    resident_max: u32,
    staging_max: usize,
    stages_clean: bool,
    policy: Box<dyn Replacement>,
    shadows: Shadows,
    streams: Streams<AnyPrefetcher>,
    candidates: Candidates,
    pages: Vec<Page>,
    /// Pages in the order in which they were staged; those that were touched since are left in it.
    staging: VecDeque<(CachePage, u32)>,
    staged: usize,
    batch: Vec<CachePage>,
    now_ns: u64,
    counts: Counts,
}

/// Replays all of `accesses`.
pub fn replay(accesses: &Accesses, settings: &Settings) -> Counts {
    let mut memory = Memory::new(accesses, settings);
    for access in accesses.as_slice() {
        memory.access(access);
    }
    memory.counts
}

impl<'trace> Memory<'trace> {
    fn new(accesses: &'trace Accesses, settings: &Settings) -> Self {
        let staging_max = u64::from(settings.budget) * u64::from(settings.staging_thousandths) / 1000;
        let resident_max = (settings.budget - staging_max as u32).max(1);
        let batch = (resident_max / BATCH_SHARE).clamp(1, BATCH_MAX);
        let page_end = accesses.page_end();
        Self {
            accesses,
            resident_max,
            staging_max: staging_max as usize,
            stages_clean: settings.stages_clean,
            policy: settings.policy.build(page_end, resident_max),
            shadows: Shadows::new(page_end),
            streams: Streams::new(settings.prefetcher),
            candidates: Candidates::default(),
            pages: vec![UNKNOWN; page_end as usize],
            staging: VecDeque::new(),
            staged: 0,
            batch: vec![CachePage(0); batch as usize],
            now_ns: 0,
            counts: Counts::default(),
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
        self.now_ns += u64::from(access.ticks) * TICK_NS;
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
        let distance = self.shadows.distance(access.page).expect("a remote page has left");
        self.arrive(access.page, Arrival::Refault { distance });
        let page = self.accesses.virtual_page(access.page);
        let Self { accesses, pages, streams, candidates, .. } = self;
        streams.on_fault(faulter(access), page, &|page| is_remote(accesses, pages, page), candidates);
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
        let arrival = if unproven { Arrival::Prefetched } else { Arrival::New };
        for wanted in candidates.pages() {
            let page = self.accesses.find(*wanted).expect("it was found just now");
            arrives_ns += TRANSFER_NS;
            let (known, marker) = (*self.page(page), candidates.marker() == Some(*wanted));
            *self.page(page) = Page { ahead: true, unproven, dirty: false, marker, arrives_ns, ..known };
            self.arrive(page, arrival);
            self.counts.prefetched += 1;
            self.wait(MAPPING_NS);
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
        self.streams.on_hit(faulter(access), page, &mut self.candidates);
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
            self.streams.on_unused(0, self.accesses.virtual_page(victim));
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

fn faulter(access: &Access) -> Faulter {
    Faulter { space: 0, thread: access.thread }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spillway_policy::prefetch::read_ahead::ReadAhead;
    use spillway_testing::prefetch::next_n::NextN;
    use spillway_testing::prefetch::none::NoPrefetch;

    use super::*;
    use crate::replay::accesses::tests::accesses;
    use crate::replay::optimal::refaults_min;

    fn settings(budget: u32, policy: Policy) -> Settings {
        let prefetcher = AnyPrefetcher::None(NoPrefetch);
        Settings { budget, staging_thousandths: 0, stages_clean: true, policy, prefetcher }
    }

    fn reads(pages: impl IntoIterator<Item = u64>) -> Accesses {
        accesses(&pages.into_iter().map(|page| (page, false)).collect::<Vec<_>>())
    }

    #[test]
    fn a_loop_that_does_not_fit_refaults_always() {
        let twice = reads((0..10).chain(0..10));
        let counts = replay(&twice, &settings(5, Policy::Fifo));
        assert_eq!((counts.refaults, counts.evicted, counts.written), (10, 15, 0), "what is only read is not written");
        assert_eq!(counts.lost_ns, 10 * (LOCAL_FAULT_NS + EXCHANGE_NS));
        assert_eq!(replay(&twice, &settings(10, Policy::Fifo)).evicted, 0);
    }

    #[test]
    fn staged_pages_come_back_cheaply() {
        // Two resident, two staged: page 0 is staged when it is touched again, page 1 in its turn too.
        let trace = reads([0, 1, 2, 0, 1, 3, 4, 5, 6, 7, 0]);
        let counts = replay(&trace, &Settings { staging_thousandths: 500, ..settings(4, Policy::Fifo) });
        assert_eq!((counts.staged_hits, counts.refaults), (2, 1));
        assert_eq!(counts.lost_ns, 3 * LOCAL_FAULT_NS + EXCHANGE_NS);
        let none = Settings { staging_thousandths: 500, stages_clean: false, ..settings(4, Policy::Fifo) };
        assert_eq!(replay(&trace, &none).staged_hits, 0, "pages that need no write are not staged");
    }

    #[test]
    fn writes_make_pages_dirty_once() {
        let trace = accesses(&[(0, false), (0, true), (0, true), (1, false), (2, false), (0, true), (0, true)]);
        let counts = replay(&trace, &settings(1, Policy::Fifo));
        assert_eq!((counts.refaults, counts.write_faults, counts.written), (1, 1, 1), "a write fault fills writable");
    }

    #[test]
    fn neighbours_are_written_together() {
        let trace = accesses(&(0..640).map(|page| (page, true)).collect::<Vec<_>>());
        let counts = replay(&trace, &settings(320, Policy::Fifo));
        assert!(counts.pages_per_write() >= 5.0, "batches of five: {counts:?}");
    }

    #[test]
    fn windows_come_in_time_or_late() {
        let scan = reads((0..4000).chain(0..4000));
        let with = |prefetcher| replay(&scan, &Settings { prefetcher, ..settings(2000, Policy::Fifo) });
        let (none, next) = (with(AnyPrefetcher::None(NoPrefetch)), with(AnyPrefetcher::NextN(NextN::default())));
        let adapting = with(AnyPrefetcher::ReadAhead(ReadAhead::default()));
        assert_eq!((none.refaults, none.prefetched, none.marker_faults), (4000, 0, 0));
        for counts in [next, adapting] {
            assert!(counts.refaults < 400 && counts.coverage() > 0.9 && counts.accuracy() > 0.9, "{counts:?}");
            assert!(counts.marker_faults > 2 && counts.lost_ns < none.lost_ns / 2, "{counts:?}");
        }
    }

    #[test]
    fn streams_come_and_go_beside_what_stays() {
        let rounds = 6;
        let scans = reads((0..rounds).flat_map(|_| 0..4000));
        let prefetcher = AnyPrefetcher::ReadAhead(ReadAhead::default());
        let came = |policy| {
            let counts = replay(&scans, &Settings { prefetcher, ..settings(2000, policy) });
            (counts.refaults + counts.prefetched) as f64 / refaults_min(&scans, 2000) as f64
        };
        // The share of the budget that is ahead of a stream and behind it is what the optimal order has more.
        assert!(came(Policy::Sampled) < 1.2, "{}", came(Policy::Sampled));
        assert!(came(Policy::Fifo) > 1.9, "each time all of it: {}", came(Policy::Fifo));
    }

    #[test]
    fn a_loop_that_fits_comes_to_stay_whatever_is_there() {
        // Its pages leave for others, neighbours or scattered, of which none is needed again. Then it goes on, over
        // half of the memory.
        for distance in [1, 2] {
            let others = (0..4000).map(|page| 1000 + distance * page);
            let trace = reads((0..1000).chain(others).chain((0..25).flat_map(|_| 0..1000)));
            let prefetcher = AnyPrefetcher::ReadAhead(ReadAhead::default());
            let mut memory = Memory::new(&trace, &Settings { prefetcher, ..settings(2000, Policy::Sampled) });
            let mut came = |accesses: &[Access]| {
                let before = memory.counts.refaults + memory.counts.prefetched;
                accesses.iter().for_each(|access| memory.access(access));
                memory.counts.refaults + memory.counts.prefetched - before
            };
            let (first, last) = trace.as_slice().split_at(trace.as_slice().len() - 1000);
            assert!(came(first) > 3000, "it is not there for a while");
            assert_eq!(came(last), 0, "it is in the end, beside others with {distance} between");
        }
    }

    fn any_settings() -> impl Strategy<Value = Settings> {
        let policy = proptest::sample::select(Policy::ALL.to_vec());
        let prefetcher = proptest::sample::select(AnyPrefetcher::all().to_vec());
        (2_u32..60, 0_u32..600, any::<bool>(), policy, prefetcher).prop_map(
            |(budget, staging_thousandths, stages_clean, policy, prefetcher)| Settings {
                budget,
                staging_thousandths,
                stages_clean,
                policy,
                prefetcher,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pages_are_never_lost_and_the_bound_holds(
            steps in proptest::collection::vec((0_u64..100, any::<bool>()), 1..600), settings in any_settings()
        ) {
            let trace = accesses(&steps);
            let mut memory = Memory::new(&trace, &settings);
            for access in trace.as_slice() {
                memory.access(access);
                let in_state = |state| memory.pages.iter().filter(|page| page.state == state).count();
                prop_assert_eq!(in_state(State::Resident), memory.policy.listed() as usize);
                prop_assert_eq!(in_state(State::Staged), memory.staged);
                prop_assert!(in_state(State::Resident) <= memory.resident_max as usize);
                prop_assert!(memory.staged <= memory.staging_max);
            }
            let counts = memory.counts;
            prop_assert!(counts.prefetch_used <= counts.prefetched && counts.prefetch_late <= counts.prefetch_used);
            prop_assert!(counts.write_requests <= counts.written && counts.written <= counts.evicted);
            prop_assert!(counts.refaults + counts.prefetch_used >= refaults_min(&trace, settings.budget));
        }
    }
}
