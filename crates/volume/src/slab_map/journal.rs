//! Which pages the backlog's slots hold, in words that outlive the process.
//!
//! Four words a slot: a number that grows with each content, the page, and the proof of the content. A slot counts
//! from the store of its page on, which comes after its content, number and proof are in place, until the page is set
//! back to none. Several slots may name one page at the moment of a crash (an older content whose write to the disk
//! was under way, or that was just replaced): the highest number is the page's content. Whether that is the page's
//! truth at all is said by its `Pending` bit.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::HashMap;

use crate::protection::PageProof;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::words::Words;

/// The journal of one backlog, see the module text.
#[derive(Debug)]
pub struct Journal {
    words: Words,
    next: u64,
}

/// A slot's content that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Grows with each content.
    pub number: u64,
    /// Whose content it is.
    pub page: PageIndex,
    /// Where it is.
    pub slot: u32,
    /// What proves it; none of a plain page.
    pub proof: PageProof,
}

const NUMBER: usize = 0;
const PAGE: usize = 1;
const PROOF: usize = 2;
const WORDS_PER_SLOT: usize = 4;
const NO_PAGE: u64 = 0;

impl Journal {
    /// Over words that may hold what an earlier process recorded.
    pub fn over(words: Words) -> Self {
        let journal = Self { words, next: 1 };
        let next = journal.entries().map(|entry| entry.number + 1).max().unwrap_or(1);
        Self { next, ..journal }
    }

    /// Words for a backlog of `capacity` pages.
    pub fn words(capacity: usize) -> usize {
        capacity * WORDS_PER_SLOT
    }

    /// Slots.
    pub fn capacity(&self) -> usize {
        self.words.count() / WORDS_PER_SLOT
    }

    /// From now on `slot`, whose content is in place, is the newest content of `page`.
    pub fn record(&mut self, slot: u32, page: PageIndex, proof: PageProof) {
        let first = slot as usize * WORDS_PER_SLOT;
        if proof != PageProof::NONE {
            self.words.store(first + PROOF, proof.0[0]);
            self.words.store(first + PROOF + 1, proof.0[1]);
        }
        self.words.store(first + NUMBER, self.next);
        self.words.store(first + PAGE, page.0 + 1);
        self.next += 1;
    }

    /// `slot` holds nothing any more.
    pub fn forget(&self, slot: u32) {
        let page = slot as usize * WORDS_PER_SLOT + PAGE;
        if self.words.load(page) != NO_PAGE {
            self.words.store(page, NO_PAGE);
        }
    }

    /// The newest content of each page, oldest first.
    pub fn newest(&self) -> Vec<Recorded> {
        let mut newest: HashMap<PageIndex, Recorded> = HashMap::new();
        for entry in self.entries() {
            let known = newest.entry(entry.page).or_insert(entry);
            if known.number < entry.number {
                *known = entry;
            }
        }
        let mut newest: Vec<Recorded> = newest.into_values().collect();
        newest.sort_unstable_by_key(|recorded| recorded.number);
        newest
    }

    fn entries(&self) -> impl Iterator<Item = Recorded> {
        (0..self.capacity()).filter_map(|slot| {
            let first = slot * WORDS_PER_SLOT;
            let page = PageIndex(self.words.load(first + PAGE).checked_sub(1)?);
            let proof = PageProof([self.words.load(first + PROOF), self.words.load(first + PROOF + 1)]);
            Some(Recorded { number: self.words.load(first + NUMBER), page, slot: slot as u32, proof })
        })
    }
}

#[cfg(test)]
#[cfg(not(feature = "schedules"))]
mod tests {
    use super::*;

    #[test]
    fn the_newest_content_of_each_page_is_found_again() {
        let words = Words::new(Journal::words(4));
        let mut journal = Journal::over(words.clone());
        journal.record(0, PageIndex(7), PageProof([0, 1]));
        journal.record(3, PageIndex(0), PageProof([3, 1]));
        journal.record(1, PageIndex(7), PageProof([1, 1]));
        let found =
            |journal: &Journal| journal.newest().iter().map(|found| (found.page, found.slot)).collect::<Vec<_>>();
        assert_eq!(found(&journal), [(PageIndex(0), 3), (PageIndex(7), 1)]);
        let mut later = Journal::over(words);
        later.record(2, PageIndex(7), PageProof([2, 1]));
        assert_eq!(found(&later), [(PageIndex(0), 3), (PageIndex(7), 2)], "numbers go on after a crash");
        later.forget(2);
        later.forget(3);
        assert_eq!(found(&later), [(PageIndex(7), 1)]);
        assert_eq!((later.capacity(), later.newest()[0].proof), (4, PageProof([1, 1])));
    }
}
