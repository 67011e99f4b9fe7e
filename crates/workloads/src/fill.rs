//! Fill and checksum: writes every word of an array, then visits its pages in one of several orders, once or twice, and
//! checks each word.
//!
//! Under a memory limit the filling costs swap-outs and the visiting swap-ins, so the phases give both per page. Word
//! `i` under seed `s` is `word_at(s, i)`; read-modify-write replaces it by `modified` of it, in random order, and a
//! sequential pass checks the result.
//!
//! Invariant: every word is checked at least once after it was last written.

use std::ops::Range;

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, part_length, wrong};
use crate::checksum::{Checksum, Unordered};
use crate::permutation::Permutation;
use crate::random::{mix, word_at};
use crate::size::PAGE_SIZE_BYTES;

/// Words of a page.
const PAGE_WORDS: usize = PAGE_SIZE_BYTES as usize / size_of::<u64>();

/// Pages from one visit to the next in the strided order: Leap's stride experiment used 10.
const STRIDE_PAGES: u64 = 10;

/// The same for columns of a matrix whose rows have so many pages: farther than any read-ahead by region looks.
const FAR_STRIDE_PAGES: u64 = 400;

/// The order of visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Sequential,
    /// With so many pages from one visit to the next.
    Strided(u64),
    Random,
}

/// A fill followed by visits in one order.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    name: &'static str,
    order: Order,
    modifies: bool,
    /// Each page has one word, repeated.
    is_alike: bool,
    /// What the visits are called, a phase each; those of one that modifies have names of their own.
    visits: &'static [&'static str],
}

/// Pages are visited once.
const ONCE: &[&str] = &["read"];

/// Pages are visited twice, in the same order. At the first visit pages leave that were only filled, so that the
/// process that stores them makes room, on the same CPUs if it is a program here; the second is what goes on from
/// there.
const TWICE: &[&str] = &["first read", "read"];

impl Fill {
    /// Visits pages one after the other.
    pub const SEQUENTIAL: Self = Self::mixed("fill-sequential", Order::Sequential, false);
    /// Visits every tenth page, then every tenth from the second on, and so forth.
    pub const STRIDED: Self = Self::mixed("fill-strided", Order::Strided(STRIDE_PAGES), false);
    /// The same with every four-hundredth page.
    pub const FAR_STRIDED: Self = Self::mixed("fill-strided-far", Order::Strided(FAR_STRIDE_PAGES), false);
    /// Visits pages in random order.
    pub const RANDOM: Self = Self::mixed("fill-random", Order::Random, false);
    /// Visits pages one after the other, and once more.
    pub const SEQUENTIAL_TWICE: Self = Self { name: "fill-sequential-twice", visits: TWICE, ..Self::SEQUENTIAL };
    /// Visits pages in random order, and once more.
    pub const RANDOM_TWICE: Self = Self { name: "fill-random-twice", visits: TWICE, ..Self::RANDOM };
    /// Reads and rewrites pages in random order.
    pub const MODIFY: Self = Self::mixed("fill-modify", Order::Random, true);
    /// Visits pages one after the other, each of which is one word all over: zram keeps nothing of such a page but
    /// that word (Documentation/admin-guide/blockdev/zram.rst, `same_pages`).
    pub const ALIKE: Self = Self { name: "fill-alike", is_alike: true, ..Self::SEQUENTIAL };

    const fn mixed(name: &'static str, order: Order, modifies: bool) -> Self {
        Self { name, order, modifies, is_alike: false, visits: ONCE }
    }

    /// Word number `place` of the array.
    fn word(self, seed: u64, place: u64) -> u64 {
        word_at(seed, if self.is_alike { place / PAGE_WORDS as u64 } else { place })
    }
}

/// What became of some pages: their checksum, and the first word that was wrong.
#[derive(Debug, Default)]
struct Visit {
    checksum: Unordered,
    wrong_words: u64,
    first_wrong: Option<u64>,
}

impl Visit {
    fn check(&mut self, index: u64, found: u64, expected: u64) {
        self.checksum.add(found ^ mix(index));
        if found != expected {
            self.wrong_words += 1;
            self.first_wrong.get_or_insert(index);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.checksum.merge(&other.checksum);
        self.wrong_words += other.wrong_words;
        self.first_wrong = self.first_wrong.or(other.first_wrong);
    }
}

/// A part of the array that one thread works on, in whole pages.
struct Part<'memory> {
    words: &'memory mut [u64],
    first_page: u64,
}

