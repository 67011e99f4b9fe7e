//! Pages that the kernel itself touches when a thread of a program ends (rule 4): the thread's control block with its
//! rseq area, the robust locks that it holds, and the word that the kernel clears then for the thread that waits for
//! its end (`CLONE_CHILD_CLEARTID`, set_tid_address(2)). The kernel gets no fault served then, so these pages stay.
//!
//! glibc has the word beside the head of the list of robust locks. Of other threads (made by clone(2) without a thread
//! library) it is not seen from outside, so the thread itself is asked once (`cleared_words`).
//!
//! The survey asks each millisecond, so what seldom changes is remembered: where a thread has its list. One call reads
//! the heads of all lists, and only lists with locks in them are walked. Asking after each thread by itself took half
//! of the survey's time beside a server with 30 threads. A program can make its memory unreadable, and then what was
//! read last counts.
//!
//! Invariant: a thread that the listing has and that was not asked yet is asked now. One remembered thread is asked
//! again at each look, since a thread may set another list, and numbers of threads are used again.

use std::io::ErrorKind;

use spillway_fabric::units::PAGE_SIZE_BYTES;
use spillway_sys::process::innermost_number;
use spillway_sys::process_memory::{read_words, robust_list, robust_locks};

use crate::page_table::virtual_page::VirtualPage;

/// Bytes before and behind a thread's robust list that stay in memory: the rest of its control block, and its rseq
/// area, which lie in the same thousands of bytes (glibc: `struct pthread` has 2.3 KiB with both in it).
const CONTROL_BLOCK_BYTES: u64 = PAGE_SIZE_BYTES as u64;

/// A thread, and where it has the head of its robust list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownThread {
    number: u32,
    /// None before its first instructions have set one.
    head: Option<u64>,
    word: ClearedWord,
}

/// Where the kernel clears a word when a thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClearedWord {
    /// Unknown at so many looks.
    Unknown(u8),
    /// In its control block, or nowhere.
    Kept,
    At(u64),
}

/// Threads of glibc set their list with their first instructions, and are not asked meanwhile.
const LOOKS_BEFORE_QUESTION: u8 = 2;

/// Where glibc has a thread's number, which is the word, before the head of the list (`struct pthread`, nptl/descr.h).
const NUMBER_BEFORE_HEAD_BYTES: u64 = 16;

/// The control blocks of one process.
#[derive(Debug)]
pub(super) struct ControlBlocks {
    process: u32,
    /// In the order of their numbers.
    known: Vec<KnownThread>,
    /// Which of them is asked again next.
    next: usize,
    /// Where the locks are that they hold, and the entries of these, as they were read last.
    locks: Vec<u64>,
    /// A word that several threads have in common, as musl's: no thread is asked any more.
    common_word: Option<u64>,
}

impl ControlBlocks {
    /// Of process `number`, of which no thread is known yet.
    pub(super) fn of(number: u32) -> Self {
        Self { process: number, known: Vec::new(), next: 0, locks: Vec::new(), common_word: None }
    }

