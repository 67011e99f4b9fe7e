//! Which pages to ask for, given the faults of programs: samples in, advice out. No I/O and no clock; the time is that
//! of the samples.
//!
//! A fault that waited, on a page that was not asked for, goes to the prefetcher of its thread and region. A fault on
//! a page that was asked for only shows how far the program came; if that page is a marker, the next window is asked
//! for. So what is prefetched is told apart from what the program does, also when only strides of a window fault.
//!
//! Advice takes as long as many faults, so samples can be older than what the program does now. A sample after which
//! its thread waited again ([`SwapPrefetch::on_queued`]) only teaches the prefetcher: what it would ask for has been
//! waited for since, and the windows beyond that would be guesses about guesses.
//!
//! Only pages that are in swap are asked for, and none that is in flight already. Pages in flight are capped by the
//! headroom of the program's cgroup: at the cap nothing is asked for, and the program faults as without prefetching.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::HashMap;

use spillway_policy::prefetch::selection::{PrefetchPolicy, SelectedPrefetcher};
use spillway_policy::prefetch::streams::{Faulter, Streams};
use spillway_policy::prefetch::{Candidates, PageNumber, WINDOW_MAX};
use spillway_sys::mapping::PAGE_SIZE_BYTES;
use spillway_sys::page_faults::{FaultKind, FaultSample};

use super::PrefetchCounts;
use super::asked::Asked;
use crate::limits::{WINDOW_PAGES_MIN, WINDOW_ROOM_DIVISOR, WINDOWS_BEYOND_MAX};

/// Which pages of a program are in swap.
pub trait SwappedPages {
    /// Whether `page` is.
    fn is_swapped(&mut self, page: PageNumber) -> bool;
}

/// See the module text.
pub struct SwapPrefetch {
    streams: Streams<SelectedPrefetcher>,
    asked: Asked,
    /// Pages that may be in flight.
    room_pages: usize,
    /// When each thread waited last, of those whose samples are queued.
    waited_ns: HashMap<u32, u64>,
    /// What is to be asked for, and room for one more window.
    wanted: Candidates,
    window: Candidates,
    counts: PrefetchCounts,
}

impl SwapPrefetch {
    /// Pages are asked for by `policy`, but for neighbours of pages in no trend.
    pub fn new(policy: PrefetchPolicy) -> Self {
        let (streams, asked) = (Streams::new(policy.prefetcher()), Asked::default());
        let (wanted, window) = (Candidates::default(), Candidates::default());
        Self {
            streams,
            asked,
            room_pages: 0,
            waited_ns: HashMap::new(),
            wanted,
            window,
            counts: PrefetchCounts::default(),
        }
    }

    /// From now on so many pages may be in flight at a time.
    pub fn set_room(&mut self, pages: usize) {
        self.room_pages = pages;
    }

    /// What was done so far.
    pub fn counts(&self) -> PrefetchCounts {
        self.counts
    }

    /// The kernel had no room for so many samples.
    pub fn on_lost(&mut self, samples: u64) {
        self.counts.lost_samples += samples;
    }

    /// The kernel refused a range.
    pub fn on_failure(&mut self) {
        self.counts.failures += 1;
    }

    /// Process `space` has ended.
    pub fn forget(&mut self, space: u32) {
        self.streams.forget(space);
    }

    /// No fault came for longer than a page is in flight.
    pub fn on_quiet(&mut self) {
        self.asked.arrive(u64::MAX);
    }

    /// Whether faults that do not wait must be sampled: only they tell that a page was used.
    pub fn needs_minor_samples(&self) -> bool {
        self.asked.in_flight() > 0
    }

    /// These samples are there, and come one by one to [`SwapPrefetch::on_sample`].
    pub fn on_queued(&mut self, samples: &[FaultSample]) {
        for sample in samples.iter().filter(|sample| sample.kind == FaultKind::Major) {
            self.waited_ns.insert(sample.thread, sample.time_ns);
        }
    }

    /// Every sample was taken.
    pub fn on_all_taken(&mut self) {
        self.waited_ns.clear();
    }