impl Part<'_> {
    fn pages(&self) -> u64 {
        (self.words.len() / PAGE_WORDS) as u64
    }

    /// The words of `page`, counted from the part's start, and their places in the whole array.
    fn page(&mut self, page: u64) -> (&mut [u64], Range<u64>) {
        let start = page as usize * PAGE_WORDS;
        let place = self.first_page * PAGE_WORDS as u64 + start as u64;
        (&mut self.words[start..start + PAGE_WORDS], place..place + PAGE_WORDS as u64)
    }
}

/// What read-modify-write makes of a word.
fn modified(word: u64) -> u64 {
    word.rotate_left(17) ^ 0x5bd1_e995
}

/// Page number `step` of `pages` in `order`.
fn place(order: Order, permutation: &Permutation, pages: u64, step: u64) -> u64 {
    match order {
        Order::Sequential => step,
        Order::Strided(stride) => strided(pages, stride, step),
        Order::Random => permutation.at(step),
    }
}

/// The strided order: lane 0 (pages 0, 10, 20.. with a stride of 10), then lane 1, and so forth. The first
/// `pages % stride` lanes are one longer.
fn strided(pages: u64, stride: u64, step: u64) -> u64 {
    let (short, longer_lanes) = (pages / stride, pages % stride);
    let in_longer = longer_lanes * (short + 1);
    if step < in_longer {
        return step / (short + 1) + step % (short + 1) * stride;
    }
    let step = step - in_longer;
    longer_lanes + step / short + step % short * stride
}

/// Runs `work` on parts of the array in `threads` threads, and merges what they found.
fn in_parts(words: &mut [u64], threads: usize, work: impl Fn(Part<'_>) -> Visit + Sync) -> Visit {
    let pages_each = part_length(words.len() / PAGE_WORDS, threads);
    let mut total = Visit::default();
    std::thread::scope(|scope| {
        let work = &work;
        let parts = words.chunks_mut(pages_each * PAGE_WORDS).enumerate();
        let threads: Vec<_> = parts
            .map(|(index, words)| {
                let first_page = (index * pages_each) as u64;
                scope.spawn(move || work(Part { words, first_page }))
            })
            .collect();
        for thread in threads {
            total.merge(&thread.join().expect("visiting memory does not panic"));
        }
    });
    total
}

fn fill(mut part: Part<'_>, word_of: impl Fn(u64) -> u64) -> Visit {
    for page in 0..part.pages() {
        let (words, places) = part.page(page);
        words.iter_mut().zip(places).for_each(|(word, place)| *word = word_of(place));
    }
    Visit::default()
}

/// A look at every page of a part.
#[derive(Clone, Copy, Debug)]
struct Look {
    order: Order,
    seed: u64,
    modifies: bool,
}

fn visit(mut part: Part<'_>, look: Look, expected: impl Fn(u64) -> u64) -> Visit {
    let Look { order, seed, modifies } = look;
    let mut visit = Visit::default();
    let pages = part.pages();
    let permutation = Permutation::new(pages, seed);
    for step in 0..pages {
        let (words, places) = part.page(place(order, &permutation, pages, step));
        for (word, place) in words.iter_mut().zip(places) {
            visit.check(place, *word, expected(place));
            if modifies {
                *word = modified(*word);
            }
        }
    }
    visit
}

impl Workload for Fill {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let (pages, seed, threads) = (settings.size.pages(), settings.seed, settings.threads);
        let mut words = vec![0_u64; pages as usize * PAGE_WORDS];
        let plain = |place| self.word(seed, place);
        clock.measure("fill", pages, || in_parts(&mut words, threads, |part| fill(part, plain)));
        let look = Look { order: self.order, seed, modifies: self.modifies };
        let phases = if self.modifies { &["modify"] } else { self.visits };
        let mut checksum = Checksum(0);
        for phase in phases {
            let found = clock.measure(phase, pages, || in_parts(&mut words, threads, |part| visit(part, look, plain)));
            self.judge(&found)?;
            checksum = found.checksum.finish();
        }
        if !self.modifies {
            return Ok(checksum);
        }
        let changed = |place| modified(self.word(seed, place));
        let last = clock.measure("check", pages, || {
            let look = Look { order: Order::Sequential, modifies: false, ..look };
            in_parts(&mut words, threads, |part| visit(part, look, changed))
        });
        self.judge(&last)?;
        Ok(last.checksum.finish())
    }
}

