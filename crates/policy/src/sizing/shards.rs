//! A miss curve from single references, of which a part is looked at: SHARDS (Waldspurger et al., FAST'15, "Efficient
//! MRC construction with SHARDS").
//!
//! A page is looked at if its hash is below a threshold, always or never. Its reuse distance is the number of other
//! such pages used since its last use, divided by the part of pages that are looked at. When more than
//! [`SAMPLED_PAGES_MAX`] pages would be kept, the one with the largest hash is forgotten and the threshold becomes its
//! hash: memory is bounded, whatever the program uses. Counts made so far then weigh as much less as the part shrank.
//!
//! Where the pages looked at had more or fewer references than their part of all, hot pages were: the difference goes
//! to the shortest distance (SHARDS-adj in the paper).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::miss_curve::{CurvePoint, MissCurve};

/// Values of the hash (`P` of the paper, section 3.1).
const HASHES: u64 = 1 << 24;

/// Pages that are kept at most (`s_max`): 8192 have a mean error below 0.01 on most of the paper's traces (figure 5).
pub const SAMPLED_PAGES_MAX: usize = 8192;

/// Distances that are told apart, at most: the curve has as many points.
const DISTANCE_BUCKETS: f64 = 512.0;

/// See the module text.
#[derive(Clone, Debug)]
pub struct Shards {
    /// Pages whose hash is below it are looked at.
    threshold: u64,
    pages_max: usize,
    /// When each page was used last.
    last: HashMap<u64, usize>,
    /// The pages, by hash.
    by_hash: BTreeSet<(u64, u64)>,
    order: Order,
    /// Weight of references by their distance, in pages; scaled.
    distances: BTreeMap<u64, f64>,
    /// Weight of references to pages not seen before.
    first: f64,
    /// All references, looked at or not.
    references: u64,
}

/// Which moments are the last use of a page: a Fenwick tree (Fenwick 1994) over moments.
#[derive(Clone, Debug)]
struct Order {
    sums: Vec<u32>,
    /// The next moment.
    now: usize,
}

impl Order {
    fn new(moments: usize) -> Self {
        Self { sums: vec![0; moments + 1], now: 0 }
    }

    fn change(&mut self, moment: usize, is_last_use: bool) {
        let mut index = moment + 1;
        while index < self.sums.len() {
            let sum = &mut self.sums[index];
            *sum = if is_last_use { *sum + 1 } else { *sum - 1 };
            index += index & index.wrapping_neg();
        }
    }

    /// Last uses before a moment.
    fn before(&self, moment: usize) -> u32 {
        let (mut index, mut count) = (moment, 0);
        while index > 0 {
            count += self.sums[index];
            index &= index - 1;
        }
        count
    }

    fn is_full(&self) -> bool {
        self.now + 1 == self.sums.len()
    }
}

/// The last step of splitmix64 (Steele et al. 2014): neighbours have unlike hashes.
fn hash(page: u64) -> u64 {
    let mut mixed = page.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % HASHES
}

impl Shards {
    /// Looks at this part of pages, from above 0 to 1, and keeps at most `pages_max` of them.
    pub fn new(part: f64, pages_max: usize) -> Self {
        assert!(part > 0.0 && part <= 1.0 && pages_max > 0, "a part of the pages is looked at");
        Self {
            threshold: ((part * HASHES as f64) as u64).max(1),
            pages_max,
            last: HashMap::new(),
            by_hash: BTreeSet::new(),
            // So many moments that renumbering them is rare.
            order: Order::new(4 * (pages_max + 1)),
            distances: BTreeMap::new(),
            first: 0.0,
            references: 0,
        }
    }

    /// The part of pages that is looked at now.
    pub fn part(&self) -> f64 {
        self.threshold as f64 / HASHES as f64
    }

    /// All references so far.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// `page` is used.
    pub fn used(&mut self, page: u64) {
        self.references += 1;
        let hash = hash(page);
        if hash >= self.threshold {
            return;
        }
        if self.order.is_full() {
            self.renumber();
        }
        let now = self.order.now;
        if let Some(before) = self.last.insert(page, now) {
            let since = self.order.before(now) - self.order.before(before + 1);
            let distance = (f64::from(since) / self.part()) as u64;
            *self.distances.entry(distance).or_default() += 1.0;
            self.order.change(before, false);
        } else {
            self.first += 1.0;
            self.by_hash.insert((hash, page));
        }
        self.order.change(now, true);
        self.order.now += 1;
        while self.last.len() > self.pages_max {
            self.shrink();
        }
        assert_eq!(self.last.len(), self.by_hash.len(), "each page has one last use and one hash");
    }