    /// A program faulted: gives what to ask for now, the most urgent first.
    pub fn on_sample(&mut self, sample: &FaultSample, memory: &mut dyn SwappedPages) -> &[PageNumber] {
        match sample.kind {
            FaultKind::Major => self.counts.major_samples += 1,
            FaultKind::Minor => self.counts.minor_samples += 1,
        }
        self.wanted.clear();
        self.asked.arrive(sample.time_ns);
        let faulter = Faulter { space: sample.process, thread: sample.thread };
        self.propose(faulter, sample);
        if self.waited_ns.get(&sample.thread).is_some_and(|waited_ns| *waited_ns > sample.time_ns) {
            self.window.clear();
        }
        self.keep_wanted(faulter, memory);
        self.ask(faulter.space, sample.time_ns);
        self.wanted.pages()
    }

    /// Puts the window that the fault asks for, if any, to `window`.
    fn propose(&mut self, faulter: Faulter, sample: &FaultSample) {
        let page = PageNumber(sample.address / PAGE_SIZE_BYTES as u64);
        self.window.clear();
        self.window.set_window_max((self.room_pages / WINDOW_ROOM_DIVISOR).clamp(WINDOW_PAGES_MIN, WINDOW_MAX));
        match (self.asked.take(faulter.space, page), sample.kind) {
            (Some(asked), kind) if asked.is_in_flight || kind == FaultKind::Minor => {
                self.counts.pages_used += 1;
                self.counts.pages_late += u64::from(kind == FaultKind::Major);
                if asked.is_marker {
                    self.streams.on_hit(faulter, page, &mut self.window);
                }
            }
            (asked, FaultKind::Major) => {
                if asked.is_some() {
                    self.counts.pages_left += 1;
                    self.streams.on_unused(faulter.space, page);
                }
                self.streams.on_fault(faulter, page, &|_| false, &mut self.window);
            }
            _ => {}
        }
    }

    /// Moves what is worth a read from `window` to `wanted`. A stream comes to stretches of local pages that are
    /// longer than a window: it looks beyond them.
    fn keep_wanted(&mut self, faulter: Faulter, memory: &mut dyn SwappedPages) {
        let whole = self.window.pages().len();
        for _ in 0..WINDOWS_BEYOND_MAX {
            let Some(last) = self.window.pages().last().copied() else { return };
            let asked = &self.asked;
            self.window.retain(|page| !asked.is_in_flight(faulter.space, page) && memory.is_swapped(page));
            self.wanted.append(&self.window);
            if self.wanted.pages().len() * 2 >= whole {
                return;
            }
            self.streams.go_on(faulter, last, &mut self.window);
        }
    }

