//! Faults on pages that are there by all that is known.
//!
//! Mostly the page came while the fault waited to be read. But the kernel may take a page back that the program gave
//! up with MADV_FREE (madvise(2)), also one of which we have a copy, and does not tell: then the thread that misses
//! it comes again and again. Such a page is read from its copy; if it turns out to be there after all, it is what it
//! was.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::VecDeque;

use spillway_sys::userfaultfd::Fault;

use crate::limits::FAULT_READS_MAX;
use crate::page_table::virtual_page::VirtualPage;
use crate::page_table::volume_pages::VolumePage;

/// Faults of one program that are remembered: so many threads can miss such pages at one time and none is forgotten.
const REMEMBERED: usize = 256;

/// Pages of one program held for gone that are remembered: as many as one thread can have reads under way.
const TAKEN_REMEMBERED: usize = FAULT_READS_MAX;

/// So often a thread may miss a page by old messages: it waited for a page, was woken by the end of something else,
/// and waited again.
const MISSED_MAX: u32 = 8;

/// An address, and the thread that missed its page.
type Missed = (u64, u32);

/// The last such faults of a program. It takes no memory before the first.
#[derive(Debug, Default)]
pub struct Rechecked {
    /// With how often it was.
    missed: Vec<(Missed, u32)>,
    next_missed: usize,
    /// The oldest first.
    taken: VecDeque<(VirtualPage, VolumePage)>,
}

impl Rechecked {
    /// Whether its thread missed the page of `fault` so often that it must be gone.
    pub fn is_gone(&mut self, fault: Fault) -> bool {
        let key = (fault.address, fault.thread);
        if let Some(index) = self.missed.iter().position(|(missed, _)| *missed == key) {
            self.missed[index].1 += 1;
            let is_gone = self.missed[index].1 >= MISSED_MAX;
            if is_gone {
                self.missed.swap_remove(index);
            }
            return is_gone;
        }
        if self.missed.len() < REMEMBERED {
            self.missed.push((key, 1));
        } else {
            self.next_missed = (self.next_missed + 1) % REMEMBERED;
            self.missed[self.next_missed] = (key, 1);
        }
        false
    }

    /// `page` came: what was missed before was not this, and it was gone if it was held for that.
    pub fn came(&mut self, page: VirtualPage) {
        self.taken.retain(|(taken, _)| *taken != page);
        self.missed.retain(|((address, _), _)| VirtualPage::containing(*address) != page);
    }

    /// `page` is held for gone; `slot` has its content.
    pub fn took(&mut self, page: VirtualPage, slot: VolumePage) {
        if self.taken.len() == TAKEN_REMEMBERED {
            self.taken.pop_front();
        }
        self.taken.push_back((page, slot));
    }

    /// Whether `page`, with its content in `slot`, was held for gone a while ago.
    pub fn was_taken(&mut self, page: VirtualPage, slot: VolumePage) -> bool {
        let index = self.taken.iter().position(|taken| *taken == (page, slot));
        index.is_some_and(|index| self.taken.remove(index).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = spillway_fabric::units::PAGE_SIZE_BYTES as u64;

    #[test]
    fn a_page_that_is_missed_again_and_again_is_gone() {
        let mut rechecked = Rechecked::default();
        let fault = |address| Fault { address, is_write: false, is_write_protected: false, thread: 7 };
        for _ in 0..2 {
            (1..MISSED_MAX).for_each(|_| assert!(!rechecked.is_gone(fault(4096))));
            assert!(!rechecked.is_gone(Fault { thread: 8, ..fault(4096) }), "another thread");
            assert!(rechecked.is_gone(fault(4096)), "and then it starts anew");
            rechecked.came(VirtualPage::at(4096));
        }
        assert!(rechecked.missed.is_empty());
        (1..MISSED_MAX).for_each(|_| assert!(!rechecked.is_gone(fault(4096))));
        rechecked.came(VirtualPage::at(4096));
        assert!(!rechecked.is_gone(fault(4096)), "it came meanwhile");
        (2..2 * REMEMBERED as u64).for_each(|page| assert!(!rechecked.is_gone(fault(page))));
        assert_eq!(rechecked.missed.len(), REMEMBERED);
    }

    #[test]
    fn what_was_held_for_gone_is_known_once() {
        let mut rechecked = Rechecked::default();
        let page = |number| VirtualPage::at(PAGE * number);
        rechecked.took(page(1), VolumePage(5));
        assert!(!rechecked.was_taken(page(1), VolumePage(6)) && !rechecked.was_taken(page(2), VolumePage(5)));
        assert!(rechecked.was_taken(page(1), VolumePage(5)));
        assert!(!rechecked.was_taken(page(1), VolumePage(5)));
        (0..=TAKEN_REMEMBERED as u64).for_each(|number| rechecked.took(page(number), VolumePage(1)));
        assert!(
            !rechecked.was_taken(page(0), VolumePage(1)) && rechecked.was_taken(page(1), VolumePage(1)),
            "the oldest is forgotten"
        );
    }
}