impl Fill {
    fn judge(&self, visit: &Visit) -> Result<(), WorkloadError> {
        let Some(first) = visit.first_wrong else { return Ok(()) };
        let page = first / PAGE_WORDS as u64;
        Err(wrong(self, format!("{} words differ, the first is word {first} in page {page}", visit.wrong_words)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn look(order: Order, seed: u64) -> Look {
        Look { order, seed, modifies: false }
    }

    fn filled(pages: usize, seed: u64) -> Vec<u64> {
        let mut words = vec![0; pages * PAGE_WORDS];
        in_parts(&mut words, 2, |part| fill(part, |place| word_at(seed, place)));
        words
    }

    #[test]
    fn the_fill_is_the_known_sequence() {
        let words = filled(5, 9);
        assert!(words.iter().enumerate().all(|(index, word)| *word == word_at(9, index as u64)));
    }

    #[test]
    fn pages_that_are_alike_have_one_word_each() {
        let mut words = vec![0; 3 * PAGE_WORDS];
        in_parts(&mut words, 2, |part| fill(part, |place| Fill::ALIKE.word(9, place)));
        let of_page = |page: &[u64]| page.iter().all(|word| *word == page[0]).then_some(page[0]);
        let found: Vec<_> = words.chunks(PAGE_WORDS).map(of_page).collect();
        assert_eq!(found, [Some(word_at(9, 0)), Some(word_at(9, 1)), Some(word_at(9, 2))]);
    }

    #[test]
    fn a_wrong_word_is_found_and_named() {
        let mut words = filled(8, 3);
        words[5 * PAGE_WORDS + 7] ^= 1;
        for fill in [Fill::SEQUENTIAL, Fill::STRIDED, Fill::FAR_STRIDED, Fill::RANDOM] {
            let found = in_parts(&mut words, 2, |part| visit(part, look(fill.order, 3), |place| word_at(3, place)));
            let error = fill.judge(&found).unwrap_err().to_string();
            assert!(error.contains("1 words differ") && error.contains("page 5"), "{error}");
        }
    }

    #[test]
    fn modifying_changes_every_word_once() {
        let mut words = filled(6, 4);
        in_parts(&mut words, 2, |part| {
            visit(part, Look { modifies: true, ..look(Order::Random, 4) }, |place| word_at(4, place))
        });
        assert!(words.iter().enumerate().all(|(index, word)| *word == modified(word_at(4, index as u64))));
    }

    #[test]
    fn all_orders_agree_on_the_content() {
        let mut words = filled(30, 5);
        let sums: Vec<_> = [Order::Sequential, Order::Strided(STRIDE_PAGES), Order::Random]
            .map(|order| in_parts(&mut words, 3, |part| visit(part, look(order, 5), |place| word_at(5, place))))
            .iter()
            .map(|visit| visit.checksum.finish())
            .collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }

    #[test]
    fn the_strided_order_takes_steps_of_ten() {
        let order: Vec<u64> = (0..23).map(|step| strided(23, STRIDE_PAGES, step)).collect();
        assert_eq!(order[..8], [0, 10, 20, 1, 11, 21, 2, 12]);
        assert_eq!(order[9..11], [3, 13]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_damage_is_found_in_any_order(
            damage in proptest::collection::btree_map(0_usize..20 * PAGE_WORDS, 1_u64.., 1..20),
            threads in 1_usize..5, seed: u64
        ) {
            let mut words = filled(20, seed);
            damage.iter().for_each(|(index, flip)| words[*index] ^= flip);
            for order in [Order::Sequential, Order::Strided(STRIDE_PAGES), Order::Random] {
                let found = in_parts(&mut words, threads, |part| visit(part, look(order, seed), |place| word_at(seed, place)));
                prop_assert_eq!(found.wrong_words, damage.len() as u64);
                prop_assert!(found.first_wrong.is_some_and(|index| damage.contains_key(&(index as usize))));
            }
        }

        #[test]
        fn parts_cover_every_page_once(pages in 1_usize..40, threads in 1_usize..9) {
            let mut words = vec![0_u64; pages * PAGE_WORDS];
            in_parts(&mut words, threads, |mut part| {
                for page in 0..part.pages() {
                    let (words, places) = part.page(page);
                    words.iter_mut().zip(places).for_each(|(word, place)| *word += place + 1);
                }
                Visit::default()
            });
            prop_assert!(words.iter().zip(1..).all(|(word, place)| *word == place));
        }

        #[test]
        fn modified_words_differ_and_stay_apart(one: u64, other: u64) {
            prop_assume!(one != other);
            prop_assert_ne!(modified(one), modified(other));
        }

        #[test]
        fn the_strided_order_visits_each_page_once(pages in 1_u64..500, stride in 1_u64..600) {
            let mut order: Vec<u64> = (0..pages).map(|step| strided(pages, stride, step)).collect();
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..pages));
        }
    }
}