    /// Notes what is asked for, as far as there is room; nothing if that is for less than half of it: a stream would
    /// come to a marker every few pages, and ask for a window at each.
    fn ask(&mut self, space: u32, now_ns: u64) {
        let whole = self.wanted.pages().len();
        let room = self.room_pages.saturating_sub(self.asked.in_flight());
        let mut room = if room * 2 < whole { 0 } else { room };
        self.wanted.retain(|_| {
            let fits = room > 0;
            room = room.saturating_sub(1);
            fits
        });
        let (pages, marker) = (self.wanted.pages(), self.wanted.marker());
        for page in pages {
            if let Some((space, forgotten)) = self.asked.ask(space, *page, marker == Some(*page), now_ns) {
                self.streams.on_unused(space, forgotten);
            }
        }
        self.counts.pages_held_back += (whole - pages.len()) as u64;
        self.counts.pages_asked += pages.len() as u64;
        self.counts.advices += u64::from(!pages.is_empty());
        assert!(self.asked.in_flight() <= self.room_pages.max(self.asked.in_flight() - pages.len()), "the cap holds");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::limits::ARRIVAL_NS;

    /// A program whose pages of `swapped` are in swap.
    #[derive(Default)]
    struct Memory {
        swapped: BTreeSet<u64>,
    }

    impl Memory {
        fn of(pages: impl IntoIterator<Item = u64>) -> Self {
            Self { swapped: pages.into_iter().collect() }
        }
    }

    impl SwappedPages for Memory {
        fn is_swapped(&mut self, page: PageNumber) -> bool {
            self.swapped.contains(&page.0)
        }
    }

    fn prefetch(room_pages: usize) -> SwapPrefetch {
        let mut prefetch = SwapPrefetch::new(PrefetchPolicy::default());
        prefetch.set_room(room_pages);
        prefetch
    }

    fn sample(kind: FaultKind, thread: u32, page: u64, time_ns: u64) -> FaultSample {
        FaultSample { kind, process: 7, thread, address: page * PAGE_SIZE_BYTES as u64 + 100, time_ns }
    }

    /// A thread goes through `pages`; gives how many it waited for. What is asked for is there at once.
    fn go(prefetch: &mut SwapPrefetch, memory: &mut Memory, pages: impl IntoIterator<Item = u64>) -> usize {
        let (mut cached, mut waits) = (BTreeSet::new(), 0);
        for (time, page) in pages.into_iter().enumerate() {
            let kind = match (memory.swapped.remove(&page), cached.remove(&page)) {
                (true, false) => FaultKind::Major,
                (true, true) => FaultKind::Minor,
                _ => continue,
            };
            waits += usize::from(kind == FaultKind::Major);
            let advice = prefetch.on_sample(&sample(kind, 1, page, time as u64), memory);
            cached.extend(advice.iter().map(|page| page.0));
        }
        waits
    }

    #[test]
    fn streams_and_strides_wait_at_their_begin_only() {
        for stride in [1, 10] {
            let (mut prefetch, mut memory) = (prefetch(1024), Memory::of(0..20_000));
            let waits = go(&mut prefetch, &mut memory, (0..10_000).step_by(stride));
            assert!(waits <= 3, "stride {stride}: {waits} waits");
            let counts = prefetch.counts();
            assert_eq!(counts.pages_used as usize, 10_000 / stride - waits);
            assert!(counts.pages_asked - counts.pages_used <= 2 * WINDOW_MAX as u64, "{counts:?}");
        }
    }

    #[test]
    fn two_threads_do_not_hide_one_another() {
        let (mut prefetch, mut memory) = (prefetch(1024), Memory::of(0..100_000));
        let mut asked = BTreeSet::new();
        let mut waits = 0;
        for step in 0..1000 {
            for (thread, page) in [(1, step), (2, 50_000 + step * 3)] {
                let kind = if asked.remove(&page) { FaultKind::Minor } else { FaultKind::Major };
                waits += usize::from(kind == FaultKind::Major);
                let advice = prefetch.on_sample(&sample(kind, thread, page, step), &mut memory);
                asked.extend(advice.iter().map(|page| page.0));
            }
        }
        assert!(waits <= 6, "{waits} waits");
    }

    #[test]
    fn random_faults_ask_for_little() {
        let (mut prefetch, mut memory) = (prefetch(1024), Memory::of(0..16_384));
        let mut state = 1_u64;
        for time in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            prefetch.on_sample(&sample(FaultKind::Major, 1, state >> 50, time), &mut memory);
        }
        assert!(prefetch.counts().pages_asked < 200, "{:?}", prefetch.counts());
    }

    #[test]
    fn only_pages_in_swap_are_asked_for() {
        let (mut prefetch, mut memory) = (prefetch(1024), Memory::of([0, 1, 3, 5]));
        prefetch.on_sample(&sample(FaultKind::Major, 1, 0, 0), &mut memory);
        let advice = prefetch.on_sample(&sample(FaultKind::Major, 1, 1, 0), &mut memory).to_vec();
        assert_eq!(advice, [3, 5].map(PageNumber), "of the window 2 to 5");
        let mut nothing = Memory::default();
        assert!(prefetch.on_sample(&sample(FaultKind::Major, 1, 6, 0), &mut nothing).is_empty(), "not mapped");
    }

    #[test]
    fn a_stream_looks_beyond_local_pages() {
        let (mut prefetch, mut memory) = (prefetch(1024), Memory::of((0..2).chain(12..40)));
        prefetch.on_sample(&sample(FaultKind::Major, 1, 0, 0), &mut memory);
        let advice = prefetch.on_sample(&sample(FaultKind::Major, 1, 1, 0), &mut memory);
        assert_eq!(advice.first(), Some(&PageNumber(12)));
    }

