//! Nine bits of truth per page: which copies are valid, and whether a thread is changing it.
//!
//! Infiniswap keeps one bit per page (remote or disk). Here each of the nine is a bitmap, so that a request of many
//! pages costs a few word operations:
//! - `Busy`: a writer, a discard or the mover owns the page. A thread that changes any other bit of a page holds this
//!   one, except the disk thread, see [`crate::slab_map::backlog`]. The only one that ends with the process, whose
//!   threads the owners are.
//! - `Writing`: a write of the page is under way, so its copies may differ until it ends. A thread that finds it
//!   after a crash chooses one of them, see [`crate::slab_map::recovery`].
//! - `Copy0..Copy3`: the copy in that copy index of the slab entry holds the page's current content.
//! - `Disk`: the backing file does.
//! - `Pending`: the backlog does, and will write it to the backing file.
//! - `Lost`: the content existed and no copy of it is left; reading it is an error until it is written or discarded.
//!
//! A page without any bit was never written, or was discarded: it reads as zeroes.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use crate::limits::COPIES_MAX;
use crate::slab_map::page_index::PageIndex;
use crate::slab_map::words::Words;

/// The bitmaps, see the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bit {
    /// Owned by the thread that changes the page.
    Busy,
    /// Copy `n` of the slab is valid for this page.
    Copy(usize),
    /// The backing file is valid for this page.
    Disk,
    /// The backlog holds the page's content.
    Pending,
    /// No copy is left.
    Lost,
    /// A write is under way.
    Writing,
}

const BITMAPS: usize = COPIES_MAX + 5;
/// Bitmaps that outlive the process: all but `Busy`, which comes first.
const SURVIVING_BITMAPS: usize = BITMAPS - 1;
/// Pages of a word, whose bits are read and changed at once.
pub const WORD_PAGES: u64 = 64;

impl Bit {
    fn index(self) -> usize {
        match self {
            Self::Busy => 0,
            Self::Disk => 1,
            Self::Pending => 2,
            Self::Lost => 3,
            Self::Writing => 4,
            Self::Copy(copy_index) => {
                assert!(copy_index < COPIES_MAX, "copy {copy_index} of {COPIES_MAX}");
                5 + copy_index
            }
        }
    }
}

/// The bits of up to 64 neighbouring pages, read at one moment each. Bit `i` is page `first + i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageWord {
    /// Valid copies, by copy index.
    pub copies: [u64; COPIES_MAX],
    /// Valid on disk.
    pub disk: u64,
    /// Held by the backlog.
    pub pending: u64,
    /// Lost.
    pub lost: u64,
}

/// The bits of every page of a volume.
#[derive(Debug)]
pub struct PageBits {
    words: [Words; BITMAPS],
    page_count: u64,
}

fn bitmap_words(page_count: u64) -> usize {
    page_count.div_ceil(WORD_PAGES) as usize
}

/// A part of a range that lies in one word: word index, and mask of its pages.
type WordPart = (usize, u64);

/// Cuts pages `[first, first + count)` at word boundaries.
fn word_parts(first: PageIndex, count: u64) -> impl Iterator<Item = WordPart> + Clone {
    let (first, end) = (first.0, first.0 + count);
    (first / WORD_PAGES..end.div_ceil(WORD_PAGES)).map(move |word| {
        let low = first.max(word * WORD_PAGES) - word * WORD_PAGES;
        let high = end.min((word + 1) * WORD_PAGES) - word * WORD_PAGES;
        let mask = (u64::MAX >> (WORD_PAGES - (high - low))) << low;
        (word as usize, mask)
    })
}

impl PageBits {
    /// All clear, for `page_count` pages, in memory of this process.
    pub fn new(page_count: u64) -> Self {
        Self::over(page_count, &Words::new(Self::surviving_words(page_count)))
    }

