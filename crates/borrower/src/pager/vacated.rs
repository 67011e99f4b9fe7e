//! Where `mremap` took pages from: the kernel unmaps that afterwards, and tells of it late.
//!
//! The message about the move is read first, and only then does the kernel go on to queue the one about the end of the old mapping
//! (`move_vma`, mm/mremap.c). Meanwhile another thread may have moved pages of its own into the hole, which the late message
//! must not forget: what is at the old place now is known to be something else. Seen with two threads: away from A, into A, and
//! then "A is unmapped" of the first.

use std::ops::Range;

use super::space::ranges::Ranges;

/// Ranges of which an end is still to be told.
#[derive(Debug, Default)]
pub struct Vacated {
    ranges: Ranges,
}

impl Vacated {
    /// Pages were moved away from `source`, which is unmapped by that.
    pub fn moved_away(&mut self, source: Range<u64>) {
        self.ranges.insert(source);
    }

    /// `range` is said to be unmapped: the parts of it whose pages are to be forgotten.
    pub fn unmapped(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Ranges::default();
        parts.insert(range.clone());
        self.ranges.within(range).iter().for_each(|vacated| parts.remove(vacated));
        self.ranges.remove(range);
        parts.within(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_expected_forgets_nothing_and_the_next_one_does() {
        let mut vacated = Vacated::default();
        vacated.moved_away(10..20);
        vacated.moved_away(40..50);
        assert_eq!(vacated.unmapped(&(10..20)), []);
        assert_eq!(vacated.unmapped(&(10..20)).as_slice(), std::slice::from_ref(&(10..20)));
        assert_eq!(vacated.unmapped(&(40..50)), []);
    }

    #[test]
    fn an_end_of_more_than_was_moved_forgets_the_rest() {
        let mut vacated = Vacated::default();
        vacated.moved_away(10..20);
        assert_eq!(vacated.unmapped(&(5..30)), [5..10, 20..30]);
        assert_eq!(vacated.unmapped(&(5..30)).as_slice(), std::slice::from_ref(&(5..30)));
    }
}