    #[test]
    fn without_room_nothing_is_asked_for() {
        let (mut prefetch, mut memory) = (prefetch(0), Memory::of(0..1000));
        let waits = go(&mut prefetch, &mut memory, 0..1000);
        assert_eq!((waits, prefetch.counts().pages_asked), (1000, 0));
        assert!(prefetch.counts().pages_held_back > 0);
        assert!(!prefetch.needs_minor_samples());
    }

    #[test]
    fn samples_that_were_overtaken_only_teach() {
        let (mut prefetch, mut memory) = (prefetch(1024), Memory::of(5..1000));
        let samples: Vec<_> = (0..5).map(|page| sample(FaultKind::Major, 1, page, page)).collect();
        prefetch.on_queued(&samples);
        let advice: Vec<_> = samples.iter().map(|sample| prefetch.on_sample(sample, &mut memory).to_vec()).collect();
        assert!(advice[..4].iter().all(Vec::is_empty), "{advice:?}");
        assert_eq!(advice[4].first(), Some(&PageNumber(5)), "the last one asks, for a window that has grown");
        assert!(advice[4].len() > WINDOW_PAGES_MIN);
        prefetch.on_all_taken();
        let marker = prefetch.on_sample(&sample(FaultKind::Minor, 1, advice[4][advice[4].len() / 2].0, 0), &mut memory);
        assert!(!marker.is_empty(), "its time no longer counts");
    }

    #[test]
    fn pages_that_arrive_make_room() {
        let (mut prefetch, mut memory) = (prefetch(4), Memory::of(0..1000));
        let fault = |prefetch: &mut SwapPrefetch, memory: &mut Memory, page, time_ns| {
            prefetch.on_sample(&sample(FaultKind::Major, 1, page, time_ns), memory).len()
        };
        fault(&mut prefetch, &mut memory, 0, 0);
        assert_eq!(fault(&mut prefetch, &mut memory, 1, 0), 4);
        assert!(prefetch.needs_minor_samples());
        assert_eq!(fault(&mut prefetch, &mut memory, 6, 1), 0, "four are in flight");
        assert!(fault(&mut prefetch, &mut memory, 7, ARRIVAL_NS) > 0);
        prefetch.on_quiet();
        assert!(!prefetch.needs_minor_samples());
    }

    #[test]
    fn a_page_that_left_before_its_use_is_counted() {
        let (mut prefetch, mut memory) = (prefetch(64), Memory::of(0..1000));
        prefetch.on_sample(&sample(FaultKind::Major, 1, 0, 0), &mut memory);
        prefetch.on_sample(&sample(FaultKind::Major, 1, 1, 0), &mut memory);
        prefetch.on_sample(&sample(FaultKind::Major, 1, 2, 1), &mut memory);
        assert_eq!((prefetch.counts().pages_late, prefetch.counts().pages_left), (1, 0), "it was on its way");
        prefetch.on_sample(&sample(FaultKind::Major, 1, 3, ARRIVAL_NS), &mut memory);
        assert_eq!((prefetch.counts().pages_late, prefetch.counts().pages_left), (1, 1));
    }

    proptest! {
        #[test]
        fn the_cap_holds_and_only_swapped_pages_are_asked_for(
            faults in proptest::collection::vec((0_u64..400, 0_u32..3, any::<bool>()), 1..300),
            room_pages in 0_usize..200, holes in 2_u64..9
        ) {
            let mut prefetch = prefetch(room_pages);
            let mut memory = Memory::of((0..2000).filter(|page| page % holes != 0));
            for (time, (page, thread, is_major)) in faults.into_iter().enumerate() {
                let kind = if is_major { FaultKind::Major } else { FaultKind::Minor };
                let sample = sample(kind, thread, page, time as u64 * ARRIVAL_NS / 50);
                let advice = prefetch.on_sample(&sample, &mut memory).to_vec();
                prop_assert!(prefetch.asked.in_flight() <= room_pages);
                prop_assert!(advice.iter().all(|page| memory.swapped.contains(&page.0)));
                prop_assert_eq!(advice.iter().collect::<BTreeSet<_>>().len(), advice.len());
            }
        }
    }
}
