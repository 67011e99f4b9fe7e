//! Accesses by rule, for what no workload shows alone.

use spillway_policy::prefetch::PageNumber;
use spillway_policy::trace::{Event, Kind, Recorder};

use crate::permutation::Permutation;
use crate::random::Random;
use crate::zipf::Zipf;

/// How often a pattern goes through its pages.
const ROUNDS: u64 = 6;

/// Pages from one access to the next in the strided pattern: Leap's stride experiment used 10.
const STRIDE_PAGES: u64 = 10;

/// Of the pages of [`Pattern::ScanAndHot`], one in so many is hot.
const HOT_SHARE: u64 = 5;

/// Accesses to hot pages for each page of the scan.
const HOT_ACCESSES: u64 = 3;

/// YCSB's default, as in the key-value workload.
const SKEW: f64 = 0.99;

/// One access in so many is a write, of those that are mixed.
const ACCESSES_PER_WRITE: u64 = 10;

/// Where the pages begin: anywhere, in whole groups.
const BASE: u64 = 1 << 20;

/// Ticks from one access to the next: a page is worked on for about a microsecond.
const TICKS: u64 = 500;

/// See the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All pages in order, again and again.
    Loop,
    /// Every tenth page, then every tenth from the second on; again and again.
    StridedLoop,
    /// Any page, each as often as the others.
    Random,
    /// Few pages often, many seldom.
    Zipf,
    /// A scan through all pages but a fifth, which are used at random all the time.
    ScanAndHot,
    /// Two threads, each reading one half in order.
    TwoStreams,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Loop, Self::StridedLoop, Self::Random, Self::Zipf, Self::ScanAndHot, Self::TwoStreams];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::StridedLoop => "strided loop",
            Self::Random => "random",
            Self::Zipf => "zipf",
            Self::ScanAndHot => "scan and hot set",
            Self::TwoStreams => "two streams",
        }
    }

    /// Its trace over `pages` pages.
    pub fn record(self, pages: u64, seed: u64) -> Recorder {
        let mut pattern = Writer::new(pages, seed);
        match self {
            Self::Loop => (0..ROUNDS * pages).for_each(|step| pattern.read(step % pages, 0)),
            Self::StridedLoop => pattern.strides(pages),
            Self::Random => pattern.random(|random| random.below(pages), pages),
            Self::Zipf => {
                let (zipf, scattered) = (Zipf::new(pages, SKEW), Permutation::new(pages, seed));
                pattern.random(|random| scattered.at(zipf.next(random)), pages);
            }
            Self::ScanAndHot => pattern.scan_and_hot(pages),
            Self::TwoStreams => {
                let half = pages / 2;
                (0..2 * ROUNDS * half).for_each(|step| {
                    let thread = step % 2;
                    pattern.read(thread * half + step / 2 % half, thread as u32);
                });
            }
        }
        pattern.recorder
    }
}

/// Writes the accesses of a pattern.
struct Writer {
    recorder: Recorder,
    random: Random,
    time: u64,
}

impl Writer {
    fn new(pages: u64, seed: u64) -> Self {
        // An access takes at most 11 bytes at these distances, and no pattern has more accesses for a page.
        let room = pages * ROUNDS * (HOT_ACCESSES + 1) * 11;
        Self { recorder: Recorder::new(Kind::Touches, room as usize), random: Random::new(seed), time: 0 }
    }

    fn access(&mut self, page: u64, thread: u32, write: bool) {
        self.time += TICKS;
        let fits = self.recorder.record(Event { page: PageNumber(BASE + page), thread, write, time: self.time });
        assert!(fits, "there is room for every pattern");
    }

    fn read(&mut self, page: u64, thread: u32) {
        self.access(page, thread, false);
    }

    fn mixed(&mut self, page: u64) {
        let write = self.random.below(ACCESSES_PER_WRITE) == 0;
        self.access(page, 0, write);
    }

    fn strides(&mut self, pages: u64) {
        for _ in 0..ROUNDS {
            for lane in 0..STRIDE_PAGES {
                (lane..pages).step_by(STRIDE_PAGES as usize).for_each(|page| self.read(page, 0));
            }
        }
    }

    fn random(&mut self, mut choose: impl FnMut(&mut Random) -> u64, pages: u64) {
        for _ in 0..ROUNDS * pages {
            let page = choose(&mut self.random);
            self.mixed(page);
        }
    }

    fn scan_and_hot(&mut self, pages: u64) {
        let hot = pages / HOT_SHARE;
        for step in 0..ROUNDS * (pages - hot) {
            self.read(hot + step % (pages - hot), 0);
            for _ in 0..HOT_ACCESSES {
                let page = self.random.below(hot);
                self.mixed(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::replay::traces::read;

    #[test]
    fn patterns_touch_their_pages_and_are_fixed_by_their_seed() {
        for pattern in Pattern::ALL {
            let bytes = |seed| {
                let mut bytes = Vec::new();
                pattern.record(100, seed).write_to(&mut bytes).unwrap();
                bytes
            };
            assert_eq!(bytes(1), bytes(1));
            let all = read(&bytes(1)).unwrap();
            let pages: HashSet<u64> = all.as_slice().iter().map(|one| all.virtual_page(one.page).0 - BASE).collect();
            assert!(pages.len() > 60 && pages.iter().all(|page| *page < 100), "{}", pattern.name());
            assert!(all.as_slice().len() as u64 >= ROUNDS * 100);
        }
    }

    #[test]
    fn streams_are_of_two_threads() {
        let mut bytes = Vec::new();
        Pattern::TwoStreams.record(10, 1).write_to(&mut bytes).unwrap();
        let all = read(&bytes).unwrap();
        let first: Vec<_> =
            all.as_slice()[..4].iter().map(|one| (all.virtual_page(one.page).0 - BASE, one.thread)).collect();
        assert_eq!(first, [(0, 0), (5, 1), (1, 0), (6, 1)]);
    }
}
