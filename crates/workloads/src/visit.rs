//! Visit: fills an array, then goes through its pages in sequence, at random, and at random with a change.
//!
//! One word of each page is looked at, so that under paging a visit costs what the page-in costs and little else; that
//! matters in an emulated machine, where checking a whole page takes as long as bringing it. The pages' content hardly
//! compresses.
//!
//! Invariant: every visit checks its word; the last pass sees every change.

use spillway_sys::process::major_fault_count;

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::permutation::Permutation;
use crate::random::word_at;
use crate::size::PAGE_SIZE_BYTES;

/// Words of a page.
const PAGE_WORDS: usize = PAGE_SIZE_BYTES as usize / size_of::<u64>();

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub struct Visit;

/// The array, and what was found wrong in it.
struct Pages {
    words: Vec<u64>,
    seed: u64,
    checksum: Ordered,
    first_wrong: Option<u64>,
}

impl Pages {
    /// Words that differ within a page and between pages, each by one multiplication.
    fn fill(&mut self) {
        for (page, words) in self.words.chunks_exact_mut(PAGE_WORDS).enumerate() {
            let first = word_at(self.seed, page as u64);
            words.iter_mut().zip(0_u64..).for_each(|(word, place)| *word = first.wrapping_mul(2 * place + 1));
        }
    }

    /// Looks at the first word of `page`, which must be `change` of what the fill wrote.
    fn look(&mut self, page: u64, change: u64) {
        let found = std::hint::black_box(self.words[page as usize * PAGE_WORDS]);
        if found != word_at(self.seed, page) ^ change {
            self.first_wrong.get_or_insert(page);
        }
        self.checksum.add(found);
    }

    fn change(&mut self, page: u64, change: u64) {
        self.words[page as usize * PAGE_WORDS] ^= change;
    }
}

impl Workload for Visit {
    fn name(&self) -> &'static str {
        "visit"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let (count, seed) = (settings.size.pages(), settings.seed);
        let words = vec![0; count as usize * PAGE_WORDS];
        let mut pages = Pages { words, seed, checksum: Ordered::default(), first_wrong: None };
        clock.measure("fill", count, || pages.fill());
        clock.measure_visits("sequential", count, major_fault_count, |page| pages.look(page, 0));
        let order = Permutation::new(count, seed);
        clock.measure_visits("random", count, major_fault_count, |step| pages.look(order.at(step), 0));
        let order = Permutation::new(count, seed.wrapping_add(1));
        clock.measure_visits("rewrite", count, major_fault_count, |step| {
            let page = order.at(step);
            pages.look(page, 0);
            pages.change(page, u64::MAX);
        });
        (0..count).for_each(|page| pages.look(page, u64::MAX));
        match pages.first_wrong {
            Some(page) => Err(wrong(self, format!("page {page} does not hold what was written"))),
            None => Ok(pages.checksum.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize, seed: u64) -> Pages {
        let words = vec![0; count * PAGE_WORDS];
        Pages { words, seed, checksum: Ordered::default(), first_wrong: None }
    }

    #[test]
    fn a_wrong_word_is_seen_and_a_changed_one_expected() {
        let mut pages = pages(4, 7);
        pages.fill();
        (0..4).for_each(|page| pages.look(page, 0));
        assert_eq!(pages.first_wrong, None);
        pages.change(2, 5);
        pages.look(2, 5);
        assert_eq!(pages.first_wrong, None);
        pages.look(2, 0);
        assert_eq!(pages.first_wrong, Some(2));
    }

    #[test]
    fn words_of_a_page_differ() {
        let mut pages = pages(1, 1);
        pages.fill();
        let mut words = pages.words.clone();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), PAGE_WORDS);
    }
}