    /// Forgets the pages with the largest hash.
    fn shrink(&mut self) {
        let Some((largest, _)) = self.by_hash.last().copied() else { return };
        let before = self.part();
        self.threshold = largest;
        let scale = self.part() / before;
        while let Some(&(hash, page)) = self.by_hash.last().filter(|(hash, _)| *hash >= largest) {
            self.by_hash.remove(&(hash, page));
            let moment = self.last.remove(&page).expect("a page with a hash has a last use");
            self.order.change(moment, false);
        }
        self.distances.values_mut().for_each(|weight| *weight *= scale);
        self.first *= scale;
    }

    /// Gives last uses the first moments, in their order.
    fn renumber(&mut self) {
        let mut uses: Vec<(usize, u64)> = self.last.iter().map(|(page, moment)| (*moment, *page)).collect();
        uses.sort_unstable();
        self.order = Order::new(self.order.sums.len() - 1);
        for (moment, (_, page)) in uses.iter().enumerate() {
            self.last.insert(*page, moment);
            self.order.change(moment, true);
        }
        self.order.now = uses.len();
    }

    /// The part of references that a memory of `pages` misses, but for first uses. References that should have been
    /// looked at and were not count as hits of the smallest memory (SHARDS-adj).
    pub fn misses(&self, pages: u64) -> f64 {
        let looked_at = self.references as f64 * self.part();
        if looked_at == 0.0 {
            0.0
        } else {
            self.distances.range(pages..).map(|(_, weight)| weight).sum::<f64>() / looked_at
        }
    }

    /// Pages that the program used.
    pub fn footprint_pages(&self) -> f64 {
        self.last.len() as f64 / self.part()
    }

    /// The curve, when the references took so much time.
    pub fn curve(&self, time: Duration) -> MissCurve {
        let footprint = self.footprint_pages();
        let per_second = self.references as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
        let step = (footprint / DISTANCE_BUCKETS).max(1.0);
        let sizes = (1..).map(|index| f64::from(index) * step).take_while(|size| *size < footprint);
        let measured: Vec<_> = sizes
            .map(|pages| (CurvePoint { pages, misses_per_second: self.misses(pages as u64) * per_second }, 1.0))
            .collect();
        MissCurve::through(&measured, footprint)
    }
}

/// An exact LRU memory, and programs for it.
#[cfg(test)]
pub(super) mod reference {
    use std::collections::HashMap;

    use proptest::prelude::*;

    /// A program that does the same all the time.
    #[derive(Clone, Debug)]
    pub(crate) enum Program {
        /// Any of so many pages, each as likely.
        Random(u64),
        /// One after the other.
        Scan(u64),
        /// Nine of ten references go to a tenth of the pages.
        Hot(u64),
        /// A scan of half of the pages, with random references to the others.
        Mixed(u64),
    }

    impl Program {
        pub(crate) fn any() -> impl Strategy<Value = Self> {
            (0..4, 2000..20_000_u64).prop_map(|(kind, pages)| match kind {
                0 => Self::Random(pages),
                1 => Self::Scan(pages),
                2 => Self::Hot(pages),
                _ => Self::Mixed(pages),
            })
        }

        pub(crate) fn references(&self, seed: u64, count: usize) -> Vec<u64> {
            let mut state = seed | 1;
            let mut random = move || {
                // Marsaglia 2003, xorshift64.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state >> 11
            };
            let one = |at: u64| match *self {
                Self::Random(pages) => random() % pages,
                Self::Scan(pages) => at % pages,
                Self::Hot(pages) if random() % 10 < 9 => random() % (pages / 10),
                Self::Hot(pages) => random() % pages,
                Self::Mixed(pages) if at.is_multiple_of(2) => at / 2 % (pages / 2),
                Self::Mixed(pages) => pages / 2 + random() % (pages / 2),
            };
            (0..count as u64).map(one).collect()
        }
    }

