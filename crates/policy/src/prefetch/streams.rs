//! One prefetcher for each thread, in a bounded number of slots.
//!
//! Two threads that read two arrays in turn look like noise when their faults are put together (Leap's stated future
//! work: thread-specific prefetching). So faults are kept apart by address space, and by thread and region of
//! addresses as far as the policy wants it ([`Keying`]): one that tells strides of any length apart itself wants all
//! of a thread. A slot that has not been used for longest is taken for a new stream.
//!
//! What came along is told to the stream that brought it ([`Prefetcher::has_ahead`]), whichever thread comes to it.
//!
//! A stream remembers its last window, and says which pages the program has passed when a marker is reached: those
//! between the marker before and this one. They were used, though the kernel did not tell. A marker itself, which was
//! waited for, is said when the next one is reached: by then it is surely there.
//!
//! Looking a stream up compares [`STREAMS_MAX`] keys that lie together: some tens of nanoseconds.

use super::{Candidates, Keying, PageNumber, Prefetcher};

/// Streams that are kept apart: threads that fault at once times arrays that each goes through, 16 x 4. Leap's kernel
/// code keeps one history for the whole machine.
pub const STREAMS_MAX: usize = 64;

/// A region is so many pages, as a power of two: 64 MiB. A stream that goes on in the next region begins anew there,
/// which costs it one fault in 16,384 pages.
const REGION_BITS: u32 = 14;

/// What faults: the pager's numbers for an address space and a thread in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faulter {
    /// The address space.
    pub space: u32,
    /// The thread; 0 where the kernel does not tell (UFFD_FEATURE_THREAD_ID).
    pub thread: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    faulter: Faulter,
    region: u64,
}

impl Key {
    /// The key of `faulter` and `page`, for a policy that keeps faults apart by `keying`.
    fn of(keying: Keying, faulter: Faulter, page: PageNumber) -> Self {
        match keying {
            Keying::Process => Self { faulter: Faulter { thread: 0, ..faulter }, region: 0 },
            Keying::Thread => Self { faulter, region: 0 },
            Keying::ThreadAndRegion => Self { faulter, region: page.0 >> REGION_BITS },
        }
    }

    /// Whether both are in the same part of the same address space, whichever thread faults.
    fn is_beside(&self, other: &Self) -> bool {
        self.region == other.region && self.faulter.space == other.faulter.space
    }
}

/// See the module text.
#[derive(Clone, Debug)]
pub struct Streams<Policy> {
    fresh: Policy,
    keys: Vec<Option<Key>>,
    used_at: Vec<u64>,
    policies: Vec<Policy>,
    /// The last window of each stream: what was brought along and not passed yet.
    windows: Vec<Candidates>,
    /// The last marker that each stream reached, if it goes on by markers.
    markers: Vec<Option<PageNumber>>,
    passed: Candidates,
    marker_passed: Option<PageNumber>,
    clock: u64,
    /// The slot that was used last, which most often is the next one too.
    latest: usize,
}

impl<Policy: Prefetcher + Clone> Streams<Policy> {
    /// No stream yet; each begins as a copy of `fresh`. All memory is taken now.
    pub fn new(fresh: Policy) -> Self {
        Self {
            keys: vec![None; STREAMS_MAX],
            used_at: vec![0; STREAMS_MAX],
            policies: vec![fresh.clone(); STREAMS_MAX],
            windows: vec![Candidates::default(); STREAMS_MAX],
            markers: vec![None; STREAMS_MAX],
            passed: Candidates::default(),
            marker_passed: None,
            clock: 0,
            latest: 0,
            fresh,
        }
    }

