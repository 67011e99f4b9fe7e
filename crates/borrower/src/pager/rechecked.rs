//! Faults on pages that are there by all that is known.
//!
//! Mostly the page came while the fault waited to be read. But the kernel may take a page back that the program gave up with MADV_FREE
//! (madvise(2)), also one of which we have a copy, and tells nobody: then whoever misses it comes again and again. Such a page is
//! read from its copy; if it turns out to be there after all, it is what it was.

use spillway_sys::userfaultfd::Fault;

use super::directory::SpaceId;
use super::slots::Slot;

/// Pages that are remembered: more threads than these can miss such pages at one time, and come once more.
const REMEMBERED: usize = 32;

/// So often a thread may miss a page by old messages: it waited for a page, was woken by the end of something else, and waited again.
const MISSED_MAX: u32 = 8;

/// The last such faults.
#[derive(Debug, Default)]
pub struct Rechecked {
    missed: [Option<(SpaceId, u64, u32)>; REMEMBERED],
    next_missed: usize,
    taken: [Option<(SpaceId, u64, Slot)>; REMEMBERED],
    next_taken: usize,
}

impl Rechecked {
    /// Whether the page of `fault` was missed so often that it must be gone.
    pub fn is_gone(&mut self, space: SpaceId, fault: Fault) -> bool {
        let known =
            self.missed.iter_mut().find(|missed| missed.is_some_and(|(id, at, _)| (id, at) == (space, fault.address)));
        let Some(missed) = known else {
            self.missed[self.next_missed] = Some((space, fault.address, 1));
            self.next_missed = (self.next_missed + 1) % REMEMBERED;
            return false;
        };
        let count = missed.map_or(0, |(_, _, count)| count + 1);
        *missed = (count < MISSED_MAX).then_some((space, fault.address, count));
        missed.is_none()
    }

    /// The page at `address` is held for gone; `slot` has its content.
    pub fn took(&mut self, space: SpaceId, address: u64, slot: Slot) {
        self.taken[self.next_taken] = Some((space, address, slot));
        self.next_taken = (self.next_taken + 1) % REMEMBERED;
    }

    /// Whether the page at `address`, with its content in `slot`, was held for gone a while ago.
    pub fn was_taken(&mut self, space: SpaceId, address: u64, slot: Slot) -> bool {
        let taken = self.taken.iter_mut().find(|taken| **taken == Some((space, address, slot)));
        taken.is_some_and(|taken| taken.take().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_missed_again_and_again_is_gone() {
        let mut rechecked = Rechecked::default();
        let fault = |address| Fault { address, is_write: false, is_write_protected: false, thread: 7 };
        for _ in 0..2 {
            (1..MISSED_MAX).for_each(|_| assert!(!rechecked.is_gone(SpaceId(1), fault(4096))));
            assert!(!rechecked.is_gone(SpaceId(2), fault(4096)), "another program's");
            assert!(rechecked.is_gone(SpaceId(1), fault(4096)), "and then it starts anew");
        }
        assert!(!rechecked.is_gone(SpaceId(1), fault(4096)));
        (1..=REMEMBERED as u64).for_each(|page| assert!(!rechecked.is_gone(SpaceId(3), fault(page))));
        assert_eq!(rechecked.missed.iter().flatten().filter(|missed| missed.0 == SpaceId(1)).count(), 0, "forgotten");
    }

    #[test]
    fn what_was_held_for_gone_is_known_once() {
        let mut rechecked = Rechecked::default();
        rechecked.took(SpaceId(1), 4096, Slot(5));
        assert!(!rechecked.was_taken(SpaceId(1), 4096, Slot(6)) && !rechecked.was_taken(SpaceId(2), 4096, Slot(5)));
        assert!(rechecked.was_taken(SpaceId(1), 4096, Slot(5)));
        assert!(!rechecked.was_taken(SpaceId(1), 4096, Slot(5)));
    }
}
