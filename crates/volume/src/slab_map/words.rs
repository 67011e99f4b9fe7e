//! The words that a volume's truth is written in: in memory of this process, or in memory that outlives it.
//!
//! Every store of something that must survive the process goes through [`Words`], one word at a time, in an order
//! that leaves the whole consistent after each of them (docs/decisions/crash-recovery.md). In unit tests each store
//! is a point where the process may die: `crash_point` calls the test back before it. Under the scheduler of
//! `schedules` the words are the scheduler's own.

use std::sync::Arc;

use spillway_sys::atomic_words::AtomicWords;

use crate::sync::{AtomicU64, Ordering};

#[cfg(not(feature = "schedules"))]
type Memory = AtomicWords;
#[cfg(feature = "schedules")]
type Memory = Box<[AtomicU64]>;

/// A range of words, see the module text. A clone is the same range.
#[derive(Clone, Debug)]
pub struct Words {
    memory: Arc<Memory>,
    first: usize,
    count: usize,
}

impl Words {
    /// `count` zeroes in memory of this process.
    pub fn new(count: usize) -> Self {
        #[cfg(not(feature = "schedules"))]
        let memory = AtomicWords::anonymous(count).expect("a process without address space cannot go on");
        #[cfg(feature = "schedules")]
        let memory = (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { memory: Arc::new(memory), first: 0, count }
    }

    /// All of `memory`; under the scheduler a copy of it.
    pub fn over(memory: AtomicWords) -> Self {
        let count = memory.len();
        #[cfg(feature = "schedules")]
        let memory: Memory =
            memory.iter().map(|word| AtomicU64::new(word.load(std::sync::atomic::Ordering::SeqCst))).collect();
        Self { memory: Arc::new(memory), first: 0, count }
    }

    /// `count` of these words, from `first` on.
    pub fn part(&self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.count, "words {first}+{count} of {}", self.count);
        Self { memory: Arc::clone(&self.memory), first: self.first + first, count }
    }

    /// Words in the range.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The word at `index`.
    pub fn load(&self, index: usize) -> u64 {
        self.at(index).load(Ordering::SeqCst)
    }

    /// Sets a word.
    pub fn store(&self, index: usize, value: u64) {
        crash::point();
        self.at(index).store(value, Ordering::SeqCst);
    }

    /// Sets a word and says what it was.
    pub fn swap(&self, index: usize, value: u64) -> u64 {
        crash::point();
        self.at(index).swap(value, Ordering::SeqCst)
    }

    /// Sets the bits of `mask` and says what the word was.
    pub fn set_bits(&self, index: usize, mask: u64) -> u64 {
        crash::point();
        self.at(index).fetch_or(mask, Ordering::SeqCst)
    }

    /// Clears the bits of `mask` and says what the word was.
    pub fn clear_bits(&self, index: usize, mask: u64) -> u64 {
        crash::point();
        self.at(index).fetch_and(!mask, Ordering::SeqCst)
    }

    fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        &self.memory[self.first + index]
    }
}

#[cfg(not(test))]
mod crash {
    #[inline(always)]
    pub(super) fn point() {}
}

/// Where a test may look at what a process that dies here leaves behind.
#[cfg(test)]
pub(crate) mod crash {
    use std::cell::RefCell;

    type Observer = Box<dyn FnMut()>;

    thread_local! {
        static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
    }

    /// Calls `observer` before each store of this thread, or no thread any more.
    pub(crate) fn observe(observer: Option<Observer>) {
        OBSERVER.with(|current| *current.borrow_mut() = observer);
    }

    pub(super) fn point() {
        OBSERVER.with(|current| {
            // The observer's own stores are not observed.
            let taken = current.borrow_mut().take();
            if let Some(mut observer) = taken {
                observer();
                current.borrow_mut().get_or_insert(observer);
            }
        });
    }
}

#[cfg(test)]
#[cfg(not(feature = "schedules"))]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_same_words() {
        let words = Words::new(10);
        let part = words.part(4, 3).part(1, 2);
        part.store(0, 9);
        assert_eq!((words.load(5), part.count()), (9, 2));
        assert_eq!(words.set_bits(5, 6), 9);
        assert_eq!(words.clear_bits(5, 1), 15);
        assert_eq!(part.swap(0, 1), 14);
    }

    #[test]
    #[should_panic(expected = "word 3 of 3")]
    fn a_part_has_an_end() {
        Words::new(10).part(4, 3).load(3);
    }

    #[test]
    fn each_store_is_seen_before_it_happens() {
        let words = Words::new(1);
        let (seen, looked_at) = (std::rc::Rc::new(std::cell::RefCell::new(Vec::new())), words.clone());
        let seen_by_observer = std::rc::Rc::clone(&seen);
        crash::observe(Some(Box::new(move || seen_by_observer.borrow_mut().push(looked_at.load(0)))));
        words.store(0, 1);
        words.set_bits(0, 2);
        crash::observe(None);
        words.store(0, 9);
        assert_eq!(*seen.borrow(), [0, 1]);
    }
}
