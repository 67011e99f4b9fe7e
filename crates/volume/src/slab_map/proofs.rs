//! What the borrower keeps of each page to know its content again: one [`PageProof`] a page, in words that outlive the
//! process.
//!
//! A proof is two words, and a store changes one. So each change is noted first: a process that dies between the two
//! stores leaves the note, and [`PageProofs::undo`] brings the old proof back. A thread that reads a proof while it is
//! changed may see a mixture: no bytes fit a mixture, and the thread that finds so looks again.
//!
//! Where no disk copy tells, donors may hold the old or the new content of a page after a crash. So the proof of the
//! new one is noted as an *intent* before the page is sent, and the mover finds out which content there is.
//!
//! Order of a write, which readers rely on (`crate::engine::verify`): bits that become true are set, then the proof
//! changes, then bits that are not true any more are cleared. A reader loads the proof first and the bits second.
//!
//! What may change a proof: the owner of the page's `Busy` bit.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::{INTENTS_MAX, INTENTS_MIN, PAGES_PER_INTENT, PROOF_WRITERS_MAX};
use crate::protection::{PageProof, Protection};
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::words::Words;

/// Words of a page's proof.
const PROOF_WORDS: usize = 2;
/// Words of a note: the page, plus one; its old proof.
const NOTE_WORDS: usize = 1 + PROOF_WORDS;
const NO_PAGE: u64 = 0;

/// A thread that changes proofs; no other has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofWriter(usize);

/// A place for the proof of a content that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent(u32);

/// Intents of a volume.
fn intent_count(page_count: u64) -> usize {
    (page_count as usize / PAGES_PER_INTENT).clamp(INTENTS_MIN, INTENTS_MAX)
}

/// The proofs of a volume and the key they are made with, see the module text.
#[derive(Debug)]
pub struct PageProofs {
    protection: Protection,
    proofs: Words,
    notes: Words,
    /// As notes, of proofs of contents that are on their way.
    intents: Words,
    free_intents: Mutex<Vec<Intent>>,
    writers: AtomicUsize,
    same_filled: AtomicU64,
}

impl PageProofs {
    /// Over `surviving`, which holds [`PageProofs::words`].
    pub fn over(page_count: u64, protection: Protection, surviving: &Words) -> Self {
        let proofs = page_count as usize * PROOF_WORDS;
        let notes = surviving.part(proofs, PROOF_WRITERS_MAX * NOTE_WORDS);
        let count = intent_count(page_count);
        let intents = surviving.part(proofs + notes.count(), count * NOTE_WORDS);
        let is_free = |intent: &Intent| intents.load(intent.0 as usize * NOTE_WORDS) == NO_PAGE;
        let mut free: Vec<Intent> = Vec::with_capacity(count);
        free.extend((0..count as u32).map(Intent).filter(is_free));
        let free_intents = Mutex::new(free);
        Self {
            intents,
            free_intents,
            protection,
            proofs: surviving.part(0, proofs),
            notes,
            writers: AtomicUsize::new(0),
            same_filled: AtomicU64::new(0),
        }
    }

    /// Words for `page_count` pages.
    pub fn words(page_count: u64) -> usize {
        page_count as usize * PROOF_WORDS + (PROOF_WRITERS_MAX + intent_count(page_count)) * NOTE_WORDS
    }

    /// What makes and compares proofs.
    pub fn protection(&self) -> &Protection {
        &self.protection
    }

    /// A number for a thread that changes proofs.
    pub fn new_writer(&self) -> ProofWriter {
        let number = self.writers.fetch_add(1, Ordering::SeqCst);
        assert!(number < PROOF_WRITERS_MAX, "a volume has at most {PROOF_WRITERS_MAX} threads that write");
        ProofWriter(number)
    }

    /// The proof of `page`; a mixture if another thread changes it now.
    pub fn load(&self, page: PageIndex) -> PageProof {
        let first = page.0 as usize * PROOF_WORDS;
        PageProof([self.proofs.load(first), self.proofs.load(first + 1)])
    }