    /// As `surviving` says, which holds [`PageBits::surviving_words`]; no page is owned.
    pub fn over(page_count: u64, surviving: &Words) -> Self {
        let count = bitmap_words(page_count);
        let bitmap = |index| if index == 0 { Words::new(count) } else { surviving.part((index - 1) * count, count) };
        Self { words: std::array::from_fn(bitmap), page_count }
    }

    /// Words that outlive the process, for `page_count` pages.
    pub fn surviving_words(page_count: u64) -> usize {
        SURVIVING_BITMAPS * bitmap_words(page_count)
    }

    /// Pages covered.
    pub fn page_count(&self) -> u64 {
        self.page_count
    }

    /// Takes ownership of all of `[first, first + count)`, or of none.
    pub fn try_acquire(&self, first: PageIndex, count: u64) -> bool {
        let busy = &self.words[Bit::Busy.index()];
        for (taken, (word, mask)) in self.parts(first, count).enumerate() {
            let before = busy.set_bits(word, mask);
            if before & mask != 0 {
                busy.clear_bits(word, mask & !before);
                for (word, mask) in self.parts(first, count).take(taken) {
                    busy.clear_bits(word, mask);
                }
                return false;
            }
        }
        true
    }

    /// Gives ownership of `[first, first + count)` back.
    pub fn release(&self, first: PageIndex, count: u64) {
        for (word, mask) in self.parts(first, count) {
            let before = self.words[Bit::Busy.index()].clear_bits(word, mask);
            assert!(before & mask == mask, "released pages that were not owned");
        }
    }

    /// Sets `bit` of `[first, first + count)`.
    pub fn set(&self, bit: Bit, first: PageIndex, count: u64) {
        for (word, mask) in self.parts(first, count) {
            self.words[bit.index()].set_bits(word, mask);
        }
    }

    /// Clears `bit` of `[first, first + count)`.
    pub fn clear(&self, bit: Bit, first: PageIndex, count: u64) {
        for (word, mask) in self.parts(first, count) {
            let bitmap = &self.words[bit.index()];
            // Most clears find nothing set; a look keeps the line shared between the threads.
            if bitmap.load(word) & mask != 0 {
                bitmap.clear_bits(word, mask);
            }
        }
    }

    /// Whether `bit` is set for any page of `[first, first + count)`.
    pub fn any(&self, bit: Bit, first: PageIndex, count: u64) -> bool {
        self.parts(first, count).any(|(word, mask)| self.words[bit.index()].load(word) & mask != 0)
    }

    /// Whether `bit` is set for every page of `[first, first + count)`.
    pub fn all(&self, bit: Bit, first: PageIndex, count: u64) -> bool {
        self.parts(first, count).all(|(word, mask)| self.words[bit.index()].load(word) & mask == mask)
    }

    /// Pages of `[first, first + count)` with `bit` set.
    pub fn count(&self, bit: Bit, first: PageIndex, count: u64) -> u64 {
        let ones = |(word, mask): WordPart| self.words[bit.index()].load(word) & mask;
        self.parts(first, count).map(|part| u64::from(ones(part).count_ones())).sum()
    }

    /// The bits of the pages of the word that holds `page`, which is bit `page % 64`.
    pub fn word(&self, page: PageIndex) -> PageWord {
        let word = (page.0 / WORD_PAGES) as usize;
        let load = |bit: Bit| self.words[bit.index()].load(word);
        // `Pending` before `Disk`: the disk thread sets the second before it clears the first, so one of them is seen.
        let lost = load(Bit::Lost);
        let copies = std::array::from_fn(|copy_index| load(Bit::Copy(copy_index)));
        let pending = load(Bit::Pending);
        let disk = load(Bit::Disk);
        // `Lost` before and after: a copy that is taken away is marked lost before its bit goes, a page that is
        // written again has its copy's bit before the mark goes.
        PageWord { copies, disk, pending, lost: lost | load(Bit::Lost) }
    }

    /// Pages of the word that holds `page`, which is bit `page % 64`, that a dead process was writing and that are not
    /// settled: marked as being written, without an owner.
    pub fn in_doubt(&self, page: PageIndex) -> u64 {
        let word = (page.0 / WORD_PAGES) as usize;
        let writing = self.words[Bit::Writing.index()].load(word);
        if writing == 0 { 0 } else { writing & !self.words[Bit::Busy.index()].load(word) }
    }