    /// The pages that stay, in order, now that its threads are `listed`.
    pub(super) fn pages(&mut self, mut listed: Vec<u32>) -> Vec<VirtualPage> {
        listed.sort_unstable();
        self.follow(&listed, robust_list);
        self.find_words_of_glibc();
        let heads: Vec<u64> = self.known.iter().filter_map(|thread| thread.head).collect();
        let mut pages = Vec::with_capacity(3 * heads.len());
        for head in &heads {
            let first = VirtualPage::containing(head.saturating_sub(CONTROL_BLOCK_BYTES));
            let addresses = (first.address()..=head.saturating_add(CONTROL_BLOCK_BYTES)).step_by(PAGE_SIZE_BYTES);
            pages.extend(addresses.map(VirtualPage::at));
        }
        match if heads.is_empty() { Ok(Vec::new()) } else { robust_locks(self.process, &heads) } {
            Ok(locks) => self.locks = locks,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // It ended, or may not be looked into.
            Err(_) => self.locks.clear(),
        }
        let words = self.known.iter().filter_map(|thread| match thread.word {
            ClearedWord::At(address) => Some(address),
            ClearedWord::Unknown(_) | ClearedWord::Kept => None,
        });
        let addresses = self.locks.iter().copied().chain(self.common_word).chain(words);
        pages.extend(addresses.map(VirtualPage::containing));
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Threads that are to be asked where their word is, if their program can be asked.
    pub(super) fn to_ask(&self) -> Vec<u32> {
        let is_due = |thread: &&KnownThread| thread.word == ClearedWord::Unknown(LOOKS_BEFORE_QUESTION);
        self.known.iter().filter(is_due).map(|thread| thread.number).collect()
    }

    /// What `thread` answered: where its word is, if anywhere.
    pub(super) fn answered(&mut self, thread: u32, word: Option<u64>) {
        let word = word.map_or(ClearedWord::Kept, ClearedWord::At);
        if let ClearedWord::At(address) = word
            && self.known.iter().any(|other| other.number != thread && other.word == word)
        {
            self.common_word = Some(address);
        }
        if let Ok(index) = self.known.binary_search_by_key(&thread, |thread| thread.number) {
            self.known[index].word = word;
        }
    }

    fn find_words_of_glibc(&mut self) {
        let is_unknown = |thread: &KnownThread| matches!(thread.word, ClearedWord::Unknown(_));
        if !self.known.iter().any(is_unknown) {
            return;
        }
        let place = |thread: &KnownThread| {
            thread.head.filter(|_| is_unknown(thread)).map(|head| head.wrapping_sub(NUMBER_BEFORE_HEAD_BYTES))
        };
        let places: Vec<u64> = self.known.iter().filter_map(place).collect();
        let numbers = if places.is_empty() { Ok(Vec::new()) } else { read_words(self.process, &places) };
        let Ok(numbers) = numbers else { return };
        let mut numbers = numbers.into_iter();
        let is_common = self.common_word.is_some();
        for thread in &mut self.known {
            let ClearedWord::Unknown(looks) = thread.word else { continue };
            let number = thread.head.and_then(|_| numbers.next().flatten());
            let is_glibc =
                number.is_some_and(|number| number == thread.number || innermost_number(thread.number) == Some(number));
            thread.word = if is_glibc || is_common {
                ClearedWord::Kept
            } else {
                ClearedWord::Unknown((looks + 1).min(LOOKS_BEFORE_QUESTION))
            };
        }
    }

    /// Makes the known threads those of `listed`, in order, and asks `head_of` after those that it must.
    fn follow<E>(&mut self, listed: &[u32], head_of: impl Fn(u32) -> Result<Option<u64>, E>) {
        let asked_again = self.known.get(self.next).map(|thread| thread.number);
        self.next = if self.next < self.known.len() { self.next + 1 } else { 0 };
        // A listing may leave threads out while others end (proc(5)), so the known ones are asked for too.
        let is_listed = |number: u32| listed.binary_search(&number).is_ok();
        let is_new = |number: &u32| self.known.binary_search_by_key(number, |thread| thread.number).is_err();
        let new = listed.iter().copied().filter(is_new).map(|number| KnownThread {
            number,
            head: None,
            word: ClearedWord::Unknown(0),
        });
        let new: Vec<KnownThread> = new.collect();
        self.known.extend(new);
        self.known.sort_unstable_by_key(|thread| thread.number);
        self.known.retain_mut(|thread| {
            if thread.head.is_some() && is_listed(thread.number) && asked_again != Some(thread.number) {
                return true;
            }
            // A thread that ended meanwhile needs nothing.
            head_of(thread.number).is_ok_and(|head| {
                // Also the first list that it sets: what was found without one says nothing of it.
                if thread.head != head {
                    thread.word = ClearedWord::Unknown(0);
                }
                thread.head = head;
                true
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, Instant};

    use spillway_sys::threads::Threads;

    use super::*;

    #[test]
    fn the_control_block_of_this_thread_is_found() {
        let own = std::process::id();
        let (mut blocks, mut threads) = (ControlBlocks::of(own), Threads::of(own).unwrap());
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let head = robust_list(thread).unwrap().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let kept = blocks.pages(threads.list().unwrap());
            assert!(kept.windows(2).all(|pair| pair[0] < pair[1]));
            // Other tests' threads end meanwhile, and a listing may leave this one out.
            if kept.contains(&VirtualPage::containing(head)) {
                break;
            }
            assert!(Instant::now() < deadline, "this thread's control block is never found");
        }
        assert!(blocks.pages(Vec::new()).contains(&VirtualPage::containing(head)), "it was left out, and lives");
    }

    #[test]
    fn a_thread_is_asked_when_it_is_new_or_has_no_list_or_was_left_out_and_else_in_its_turn() {
        let asked = RefCell::new(Vec::new());
        let mut blocks = ControlBlocks::of(1);
        let mut look = |listed: &[u32], head_of: fn(u32) -> Result<Option<u64>, ()>| {
            asked.borrow_mut().clear();
            blocks.follow(listed, |number| {
                asked.borrow_mut().push(number);
                head_of(number)
            });
            (asked.borrow().clone(), blocks.known.iter().map(|thread| (thread.number, thread.head)).collect::<Vec<_>>())
        };
        let of_others = |number| Ok((number != 7).then_some(u64::from(number) * 100));
        assert_eq!(look(&[3, 7], of_others), (vec![3, 7], vec![(3, Some(300)), (7, None)]));
        // 7 has no list yet, and it is the turn of 3.
        assert_eq!(look(&[3, 7], |_| Ok(Some(5))), (vec![3, 7], vec![(3, Some(5)), (7, Some(5))]));
        let known = vec![(3, Some(5)), (7, Some(6))];
        assert_eq!(look(&[3, 7], |_| Ok(Some(6))), (vec![7], known.clone()), "the turn of 7");
        assert_eq!(look(&[3, 7], |_| Err(())), (vec![], known), "the round is over");
        let known = vec![(2, Some(2)), (3, Some(2)), (7, Some(6))];
        assert_eq!(look(&[2, 7], |_| Ok(Some(2))), (vec![2, 3], known), "2 is new, 3 was left out and had its turn");
        assert_eq!(look(&[2, 3], |number| (number != 7).then_some(Some(2)).ok_or(())).1, [(2, Some(2)), (3, Some(2))]);
    }

    #[test]
    fn threads_without_a_word_beside_their_list_are_asked_unless_all_have_one_in_common() {
        let mut blocks = ControlBlocks::of(u32::MAX >> 1);
        let no_list = |_: u32| Ok::<_, ()>(None);
        for _ in 0..LOOKS_BEFORE_QUESTION {
            assert!(blocks.to_ask().is_empty(), "they may set a list yet");
            blocks.follow(&[3, 7, 9], no_list);
            blocks.find_words_of_glibc();
        }
        assert_eq!(blocks.to_ask(), [3, 7, 9]);
        blocks.answered(3, Some(0x5008));
        blocks.answered(9, None);
        assert_eq!(blocks.to_ask(), [7]);
        // It has set a list, beside which there may be a word, and its memory may be unreadable.
        blocks.follow(&[3, 7, 9], |number| Ok::<_, ()>((number == 7).then_some(0x7000)));
        assert!(blocks.to_ask().is_empty());
        blocks.answered(7, Some(0x5008));
        assert_eq!(blocks.common_word, Some(0x5008));
        blocks.follow(&[8], no_list);
        blocks.find_words_of_glibc();
        assert!(blocks.to_ask().is_empty());
    }
}