    /// The word that fills `page`, if its proof says so.
    pub fn fill_of(&self, page: PageIndex) -> Option<u64> {
        self.protection.fill_of(page, self.load(page))
    }

    /// Counts written pages that did not leave, as each is one word over and over.
    pub fn count_same_filled(&self, pages: u64) {
        self.same_filled.fetch_add(pages, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn same_filled(&self) -> u64 {
        self.same_filled.load(Ordering::Relaxed)
    }

    /// Changes the proof of `page`, whose owner the caller is.
    pub fn set(&self, writer: ProofWriter, page: PageIndex, proof: PageProof) {
        let note = writer.0 * NOTE_WORDS;
        let PageProof([old_first, old_second]) = self.load(page);
        self.notes.store(note + 1, old_first);
        self.notes.store(note + 2, old_second);
        self.notes.store(note, page.0 + 1);
        self.store(page, proof);
        self.notes.store(note, NO_PAGE);
    }

    /// As [`PageProofs::set`], for [recovery](crate::slab_map::recovery), which is done again if it is interrupted.
    pub fn put_back(&self, page: PageIndex, proof: PageProof) {
        self.store(page, proof);
    }

    /// Forgets the contents of the `count` pages from `first` on, whose owner the caller is. The second word goes
    /// first: a proof without it is none.
    pub fn clear(&self, first: PageIndex, count: u64) {
        for page in first.up_to(first + count) {
            if self.load(page) != PageProof::NONE {
                let word = page.0 as usize * PROOF_WORDS;
                self.proofs.store(word + 1, 0);
                self.proofs.store(word, 0);
            }
        }
    }

    /// Gives `take` so many intents, or none of them.
    pub fn reserve_intents(&self, count: u64, mut take: impl FnMut(Intent)) -> bool {
        let mut free = self.free_intents();
        let rest = free.len().checked_sub(count as usize);
        rest.is_some_and(|rest| {
            free.drain(rest..).for_each(&mut take);
            true
        })
    }

    /// Notes that `page` is about to get a content with `proof`.
    pub fn intend(&self, intent: Intent, page: PageIndex, PageProof([first, second]): PageProof) {
        let note = intent.0 as usize * NOTE_WORDS;
        self.intents.store(note + 1, first);
        self.intents.store(note + 2, second);
        self.intents.store(note, page.0 + 1);
    }

    /// The content is there, or nowhere: the page's proof says which.
    pub fn forget_intents(&self, intents: impl Iterator<Item = Intent>) {
        let mut free = self.free_intents();
        for intent in intents {
            self.intents.store(intent.0 as usize * NOTE_WORDS, NO_PAGE);
            free.push(intent);
        }
    }

    /// The proofs that contents of `page` may have besides its own, with their intents.
    pub fn intended(&self, page: PageIndex) -> impl Iterator<Item = (Intent, PageProof)> {
        self.noted_intents().filter(move |(_, noted, _)| *noted == page).map(|(intent, _, proof)| (intent, proof))
    }

    /// Forgets intents of a dead process for pages that are not in doubt. No other thread uses them yet.
    pub fn forget_settled_intents(&self, is_in_doubt: impl Fn(PageIndex) -> bool) {
        let settled: Vec<Intent> =
            self.noted_intents().filter(|(_, page, _)| !is_in_doubt(*page)).map(|(intent, ..)| intent).collect();
        self.forget_intents(settled.into_iter());
    }

    fn noted_intents(&self) -> impl Iterator<Item = (Intent, PageIndex, PageProof)> {
        (0..self.intents.count() / NOTE_WORDS).filter_map(|number| {
            let note = number * NOTE_WORDS;
            let page = PageIndex(self.intents.load(note).checked_sub(1)?);
            let proof = PageProof([self.intents.load(note + 1), self.intents.load(note + 2)]);
            Some((Intent(number as u32), page, proof))
        })
    }

    fn free_intents(&self) -> MutexGuard<'_, Vec<Intent>> {
        self.free_intents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings proofs back that a dead process was changing. Before any other thread uses them.
    pub fn undo(&self) {
        for note in (0..PROOF_WRITERS_MAX).map(|writer| writer * NOTE_WORDS) {
            if let Some(page) = self.notes.load(note).checked_sub(1) {
                let old = PageProof([self.notes.load(note + 1), self.notes.load(note + 2)]);
                self.store(PageIndex(page), old);
                self.notes.store(note, NO_PAGE);
            }
        }
    }

    fn store(&self, page: PageIndex, PageProof([first, second]): PageProof) {
        let word = page.0 as usize * PROOF_WORDS;
        self.proofs.store(word, first);
        self.proofs.store(word + 1, second);
    }
}

#[cfg(test)]
#[cfg(not(feature = "schedules"))]
mod tests {
    use super::*;
    use crate::protection::{ProtectionKind, VOLUME_KEY_BYTES};
    use crate::slab_map::words::crash;

    const PAGES: u64 = 8;
    const PAGE: PageIndex = PageIndex(5);

    fn over(words: &Words) -> PageProofs {
        let protection = Protection::new(ProtectionKind::Checked, &[1; VOLUME_KEY_BYTES]).unwrap();
        PageProofs::over(PAGES, protection, words)
    }

    #[test]
    fn a_process_that_dies_while_it_changes_a_proof_leaves_the_old_or_the_new_one() {
        let (old, new) = (PageProof([1, 2]), PageProof([3, 4]));
        let mut found = Vec::new();
        for death in 0..6 {
            let words = Words::new(PageProofs::words(PAGES));
            let proofs = over(&words);
            proofs.put_back(PAGE, old);
            let writer = proofs.new_writer();
            let left = Words::new(words.count());
            let (mut stores, from, to) = (0, words.clone(), left.clone());
            crash::observe(Some(Box::new(move || {
                if stores == death {
                    (0..from.count()).for_each(|index| to.store(index, from.load(index)));
                }
                stores += 1;
            })));
            proofs.set(writer, PAGE, new);
            crash::observe(None);
            let next = over(&left);
            next.undo();
            next.undo();
            found.push(next.load(PAGE));
            assert_eq!(proofs.load(PAGE), new);
        }
        assert_eq!(found, [old; 6], "until the note is gone");
    }

    #[test]
    fn intents_are_found_by_the_next_process_until_they_are_settled() {
        let words = Words::new(PageProofs::words(PAGES));
        let proofs = over(&words);
        let mut taken = Vec::new();
        assert!(proofs.reserve_intents(2, |intent| taken.push(intent)) && taken.len() == 2);
        proofs.intend(taken[0], PAGE, PageProof([1, 2]));
        proofs.intend(taken[1], PageIndex(6), PageProof([3, 4]));
        assert!(!proofs.reserve_intents(INTENTS_MIN as u64 - 1, |_| panic!("all or none")));
        let next = over(&words);
        next.forget_settled_intents(|page| page == PAGE);
        assert_eq!(next.intended(PAGE).map(|(_, proof)| proof).collect::<Vec<_>>(), [PageProof([1, 2])]);
        assert_eq!(next.intended(PageIndex(6)).count(), 0);
        assert!(!next.reserve_intents(INTENTS_MIN as u64, |_| {}));
        next.forget_intents(next.intended(PAGE).map(|(intent, _)| intent).collect::<Vec<_>>().into_iter());
        assert!(next.reserve_intents(INTENTS_MIN as u64, |_| {}));
    }

    #[test]
    fn forgotten_pages_have_no_proof() {
        let proofs = over(&Words::new(PageProofs::words(PAGES)));
        (0..PAGES).for_each(|page| proofs.put_back(PageIndex(page), PageProof([7, 8])));
        proofs.clear(PageIndex(2), 3);
        let left: Vec<_> = (0..PAGES).filter(|page| proofs.load(PageIndex(*page)) != PageProof::NONE).collect();
        assert_eq!(left, [0, 1, 5, 6, 7]);
    }
}