    fn parts(&self, first: PageIndex, count: u64) -> impl Iterator<Item = WordPart> + Clone + use<> {
        assert!(count > 0 && first.0 + count <= self.page_count, "pages {first}+{count} of {}", self.page_count);
        word_parts(first, count)
    }
}

impl PageWord {
    /// Pages that have a current content somewhere.
    pub fn stored(&self) -> u64 {
        self.copies.iter().fold(self.disk | self.pending, |all, copy| all | copy)
    }

    /// The same, without what is stored where `bit` says.
    pub fn stored_besides(&self, bit: Bit) -> u64 {
        let mut rest = *self;
        match bit {
            Bit::Copy(copy_index) => rest.copies[copy_index] = 0,
            Bit::Disk => rest.disk = 0,
            Bit::Pending => rest.pending = 0,
            Bit::Busy | Bit::Lost | Bit::Writing => {}
        }
        rest.stored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ownership_is_all_or_nothing() {
        let bits = PageBits::new(256);
        assert!(bits.try_acquire(PageIndex(60), 10));
        assert!(!bits.try_acquire(PageIndex(0), 61), "overlaps in the first word");
        assert!(!bits.try_acquire(PageIndex(69), 100), "overlaps in the second word");
        assert!(bits.try_acquire(PageIndex(0), 60), "what a failed attempt took was given back");
        assert!(bits.try_acquire(PageIndex(70), 100));
        bits.release(PageIndex(60), 10);
        assert!(bits.try_acquire(PageIndex(60), 10));
    }

    #[test]
    #[should_panic(expected = "not owned")]
    fn releasing_what_is_not_owned_is_a_bug() {
        PageBits::new(64).release(PageIndex(3), 1);
    }

    #[test]
    fn pages_that_are_written_without_an_owner_are_in_doubt() {
        let bits = PageBits::new(128);
        bits.set(Bit::Writing, PageIndex(64), 3);
        assert!(bits.try_acquire(PageIndex(65), 1));
        assert_eq!((bits.in_doubt(PageIndex(70)), bits.in_doubt(PageIndex(0))), (0b101, 0));
    }

    #[test]
    fn a_word_shows_what_was_set() {
        let bits = PageBits::new(128);
        bits.set(Bit::Copy(2), PageIndex(65), 2);
        bits.set(Bit::Disk, PageIndex(66), 1);
        let word = bits.word(PageIndex(70));
        assert_eq!((word.copies[2], word.disk, word.lost), (0b110, 0b100, 0));
        assert_eq!(word.stored(), 0b110);
        assert_eq!((word.stored_besides(Bit::Copy(2)), word.stored_besides(Bit::Disk)), (0b100, 0b110));
    }

    proptest! {
        #[test]
        fn bitmaps_agree_with_a_set(steps in prop::collection::vec((0u8..3, 0u64..300, 1u64..200), 1..60)) {
            let bits = PageBits::new(500);
            let mut model = [false; 500];
            for (kind, first, count) in steps {
                let range = first as usize..(first + count) as usize;
                let first = PageIndex(first);
                match kind {
                    0 => { bits.set(Bit::Lost, first, count); model[range.clone()].fill(true); }
                    1 => { bits.clear(Bit::Lost, first, count); model[range.clone()].fill(false); }
                    _ => {}
                }
                prop_assert_eq!(bits.any(Bit::Lost, first, count), model[range.clone()].contains(&true));
                prop_assert_eq!(bits.all(Bit::Lost, first, count), !model[range.clone()].contains(&false));
                let ones = model[range].iter().filter(|set| **set).count() as u64;
                prop_assert_eq!(bits.count(Bit::Lost, first, count), ones);
                prop_assert_eq!(bits.count(Bit::Copy(0), PageIndex(0), 500), 0);
            }
        }
    }
}
