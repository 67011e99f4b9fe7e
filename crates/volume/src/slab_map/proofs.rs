//! What the borrower keeps of each page to know its content again: one [`PageProof`] a page, in words that outlive the
//! process.
//!
//! A proof is two words, and a store changes one. So each change is noted first: a process that dies between the two
//! stores leaves the note, and [`PageProofs::undo`] brings the old proof back. A thread that reads a proof while it is
//! changed may see a mixture: no bytes fit a mixture, and the thread that finds so looks again.
//!
//! Order of a write, which readers rely on (`crate::engine::verify`): bits that become true are set, then the proof
//! changes, then bits that are not true any more are cleared. A reader loads the proof first and the bits second.
//!
//! What may change a proof: the owner of the page's `Busy` bit.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::limits::PROOF_WRITERS_MAX;
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

/// The proofs of a volume and the key they are made with, see the module text.
#[derive(Debug)]
pub struct PageProofs {
    protection: Protection,
    proofs: Words,
    notes: Words,
    writers: AtomicUsize,
    same_filled: AtomicU64,
}

impl PageProofs {
    /// Over `surviving`, which holds [`PageProofs::words`].
    pub fn over(page_count: u64, protection: Protection, surviving: &Words) -> Self {
        let proofs = page_count as usize * PROOF_WORDS;
        let notes = surviving.part(proofs, PROOF_WRITERS_MAX * NOTE_WORDS);
        Self {
            protection,
            proofs: surviving.part(0, proofs),
            notes,
            writers: AtomicUsize::new(0),
            same_filled: AtomicU64::new(0),
        }
    }

    /// Words for `page_count` pages.
    pub fn words(page_count: u64) -> usize {
        page_count as usize * PROOF_WORDS + PROOF_WRITERS_MAX * NOTE_WORDS
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
    fn forgotten_pages_have_no_proof() {
        let proofs = over(&Words::new(PageProofs::words(PAGES)));
        (0..PAGES).for_each(|page| proofs.put_back(PageIndex(page), PageProof([7, 8])));
        proofs.clear(PageIndex(2), 3);
        let left: Vec<_> = (0..PAGES).filter(|page| proofs.load(PageIndex(*page)) != PageProof::NONE).collect();
        assert_eq!(left, [0, 1, 5, 6, 7]);
    }
}
