//! Accesses by rule, for what no workload shows alone.

use spillway_policy::prefetch::PageNumber;
use spillway_policy::trace::{Event, Kind, Recorder};

use spillway_workloads::permutation::Permutation;
use spillway_workloads::random::Random;
use spillway_workloads::zipf::Zipf;

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

/// Of the accesses of a pattern with noise, one in so many is followed by one at random.
const ACCESSES_PER_NOISE: u64 = 4;

/// Noise that is near is within so many pages: a few windows of Leap's.
const NOISE_REACH_PAGES: u64 = 32;

/// Pages of a row of the transposed matrix.
const TRANSPOSED_ROW_PAGES: u64 = 64;

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
    /// Eight threads, each reading one eighth in order.
    EightStreams,
    /// A matrix whose rows have so many pages, by columns; again and again.
    Columns(u64),
    /// Every second page in order, and some near where the program is at random.
    NoiseNear,
    /// All pages in order, and some anywhere at random.
    NoiseFar,
    /// A matrix in one half is read by rows and written to the other by columns, in tiles of a page.
    Transpose,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Loop,
        Self::StridedLoop,
        Self::Random,
        Self::Zipf,
        Self::ScanAndHot,
        Self::TwoStreams,
        Self::EightStreams,
        Self::Columns(200),
        Self::Columns(400),
        Self::NoiseNear,
        Self::NoiseFar,
        Self::Transpose,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::StridedLoop => "strided loop",
            Self::Random => "random",
            Self::Zipf => "zipf",
            Self::ScanAndHot => "scan and hot set",
            Self::TwoStreams => "two streams",
            Self::EightStreams => "eight streams",
            Self::Columns(200) => "columns, rows of 200",
            Self::Columns(400) => "columns, rows of 400",
            Self::Columns(_) => "columns",
            Self::NoiseNear => "stride 2, noise near",
            Self::NoiseFar => "sequence, noise far",
            Self::Transpose => "transpose",
        }
    }

    /// Its trace over `pages` pages.
    pub fn record(self, pages: u64, seed: u64) -> Recorder {
        let mut pattern = Writer::new(pages, seed);
        match self {
            Self::Loop => (0..ROUNDS * pages).for_each(|step| pattern.read(step % pages, 0)),
            Self::StridedLoop => pattern.strides(pages, STRIDE_PAGES),
            Self::Columns(row) => pattern.strides(pages, row),
            Self::Random => pattern.random(|random| random.below(pages), pages),
            Self::Zipf => {
                let (zipf, scattered) = (Zipf::new(pages, SKEW), Permutation::new(pages, seed));
                pattern.random(|random| scattered.at(zipf.next(random)), pages);
            }
            Self::ScanAndHot => pattern.scan_and_hot(pages),
            Self::TwoStreams => pattern.streams(pages, 2),
            Self::EightStreams => pattern.streams(pages, 8),
            Self::NoiseNear => pattern.noise_near(pages),
            Self::NoiseFar => pattern.noise_far(pages),
            Self::Transpose => pattern.transpose(pages),
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

    fn strides(&mut self, pages: u64, stride: u64) {
        for _ in 0..ROUNDS {
            for lane in 0..stride {
                (lane..pages).step_by(stride as usize).for_each(|page| self.read(page, 0));
            }
        }
    }

    fn streams(&mut self, pages: u64, threads: u64) {
        let part = pages / threads;
        (0..threads * ROUNDS * part).for_each(|step| {
            let thread = step % threads;
            self.read(thread * part + step / threads % part, thread as u32);
        });
    }

    fn noise_near(&mut self, pages: u64) {
        for _ in 0..ROUNDS {
            for page in (0..2).flat_map(|lane| (lane..pages).step_by(2)) {
                self.read(page, 0);
                if self.random.below(ACCESSES_PER_NOISE) == 0 {
                    let distance = self.random.below(2 * NOISE_REACH_PAGES);
                    self.read((page + distance).saturating_sub(NOISE_REACH_PAGES).min(pages - 1), 0);
                }
            }
        }
    }

    fn noise_far(&mut self, pages: u64) {
        for page in (0..ROUNDS).flat_map(|_| 0..pages) {
            self.read(page, 0);
            if self.random.below(ACCESSES_PER_NOISE) == 0 {
                let other = self.random.below(pages);
                self.read(other, 0);
            }
        }
    }

    fn transpose(&mut self, pages: u64) {
        let half = pages / 2;
        let row = TRANSPOSED_ROW_PAGES.min(half);
        let tiles = half / row * row;
        for step in (0..ROUNDS).flat_map(|_| 0..tiles) {
            let (column, line) = (step / (tiles / row), step % (tiles / row));
            self.read(step, 0);
            self.access(half + line * row + column, 0, true);
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
    use spillway_policy::replay::accesses::Accesses;
    use spillway_policy::trace::Reader;

    fn read(bytes: &[u8]) -> Accesses {
        Accesses::read(Reader::new(bytes).unwrap()).unwrap()
    }

    /// A multiple of the threads of every pattern.
    const PAGES: u64 = 96;

    #[test]
    fn patterns_touch_their_pages_and_are_fixed_by_their_seed() {
        for pattern in Pattern::ALL {
            let bytes = |seed| {
                let mut bytes = Vec::new();
                pattern.record(PAGES, seed).write_to(&mut bytes).unwrap();
                bytes
            };
            assert_eq!(bytes(1), bytes(1));
            let all = read(&bytes(1));
            let pages: HashSet<u64> = all.as_slice().iter().map(|one| all.virtual_page(one.page).0 - BASE).collect();
            assert!(pages.len() > 60 && pages.iter().all(|page| *page < PAGES), "{}", pattern.name());
            assert!(all.as_slice().len() as u64 >= ROUNDS * PAGES);
        }
    }

    #[test]
    fn streams_are_of_two_threads() {
        let mut bytes = Vec::new();
        Pattern::TwoStreams.record(10, 1).write_to(&mut bytes).unwrap();
        let all = read(&bytes);
        let first: Vec<_> =
            all.as_slice()[..4].iter().map(|one| (all.virtual_page(one.page).0 - BASE, one.thread)).collect();
        assert_eq!(first, [(0, 0), (5, 1), (1, 0), (6, 1)]);
    }
}