    /// Distances by a naive stack would take too long; a set of last uses in order gives the same.
    pub(crate) fn distances(references: &[u64]) -> Vec<Option<u64>> {
        let mut last: HashMap<u64, usize> = HashMap::new();
        let mut is_last = vec![0_u32; references.len() + 1];
        let add = |sums: &mut Vec<u32>, moment: usize, by: i32| {
            let mut index = moment + 1;
            while index < sums.len() {
                sums[index] = sums[index].wrapping_add_signed(by);
                index += index & index.wrapping_neg();
            }
        };
        let sum = |sums: &Vec<u32>, moment: usize| {
            let (mut index, mut count) = (moment, 0_u64);
            while index > 0 {
                count += u64::from(sums[index]);
                index &= index - 1;
            }
            count
        };
        let mut found = Vec::with_capacity(references.len());
        for (now, page) in references.iter().enumerate() {
            let before = last.insert(*page, now);
            found.push(before.map(|before| sum(&is_last, now) - sum(&is_last, before + 1)));
            if let Some(before) = before {
                add(&mut is_last, before, -1);
            }
            add(&mut is_last, now, 1);
        }
        found
    }

    /// The part of references that a memory of `pages` misses, but for first uses.
    pub(crate) fn misses_per_access(references: &[u64], pages: u64) -> f64 {
        let missed = distances(references).iter().filter(|distance| distance.is_some_and(|one| one >= pages)).count();
        missed as f64 / references.len() as f64
    }

    /// Mattson's stack as it stands in the paper: what the quick ways are compared with.
    pub(crate) fn stack_distances(references: &[u64]) -> Vec<Option<u64>> {
        let mut stack: Vec<u64> = Vec::new();
        let mut one = |page: u64| {
            let depth = stack.iter().rev().position(|other| *other == page);
            stack.retain(|other| *other != page);
            stack.push(page);
            depth.map(|depth| depth as u64)
        };
        references.iter().map(|page| one(*page)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::reference::{Program, distances, misses_per_access, stack_distances};
    use super::*;

    fn shards(references: &[u64], part: f64, pages_max: usize) -> Shards {
        let mut shards = Shards::new(part, pages_max);
        references.iter().for_each(|page| shards.used(*page));
        shards
    }

    #[test]
    fn memory_is_bounded_and_the_part_shrinks() {
        let references: Vec<u64> = (0..200_000).map(|at| at % 50_000).collect();
        let bounded = shards(&references, 1.0, 1000);
        assert!(bounded.last.len() <= 1000 && bounded.order.sums.len() < 5000);
        assert!((0.01..0.03).contains(&bounded.part()), "{}", bounded.part());
        assert!((bounded.footprint_pages() / 50_000.0 - 1.0).abs() < 0.1, "{}", bounded.footprint_pages());
        let curve = bounded.curve(Duration::from_secs(1));
        assert!(curve.misses_per_second(25_000.0) > 130_000.0 && curve.misses_per_second(60_000.0) == 0.0);
    }

    #[test]
    fn a_program_without_a_reference_has_no_curve() {
        let none = Shards::new(0.5, 10);
        assert_eq!((none.misses(1), none.references(), none.curve(Duration::ZERO).points().len()), (0.0, 0, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn with_every_page_looked_at_distances_are_exact(references in proptest::collection::vec(0..60_u64, 1..400)) {
            let exact = stack_distances(&references);
            prop_assert_eq!(&exact, &distances(&references));
            // So few moments that they are renumbered.
            let all = shards(&references, 1.0, 60);
            let mut counted: BTreeMap<u64, f64> = BTreeMap::new();
            exact.iter().flatten().for_each(|distance| *counted.entry(*distance).or_default() += 1.0);
            prop_assert_eq!(&all.distances, &counted);
        }

        #[test]
        fn a_part_of_the_pages_gives_nearly_the_same_curve(program in Program::any(), seed in any::<u64>()) {
            let references = program.references(seed, 100_000);
            let pages = distances(&references).iter().filter(|distance| distance.is_none()).count() as u64;
            for sampled in [shards(&references, 0.2, SAMPLED_PAGES_MAX), shards(&references, 1.0, 1024)] {
                for share in [0.25, 0.5, 0.75] {
                    let size = (share * pages as f64) as u64;
                    let (told, exact) = (sampled.misses(size), misses_per_access(&references, size));
                    prop_assert!((told - exact).abs() < 0.08, "{program:?} at {share}: {told} and not {exact}");
                }
            }
        }
    }
}