    /// The policy's name.
    pub fn name(&self) -> &'static str {
        self.fresh.name()
    }

    /// `faulter` waits for `page`; see [`Prefetcher::on_fault`], and [`Prefetcher::around`] for `is_away`.
    pub fn on_fault(
        &mut self,
        faulter: Faulter,
        page: PageNumber,
        is_away: &dyn Fn(PageNumber) -> bool,
        candidates: &mut Candidates,
    ) {
        let slot = self.slot(self.key(faulter, page));
        candidates.clear();
        self.policies[slot].on_fault(page, candidates);
        if candidates.pages().is_empty() {
            self.policies[slot].around(page, is_away, candidates);
        } else {
            // Not all of its room, as a copy would be.
            self.windows[slot].clear();
            self.windows[slot].append(candidates);
            self.markers[slot] = None;
        }
    }

    /// `faulter` reached the marker `page`; see [`Prefetcher::on_hit`]. The stream that brought it along may be another
    /// thread's; without one that still lives there is nothing to bring along.
    pub fn on_hit(&mut self, faulter: Faulter, page: PageNumber, candidates: &mut Candidates) {
        candidates.clear();
        self.passed.clear();
        self.marker_passed = None;
        if let Some(slot) = self.find(self.key(faulter, page), page) {
            self.renew(slot);
            if self.fresh.keeps_unmapped() {
                // Each page tells for itself.
                return self.policies[slot].on_hit(page, candidates);
            }
            let came_from_last = self.pass(slot, page);
            self.marker_passed = self.markers[slot].replace(page).filter(|last| came_from_last && *last != page);
            self.policies[slot].on_hit(page, candidates);
            self.windows[slot].extend(candidates.pages());
        }
    }

    /// Of what `faulter` was to have up to `page`, the last of it, too much is local already: goes on behind it. The
    /// program has reached nothing.
    pub fn go_on(&mut self, faulter: Faulter, page: PageNumber, candidates: &mut Candidates) {
        candidates.clear();
        if let Some(slot) = self.find(self.key(faulter, page), page) {
            self.policies[slot].go_on(page, candidates);
            self.windows[slot].extend(candidates.pages());
        }
    }

    /// The pages that the last [`Streams::on_hit`] showed to be used, its marker not among them. Some may have been
    /// there all the time.
    pub fn passed(&self) -> &[PageNumber] {
        self.passed.pages()
    }

    /// The marker that was reached before that of the last [`Streams::on_hit`], if the stream came from there.
    pub fn marker_passed(&self) -> Option<PageNumber> {
        self.marker_passed
    }

    /// Moves what the stream in `slot` brought along before `marker` from its window to what is passed. Whether the
    /// marker was in that window.
    fn pass(&mut self, slot: usize, marker: PageNumber) -> bool {
        let window = &mut self.windows[slot];
        if let Some(place) = window.pages().iter().position(|page| *page == marker) {
            self.passed.extend(&window.pages()[..place]);
            window.drop_first(place + 1);
            true
        } else {
            window.clear();
            false
        }
    }

    /// `page` was brought along for address space `space` and left unused. No thread faulted, so it counts against a
    /// stream of its address space.
    pub fn on_unused(&mut self, space: u32, page: PageNumber) {
        let key = self.key(Faulter { space, thread: 0 }, page);
        if let Some(slot) = self.find(key, page).or_else(|| self.latest_of(space)) {
            self.policies[slot].on_unused(page);
        }
    }

    /// Address space `space` has ended.
    pub fn forget(&mut self, space: u32) {
        for key in &mut self.keys {
            if key.is_some_and(|key| key.faulter.space == space) {
                *key = None;
            }
        }
    }

    fn key(&self, faulter: Faulter, page: PageNumber) -> Key {
        Key::of(self.fresh.keying(), faulter, page)
    }

    /// Whether all that comes along stays unmapped ([`Prefetcher::keeps_unmapped`]).
    pub fn keeps_unmapped(&self) -> bool {
        self.fresh.keeps_unmapped()
    }

    /// Whether blocks come along whose size goes by their use ([`Prefetcher::brings_blocks`]).
    pub fn brings_blocks(&self) -> bool {
        self.fresh.brings_blocks()
    }

    fn renew(&mut self, slot: usize) {
        self.clock += 1;
        (self.used_at[slot], self.latest) = (self.clock, slot);
    }

    fn exact(&self, key: Key) -> Option<usize> {
        if self.keys[self.latest] == Some(key) {
            return Some(self.latest);
        }
        self.keys.iter().position(|known| *known == Some(key))
    }

    /// The stream that brought `page` along: that of `key`, or else the one beside it that was used last.
    fn find(&self, key: Key, page: PageNumber) -> Option<usize> {
        let has_ahead = |slot: &usize| self.policies[*slot].has_ahead(page);
        let exact = self.exact(key).filter(has_ahead);
        let beside = |slot: &usize| self.keys[*slot].is_some_and(|known| known.is_beside(&key));
        exact.or_else(|| {
            let others = (0..STREAMS_MAX).filter(beside).filter(has_ahead);
            others.max_by_key(|slot| self.used_at[*slot])
        })
    }

    /// The stream of the address space that was used last.
    fn latest_of(&self, space: u32) -> Option<usize> {
        let is_of = |slot: &usize| self.keys[*slot].is_some_and(|key| key.faulter.space == space);
        (0..STREAMS_MAX).filter(is_of).max_by_key(|slot| self.used_at[*slot])
    }

    /// The stream of `key`, made if there is none.
    fn slot(&mut self, key: Key) -> usize {
        let slot = self.exact(key).unwrap_or_else(|| {
            let age = |slot: &usize| (self.keys[*slot].is_some(), self.used_at[*slot]);
            let oldest = (0..STREAMS_MAX).min_by_key(age).expect("there is a slot");
            let mut policy = self.fresh.clone();
            if let Some(latest) = self.latest_of(key.faulter.space) {
                policy.learn_from(&self.policies[latest]);
            }
            self.keys[oldest] = Some(key);
            self.policies[oldest] = policy;
            self.windows[oldest].clear();
            self.markers[oldest] = None;
            oldest
        });
        self.renew(slot);
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::leap::Leap;
    use crate::prefetch::read_ahead::ReadAhead;

    /// Tells its faults and hits through what it proposes.
    #[derive(Clone, Debug, Default)]
    struct Counting {
        faults: u64,
        hits: u64,
        unused: u32,
        learnt: u64,
    }

    impl Prefetcher for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }

        fn on_fault(&mut self, _page: PageNumber, candidates: &mut Candidates) {
            self.faults += 1;
            candidates.push(PageNumber(self.faults));
        }

        fn on_hit(&mut self, _page: PageNumber, candidates: &mut Candidates) {
            self.hits += 1;
            candidates.push(PageNumber(100 * self.hits));
        }

        fn on_unused(&mut self, _page: PageNumber) {
            self.unused += 1;
        }

        fn learn_from(&mut self, other: &Self) {
            self.learnt = other.learnt + other.faults;
        }
    }

    fn faulter(space: u32, thread: u32) -> Faulter {
        Faulter { space, thread }
    }

    fn fault(streams: &mut Streams<Counting>, faulter: Faulter, page: u64) -> u64 {
        let mut candidates = Candidates::default();
        streams.on_fault(faulter, PageNumber(page), &|_| true, &mut candidates);
        assert_eq!(candidates.pages().len(), 1, "what was there before is cleared");
        candidates.pages()[0].0
    }

    #[test]
    fn threads_regions_and_spaces_are_apart() {
        let mut streams = Streams::new(Counting::default());
        let far = 1 << REGION_BITS;
        for (who, page) in [(faulter(0, 0), 0), (faulter(0, 1), 1), (faulter(1, 0), 2), (faulter(0, 0), far)] {
            assert_eq!(fault(&mut streams, who, page), 1);
        }
        assert_eq!(fault(&mut streams, faulter(0, 0), far - 1), 2);
    }

    #[test]
    fn a_policy_sees_what_it_wants_to_see_together() {
        let page = |number: u64| PageNumber(number << REGION_BITS);
        let key = |keying, thread, number| Key::of(keying, faulter(1, thread), page(number));
        assert_eq!(key(Keying::Process, 1, 0), key(Keying::Process, 2, 9));
        assert_ne!(key(Keying::Thread, 1, 0), key(Keying::Thread, 2, 0));
        assert_eq!(key(Keying::Thread, 1, 0), key(Keying::Thread, 1, 9));
        assert_ne!(key(Keying::ThreadAndRegion, 1, 0), key(Keying::ThreadAndRegion, 1, 9));
    }

    #[test]
    fn what_comes_along_is_told_to_the_stream_that_brought_it() {
        let mut streams = Streams::new(ReadAhead::default());
        let mut candidates = Candidates::default();
        for thread in 0..3 {
            let base = u64::from(thread) * 10_000;
            (0..2).for_each(|page| {
                streams.on_fault(faulter(0, thread), PageNumber(base + page), &|_| true, &mut candidates);
            });
        }
        streams.on_hit(faulter(0, 9), PageNumber(10_004), &mut candidates);
        assert_eq!(candidates.pages()[0], PageNumber(10_006), "another thread came to the second's marker");
        (6..14).for_each(|page| streams.on_unused(0, PageNumber(10_000 + page)));
        streams.on_hit(faulter(0, 0), PageNumber(4), &mut candidates);
        assert_eq!(candidates.pages().len(), 8, "the first's windows grow");
        streams.on_hit(faulter(0, 1), PageNumber(10_006), &mut candidates);
        assert_eq!(candidates.pages().len(), 4, "the second's were wasted");
    }

    #[test]
    fn pages_that_stay_unmapped_tell_for_themselves() {
        let mut streams = Streams::new(Leap::by_process());
        let (mut candidates, who) = (Candidates::default(), faulter(0, 0));
        for page in [50, 51, 52] {
            streams.on_fault(who, PageNumber(page), &|_| true, &mut candidates);
        }
        assert_eq!(candidates.pages(), [PageNumber(53)]);
        streams.on_hit(who, PageNumber(53), &mut candidates);
        assert!(candidates.pages().is_empty() && streams.passed().is_empty() && streams.marker_passed().is_none());
        streams.on_fault(who, PageNumber(54), &|_| true, &mut candidates);
        assert_eq!(candidates.pages(), [PageNumber(55), PageNumber(56)], "it was a hit");
    }

    #[test]
    fn a_new_stream_learns_from_the_last_one_of_its_program() {
        let mut streams = Streams::new(Counting::default());
        (0..3).for_each(|_| _ = fault(&mut streams, faulter(0, 0), 0));
        fault(&mut streams, faulter(1, 0), 0);
        fault(&mut streams, faulter(0, 0), 1 << REGION_BITS);
        let learnt = |slot: usize| streams.policies[slot].learnt;
        assert_eq!([0, 1, 2].map(learnt), [0, 0, 3], "not from another program");
    }

    #[test]
    fn the_stream_that_rested_longest_makes_room() {
        let mut streams = Streams::new(Counting::default());
        for thread in 0..STREAMS_MAX as u32 {
            fault(&mut streams, faulter(0, thread), 0);
        }
        assert_eq!(fault(&mut streams, faulter(0, 0), 0), 2);
        fault(&mut streams, faulter(0, 1000), 0);
        assert_eq!(fault(&mut streams, faulter(0, 0), 0), 3, "it was used since");
        assert_eq!(fault(&mut streams, faulter(0, 1), 0), 1, "it was not");
    }

    #[test]
    fn a_hit_by_another_thread_goes_to_the_stream_beside() {
        let mut streams = Streams::new(Counting::default());
        let mut candidates = Candidates::default();
        streams.on_hit(faulter(0, 5), PageNumber(3), &mut candidates);
        assert!(candidates.pages().is_empty(), "nobody brought anything along");
        fault(&mut streams, faulter(0, 0), 0);
        streams.on_hit(faulter(0, 5), PageNumber(3), &mut candidates);
        assert_eq!(candidates.pages(), [PageNumber(100)]);
        streams.on_hit(faulter(1, 0), PageNumber(3), &mut candidates);
        assert!(candidates.pages().is_empty(), "not across address spaces");
    }

    #[test]
    fn markers_tell_what_was_passed() {
        let mut streams = Streams::new(ReadAhead::default());
        let (mut candidates, who) = (Candidates::default(), faulter(0, 0));
        [0, 1].iter().for_each(|page| streams.on_fault(who, PageNumber(*page), &|_| true, &mut candidates));
        let mut passed = Vec::new();
        for marker in [4, 6, 14] {
            assert_eq!(candidates.marker(), Some(PageNumber(marker)));
            streams.on_hit(who, PageNumber(marker), &mut candidates);
            let marker = streams.marker_passed().map(|page| page.0);
            passed.push((marker, streams.passed().iter().map(|page| page.0).collect::<Vec<_>>()));
        }
        assert_eq!(
            passed,
            [(None, vec![2, 3]), (Some(4), vec![5]), (Some(6), (7..14).collect())],
            "each once, and a marker when the next is reached"
        );
        let (marker, last) = (candidates.marker().unwrap(), *candidates.pages().last().unwrap());
        streams.go_on(who, last, &mut candidates);
        let (count, next) = (candidates.pages().len(), candidates.marker().unwrap());
        streams.on_hit(who, marker, &mut candidates);
        streams.on_hit(who, next, &mut candidates);
        assert_eq!(streams.passed().len(), count - 1, "the rest of its window");
        streams.on_hit(who, PageNumber(1000), &mut candidates);
        assert!(streams.passed().is_empty() && streams.marker_passed().is_none(), "what is no marker passes nothing");
    }

    #[test]
    fn waste_is_told_and_the_dead_are_forgotten() {
        let mut streams = Streams::new(Counting::default());
        fault(&mut streams, faulter(3, 7), 9);
        streams.on_unused(3, PageNumber(10));
        streams.on_unused(4, PageNumber(10));
        assert_eq!(streams.policies.iter().map(|policy| policy.unused).sum::<u32>(), 1);
        streams.forget(3);
        assert_eq!(fault(&mut streams, faulter(3, 7), 9), 1);
    }
}
